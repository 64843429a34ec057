"""Random lives of simulated runs; what must hold of every decision is checked by the world."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from closeranks.decide.controller import initial, step
from closeranks.decide.protocol import (
    Crash,
    ProcEnded,
    ProcFinished,
    ProcJoined,
    ProcPaused,
    ProcReady,
    ProcRegrouped,
    ProcRestored,
    ProcResumed,
    ProcStuck,
    StopAsked,
    TermPoisoned,
)
from closeranks.decide.state import Deadlines, Settings
from closeranks.events import Decided, IncidentClosed, IncidentOpened, Rung

KINDS = ["kill", "kill", "freeze", "crash", "exit", "leave", "poison", "corrupt", "stop"]
faults = st.lists(st.tuples(st.floats(0.0, 6.0), st.sampled_from(KINDS), st.integers(0, 5)), max_size=6)


def strike(world: World, kind: str, choice: int) -> None:  # noqa: C901 - one plain case for each kind
    living = [s for s in world.living() if not s.frozen]
    if not living:
        return
    sim = living[choice % len(living)]
    crash = Crash(error="ValueError", message="", where="train.py:1", step=sim.closed_step + 1)
    match kind:
        case "kill":
            world.kill(sim.number)
        case "freeze":
            world.freeze(sim.number)
        case "crash":
            world.exit(sim.number, code=1, crash=crash)
        case "exit":
            world.exit(sim.number, code=choice)
        case "leave":
            world.exit(sim.number, code=0, left_at_step=sim.closed_step)
        case "corrupt":
            sim.corrupt = "!"
        case "stop":
            world.feed(StopAsked(now=choice == 0))
        case "poison":
            for peer in living:
                world._notice(peer, peer.term)


def broken_world(seed: int, spares: int, planned: list) -> World:
    settings = Settings(seats=1 + seed % 4, spares=spares, deadlines=Deadlines(join_s=60.0))
    world = World(settings=settings, seed=seed, save_every=3 * (seed % 3))
    for after_s, kind, choice in planned:
        world.at(world.now_s + after_s, lambda kind=kind, choice=choice: strike(world, kind, choice))
    return world


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2), faults)
def test_every_failure_ends_in_progress_or_in_a_reasoned_stop(seed, spares, planned):
    world = broken_world(seed, spares, planned).run()
    if world.ended.outcome == "completed":
        assert world.ended.exit_code == 0
        left_together = len(world.state.group.exited) == world.settings.seats
        assert left_together or sorted(set(world.steps_done)) == list(range(world.until))
    elif world.ended.outcome == "stopped":
        assert world.ended.exit_code == 143
    else:
        assert world.ended.exit_code != 0
        assert world.events(Decided)[-1].rung is Rung.STOP, world.transcript()
    opened = [e.incident for e in world.events(IncidentOpened)]
    assert opened == [e.incident for e in world.events(IncidentClosed)], "incidents open and close one by one"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), faults)
def test_steps_are_repeated_only_by_a_restart_of_the_group(seed, planned):
    world = broken_world(seed, 1, planned).run()
    cold = [d for d in world.events(Decided) if d.rung in (Rung.COLD_RESTART, Rung.ROLL_BACK)]
    lost = sum(e.steps_lost for e in world.events(IncidentClosed))
    if sorted(set(world.steps_done)) == list(range(world.until)):
        assert len(world.steps_done) - world.until == lost
    assert cold or len(world.steps_done) == len(set(world.steps_done))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), faults)
def test_the_same_facts_give_the_same_decisions(seed, planned):
    world = broken_world(seed, 1, planned).run()
    state, again = initial(world.settings), []
    for fact, now_s in world.facts:
        state, decisions = step(state, fact, now_s)
        again += [(now_s, d) for d in decisions]
    assert again == world.decisions
    assert state == world.state


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), faults)
def test_stale_facts_change_nothing(seed, planned):
    world = broken_world(seed, 1, planned)
    rng = random.Random(seed)
    feed = world.feed

    def feed_with_echoes(fact):
        feed(fact)
        for stale in stale_facts(world, rng):
            after, decisions = step(world.state, stale, world.now_s)
            assert after == world.state
            assert decisions == ()

    world.feed = feed_with_echoes
    world.run()


def stale_facts(world, rng):
    dead = [s.number for s in world.procs.values() if s.told_end] + [10_000]
    number = rng.choice(dead)
    term = world.state.group.term
    old = rng.randrange(term) if term else 0
    member = rng.choice([s.number for s in world.procs.values()] or [1])
    paused = {"closed_step": 3, "intact": True, "settled": True, "digest": "d"}
    return rng.sample(
        [
            ProcJoined(proc=number),
            ProcReady(proc=number, replicated=True, settled=True),
            ProcEnded(proc=number, code=1, signal=None, crash=None, left_at_step=None),
            ProcStuck(proc=number, detail="", silent_s=3.0, allowed_s=2.0),
            ProcFinished(proc=number, step=3),
            TermPoisoned(proc=number, term=term, detail=""),
            TermPoisoned(proc=member, term=old, detail=""),
            ProcPaused(proc=number, term=term, **paused),
            ProcPaused(proc=member, term=old, **paused),
            ProcRegrouped(proc=number, term=term, groups="other"),
            ProcRegrouped(proc=member, term=old, groups="other"),
            ProcRestored(proc=number, term=term, step=9, digest="other"),
            ProcRestored(proc=member, term=old, step=9, digest="other"),
            ProcResumed(proc=member, term=old),
        ],
        3,
    )
