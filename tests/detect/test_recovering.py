"""Recoveries over simulated pages: who is asked because it keeps the others waiting, and who never is."""

import pytest
from tests.detect.test_progress import page

from closeranks.detect.progress import Bounds, Suspect, Verdict, Watch, allowed, confirm, observe
from closeranks.events import DeadlineChanged
from closeranks.signs import Doing

LOOK_S = 0.05
WORKS = (Doing.RECOVERING, Doing.RESTORING)


class Recovery:
    """Members by process, each with what it does and since when; all have left their block at second 100."""

    def __init__(self, procs=(1, 2, 3), bounds=None):
        self.now_s = 100.0
        self.watch = Watch(bounds=bounds or Bounds())
        self.pages = {proc: page(moved_s=self.now_s, returned=3, doing=Doing.RECOVERING) for proc in procs}
        self.asked = []  # (when, process)
        self.changes = []

    def move(self, proc, doing, term=1):
        self.pages[proc] = page(moved_s=self.now_s, returned=3, doing=doing, term=term)

    def run(self, seconds):
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            self.watch, found = observe(self.watch, dict(self.pages), round(self.now_s * 1e9))
            self.asked += [(self.now_s, f) for f in found if isinstance(f, Suspect)]
            self.changes += [f for f in found if isinstance(f, DeadlineChanged)]

    def procs_asked(self):
        return [suspect.proc for _, suspect in self.asked]


def test_who_stands_in_its_own_work_while_the_others_meet_is_asked_within_the_promise_and_is_blocked():
    recovery = Recovery()
    recovery.run(0.1)
    recovery.move(2, Doing.MEETING, term=2)  # who stands has not come to the new term
    recovery.move(3, Doing.MEETING, term=2)
    recovery.run(8)
    ((asked_s, suspect),) = recovery.asked
    assert suspect.proc == 1
    assert asked_s - 100.0 < 6.0
    assert suspect.silent_s > suspect.allowed_s == 5.0
    _, verdict, _ = confirm(recovery.watch, 1, answered=True, busy=False)
    assert verdict is Verdict.BLOCKED


def test_who_took_as_long_as_others_before_is_not_asked_and_the_longer_deadline_is_told_with_its_reason():
    recovery = Recovery()
    recovery.run(4)
    recovery.move(2, Doing.WAITING)
    recovery.move(3, Doing.WAITING)
    recovery.run(35)
    assert recovery.asked == []
    (change,) = recovery.changes
    assert (change.phase, change.allowed_s) == ("recovering", pytest.approx(40.0, abs=1.0))
    assert change.reason == "of the last 2 times that a member did this, the longest took 4.000 s"
    recovery.run(3)
    assert recovery.procs_asked() == [1]


def test_who_computes_or_reads_in_its_own_work_is_given_ten_times_as_long():
    recovery = Recovery(procs=(1, 2))
    recovery.move(2, Doing.WAITING)
    recovery.run(6)
    assert recovery.procs_asked() == [1]
    recovery.watch, verdict, _ = confirm(recovery.watch, 1, answered=True, busy=True)
    assert verdict is Verdict.SLOW
    recovery.run(40)
    assert recovery.procs_asked() == [1]
    recovery.run(7)
    assert recovery.procs_asked() == [1, 1]


def test_a_long_transfer_is_never_suspected_nor_are_those_that_are_done():
    recovery = Recovery()
    for proc in (1, 2, 3):
        recovery.move(proc, Doing.WAITING)
    for _ in range(40):  # a tensor that takes ten seconds each
        recovery.move(1, Doing.MEETING)
        recovery.move(2, Doing.MEETING)
        recovery.run(9)
        recovery.move(1, Doing.RESTORING)
        recovery.move(2, Doing.RESTORING)
        recovery.run(1)
    assert recovery.asked == []


def test_a_newcomer_that_puts_its_state_in_place_has_longer_since_nobody_else_does_that():
    recovery = Recovery()
    recovery.move(1, Doing.RESTORING)
    recovery.move(2, Doing.WAITING)
    recovery.move(3, Doing.WAITING)
    recovery.run(19)
    assert recovery.asked == []
    recovery.run(2)
    assert recovery.procs_asked() == [1]


@pytest.mark.parametrize("late", [Doing.STARTING, Doing.WAITING, Doing.SECTION])
def test_those_that_meet_are_never_asked_while_one_has_yet_to_come(late):
    recovery = Recovery()
    recovery.move(1, late)
    recovery.move(2, Doing.MEETING)
    recovery.move(3, Doing.MEETING)
    recovery.run(300)
    assert recovery.asked == []


def test_who_does_not_leave_a_meeting_that_was_called_off_is_asked_some_time_after_the_others_have_left():
    recovery = Recovery()
    for proc in (1, 2, 3):
        recovery.move(proc, Doing.MEETING)
    recovery.run(30)
    for proc in (2, 3):
        recovery.move(proc, Doing.WAITING)
    recovery.run(14)
    assert recovery.asked == []
    recovery.run(2)
    assert recovery.procs_asked() == [1]


@pytest.mark.parametrize("doing", WORKS)
def test_while_nobody_waits_for_it_there_is_as_long_as_for_a_first_step(doing):
    recovery = Recovery(procs=(1,))
    recovery.move(1, doing)
    recovery.run(59)
    assert recovery.asked == []
    recovery.run(2)
    assert recovery.procs_asked() == [1]


def test_the_users_own_limits_of_deadlines_hold_in_a_recovery_too():
    patient, hasty = Recovery(bounds=Bounds(floor_s=30.0)), Recovery(bounds=Bounds(floor_s=0.5, ceiling_s=1.0))
    for recovery in (patient, hasty):
        recovery.move(2, Doing.WAITING)
        recovery.run(0.1)
    assert allowed(patient.watch, 1) == 30.0
    assert allowed(hasty.watch, 1) == 1.0
