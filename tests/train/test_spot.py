"""Spot checks where a step holds more than plain layers, and where they cannot be what they should."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import closeranks as cr
from closeranks import messages
from closeranks.decide.spot_check import Spot, Way
from closeranks.train.randomness import Randomness
from closeranks.train.spot import SpotChecks
from closeranks.vitals import Field
from tests.train import spotted
from tests.train.guarded import Numbers
from tests.train.test_guarded import ended

if TYPE_CHECKING:
    from pathlib import Path


def ways(ranks: Any) -> list[str]:
    return [told.way for told in ranks.members[0].heard(messages.SpotChecks)]


def verdicts(ranks: Any) -> list[tuple[str, tuple[int, ...]]]:
    return [(told.verdict, told.seats) for told in ranks.members[0].heard(messages.Ruled) if told.verdict]


@pytest.mark.process
def test_dropout_running_means_and_micro_batches_are_those_of_the_part_and_no_check_leaves_a_trace(
    tmp_path: Path,
) -> None:
    struck = ended(tmp_path / "struck", "seatless", 2, module="spotted", STRIKE="1")
    assert ways(struck) == ["swapped"], struck.logs()
    assert verdicts(struck) == [("transient", (spotted.STRUCK_SEAT,))]
    unchecked = ended(tmp_path / "unchecked", "seatless", 2, module="spotted", SHARE="0")
    assert struck.finals() == unchecked.finals()
    assert struck.losses() == unchecked.losses()


@pytest.mark.process
def test_one_seat_alone_computes_twice_and_is_not_fooled_by_buckets_that_change_their_layout(tmp_path: Path) -> None:
    alone = ended(tmp_path / "alone", "seatless", 1, module="spotted")
    assert (ways(alone), verdicts(alone)) == (["own"], []), alone.logs()


@pytest.mark.process
def test_code_that_asks_for_its_rank_blames_nobody_says_so_once_and_still_finds_what_happens_once(
    tmp_path: Path,
) -> None:
    struck = ended(tmp_path / "struck", "ranked", 2, module="spotted", STRIKE="1")
    assert ways(struck) == ["own"], struck.logs()
    assert verdicts(struck) == [("unrepeatable", ()), ("transient", (spotted.STRUCK_SEAT,))]
    assert struck.logs().count("does not find a fault that stays") == 1


# --- without processes ------------------------------------------------------------------------------------------


def job_with(**changes: Any) -> Any:
    """What ``SpotChecks`` looks at, of a job in which parts can be computed by other seats."""
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    job = SimpleNamespace(
        world=SimpleNamespace(seat=1, size=3, term=4, vitals=SimpleNamespace(words={Field.STEP: 5})),
        batches=cr.Batches(Numbers(), global_batch=6),
        randomness=Randomness(0, managed=True),
        protected=SimpleNamespace(sharded=False, local={}, others={"scaler": scaler}),
    )
    for name, value in changes.items():
        setattr(job.protected if hasattr(job.protected, name) else job, name, value)
    return job


def spot_checks(job: Any) -> SpotChecks:
    found = SpotChecks(job)
    found.reduces = True
    return found


def test_parts_of_other_seats_are_computed_in_turn_with_their_own_between() -> None:
    found, parts = spot_checks(job_with()), []
    for rounds in range(4):
        found.open(Spot(step=5, rounds=((),) * rounds), 5, 1.0)
        parts.append(found.part)
    assert parts == [2, -1, 0, -1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"world": SimpleNamespace(seat=0, size=1, term=4)}, "there is one seat"),
        ({"batches": None}, "no cr.Batches is protected"),
        ({"randomness": Randomness(0, managed=False)}, "randomness=False"),
        ({"sharded": True}, "parameters are sharded"),
        ({"local": {"residuals": object()}}, "state that differs by seat"),
        ({"others": {"scaler": torch.amp.GradScaler("cpu")}}, "a GradScaler is enabled"),
    ],
)
def test_where_the_part_of_another_seat_cannot_be_computed_it_is_the_own_one_and_the_reason_is_said(
    change: dict[str, Any], why: str
) -> None:
    found = spot_checks(job_with(**change))
    assert why in found.why_own()
    found.open(Spot(), 5, 1.0)
    assert (found.checking, found.part) == (True, -1)


def test_gradients_that_nobody_saw_before_their_reduction_are_not_compared_between_seats() -> None:
    assert "not reduced inside of backward" in SpotChecks(job_with()).why_own()


@pytest.mark.parametrize("way", [Way.OWN, Way.OFF])
def test_what_has_shown_that_it_cannot_be_compared_is_not_tried_again(way: Way) -> None:
    found = spot_checks(job_with())
    found.open(Spot(way=way), 5, 1.0)
    assert (found.checking, found.part) == (way is Way.OWN, -1)


def test_a_step_that_the_script_leaves_without_an_update_is_not_closed_with_the_part_of_another_seat() -> None:
    """It comes again, and is this seat's own then."""
    found = spot_checks(job_with())
    found.open(Spot(), 5, 1.0)
    assert found.part == 2 and found.leave()
    found.open(Spot(), 5, 1.0)
    assert found.part == -1 and not found.leave()
    found.open(Spot(), 6, 1.0)
    assert found.part == 2


def test_a_batch_of_another_seat_leaves_what_is_fetched_ahead_as_it_is() -> None:
    batches = cr.Batches(Numbers(), global_batch=6, workers=1)
    own = batches.fetch(0, 0, 2)
    ahead = batches._ahead
    other = batches.fetch_once(0, 1, 2)
    assert torch.equal(other, cr.Batches(Numbers(), global_batch=6).fetch(0, 1, 2))
    assert batches._ahead is ahead and batches.fetch(0, 0, 2) is own
