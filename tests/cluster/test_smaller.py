"""A job that goes on with fewer nodes, where that is allowed: on loopback, by the real command line."""

from __future__ import annotations

import pytest

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Verified
from closeranks.checkpoint.stores.opening import open_store
from closeranks.drill.nodes.runs import AUTHORITY, NodesRun, NodesSpec, closed_step
from closeranks.drill.nodes.stand import Stand
from closeranks.events import CheckpointCommitted, Decided, ProcessReady, Rung, StateLoaded, StepClosed
from cluster.conftest import TOY
from situations.trial import Trial

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

STEPS, STEP_MS, HOLD, AGAIN = 43, 120, 26, 38  # slow enough for a save before the first hold
WITHIN_S = 90.0  # on a busy machine; nothing waits for it to pass


@pytest.fixture
def two_nodes(tmp_path):
    """The toy on two nodes, of which one may go on alone.

    It waits before step HOLD until ``go`` is in the folder, and before step AGAIN until ``again`` is. In between it
    takes its time until ``kept`` is there: a save is asked for some steps ahead.
    """
    saving = ("--store", str(tmp_path / "store"), "--save-every", "2", "--keep", "last=100")
    options = ("--nnodes", "1:2", "--node-patience", "1s", *saving)
    hold = ("TOY_HOLD", f"{HOLD}:{tmp_path / 'go'},{AGAIN}:{tmp_path / 'again'}")
    linger = ("TOY_LINGER", f"{HOLD}:{tmp_path / 'kept'}")
    spec = NodesSpec((TOY, str(STEPS), str(STEP_MS)), 2, 0, 1, "store", options, (hold, linger))
    with Stand((*spec.nodes, AUTHORITY)) as stand:
        run = NodesRun(spec, stand, tmp_path / "nodes")
        run.start()
        yield run


def seen(run, kind):
    return [record.event for record in run.all_records() if isinstance(record.event, kind)]


def test_one_node_after_the_other_is_lost_and_the_job_ends_as_a_run_of_the_size_that_is_left(two_nodes, tmp_path):
    """First one with the coordinator; when another is there, the last one with a seat, and again the coordinator."""
    run: NodesRun = two_nodes
    wait_for(run, lambda: closed_step(run.all_records()) >= HOLD - 1 and seen(run, CheckpointCommitted))
    lead = run.leader()
    (left,) = {*run.spec.nodes} - {lead}
    lose(run, lead)  # with it the saver that commits
    (tmp_path / "go").touch()
    wait_for(run, lambda: saved_alone(run, left))
    (tmp_path / "kept").touch()
    wait_for(run, lambda: closed_step(run.records(left)) >= AGAIN - 1)
    run.start_node(lead)
    wait_for(run, lambda: events(run.records(lead), ProcessReady))
    lose(run, left)
    (tmp_path / "again").touch()
    wait_for(run, lambda: not run.running())
    evidence = run.finish()
    (lost, alone), (end,) = split(evidence)
    assert (end.exit_code, evidence.left) == (0, ()), outputs(evidence)
    assert (lost.node, alone.node, end.node) == (lead, left, lead)
    (shrunk,) = (event for event in events(alone.records, Decided) if event.rung is Rung.SHRINK)
    assert "the group goes on with 1 of 2 seats from the saved step" in shrunk.reason
    first, last = went_on(alone), went_on(end)
    assert closed(alone) == list(range(first + 1, AGAIN))
    assert closed(end) == list(range(last + 1, STEPS))
    assert HOLD <= last < AGAIN
    assert end.finals == resumed_by_hand(tmp_path, first)


def lose(run, node) -> None:
    run.stand.kill(node)
    run.node_ended(node)


def wait_for(run, condition) -> None:
    assert run.wait_for(condition, WITHIN_S), outputs(run.finish())


def saved_alone(run, node) -> bool:
    """Whether a step was saved after the node went on alone."""
    return any(event.step >= HOLD for event in events(run.records(node), CheckpointCommitted))


def split(evidence):
    """The runs of nodes that were lost, and the others."""
    lost = [one for one in evidence.runs if one.ended_by_drill]
    return lost, [one for one in evidence.runs if not one.ended_by_drill]


def went_on(one) -> int:
    """The step that this node's seat loaded."""
    (loaded,) = events(one.records, StateLoaded)
    return loaded.step


def closed(one) -> list[int]:
    """The steps that the single seat of this node closed after it had loaded."""
    steps = [event for event in events(one.records, StepClosed) if event.seats == () and len(event.losses) == 1]
    return [event.step for event in steps]


def resumed_by_hand(folder, step: int) -> dict:
    """The final states of a run of one seat that begins with this step of the same store."""
    log = CommitLog(open_store(str(folder / "store")))
    for one in log.refresh().generations.values():
        if one.manifest.world == 1:
            log.append_as_visitor(Verified(generation=one.number, held=False, detail="another run made it"))
    hand = folder / "hand"
    hand.mkdir()
    trial = Trial(hand, "--store", str(folder / "store"), "--resume", "auto", TOY, str(STEPS), str(STEP_MS))
    try:
        ended = trial.end()
    finally:
        trial.clean_up()
    assert ended.code == 0, ended.output
    assert [event.step for event in ended.events(StateLoaded)] == [step]
    return ended.finals


def events(records, kind):
    return [record.event for record in records if isinstance(record.event, kind)]


def outputs(evidence) -> str:
    return "\n".join(f"{one.node}:\n{one.output}" for one in evidence.runs)
