"""Numbers go wrong in one seat: it is named, and the run ends as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from closeranks.events import (
    Decided,
    Diagnosed,
    ErrorSeen,
    Rung,
    SpotChecks,
    StepClosed,
    StepHeld,
    StepReplayed,
    StepSkipped,
)
from tests.situations.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.situations.trial import Ended

    Ran = Callable[..., Ended]

pytestmark = pytest.mark.process
SCRIPT = Path(__file__).with_name("struck.py")
STEPS = 12


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """A run of the script in which this goes wrong; each runs once."""
    known: dict[str, Ended] = {}

    def run(what: str) -> Ended:
        if what not in known:
            words = ("--nproc-per-node", "3", str(SCRIPT), what, str(STEPS))
            trial = Trial(tmp_path_factory.mktemp(what), *words)
            try:
                known[what] = trial.end()
            finally:
                trial.clean_up()
            assert known[what].code == 0, known[what].output
        return known[what]

    yield run
    known.clear()


def digests(ended: Ended) -> dict[int, str]:
    return {seat: final.digest for seat, final in ended.finals.items()}


def test_a_nan_is_ascribed_to_its_seat_before_the_reduction_and_a_flipped_weight_to_the_outvoted_one(ran: Ran) -> None:
    ended = ran("two")
    held = ended.events(StepHeld)
    assert [(one.step, [e.seat for e in one.evidence if not e.finite]) for one in held] == [(6, [2])]
    assert len(held[0].samples) == 9 and held[0].seed == 7
    assert [(one.step, one.verdict, one.seats, one.then) for one in ended.events(StepReplayed)] == [
        (6, "transient", (2,), "apply")
    ]
    assert [(one.fault, one.culprits) for one in ended.events(Diagnosed)] == [
        ("wrong result", (2,)),
        ("corrupt replica", (1,)),
    ]
    assert [one.detector for one in ended.events(ErrorSeen)] == ["replay", "outvoted"]
    assert {one.rung for one in ended.events(Decided)} == {Rung.FORK}
    assert digests(ended) == digests(ran("nothing"))


def test_data_that_gives_nan_each_time_is_skipped_on_all_seats_and_nobody_is_blamed(ran: Ran) -> None:
    ended = ran("data")
    assert [(one.verdict, one.seats, one.then) for one in ended.events(StepReplayed)] == [("repeated", (), "skip")]
    assert [one.step for one in ended.events(StepSkipped)] == [5]
    assert ended.events(Diagnosed) == []
    assert digests(ended) == digests(ran("skipped"))


def test_flips_after_the_reduction_and_in_optimizer_state_are_found_before_they_are_applied(ran: Ran) -> None:
    ended = ran("full")
    assert [(one.step, one.verdict, one.seats) for one in ended.events(StepReplayed)] == [(6, "transient", (0,))]
    assert [(one.fault, one.culprits) for one in ended.events(Diagnosed)] == [
        ("wrong result", (0,)),
        ("corrupt replica", (2,)),
    ]
    assert digests(ended) == digests(ran("nothing"))


def test_a_seat_that_errs_each_time_is_tried_in_another_process_and_convicted(ran: Ran) -> None:
    ended = ran("stubborn")
    assert [(one.verdict, one.seats) for one in ended.events(StepReplayed)] == [
        ("repeated", (1,)),
        ("persistent", (1,)),
    ]
    assert [(one.fault, one.culprits) for one in ended.events(Diagnosed)] == [("wrong result", (1,))]
    assert digests(ended) == digests(ran("nothing"))


def test_a_bit_that_flips_before_the_sum_is_found_by_computing_twice_and_a_stuck_one_by_another_seat(ran: Ran) -> None:
    """A seat dies amid a check as well. None of it is left in the end."""
    ended = ran("spot")
    assert [one.way for one in ended.events(SpotChecks)] == ["swapped"]
    replayed = [(one.step, one.verdict, one.seats, one.then) for one in ended.events(StepReplayed)]
    assert replayed == [(2, "transient", (1,), "apply"), (5, "persistent", (2,), "await the supervisor")]
    held = ended.events(StepHeld)
    assert {one.step for one in held} == {2, 5}
    assert all(finding.startswith("spot check: the part of seat") for one in held for finding in one.findings)
    # All that was computed of the parts is kept, by whom and whose it was.
    shown = [(one.seat, one.part) for one in held[0].evidence]
    assert shown == [(0, 1), (1, 2), (2, 0), (0, None), (1, None), (2, None)]
    named = [(one.fault, one.culprits) for one in ended.events(Diagnosed)]
    assert named[:2] == [("wrong result", (1,)), ("wrong result", (2,))] and named[2][1] == (0,)
    undisturbed = ran("nothing")
    assert digests(ended) == digests(undisturbed)
    shown_here, right = ({one.step: one.losses for one in run.events(StepClosed)} for run in (ended, undisturbed))
    assert shown_here.keys() == right.keys()
    for step, losses in shown_here.items():  # None: the page had moved on before anybody looked
        wrong = [loss for loss, own in zip(losses, right[step], strict=True) if None not in {loss, own} and loss != own]
        assert wrong == [], "no loss of another seat's batch is taken for a seat's own"
