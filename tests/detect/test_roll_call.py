"""The roll call over simulated processes: who is frozen in any phase, and what must never look like it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.detect.progress import Bounds
from closeranks.detect.roll_call import Answer, Roll, heard, look
from closeranks.signs import Doing, Reading

LOOK_NS = 50_000_000
SECOND_NS = 1_000_000_000
ANSWER_LOOKS = 12  # a call takes 0.6 s where there is no answer


def reading(moved_ns, doing=Doing.SECTION):
    return Reading(
        moved_ns=moved_ns,
        doing=doing,
        term=1,
        step=9,
        attempt=0,
        closed_step=8,
        entered=3,
        returned=3,
        operation=0,
        operation_bytes=0,
        section_hash=0,
        own_ns=0,
        loss=0.0,
        grad_norm=0.0,
    )


class Watched:
    """Processes on a clock. ``lives(proc, now_ns)``: whether a call finds an answer, or processor or disk in use."""

    def __init__(self, lives, procs=(1, 2), bounds=None):
        self.now_ns = 1000 * SECOND_NS
        self.lives = lives
        self.readings = {proc: reading(self.now_ns) for proc in procs}
        self.roll = Roll(bounds=bounds or Bounds())
        self.calls = []  # (when, process)
        self.frozen = []  # (when, finding)
        self.open = []  # (when the look at the process ends, process, whether it lived)

    def run(self, seconds):
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        while self.now_ns < end_ns:
            self.now_ns += LOOK_NS
            self.look()

    def look(self):
        self.hear()
        self.roll, calls = look(self.roll, self.readings, self.now_ns)
        for call in calls:
            self.calls.append((self.now_ns, call.proc))
            # As the real question does, it finds a sign of life if there is one at any time until it ends.
            ends_ns = self.now_ns + ANSWER_LOOKS * LOOK_NS
            self.open.append((ends_ns, call.proc, self.lives(call.proc, self.now_ns)))

    def hear(self):
        due = [one for one in self.open if one[0] <= self.now_ns]
        self.open = [one for one in self.open if one[0] > self.now_ns]
        answers = {proc: Answer(answered=lives, busy=False) for _, proc, lives in due}
        self.roll, found = heard(self.roll, answers, self.now_ns)
        self.frozen += [(self.now_ns, one) for one in found]


@pytest.mark.parametrize("doing", list(Doing))
def test_a_process_that_froze_is_told_once_within_six_seconds_whatever_it_does(doing):
    watched = Watched(lambda proc, _: proc != 2)
    began_ns = watched.now_ns
    watched.readings = {proc: reading(began_ns, doing) for proc in watched.readings}
    watched.run(60)
    assert [found.proc for _, found in watched.frozen] == [2]
    told_ns, found = watched.frozen[0]
    assert told_ns - began_ns < 6 * SECOND_NS
    assert found.silent_s == pytest.approx((told_ns - began_ns) / SECOND_NS)
    assert found.allowed_s == Bounds().unanswered_s


def test_one_that_froze_in_the_middle_of_long_work_is_silent_since_its_last_answer():
    froze_ns = 1030 * SECOND_NS
    watched = Watched(lambda _, now_ns: now_ns < froze_ns, procs=(1,))
    watched.run(40)
    told_ns, found = watched.frozen[0]
    assert told_ns - froze_ns < 6 * SECOND_NS
    assert found.silent_s < 6.5, "not since the work began"


def test_nobody_is_asked_while_its_training_thread_moves():
    watched = Watched(lambda *_: False)
    for _ in range(20):
        watched.run(1)
        watched.readings = {proc: reading(watched.now_ns) for proc in watched.readings}
    assert watched.calls == []
    assert watched.roll.silences == {}


def test_one_at_long_work_is_asked_every_few_seconds_and_left_alone():
    watched = Watched(lambda *_: True, procs=(1,))
    watched.run(600)
    assert watched.frozen == []
    assert 100 < len(watched.calls) < 150


def test_use_of_the_processor_counts_as_a_sign_of_life():
    roll, _ = look(Roll(), {1: reading(0)}, SECOND_NS)
    for at_s in range(1, 60):
        roll, _ = look(roll, {1: reading(0)}, at_s * SECOND_NS)
        roll, found = heard(roll, {1: Answer(answered=False, busy=True)}, at_s * SECOND_NS)
        assert found == ()


def test_one_look_without_an_answer_is_not_enough():
    watched = Watched(lambda _, now_ns: now_ns > 1004.5 * SECOND_NS)
    watched.run(60)
    assert watched.frozen == []


@pytest.mark.parametrize("stopped_s", [1.5, 8.0, 4000.0])
@pytest.mark.parametrize("after_s", [0.5, 3.95, 4.2, 4.7, 5.1, 5.3])
def test_a_machine_that_stopped_as_a_whole_froze_nobody(stopped_s, after_s):
    """Questions that were under way when all stopped find no answer."""
    watched = Watched(lambda _, now_ns: now_ns > 1000 * SECOND_NS + round(after_s * SECOND_NS))
    watched.run(after_s)
    watched.now_ns += round(stopped_s * SECOND_NS)
    watched.run(30)
    assert watched.frozen == []


def test_one_that_moved_before_the_answer_came_is_left_alone():
    watched = Watched(lambda *_: False, procs=(1,))
    watched.run(5.2)
    assert len(watched.calls) == 2
    watched.readings = {1: reading(watched.now_ns)}
    watched.run(2)
    assert watched.frozen == []


def test_a_question_that_was_lost_is_asked_again():
    watched = Watched(lambda *_: False, procs=(1,))
    watched.run(4.2)
    watched.open.clear()
    watched.run(12)
    assert len(watched.frozen) == 1


def test_who_is_gone_is_forgotten():
    watched = Watched(lambda *_: False, procs=(1,))
    watched.run(4.2)
    watched.readings = {}
    watched.run(2)
    assert watched.frozen == []
    assert watched.roll.silences == {}


@pytest.mark.parametrize(
    ("bounds", "allowed_s"),
    [(Bounds(floor_s=30.0), 30.0), (Bounds(ceiling_s=3.0), 3.0), (Bounds(unanswered_s=9.0), 9.0)],
)
def test_the_users_bounds_hold_here_too(bounds, allowed_s):
    watched = Watched(lambda *_: False, procs=(1,), bounds=bounds)
    watched.run(60)
    assert watched.frozen[0][1].allowed_s == allowed_s


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_who_shows_any_sign_of_life_at_least_every_second_call_is_never_told_and_the_frozen_one_always(seed):
    rng = random.Random(seed)
    missed: dict[int, bool] = {}

    def lives(proc, _now_ns):
        if proc == 0:
            return False
        missed[proc] = not missed.get(proc, False) and rng.random() < 0.5
        return not missed[proc]

    watched = Watched(lives, procs=range(4))
    for _ in range(40):
        watched.run(rng.choice([0.05, 0.3, 1.0, 5.0]))
        for proc in range(1, 4):
            if rng.random() < 0.3:
                watched.readings[proc] = reading(watched.now_ns, rng.choice(list(Doing)))
                missed[proc] = False
        if rng.random() < 0.1:
            watched.now_ns += round(rng.uniform(1.1, 100.0) * SECOND_NS)
    watched.run(10)
    assert [found.proc for _, found in watched.frozen] == [0]
