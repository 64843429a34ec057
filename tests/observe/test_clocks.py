import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.events import CoordinatorBegan, Record, Stamp
from closeranks.observe.clocks import DRIFT_MAX, Clock, clocks_of

lags_s = st.floats(0.0001, 60.0)
moments_s = st.floats(0.0, 1e6)


def heard(made_s, written_s, *, epoch=1, wall_s=None):
    stamp = Stamp(epoch=epoch, seq=0, node="n0", at_mono_s=made_s)
    event = CoordinatorBegan(reason="x")
    wall_s = written_s if wall_s is None else wall_s
    return Record(seq=0, wall_s=wall_s, mono_s=written_s, run="r", node="n", term=1, event=event, stamp=stamp)


@given(st.lists(st.tuples(moments_s, lags_s), min_size=1, max_size=30), st.lists(moments_s, min_size=2, max_size=20))
def test_time_never_runs_backwards_and_no_decision_is_heard_before_it_was_made(decisions, instants_s):
    leader = [heard(made_s, made_s) for made_s, _ in decisions]
    other = [heard(made_s, 7000 + made_s + lag_s) for made_s, lag_s in decisions]
    clock = clocks_of([leader, other]).journals[1]
    times_s = [clock.job_s(mono_s) for mono_s in sorted(instants_s)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(times_s))
    for (made_s, _), record in zip(decisions, other, strict=True):
        assert clock.job_s(record.mono_s) >= made_s - 1e-3


def test_one_late_message_does_not_move_a_clock():
    leader = [heard(float(at_s), at_s + 0.0001) for at_s in range(100)]
    other = [heard(float(at_s), 500 + at_s + (30.0 if at_s == 50 else 0.0003)) for at_s in range(100)]
    clock = clocks_of([leader, other]).journals[1]
    assert clock.job_s(550.0) == pytest.approx(50.0, abs=1e-3)


def test_a_clock_that_runs_fast_is_followed():
    fast = 1 + DRIFT_MAX / 5
    leader = [heard(float(at_s), at_s + 0.0001) for at_s in range(0, 80_000, 5000)]
    other = [heard(float(at_s), at_s * fast + 0.0003) for at_s in range(0, 80_000, 5000)]
    clock = clocks_of([leader, other]).journals[1]
    assert clock.job_s(42_500 * fast) == pytest.approx(42_500, abs=1e-3)


def test_clocks_are_tied_over_a_third_one():
    first = [heard(1.0, 1.0, epoch=1)]
    middle = [heard(1.0, 101.0, epoch=1), heard(60.0, 160.0, epoch=2)]
    last = [heard(60.0, 1060.0, epoch=2, wall_s=0.0)]
    clocks = clocks_of([first, middle, last])
    assert clocks.by_wall == (False, False, False)
    assert clocks.journals[2].job_s(1060.0) == pytest.approx(clocks.journals[1].job_s(160.0))


def test_outside_of_its_points_a_clock_goes_on_as_at_the_nearest():
    clock = Clock(at_s=(10.0, 20.0), offsets_s=(1.0, 2.0))
    assert [clock.job_s(at_s) for at_s in (0.0, 10.0, 15.0, 20.0, 30.0)] == [1.0, 11.0, 16.5, 22.0, 32.0]
