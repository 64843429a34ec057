from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from closeranks.run.tally import Tally
from closeranks.signs import StepMark


def mark(step: int, at_s: float = 1.0, loss: float = 0.5) -> StepMark:
    return StepMark(step, 0, int((at_s - 0.5) * 1e9), int(at_s * 1e9), loss)


def test_a_step_is_closed_when_every_seat_has_it():
    tally = Tally(2)
    tally.add(0, [mark(0, 1.0), mark(1, 2.0)])
    assert tally.take_closed() == ()
    tally.add(1, [mark(0, 3.0, loss=math.nan)])
    (closed,) = tally.take_closed()
    assert (closed.step, closed.began_mono_s, closed.closed_mono_s) == (0, 0.5, 3.0)
    assert closed.losses == (0.5, None)
    assert not closed.repeated
    assert tally.take_closed() == ()


def test_a_restore_plan_closes_what_receivers_get_and_voids_what_is_done_again():
    tally = Tally(2)
    tally.add(0, [mark(0), mark(1), mark(2)])
    assert [closed.step for closed in tally.settle(1, {})] == [0, 1]
    assert tally.take_closed() == ()
    tally.add(0, [mark(2)])
    tally.add(1, [mark(2)])
    assert [closed.step for closed in tally.take_closed()] == [2]


def test_a_step_done_again_after_a_restart_is_repeated():
    tally = Tally(1)
    tally.add(0, [mark(0), mark(1)])
    tally.take_closed()
    tally.restart()
    tally.add(0, [mark(0), mark(1), mark(2)])
    assert [(closed.step, closed.repeated) for closed in tally.take_closed()] == [(0, True), (1, True), (2, False)]
    assert tally.newest_step == 2


def test_a_seat_that_closes_the_step_of_a_restore_plan_after_it_closes_no_step_a_second_time():
    """Its attempt was void when its peers had applied it; its own close of it stayed until the next plan."""
    tally = Tally(2)
    tally.add(0, [mark(0), mark(1)])
    tally.add(1, [mark(0)])
    assert [closed.step for closed in tally.settle(1, {})] == [0, 1]
    tally.add(1, [mark(1), mark(2)])
    tally.add(0, [mark(2)])
    assert [closed.step for closed in tally.take_closed()] == [2]
    assert tally.settle(2, {}) == ()
    tally.settle(0, {})  # an older state: what came after it is done again
    for seat in (0, 1):
        tally.add(seat, [mark(1)])
    assert [(closed.step, closed.repeated) for closed in tally.take_closed()] == [(1, True)]


def test_a_step_of_which_nothing_was_known_when_it_was_settled_is_told_when_a_seat_closes_it():
    """The others of this node never will, and it stayed open until the next plan, or for ever."""
    tally = Tally(2)
    for seat in (0, 1):
        tally.add(seat, [mark(4)])
    assert [closed.step for closed in tally.take_closed()] == [4]
    assert tally.settle(5, {}) == ()  # closed on another node
    tally.add(1, [mark(5)])
    assert [(closed.step, closed.losses) for closed in tally.take_closed()] == [(5, (None, 0.5))]
    for seat in (0, 1):
        tally.add(seat, [mark(6)])
    assert [closed.step for closed in tally.take_closed()] == [6]
    assert tally.settle(6, {}) == ()


def test_a_step_has_the_gradient_norms_that_were_known_when_it_was_closed():
    """The page's as it stood went to every step of a look: one spike was that of twenty, or calm hid three."""
    tally = Tally(2)
    for seat in (0, 1):
        tally.add(seat, [mark(step)._replace(grad_norm=norm) for step, norm in enumerate((1.0, 1000.0, math.nan))])
    assert [closed.grad_norm for closed in tally.take_closed()] == [1.0, 1000.0, None]


@given(st.permutations([seat for seat in range(3) for _ in range(4)]), st.integers(1, 5))
def test_each_step_is_told_once_whatever_the_order_of_the_looks(order, every):
    tally, told, steps = Tally(3), [], [0, 0, 0]
    for number, seat in enumerate(order):
        tally.add(seat, [mark(steps[seat])])
        steps[seat] += 1
        if number % every == 0:
            told += [closed.step for closed in tally.take_closed()]
    told += [closed.step for closed in tally.take_closed()]
    assert sorted(told) == [0, 1, 2, 3]
