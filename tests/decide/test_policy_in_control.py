"""What the policy's parts do to a run: canaries, suspicion, waits, nodes that are left, batches that are split."""

import pytest
from msgspec.structs import replace
from node_world import NodeWorld
from world import World

from closeranks.decide import quarantine
from closeranks.decide.answers import Answer
from closeranks.decide.budgets import Limits
from closeranks.decide.canary import Rules
from closeranks.decide.protocol import (
    BeginTerm,
    Begun,
    Crash,
    GroupStuck,
    Origin,
    ProcSplits,
    StartGroup,
    StateCleared,
    StateSuspected,
)
from closeranks.decide.state import Settings
from closeranks.events import (
    BatchesSplitFiner,
    CanaryFailed,
    CanaryPassed,
    CorruptionCleared,
    CorruptionSuspected,
    Decided,
    Diagnosed,
    ErrorSeen,
    NodeBlamed,
    NodeQuarantined,
    PersonNeeded,
    Rung,
)

NO_MEMORY = Crash(error="OutOfMemoryError", message="tried to allocate 2 GiB", where="train.py:31", step=10)
SEGFAULT = 11
DAY_S = 86_400.0


def world_of(seats=3, *, at_step, until=60, save_every=0, **settings):
    world = World(settings=Settings(seats=seats, **settings), jitter=0.0, until=until, save_every=save_every)
    return struck(world, at_step)


def struck(world, at_step):
    strikes = dict(at_step)

    def strike(number):
        if number in strikes:
            strikes.pop(number)(world)

    world.step_hook = strike
    return world


def kill(seat):
    return lambda world: world.kill(world.occupant(seat).number)


def no_memory(seat):
    return lambda world: world.exit(world.occupant(seat).number, code=1, crash=NO_MEMORY)


def rungs(world):
    return [e.rung for e in world.events(Decided)]


# --- canaries -------------------------------------------------------------------------------------------------------


def test_after_a_recovery_that_worked_the_canary_passes_and_nothing_else_happens():
    world = world_of(at_step={20: kill(1)})
    world.loss_of = lambda step: 5.0 - step / 100
    world.run()
    (passed,) = world.events(CanaryPassed)
    assert (passed.incident, passed.step, passed.back_after_steps, passed.replicas) == (1, 22, 0, 3)
    assert rungs(world) == [Rung.FORK]


def losses_wrong_until_a_roll_back(world, times):
    """Losses are wrong after the failure, until so many groups were started with saved state."""

    def loss_of(step):
        wrong = len(world.events(Decided)) > 0 and len(world.of(StartGroup)) - 1 < times
        return (50.0 if wrong else 5.0) - step / 100

    return loss_of


def test_a_canary_that_fails_goes_back_to_an_older_state_and_saves_are_not_trusted_meanwhile():
    world = world_of(at_step={20: kill(1)}, save_every=5)
    world.loss_of = losses_wrong_until_a_roll_back(world, 1)
    world.run()
    (failed,) = world.events(CanaryFailed)
    assert failed.steps == Rules().steps
    assert "loss 4" in failed.reason
    assert rungs(world) == [Rung.FORK, Rung.ROLL_BACK]
    assert world.of(StartGroup)[1].origin is Origin.VERIFIED
    assert world.of(StartGroup)[1].before_step == 20, "what was saved since the recovery is no help"
    assert [e.source for e in world.events(CorruptionSuspected)] == ["canary"]
    assert [e.source for e in world.events(CorruptionCleared)] == ["canary"]
    assert len(world.events(CanaryPassed)) == 1
    assert (world.ended.outcome, world.state.before_step) == ("completed", None)


def test_a_state_that_was_loaded_and_failed_is_not_loaded_again():
    world = world_of(at_step={20: kill(1)}, save_every=5)
    world.loss_of = losses_wrong_until_a_roll_back(world, 2)
    world.run()
    first, second = world.of(StartGroup)[1:]
    assert second.before_step < first.before_step
    assert rungs(world) == [Rung.FORK, Rung.ROLL_BACK, Rung.ROLL_BACK]
    assert world.ended.outcome == "completed"


