import pytest
from msgspec.structs import replace

from closeranks.decide.suspicion import Cause, Guard, Level, Memory, Next, guard_of, rule
from closeranks.detect.corruption import Evidence, Verdict
from closeranks.detect.numerics import Action

GUARD = Guard()
TRAINED = Memory(age=1, replicated=True, norms=(1.0,) * 64)


def seat(fingerprint=1, *, proc=1, finite=True, norm=1.0, **more):
    return Evidence(proc=proc, finite=finite, norm=norm, fingerprint=fingerprint, **more)


GOOD = (seat(1, proc=1), seat(2, proc=2), seat(3, proc=3))


def with_seat(number, evidence):
    return tuple(evidence if at == number else one for at, one in enumerate(GOOD))


def ruled(*attempts, guard=GUARD, memory=TRAINED, step=10):
    rulings = []
    for evidence in attempts:
        memory, ruling = rule(memory, step, evidence, guard)
        rulings.append(ruling)
    return memory, rulings


BAD = with_seat(1, seat(9, proc=2, finite=False))


def test_an_attempt_in_which_nothing_is_odd_is_applied():
    memory, (ruling,) = ruled(GOOD)
    assert (ruling.next, ruling.cause, memory.rounds) == (Next.APPLY, Cause.NOTHING, ())


def test_an_odd_attempt_is_held_and_a_clean_replay_is_applied_and_convicts_the_seat():
    memory, (first, second) = ruled(BAD, GOOD)
    assert first.next is Next.REPLAY
    assert (second.next, second.cause, second.seats) == (Next.APPLY, Cause.REPLAY, (1,))
    assert memory.rounds == ()


def test_an_outlier_that_comes_again_is_applied_since_some_batches_are_like_that():
    loud = with_seat(1, seat(9, proc=2, norm=1e6))
    _, (first, second) = ruled(loud, loud)
    assert (first.next, second.next, second.cause) == (Next.REPLAY, Next.APPLY, Cause.NOTHING)


def test_a_norm_that_was_applied_counts_in_the_window_and_a_held_one_does_not():
    held, _ = ruled(with_seat(1, seat(9, proc=2, norm=1e6)))
    assert held.norms == TRAINED.norms
    applied, _ = ruled(with_seat(1, seat(9, proc=2, norm=1.5)))
    assert applied.norms[-1] == 1.5


@pytest.mark.parametrize(
    ("answer", "after"),
    [
        (Action.SKIP, (Next.SKIP, False, False)),
        (Action.GO_ON, (Next.APPLY, False, False)),
        (Action.STOP, (Next.AWAIT, True, False)),
        (Action.ROLL_BACK, (Next.AWAIT, False, True)),
    ],
)
def test_what_is_not_finite_again_gets_the_answer_that_was_chosen(answer, after):
    _, (_, second) = ruled(BAD, BAD, guard=Guard(non_finite=answer))
    assert (second.next, second.stop, second.roll_back) == after
    assert second.judgement.verdict is Verdict.REPEATED


def test_more_skipped_steps_than_allowed_stop_the_run():
    memory = TRAINED
    for step in range(10, 13):
        memory, rulings = ruled(BAD, BAD, memory=memory, step=step)
        assert rulings[1].next is Next.SKIP
    _, (_, last) = ruled(BAD, BAD, memory=memory, step=13)
    assert last.stop and "[10, 11, 12, 13] had to be skipped" in last.reason
    _, (_, later) = ruled(BAD, BAD, memory=memory, step=150)
    assert later.next is Next.SKIP


def test_asked_for_another_process_the_seat_is_replaced_and_its_successor_decides():
    guard = Guard(elsewhere=True)
    memory, (_, second) = ruled(BAD, BAD, guard=guard)
    assert (second.next, second.cause, second.seats) == (Next.AWAIT, Cause.REPLAY, (1,))
    _, (innocent,) = ruled(with_seat(1, seat(9, proc=7, finite=False)), guard=guard, memory=memory)
    assert (innocent.next, innocent.judgement.verdict) == (Next.SKIP, Verdict.CORRECT)
    _, (guilty,) = ruled(with_seat(1, seat(2, proc=7)), guard=guard, memory=memory)
    assert (guilty.next, guilty.judgement.verdict, guilty.cause) == (Next.APPLY, Verdict.PERSISTENT, Cause.NOTHING)


