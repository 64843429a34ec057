"""Random lives of runs on several nodes; what must hold of every decision is checked by the world."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from node_world import NodeWorld
from test_controller_properties import strike

from closeranks.decide.adoption import Known, adopt
from closeranks.decide.controller import initial, step
from closeranks.decide.protocol import BeginTerm
from closeranks.decide.state import Deadlines, Settings
from closeranks.events import CoordinatorBegan

OF_PROCS = ["kill", "freeze", "crash", "leave", "poison", "corrupt", "stop"]
OF_NODES = ["die", "die", "told to leave", "join", "join", "silence", "gone for a while", "silent for ever"]
OF_COORDINATOR = ["crash", "crash in between", "crash in between"]
faults = st.lists(
    st.tuples(
        st.floats(0.0, 8.0),
        st.sampled_from(OF_PROCS[:1] * 3 + OF_PROCS + OF_NODES * 2 + OF_COORDINATOR * 3),
        st.integers(0, 5),
    ),
    max_size=7,
)


def strike_node(world: NodeWorld, kind: str, choice: int) -> None:
    names = [node.name for node in world.nodes.values() if node.up and not node.cut]
    name = names[choice % len(names)] if names else ""
    match kind:
        case "die" if name:
            world.die(name)
        case "told to leave" if name:
            world.leave(name)
        case "join":
            world.join(f"n{len(world.nodes) if choice % 2 else choice}")
        case "silence" if name:
            world.silence(name, for_s=1.5 + 0.5 * choice)
        case "gone for a while" if name:
            world.silence(name, for_s=20.0 * choice, lost_after_s=1000.0)
        case "silent for ever" if name:
            world.silence(name, for_s=1000.0)
        case "crash":
            world.crash(for_s=0.5 + choice)
        case "crash in between":
            world.crash_after = choice
        case _:
            strike(world, kind, choice)


def broken_world(seed: int, planned: list) -> NodeWorld:
    needed = 1 + seed % 3
    wanted = Settings(
        seats=needed * 2,
        spares=seed % 2,
        nodes_needed=needed,
        nodes_min=seed // 4 % 2,
        node_patience_s=60.0,
        deadlines=Deadlines(join_s=60.0),
    )
    world = NodeWorld(settings=wanted, seed=seed, save_every=3 * (seed % 3))
    world.with_nodes(*[f"n{k}" for k in range(needed + seed % 2)], slots=2 + (seed // 2) % 2)
    for after_s, kind, choice in planned:
        world.at(world.now_s + after_s, lambda kind=kind, choice=choice: strike_node(world, kind, choice))
    return world


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), faults)
@example(3, [(1.0, "kill", 0), (1.0, "kill", 1), (1.0, "silence", 0)])  # a member and the spare ended unheard
@example(0, [(2.0, "leave", 0), (2.0, "leave", 0), (2.0, "silence", 0), (1.5, "kill", 0)])  # so did all, in turn
def test_every_failure_of_nodes_and_coordinators_ends_in_progress_or_in_a_reasoned_stop(seed, planned):
    world = broken_world(seed, planned).run(horizon_s=4000.0)
    assert world.ended.reason
    assert world.ended.outcome != "completed" or world.ended.exit_code == 0
    terms = [d.term for d in world.of(BeginTerm)]
    assert terms == sorted(set(terms)), "no term begins twice"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), faults)
def test_the_same_facts_and_reports_give_the_same_decisions(seed, planned):
    world = broken_world(seed, planned).run(horizon_s=4000.0)
    state, again = initial(world.wanted), []
    for fact, now_s in world.facts:
        if isinstance(fact, Known):
            state, decisions = adopt(world.wanted, fact, now_s)
        else:
            state, decisions = step(state, fact, now_s)
        again += [(now_s, d) for d in decisions]
    assert again == world.decisions
    assert state == world.state


def test_coordinators_are_replaced_in_these_worlds():
    world = broken_world(1, [(2.0, "crash", 1)]).run()
    assert len(world.events(CoordinatorBegan)) == 1