def test_roll_backs_for_that_reason_have_a_budget():
    world = world_of(at_step={20: kill(1)}, save_every=5, limits=Limits(roll_backs=1))
    world.loss_of = losses_wrong_until_a_roll_back(world, 9)
    world.run()
    assert rungs(world) == [Rung.FORK, Rung.ROLL_BACK, Rung.STOP]
    assert "all 1 roll backs for that reason are used up" in world.ended.reason
    assert world.events(Diagnosed)[-1].fault == "bad recovery"


def test_without_saved_state_a_failed_canary_asks_a_person_and_goes_on():
    world = world_of(at_step={20: kill(1)})
    world.loss_of = losses_wrong_until_a_roll_back(world, 9)
    world.run()
    assert len(world.events(CanaryFailed)) == 1
    assert "no state was saved" in world.events(PersonNeeded)[0].reason
    assert world.ended.outcome == "completed"


# --- suspicion ------------------------------------------------------------------------------------------------------


def test_while_the_state_is_suspected_a_restart_goes_back_to_what_is_trusted():
    def suspected(world):
        world.feed(StateSuspected(source="numerics", detail="gradients of seat 1 cannot be repeated"))
        for seat in (0, 1, 2):
            kill(seat)(world)

    world = world_of(at_step={20: suspected}, save_every=5).run()
    assert rungs(world)[-1] is Rung.ROLL_BACK
    assert world.of(StartGroup)[1].origin is Origin.VERIFIED
    (cleared,) = world.events(CorruptionCleared)
    assert "replaced by the trusted one" in cleared.detail
    assert world.state.suspicion == ""


def test_a_suspicion_is_cleared_by_whoever_raised_it():
    world = world_of(
        at_step={
            5: lambda world: world.feed(StateSuspected(source="numerics", detail="a loss of 1e9")),
            6: lambda world: world.feed(StateSuspected(source="numerics", detail="a loss of 1e10")),
            8: lambda world: world.feed(StateCleared(source="probe", detail="not ours")),
            9: lambda world: world.feed(StateCleared(source="numerics", detail="the replay agrees")),
        }
    ).run()
    assert [e.detail for e in world.events(CorruptionSuspected)] == ["a loss of 1e9"]
    assert [e.detail for e in world.events(CorruptionCleared)] == ["the replay agrees"]


# --- waits and rungs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wait_s", "least_s"), [(0.0, 0.0), (30.0, 30.0)])
def test_the_second_try_to_regroup_waits_as_long_as_the_policy_says(wait_s, least_s):
    stuck = GroupStuck(detail="nobody moves", suspects=())
    world = world_of(at_step={10: lambda world: world.feed(stuck)}, answers={"network loss": Answer(wait_s=wait_s)})
    lost = []

    def cut(decision):
        """The first term after the standstill does not connect."""
        if isinstance(decision, BeginTerm) and decision.term > 1 and not lost:
            lost.append(decision.term)
            for sim in world.procs.values():
                world.after(0.01, lambda sim=sim: world._notice(sim, decision.term))

    world.decision_hook = cut
    world.run()
    terms = {decision.term: at_s for at_s, decision in world.decisions if isinstance(decision, BeginTerm)}
    again_s = terms[lost[0] + 1] - terms[lost[0]]
    assert least_s <= again_s < least_s + 5.0
    assert world.ended.outcome == "completed"


def test_a_fault_that_only_a_person_may_answer_stops_the_run_with_the_advice():
    world = world_of(at_step={10: kill(1)}, answers={"process killed": Answer(rungs=())}).run()
    assert rungs(world) == [Rung.STOP]
    assert "out-of-memory killer" in world.ended.reason


# --- exhausted memory -----------------------------------------------------------------------------------------------


def asks(world, finer):
    world.started_hook = lambda sim: world.after(
        0.3, lambda: world.feed(ProcSplits(proc=sim.number, finer=finer)) if sim.alive else None
    )
    return world


