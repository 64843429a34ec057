"""A night of drills that goes on where it was interrupted."""

from __future__ import annotations

import pytest

from closeranks.drill.campaign import Result
from closeranks.drill.nodes.campaign import Results, ResultsProblem, carry_out_all
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
