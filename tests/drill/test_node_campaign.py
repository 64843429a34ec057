"""A night of drills that goes on where it was interrupted."""

from __future__ import annotations

import msgspec
import pytest

from closeranks.drill.nodes import campaign
from closeranks.drill.nodes.campaign import Nodes, Results, ResultsProblem, Round, carry_out, carry_out_all, impossible
from closeranks.drill.nodes.faults import Field, NodeKind, drawn
from closeranks.drill.nodes.runs import NodesRun, NodesSpec
from closeranks.drill.nodes.stand import Stand
from closeranks.drill.nodes.verdict import NodeRun, NodesEvidence
from closeranks.drill.verdict import Outcome
from closeranks.events import Record, RunEnded

REPLAY = ("closeranks", "drill-nodes", "--rounds", "1", "--", "train.py")


def held(seed: int) -> Round:
    return Round(
        seed=seed,
        faults=("deaf of n1",),
        outcome=Outcome.HELD,
        reasons=(),
        recovery_s=(0.5,),
        replay=f"closeranks drill-nodes --seed {seed} --rounds 1 -- train.py",
        completed=True,
        stops=(),
        never_struck=(),
    )


def ended(outcome: str, exit_code: int, reason: str) -> NodesEvidence:
    event = RunEnded(outcome=outcome, exit_code=exit_code, reason=reason)
    record = Record(seq=0, wall_s=0.0, mono_s=0.0, run="r", node="n0", term=1, event=event)
    one = NodeRun(node="n0", ended_by_drill=False, exit_code=exit_code, records=(record,), finals={}, applied=())
    return NodesEvidence(runs=(one,))


class Played(Nodes):
    """Every run stops with a reason, but for the one that is left alone; the last of the faults never strikes."""

    def _make(self, faults, place):
        place.mkdir()
        if not faults:
            return ended("completed", 0, "all done")
        stopped = ended("failed", 1, "the coordinator was lost")
        return msgspec.structs.replace(stopped, struck=faults[:-1] if len(faults) > 1 else faults)


@pytest.mark.parametrize("authority", ["none", "sqlite"])
def test_why_a_round_that_holds_has_stopped_is_kept(tmp_path, authority):
    """Without an authority the reason was not even taken down."""
    nodes = Played(NodesSpec(("train.py",), authority=authority), tmp_path, namespaces=False)
    result = carry_out(nodes, 1, REPLAY)
    assert (result.outcome, result.reasons) == (Outcome.HELD, ())
    assert (result.completed, result.stops) == (False, ("n0: the coordinator was lost",))


def test_which_of_two_faults_never_struck_is_kept(tmp_path):
    nodes = Played(NodesSpec(("train.py",)), tmp_path, namespaces=False)
    seed = next(seed for seed in range(99) if len(drawn(seed, nodes.field())) > 1)
    result = carry_out(nodes, seed, REPLAY)
    assert result.outcome is Outcome.HELD
    assert result.never_struck == result.faults[1:]


def test_rounds_of_an_earlier_call_are_not_made_again_and_count_in_the_summary(tmp_path):
    path = tmp_path / "results"
    first = Results(path, REPLAY)
    first.add(held(4))
    first.add(held(5))
    again = Results(path, REPLAY)
    carry_out_all(None, range(4, 6), REPLAY, again, lambda _: pytest.fail("both are there"), keep=False)
    assert again.all_of(range(3, 6)) == [held(4), held(5)]


class Completed(Played):
    """Every run completes."""

    def _make(self, faults, place):
        super()._make(faults, place)
        return msgspec.structs.replace(ended("completed", 0, "all done"), struck=faults)


@pytest.mark.parametrize(("kind", "keep", "left"), [(Completed, False, 0), (Completed, True, 2), (Played, False, 2)])
def test_a_round_that_held_and_completed_leaves_nothing_on_the_disk(tmp_path, kind, keep, left):
    """A night of 200 rounds filled the disk: everything was kept until its end."""
    nodes = kind(NodesSpec(("train.py",)), tmp_path, namespaces=False)
    told = []
    carry_out_all(nodes, range(2), REPLAY, Results(None, REPLAY), told.append, keep=keep)
    assert [one.outcome for one in told] == [Outcome.HELD] * 2
    assert sum(path.name.startswith("seed") for path in tmp_path.iterdir()) == left
    assert (tmp_path / "001").is_dir()  # the run that was left alone is compared with all of them


def test_what_etcd_stored_is_not_kept_with_a_run(tmp_path, monkeypatch):
    """Its log written ahead takes 123 MiB, however short the run."""

    class Broken:
        def __init__(self, run, _faults):
            self.folder = run.folder

        def make(self):
            (self.folder / "etcd" / "member").mkdir(parents=True)
            (self.folder / "etcd.log").touch()
            raise RuntimeError("the drill broke")

    monkeypatch.setattr(campaign, "Striker", Broken)
    nodes = Nodes(NodesSpec(("train.py",), authority="etcd"), tmp_path, namespaces=False)
    with pytest.raises(RuntimeError, match="the drill broke"):
        nodes.drilled((), "seed1")
    assert [path.name for path in (tmp_path / "seed1").iterdir()] == ["etcd.log"]


def test_results_of_another_campaign_are_refused(tmp_path):
    path = tmp_path / "results"
    Results(path, REPLAY).add(held(4))
    with pytest.raises(ResultsProblem, match=r"expected rounds of closeranks drill-nodes .* other\.py"):
        Results(path, (*REPLAY[:-1], "other.py"))
    path.write_text("no results\n")
    with pytest.raises(ResultsProblem, match="a line of JSON for each round"):
        Results(path, REPLAY)


def test_of_two_outages_that_overlap_the_longer_one_counts(tmp_path):
    """The second one found a file where the store had been, and the drill ended with an error."""
    run = NodesRun(NodesSpec(("train.py",), authority="store"), Stand(()), tmp_path)
    store = tmp_path / "store"
    store.mkdir()
    run.silence_authority()
    run.silence_authority()
    run.restore_authority()
    assert store.is_file()
    run.restore_authority()
    assert store.is_dir()


def test_kinds_that_cannot_be_carried_out_are_named_and_others_alone_are_drawn():
    only = (NodeKind.BLACKOUT, NodeKind.NODE_KILL, NodeKind.DEAF)
    cannot = impossible(NodesSpec(("train.py",)), namespaces=False, only=only)
    assert cannot == (NodeKind.BLACKOUT, NodeKind.DEAF)
    assert impossible(NodesSpec(("train.py",), save_every="5"), namespaces=True, only=only) == ()
    field = Field(nodes=("n0",), steps=9, outage=True, network=True, saves=True, only=only)
    assert {fault.kind for seed in range(60) for fault in drawn(seed, field)} == set(only)
