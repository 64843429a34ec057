import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.serve.policies import (
    Hysteresis,
    HysteresisSettings,
    Ladder,
    LadderSettings,
    LevelSettings,
    Signals,
    Wish,
)

GOOD, BAD, SO_SO = Signals(error_rate=0.0), Signals(error_rate=0.5), Signals(error_rate=0.09)

EIGHTH = 0.125  # of a second: sums of it are exact


def anyway(_level):
    return True


TIMING = HysteresisSettings(worse_s=3.0, better_s=30.0, dwell_s=10.0)
LEVELS = (
    LevelSettings(name="short", max_tokens=64),
    LevelSettings(name="small", tier="small", p99_s=0.5),
    LevelSettings(name="fixed", kind="static", answer="later"),
)


def ladder(**more):
    return Ladder(LadderSettings(timing=TIMING, level=LEVELS, **more))


def feel(one, signals, start_s, for_s):
    """Signals once a second; the moments at which the level changed."""
    felt = [(start_s + second, one.signal(start_s + second, signals)) for second in range(for_s)]
    return [(when_s, moved.level) for when_s, moved in felt if moved is not None]


def serve(one, now_s, latency_s=0.1, able=anyway):
    course = one.course(now_s, able)
    one.ended(now_s, course, latency_s)
    return course


def test_it_steps_down_after_a_while_and_then_one_step_each_dwell_time():
    one = ladder()
    assert feel(one, BAD, 0, 40) == [(3, 1), (13, 2), (23, 3)]
    assert "error rate 0.5 is above 0.1" in one.reason


def test_a_short_trouble_moves_nothing_and_neither_does_what_is_neither_good_nor_bad():
    one = ladder()
    assert feel(one, BAD, 0, 3) + feel(one, GOOD, 3, 1) + feel(one, BAD, 4, 3) == []
    one.signal(0, BAD)
    feel(one, BAD, 10, 10)
    assert one.level == 1
    feel(one, SO_SO, 20, 1000)
    assert not serve(one, 1020).trial


def test_a_primary_that_works_every_other_time_is_left_and_tried_again_later():
    one = ladder()
    now_s = 0
    for second in range(20):
        one.signal(second, Signals(error_rate=0.5))
        now_s = second
    assert one.level >= 1
    feel(one, GOOD, now_s, 60)
    assert serve(one, now_s + 60).trial


def test_the_way_up_is_open_only_through_trials_one_at_a_time():
    one = ladder()
    feel(one, BAD, 0, 4)
    feel(one, GOOD, 10, 31)
    first, second = one.course(41, anyway), one.course(41, anyway)
    assert (first.level, first.trial, second.level, second.trial) == (0, True, 1, False)
    one.ended(41, first, 0.1)
    assert [serve(one, 42).trial for _ in range(2)] == [True, True]
    assert one.level == 0


def test_a_trial_that_fails_closes_the_way_up_for_a_long_time():
    one = ladder()
    feel(one, BAD, 0, 4)
    feel(one, GOOD, 10, 31)
    assert serve(one, 41, latency_s=None).trial
    feel(one, GOOD, 42, 29)
    assert not serve(one, 71).trial
    feel(one, GOOD, 71, 5)
    assert serve(one, 76).trial


def test_a_lost_trial_wedges_nothing():
    one = ladder()
    feel(one, BAD, 0, 4)
    feel(one, GOOD, 10, 31)
    assert one.course(41, anyway).trial
    assert not one.course(60, anyway).trial
    assert one.course(102, anyway).trial


def test_a_level_without_replicas_is_skipped_at_once_and_taken_again_at_once():
    one = ladder()
    course = one.course(0, lambda level: level.tier == "small" or level.kind == "static")
    assert (course.level, course.reason) == (2, "no replica for full")
    assert one.course(1, anyway).level == 0


def test_an_operator_forces_a_level_and_lets_go():
    one = ladder()
    one.force(0, 2)
    feel(one, GOOD, 0, 100)
    assert one.course(100, anyway).level == 2
    one.force(100, None)
    feel(one, GOOD, 110, 40)
    assert one.course(150, anyway).trial
    with pytest.raises(ValueError, match="expected 0 to 3"):
        one.force(0, 4)


def test_levels_are_unverified_until_exercises_have_met_their_own_target():
    one = ladder(passes=2, p99_s=10.0)
    assert one.due(0.0) == (1, 2, 3)
    one.exercised(0.0, 2, 0.6)  # above its own 0.5 s
    one.exercised(0.0, 2, 0.4)
    assert not one.levels[2].verified
    assert 2 in one.due(1.0)
    one.exercised(1.0, 2, 0.4)
    assert one.levels[2].verified
    assert 2 not in one.due(2.0)
    assert 2 in one.due(601.0)
    one.exercised(601.0, 2, None)
    assert not one.levels[2].verified


def test_the_share_served_with_less_and_the_difference_are_numbers():
    one = ladder()
    for _ in range(3):
        serve(one, 0.0)
    one.force(0.0, 1)
    serve(one, 1.0)
    assert one.degraded_share(1.0) == 0.25
    assert one.degraded_share(1000.0) == 0.0
    one.compared(1, 0.2)
    one.compared(1, 0.4)
    assert one.levels[1].difference == pytest.approx(0.3)
    with pytest.raises(ValueError, match="expected 0 to 1"):
        one.compared(1, float("nan"))


@given(st.lists(st.tuples(st.integers(1, 40).map(EIGHTH.__mul__), st.booleans(), st.booleans()), max_size=200))
def test_two_moves_are_never_closer_than_the_dwell_time(steps):
    one, now_s, moved_s = Hysteresis(TIMING), 0.0, float("-inf")
    for gap_s, bad, good in steps:
        now_s += gap_s
        if one.feel(now_s, bad=bad, good=good) is not Wish.STAY:
            assert now_s >= moved_s + TIMING.dwell_s
            one.moved(now_s)
            moved_s = now_s
