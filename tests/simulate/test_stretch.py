"""The closed form of undisturbed training against counting step by step."""

from hypothesis import given
from hypothesis import strategies as st

from closeranks.simulate.stretch import Stretch


@st.composite
def stretches(draw):
    after = draw(st.integers(-1, 30))
    return Stretch(
        begin_s=draw(st.integers(0, 50)),
        after=after,
        step_s=draw(st.integers(1, 5)),
        every=draw(st.integers(0, 7)),
        base=draw(st.integers(-1, after)),
        pause_s=draw(st.integers(0, 9)),
    )


def counted(stretch, upto_s):
    """Step by step: how many are closed by then, and which are followed by a save."""
    now_s, count, saved = stretch.begin_s, 0, []
    while now_s + stretch.step_s <= upto_s:
        now_s += stretch.step_s
        count += 1
        if stretch.every and (stretch.after + count - stretch.base) % stretch.every == 0:
            saved.append(stretch.after + count)
            now_s += stretch.pause_s
    return count, saved, now_s


@given(stretches(), st.integers(0, 400))
def test_steps_and_saves_are_those_that_are_counted(stretch, more_s):
    count, saved, opened_s = counted(stretch, stretch.begin_s + more_s)
    assert stretch.closed_by(stretch.begin_s + more_s) == count
    assert stretch.saves(count) == len(saved)
    assert [stretch.save_step(number) for number in range(1, len(saved) + 1)] == saved
    assert stretch.opened_s(count) == opened_s


@given(stretches(), st.integers(1, 200))
def test_a_step_is_closed_when_it_is_closed_and_not_before(stretch, count):
    at_s = stretch.closed_s(count)
    assert stretch.closed_by(at_s) == count
    assert stretch.closed_by(at_s - 0.5) == count - 1