def test_exhausted_memory_splits_batches_finer_where_the_script_asks_for_it():
    world = asks(world_of(at_step={10: no_memory(1), 20: no_memory(2)}), 8).run()
    assert [e.finer for e in world.events(BatchesSplitFiner)] == [2, 4]
    assert [d.finer for d in world.of(BeginTerm)] == [1, 2, 4]
    assert [e.fault for e in world.events(Diagnosed)] == ["out of memory"] * 2
    assert world.ended.outcome == "completed"


def test_seats_that_run_out_of_memory_together_split_once():
    both = lambda world: [no_memory(seat)(world) for seat in (0, 1)]  # noqa: E731
    world = asks(world_of(at_step={10: both}), 8).run()
    assert [e.finer for e in world.events(BatchesSplitFiner)] == [2]
    assert world.ended.outcome == "completed"


@pytest.mark.parametrize("finer", [0, 1, 3])
def test_where_batches_cannot_be_split_any_finer_the_run_stops_with_that_advice(finer):
    steps = {10: no_memory(1), 20: no_memory(1)}
    world = world_of(at_step=steps)
    world = (asks(world, finer) if finer else world).run()
    assert [e.finer for e in world.events(BatchesSplitFiner)] == ([2] if finer > 1 else [])
    assert world.ended.outcome == "failed"
    assert "job.accumulation" in world.ended.reason


# --- nodes ----------------------------------------------------------------------------------------------------------


def node_world(at_step, hosts="abc", **settings):
    names = [f"n{k}" for k in range(len(hosts))]
    settings = Settings(seats=4, nodes_needed=2, **settings)
    world = NodeWorld(settings=settings, jitter=0.0, until=60).with_nodes(*names)
    world.hosts = dict(zip(names, hosts, strict=True))
    return struck(world, at_step)


def segfault(seat):
    return lambda world: world.exit(world.occupant(seat).number, signal=SEGFAULT)


def test_a_fault_that_comes_again_on_one_slot_takes_the_node_out_and_its_next_seat_elsewhere():
    world = node_world({10: segfault(3), 20: segfault(3), 30: segfault(3)}).run()
    assert [(e.host, e.unit) for e in world.events(NodeBlamed)] == [("b", "slot 1")] * 3
    (quarantined,) = world.events(NodeQuarantined)
    assert (quarantined.node, quarantined.host, quarantined.hours) == ("n1", "b", 24.0)
    assert rungs(world) == [Rung.FORK, Rung.FORK, Rung.REPLACE_NODE]
    assert world.state.places == ("n0", "n0", "n1", "n2"), "what lives on the node goes on there"
    assert world.ended.outcome == "completed"


def test_a_node_that_is_kept_out_still_serves_where_no_other_has_room():
    world = node_world({10: segfault(3), 20: segfault(3), 30: segfault(3)}, hosts="ab").run()
    assert len(world.events(NodeQuarantined)) == 1
    assert world.state.places == ("n0", "n0", "n1", "n1")
    assert world.ended.outcome == "completed"


def test_the_same_fault_on_several_nodes_is_not_theirs():
    world = node_world({k: segfault(k % 4) for k in range(8, 32, 3)}).run()
    assert world.events(NodeQuarantined) == []


def remembered(world, host, by):
    past = quarantine.Past(quarantine=quarantine.Quarantine(since_s=0.0, until_s=1e9, reason="fan", by=by))
    register, feed = quarantine.Register(nodes={host: past}), world.feed
    world.feed = lambda fact: feed(replace(fact, register=register) if isinstance(fact, Begun) else fact)
    return world


def test_a_node_that_a_person_keeps_out_gets_no_seat():
    world = remembered(node_world({}, hosts="abc"), "b", quarantine.By.PERSON).run()
    assert set(world.state.places) == {"n0", "n2"}
    told = [e.detail for e in world.events(ErrorSeen) if e.detector == "quarantine"]
    assert "closeranks nodes release b" in told[0]


def test_a_node_that_a_rule_keeps_out_is_the_last_that_is_taken():
    assert set(remembered(node_world({}), "b", quarantine.By.RULE).run().state.places) == {"n0", "n2"}
    assert set(remembered(node_world({}, hosts="ab"), "b", quarantine.By.RULE).run().state.places) == {"n0", "n1"}
