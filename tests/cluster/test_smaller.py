"""A job that goes on with fewer nodes, where that is allowed: on loopback, by the real command line."""

from __future__ import annotations

import pytest

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Verified
from closeranks.checkpoint.stores.opening import open_store
from closeranks.drill.nodes.runs import AUTHORITY, NodesRun, NodesSpec, closed_step
from closeranks.drill.nodes.stand import Stand
from closeranks.events import CheckpointCommitted, Decided, Rung, StateLoaded, StepClosed
from cluster.conftest import TOY
from situations.trial import Trial

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

STEPS, STEP_MS, HOLD = 24, 60, 14  # slow enough for a save before the hold
WITHIN_S = 60.0  # on a busy machine; nothing waits for it to pass


@pytest.fixture
def two_nodes(tmp_path):
    """The toy on two nodes, of which one may go on alone; it waits before step HOLD until ``go`` is in the folder."""
    saving = ("--store", str(tmp_path / "store"), "--save-every", "2", "--keep", "last=100")
    options = ("--nnodes", "1:2", "--node-patience", "1s", *saving)
    hold = (("TOY_HOLD", f"{HOLD}:{tmp_path / 'go'}"),)
    spec = NodesSpec((TOY, str(STEPS), str(STEP_MS)), 2, 0, 1, "store", options, hold)
    with Stand((*spec.nodes, AUTHORITY)) as stand:
        run = NodesRun(spec, stand, tmp_path / "nodes")
        run.start()
        yield run


def seen(run, kind):
    return [record.event for record in run.all_records() if isinstance(record.event, kind)]


def test_when_a_node_is_lost_for_good_the_other_ends_as_a_run_of_its_size_would(two_nodes: NodesRun, tmp_path):
    run = two_nodes
    held = run.wait_for(lambda: closed_step(run.all_records()) >= HOLD - 1 and seen(run, CheckpointCommitted), WITHIN_S)
    assert held, outputs(run.finish())
    lead = run.leader()
    (left,) = {*run.spec.nodes} - {lead}
    run.stand.kill(lead)  # with the coordinator, and the saver that commits
    run.node_ended(lead)
    (tmp_path / "go").touch()
    run.wait_for(lambda: not run.running(), WITHIN_S)
    evidence = run.finish()
    records = {one.node: one.records for one in evidence.runs}
    end = next(one for one in evidence.runs if one.node == left)
    assert (end.exit_code, evidence.left) == (0, ()), outputs(evidence)
    (shrunk,) = (event for event in events(records[left], Decided) if event.rung is Rung.SHRINK)
    assert "the group goes on with 1 of 2 seats from the saved step" in shrunk.reason
    (loaded,) = events(records[left], StateLoaded)
    after = [event for event in events(records[left], StepClosed) if event.seats == ()]
    assert [event.step for event in after] == list(range(loaded.step + 1, STEPS))
    assert {len(event.losses) for event in after} == {1}
    assert end.finals == resumed_by_hand(tmp_path, loaded.step)


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
