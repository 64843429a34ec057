"""One seat errs, in any rounds and in any way: it is named or nobody is, and what is applied is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from closeranks.decide.spot_check import Spot, Way, begun, due, look, part_of, round_of
from closeranks.decide.suspicion import Cause, Guard, Memory, Next, rule
from closeranks.detect.corruption import Evidence, Verdict
from closeranks.detect.numerics import Signature

ROUNDS = 4
STEP = 7
Found = Callable[[int, int, int], int]  # round, seat, part -> fingerprint


def true(_number: int, _seat: int, part: int) -> int:
    return 100 + part


def attempt(number: int, seats: int, found: Found, *, swaps: bool = True) -> tuple[Evidence, ...]:
    evidence = []
    for seat in range(seats):
        part = part_of(number, seat, seats) if swaps else seat
        own = -1 if part == seat else part
        fingerprint = found(number, seat, part)
        evidence.append(Evidence(proc=seat, finite=True, norm=1.0, fingerprint=fingerprint, part=own))
    return tuple(evidence)


def checked(seats: int, found: Found, *, way: Way = Way.SWAPPED, tried: tuple[int, ...] = ()):
    """The end of a check: the last round, what it says, and what is remembered."""
    spot = Spot(way=way, tried=tried)
    for number in range(ROUNDS):
        evidence = attempt(number, seats, found, swaps=way is not Way.OWN)
        spot, seen = look(spot, STEP, evidence)
        if not seen.again:
            return evidence, seen, spot
    raise AssertionError("a check has four rounds")


def wrong_in(seat: int, pattern: tuple[int, ...]) -> Found:
    """``seat`` errs in the rounds whose number in the pattern is not 0, and finds something else for each number."""
    return lambda number, who, part: true(number, who, part) + (1000 * pattern[number] if who == seat else 0)


PATTERNS = list(itertools.product((0, 1, 2), repeat=ROUNDS))


@pytest.mark.parametrize("seats", [1, 2, 3, 4, 5])
def test_steps_that_come_out_alike_are_computed_twice_and_applied(seats: int) -> None:
    evidence, seen, spot = checked(seats, true)
    assert (seen.judgement, seen.detail) == (None, "")
    assert evidence == attempt(1, seats, true)
    assert round_of(spot, STEP, 1.0) is None and round_of(spot, STEP + 1, 1.0) == 0


@pytest.mark.parametrize("seats", [3, 4, 5])
def test_of_three_or_more_seats_the_one_that_errs_is_named_however_it_errs(seats: int) -> None:
    for seat, pattern in itertools.product(range(seats), PATTERNS):
        evidence, seen, _ = checked(seats, wrong_in(seat, pattern))
        if not any(pattern[:2]):
            assert seen.judgement is None
            continue
        assert seen.judgement is not None and seen.judgement.seats == (seat,), (seat, pattern)
        transient = seen.judgement.verdict is Verdict.TRANSIENT
        assert transient or seen.judgement.verdict is Verdict.PERSISTENT
        if transient:
            assert evidence == attempt(3, seats, true), "only what is right is applied"
        assert transient == (sum(1 for one in pattern[:3] if one) == 1 and not pattern[3]), (seat, pattern)


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("seat", [0, 1, 2])
def test_a_bit_that_is_stuck_and_shows_in_one_part_alone_convicts_no_innocent_seat(seat: int, part: int) -> None:
    """Where the right value has the bit anyway, a stuck one changes nothing."""

    def found(number: int, who: int, of: int) -> int:
        return true(number, who, of) + (1000 if who == seat and of == part else 0)

    evidence, seen, _ = checked(3, found)
    if part == (seat + 2) % 3:  # computed by that seat in a third round alone, which is not asked for
        assert seen.judgement is None and evidence == attempt(1, 3, true)
    else:
        assert seen.judgement is not None and seen.judgement.seats == (seat,)


def test_of_two_seats_nothing_wrong_is_applied_and_no_innocent_one_is_named() -> None:
    for seat, pattern in itertools.product(range(2), PATTERNS):
        evidence, seen, _ = checked(2, wrong_in(seat, pattern))
        if not any(pattern[:2]):
            assert seen.judgement is None
        elif seen.split:
            assert seen.judgement is not None and seen.judgement.seats == ()
        else:
            assert seen.judgement is not None and seen.judgement.seats == (seat,), (seat, pattern)
            if seen.judgement.verdict is Verdict.TRANSIENT:
                assert evidence == attempt(3, 2, true)


def test_of_two_seats_that_insist_nobody_is_named_and_the_policy_decides() -> None:
    memory, ruling = ruled(2, wrong_in(1, (1, 1, 1, 1)), way=Way.SWAPPED)
    assert (ruling.next, ruling.cause, ruling.seats) == (Next.AWAIT, Cause.REPLAY, ())
    assert "it is not known which" in ruling.reason
    assert memory.spot.way is Way.SWAPPED


@pytest.mark.parametrize("seats", [1, 2, 3, 4, 5])
def test_a_seat_that_can_only_ask_itself_finds_what_happens_once(seats: int) -> None:
    for seat, number in itertools.product(range(seats), range(2)):
        pattern = tuple(int(one == number) for one in range(ROUNDS))
        evidence, seen, _ = checked(seats, wrong_in(seat, pattern), way=Way.OWN)
        assert seen.judgement is not None
        assert (seen.judgement.verdict, seen.judgement.seats) == (Verdict.TRANSIENT, (seat,))
        assert evidence == attempt(0, seats, true, swaps=False)
    _, blind, _ = checked(seats, wrong_in(0, (1, 1, 1, 1)), way=Way.OWN)
    assert blind.judgement is None


@pytest.mark.parametrize("seats", [2, 3, 4, 5])
def test_code_that_asks_for_the_rank_blames_nobody_and_is_asked_by_its_own_seat_from_then_on(seats: int) -> None:
    evidence, seen, spot = checked(seats, lambda _, seat, part: 100 * seat + part, way=Way.UNTRIED)
    assert seen.judgement is not None and not seen.split
    assert (seen.judgement.verdict, seen.judgement.seats) == (Verdict.UNREPEATABLE, ())
    assert spot.way is Way.OWN and all(one.part < 0 for one in evidence)


@pytest.mark.parametrize("seats", [2, 3, 4, 5])
def test_a_step_that_cannot_be_repeated_blames_nobody_and_is_not_checked_any_more(seats: int) -> None:
    _, seen, spot = checked(seats, lambda number, seat, part: 1000 * number + 100 * seat + part)
    assert seen.judgement is not None and seen.judgement.seats == ()
    assert spot.way is Way.OFF and round_of(spot, STEP + 1, 1.0) is None


def test_a_seat_that_differs_from_the_first_check_on_gets_one_other_process_and_is_then_left_alone() -> None:
    stuck = wrong_in(2, (1, 1, 1, 1))
    _, first, spot = checked(3, stuck, way=Way.UNTRIED)
    assert first.judgement is not None and first.judgement.seats == (2,)
    _, second, after = checked(3, stuck, way=spot.way, tried=spot.tried)
    assert second.judgement is not None and second.judgement.seats == ()
    assert "seats [2] find something else than others from the first check on" in second.judgement.reason
    assert after.way is Way.OWN


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 1 / 3, 0.5, 1.0])
def test_so_many_steps_are_checked_as_were_asked_for_evenly_and_in_no_period(share: float) -> None:
    chosen = [step for step in range(30_000) if due(step, share)]
    assert abs(len(chosen) - share * 30_000) <= 3
    gaps = [after - before for before, after in itertools.pairwise(chosen)]
    assert not gaps or max(gaps) <= 3 / share
    for period in (2, 3, 5, 10, 100):
        hit = sum(1 for step in chosen if step % period == 0)
        assert abs(hit - len(chosen) / period) <= max(3.0, 0.05 * len(chosen))


# --- with all else that is asked of an attempt ------------------------------------------------------------------

GUARD = Guard(recompute_share=1.0)


def ruled(seats: int, found: Found, *, way: Way = Way.UNTRIED, memory: Memory | None = None, change=lambda _, e: e):
    """The ruling that ends a check."""
    memory = memory or Memory(age=1, replicated=True, spot=Spot(way=way))
    for _ in range(2 * ROUNDS):
        number = round_of(memory.spot, STEP, 1.0)
        evidence = attempt(1 if number is None else number, seats, found, swaps=memory.spot.way is not Way.OWN)
        memory, ruling = rule(memory, STEP, change(number, evidence), GUARD)
        if ruling.next is not Next.REPLAY:
            return memory, ruling
    raise AssertionError("it has to end")


def test_a_check_that_finds_nothing_says_nothing_and_remembers_that_seats_agree() -> None:
    memory, ruling = ruled(3, true)
    assert (ruling.next, ruling.judgement, ruling.findings) == (Next.APPLY, None, ())
    assert memory.spot.way is Way.SWAPPED
    assert memory.norms == (1.0,), "one step was applied, whatever was computed for it"


def test_a_seat_that_erred_once_is_replaced_after_the_step_and_one_that_errs_each_time_before_it() -> None:
    _, once = ruled(3, wrong_in(1, (0, 1, 0, 0)))
    assert (once.next, once.cause, once.seats) == (Next.APPLY, Cause.REPLAY, (1,))
    _, always = ruled(3, wrong_in(1, (1, 1, 1, 1)), way=Way.SWAPPED)
    assert (always.next, always.cause, always.seats) == (Next.AWAIT, Cause.REPLAY, (1,))
    assert once.reason.startswith("spot check: seats [1]") and always.reason.startswith("spot check: seats [1]")
    assert once.findings[0].signature is Signature.SPOT_CHECK


def test_a_world_of_one_applies_what_it_found_twice_and_replaces_nobody() -> None:
    _, ruling = ruled(1, wrong_in(0, (1, 0, 0, 0)))
    assert (ruling.next, ruling.cause, ruling.seats) == (Next.APPLY, Cause.NOTHING, ())
    assert ruling.judgement is not None and ruling.judgement.verdict is Verdict.TRANSIENT


def test_the_batch_of_another_seat_is_no_batch_that_is_trained_on_twice() -> None:
    def with_batches(number: int | None, evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        parts = [seat if one.part < 0 else one.part for seat, one in enumerate(evidence)]
        return tuple(
            Evidence(proc=one.proc, finite=True, norm=1.0, fingerprint=one.fingerprint, part=one.part, batch=50 + part)
            for one, part in zip(evidence, parts, strict=True)
        )

    memory, ruling = ruled(3, true, memory=Memory(age=1, batches=(9, 50, 51)), change=with_batches)
    assert (ruling.next, ruling.findings, memory.batches) == (Next.APPLY, (), (50, 51, 52))


def test_data_that_is_not_finite_in_all_seats_is_answered_as_without_a_check() -> None:
    def bad(_: int | None, evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        def part(seat: int, one: Evidence) -> int:
            return seat if one.part < 0 else one.part

        return tuple(
            Evidence(proc=e.proc, finite=part(s, e) != 2, norm=1.0, fingerprint=e.fingerprint, part=e.part)
            for s, e in enumerate(evidence)
        )

    _, ruling = ruled(3, true, change=bad)
    assert (ruling.next, ruling.cause) == (Next.SKIP, Cause.NOTHING)
    assert ruling.judgement is not None and ruling.judgement.verdict is Verdict.REPEATED


def test_an_attempt_in_which_a_newcomer_computed_another_part_is_never_applied() -> None:
    """The others know already that steps cannot be repeated, or do so themselves."""
    mixed = (*attempt(1, 3, true)[:2], attempt(0, 3, true)[2])
    off, ruling = rule(Memory(age=5, spot=Spot(way=Way.OFF)), STEP, mixed, GUARD)
    assert ruling.next is Next.REPLAY and off.spot.way is Way.OFF
    own, ruling = rule(Memory(age=5, spot=Spot(way=Way.OWN)), STEP, mixed, GUARD)
    assert ruling.next is Next.REPLAY
    for _ in range(ROUNDS):
        own, ruling = rule(own, STEP, attempt(1, 3, true), GUARD)
        if ruling.next is Next.APPLY:
            break
    assert (ruling.next, ruling.judgement) == (Next.APPLY, None)


def test_a_check_begins_anew_with_a_term() -> None:
    spot, _ = look(Spot(), STEP, attempt(0, 3, true))
    assert round_of(spot, STEP, 1.0) == 1
    assert round_of(begun(spot), STEP, 1.0) == 0


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="Guard\\(recompute_share="):
        Guard(recompute_share=share)
