"""A night of drills that goes on where it was interrupted."""

from __future__ import annotations

import pytest

from closeranks.drill.campaign import Result
from closeranks.drill.nodes.campaign import Nodes, Results, ResultsProblem, carry_out_all
from closeranks.drill.nodes.faults import Field, NodeKind, drawn
from closeranks.drill.nodes.runs import NodesRun, NodesSpec
from closeranks.drill.nodes.stand import Stand
from closeranks.drill.verdict import Outcome

REPLAY = ("closeranks", "drill-nodes", "--rounds", "1", "--", "train.py")


def held(seed: int) -> Result:
    return Result(
        seed=seed,
        faults=("deaf of n1",),
        outcome=Outcome.HELD,
        reasons=(),
        recovery_s=(0.5,),
        replay=f"closeranks drill-nodes --seed {seed} --rounds 1 -- train.py",
    )


def test_rounds_of_an_earlier_call_are_not_made_again_and_count_in_the_summary(tmp_path):
    path = tmp_path / "results"
    first = Results(path, REPLAY)
    first.add(held(4))
    first.add(held(5))
    again = Results(path, REPLAY)
    carry_out_all(None, range(4, 6), REPLAY, again, lambda _: pytest.fail("both are there"))
    assert again.all_of(range(3, 6)) == [held(4), held(5)]


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


def test_kinds_that_cannot_be_carried_out_are_named_and_others_alone_are_drawn(tmp_path):
    only = (NodeKind.BLACKOUT, NodeKind.NODE_KILL, NodeKind.DEAF)
    nodes = Nodes(NodesSpec(("train.py",)), tmp_path, namespaces=False, only=only)
    assert nodes.impossible() == (NodeKind.BLACKOUT, NodeKind.DEAF)
    saves = Nodes(NodesSpec(("train.py",), save_every="5"), tmp_path, namespaces=True, only=only)
    assert saves.impossible() == ()
    field = Field(nodes=("n0",), steps=9, outage=True, network=True, saves=True, only=only)
    assert {fault.kind for seed in range(60) for fault in drawn(seed, field)} == set(only)