def test_a_step_that_nobody_can_repeat_ends_within_a_few_rounds_and_blames_nobody():
    attempts = [tuple(seat(10 * n + s, proc=s, finite=s != 1) for s in range(3)) for n in range(6)]
    _, rulings = ruled(*attempts[:2])
    assert (rulings[1].next, rulings[1].cause) == (Next.SKIP, Cause.NOTHING)


def test_a_reduction_that_differs_again_rebuilds_the_group():
    torn = with_seat(2, seat(3, proc=3, reduced=6))
    torn = tuple(replace(one, reduced=one.reduced or 5) for one in torn)
    _, (first, second) = ruled(torn, torn)
    assert (first.next, second.next, second.cause, second.stop) == (Next.REPLAY, Next.AWAIT, Cause.NUMERICS, False)


def states(*digests):
    return tuple(replace(one, state=digest) for one, digest in zip(GOOD, digests, strict=True))


def test_state_that_differs_is_never_trained_on_and_the_minority_is_named():
    _, (ruling,) = ruled(states(5, 5, 6))
    assert (ruling.next, ruling.cause, ruling.seats) == (Next.AWAIT, Cause.OUTVOTED, (2,))
    _, (split,) = ruled(states(4, 5, 6))
    assert (split.next, split.cause, split.seats) == (Next.AWAIT, Cause.SPLIT, ())


def test_state_that_differs_from_the_beginning_is_meant_to():
    memory, rulings = ruled(states(5, 5, 6), states(5, 5, 7), memory=Memory())
    assert [one.next for one in rulings] == [Next.APPLY, Next.APPLY]
    assert memory.replicated is False


def test_a_seat_without_a_digest_stops_no_comparison_of_the_others_later():
    _, (ruling,) = ruled(states(5, 0, 6))
    assert ruling.next is Next.APPLY


def test_a_world_of_one_repeats_what_is_odd_and_replaces_nobody():
    _, (first, second) = ruled((seat(9, finite=False),), (seat(1),))
    assert (first.next, second.next, second.cause) == (Next.REPLAY, Next.APPLY, Cause.NOTHING)


def test_a_guard_is_given_by_its_level_or_as_a_value_and_refused_by_name():
    assert guard_of("full").level is Level.FULL
    assert guard_of(Guard(level="off")).level is Level.OFF
    with pytest.raises(ValueError, match="guard='fast': expected one of 'off', 'basic', 'full'"):
        guard_of("fast")
    with pytest.raises(ValueError, match="Guard\\(outlier="):
        Guard(outlier=Action.REBUILD)


def batches(*found):
    return tuple(seat(10 + one, proc=at, batch=one) for at, one in enumerate(found, 1))


@pytest.mark.parametrize(
    ("wrong", "before", "told"),
    [
        ((8, 8, 9), (1, 2, 3), "seats [0, 1] train on the same batch"),
        ((7, 2, 9), (1, 2, 3), "seats [1] train on the batch of the step before"),
    ],
)
def test_a_batch_that_is_trained_on_twice_is_held_and_whose_loader_gives_another_then_is_named(wrong, before, told):
    memory = replace(TRAINED, batches=before)
    memory, (first, second) = ruled(batches(*wrong), batches(7, 8, 9), memory=memory)
    assert (first.next, first.findings[0].detail) == (Next.REPLAY, told)
    culprit = next(at for at, one in enumerate(wrong) if one != (7, 8, 9)[at])
    assert (second.next, second.cause, second.seats) == (Next.APPLY, Cause.REPLAY, (culprit,))
    assert memory.batches == (7, 8, 9)


def test_data_that_repeats_by_itself_costs_one_replay_in_a_run():
    memory, (first, second) = ruled(batches(7, 7, 7), batches(7, 7, 7))
    assert (first.next, second.next, second.cause) == (Next.REPLAY, Next.APPLY, Cause.NOTHING)
    _, (third,) = ruled(batches(7, 7, 7), memory=memory, step=11)
    assert third.next is Next.APPLY


def test_batches_that_were_not_looked_at_are_not_compared():
    _, (ruling,) = ruled(GOOD, memory=replace(TRAINED, batches=(0, 0, 0)))
    assert ruling.next is Next.APPLY


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_no_share_for_digests_is_refused(share: float) -> None:
    """Nothing meant a digest in every step."""
    with pytest.raises(ValueError, match="Guard\\(digest_share="):
        Guard(digest_share=share)
