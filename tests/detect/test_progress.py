"""The detector over simulated pages: what it names, how soon, and what it leaves alone."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.detect.progress import (
    Agreement,
    Bounds,
    Mismatch,
    Standstill,
    Suspect,
    Verdict,
    Watch,
    allowed,
    autopsy,
    awaits_witnesses,
    confirm,
    observe,
)
from closeranks.events import DeadlineChanged
from closeranks.operations import CODES
from closeranks.signs import Doing, Reading

POLL_NS = 50_000_000
TICK_NS = 5_000_000
CONFIRM_S = 0.3
SEGMENTS = (Doing.BETWEEN, Doing.FORWARD, Doing.BACKWARD, Doing.APPLYING)
LENGTH_S = {Doing.BETWEEN: 0.005, Doing.FORWARD: 0.05, Doing.BACKWARD: 0.03, Doing.APPLYING: 0.015}


@dataclass
class Trainee:
    """A training thread: four phases a step, one collective at the end of backward."""

    until_ns: int
    doing: Doing = Doing.BETWEEN
    moved_ns: int = 0
    step: int = 0
    entered: int = 0
    returned: int = 0
    operation_bytes: int = 64
    frozen: bool = False

    def reading(self, term=1):
        return Reading(
            moved_ns=self.moved_ns,
            doing=self.doing,
            term=term,
            step=self.step,
            attempt=0,
            closed_step=self.step - 1,
            entered=self.entered,
            returned=self.returned,
            operation=1,
            operation_bytes=self.operation_bytes,
            section_hash=7 if self.doing is Doing.SECTION else 0,
            own_ns=0,
            loss=0.0,
            grad_norm=0.0,
        )


@dataclass
class Group:
    """Trainees in lockstep. ``delay_s[(step, seat)]`` lengthens a phase; ``hold[(step, seat)]`` stops it for good."""

    size: int = 4
    delay_s: dict = field(default_factory=dict)
    hold: dict = field(default_factory=dict)
    save_s: dict = field(default_factory=dict)
    now_ns: int = 1_000_000_000
    watch: Watch = field(default_factory=Watch)

    def __post_init__(self):
        self.trainees = [Trainee(until_ns=self.now_ns, moved_ns=self.now_ns) for _ in range(self.size)]
        self.findings = []

    def run(self, seconds, until=None):
        """Advance and observe; stop early when ``until(finding)`` holds for a finding, and return that one."""
        end_ns = self.now_ns + int(seconds * 1e9)
        while self.now_ns < end_ns:
            self.now_ns += TICK_NS
            for seat, trainee in enumerate(self.trainees):
                self._advance(seat, trainee)
            if self.now_ns % POLL_NS == 0:
                readings = {seat + 1: t.reading() for seat, t in enumerate(self.trainees)}
                self.watch, found = observe(self.watch, readings, self.now_ns)
                self.findings += [(self.now_ns, f) for f in found]
                for finding in found:
                    if until is not None and until(finding):
                        return finding
        return None

    def suspects(self):
        return [f.proc for _, f in self.findings if isinstance(f, Suspect)]

    def _advance(self, seat, t):
        if t.frozen or self.now_ns < t.until_ns:
            return
        if t.entered > t.returned:
            if all(peer.entered >= t.entered for peer in self.trainees) and self.hold.get((t.step, seat)) != "inside":
                t.returned += 1
                self._enter(seat, t, Doing.APPLYING)
        elif t.doing is Doing.BACKWARD:
            t.entered += 1
            self._move(t, Doing.BACKWARD)
        elif t.doing is Doing.APPLYING:
            t.step += 1
            self._enter(seat, t, Doing.SECTION if (t.step, seat) in self.save_s else Doing.BETWEEN)
        elif t.doing is Doing.SECTION:
            self._enter(seat, t, Doing.BETWEEN)
        else:
            self._enter(seat, t, SEGMENTS[SEGMENTS.index(t.doing) + 1])

    def _enter(self, seat, t, doing):
        self._move(t, doing)
        extra_s = self.delay_s.get((t.step, seat), 0.0) if doing is Doing.FORWARD else 0.0
        length_s = self.save_s[t.step, seat] if doing is Doing.SECTION else LENGTH_S[doing]
        t.until_ns = self.now_ns + int((length_s + extra_s) * 1e9)
        t.frozen = self.hold.get((t.step, seat)) is doing

    def _move(self, t, doing):
        t.doing, t.moved_ns = doing, self.now_ns


def is_suspect(finding):
    return isinstance(finding, Suspect)


def is_standstill(finding):
    return isinstance(finding, Standstill)


@given(st.integers(0, 10**6))
@settings(max_examples=3, deadline=None)
def test_a_tenfold_slower_step_now_and_then_is_never_suspected(seed):
    rng = random.Random(seed)
    slow = {(step, rng.randrange(4)): 0.9 for step in range(300) if rng.random() < 0.03}
    group = Group(delay_s=slow)
    group.run(30)
    assert group.suspects() == []


def test_an_unlabelled_pause_of_a_second_is_never_suspected():
    group = Group(delay_s={(step, step % 4): 1.0 for step in range(40, 200, 40)})
    group.run(20)
    assert group.suspects() == []


def test_a_labelled_save_of_five_seconds_is_never_suspected_nor_are_those_that_wait_for_it():
    group = Group(save_s={(step, 0): 5.0 for step in (30, 60)})
    group.run(20)
    assert group.trainees[0].step > 60
    assert group.findings
    assert not [f for _, f in group.findings if not isinstance(f, DeadlineChanged)]


@given(st.integers(0, 3), st.sampled_from([*SEGMENTS, "inside"]), st.integers(15, 40))
@settings(max_examples=20, deadline=None)
def test_a_frozen_seat_is_the_only_one_acted_on_and_within_three_seconds(seat, where, step):
    group = Group(hold={(step, seat): where})
    first = group.run(30, until=is_suspect)
    assert first is not None
    asked = group.suspects()
    assert seat + 1 in asked
    verdicts = {}
    for proc in asked:
        group.watch, verdicts[proc], _ = confirm(group.watch, proc, answered=proc != seat + 1, busy=False)
    assert [proc for proc, verdict in verdicts.items() if verdict in (Verdict.STUCK, Verdict.BLOCKED)] == [seat + 1]
    silent_s = (group.now_ns - group.trainees[seat].moved_ns) / 1e9
    assert silent_s + CONFIRM_S < 3.0


def when_asked(group):
    return [at_ns / 1e9 for at_ns, finding in group.findings if is_suspect(finding)]


def test_a_question_that_was_lost_with_its_answer_is_asked_again_every_four_seconds_until_one_comes():
    group = Group(hold={(20, 2): Doing.FORWARD})
    group.run(30, until=is_suspect)
    group.run(9)
    first_s, *again_s = when_asked(group)
    assert again_s == pytest.approx([first_s + 4, first_s + 8])
    assert set(group.suspects()) == {3}
    group.watch, verdict, _ = confirm(group.watch, 3, answered=True, busy=False)
    assert verdict is Verdict.BLOCKED
    assert group.run(20, until=is_suspect) is None


def test_of_those_that_wait_in_the_same_collective_only_the_one_whose_answer_was_lost_is_asked_again():
    group = Group(hold={(20, seat): "inside" for seat in range(4)})
    group.run(5)
    for proc in (1, 2, 4):
        group.watch, _, _ = confirm(group.watch, proc, answered=True, busy=False)
    group.run(5)
    assert group.suspects() == [1, 2, 3, 4, 3]
    group.watch, verdict, _ = confirm(group.watch, 3, answered=True, busy=False)
    assert verdict is Verdict.WAITING
    assert group.run(1, until=is_standstill).suspects == ()


def test_one_that_moves_on_after_a_lost_question_is_not_asked_again():
    group = Group(delay_s={(20, 2): 3.0})
    group.run(20)
    assert group.suspects() == [3]


def test_an_idle_process_that_others_wait_for_is_blocked():
    group = Group(hold={(20, 2): Doing.FORWARD})
    group.run(30, until=is_suspect)
    group.watch, verdict, _ = confirm(group.watch, 3, answered=True, busy=False)
    assert verdict is Verdict.BLOCKED


def test_a_busy_process_gets_ten_times_as_long_until_its_next_move():
    group = Group(delay_s={(20, 2): 8.0})
    group.run(30, until=is_suspect)
    group.watch, verdict, changes = confirm(group.watch, 3, answered=True, busy=True)
    assert verdict is Verdict.SLOW
    assert [(c.phase, c.allowed_s) for c in changes] == [("forward", 20.0)]
    assert group.run(15, until=is_suspect) is None
    assert group.trainees[2].step > 21
    assert allowed(group.watch, 3) == 2.0


def test_a_process_that_moved_before_the_answer_came_is_left_alone():
    group = Group(delay_s={(20, 2): 2.2})
    group.run(30, until=is_suspect)
    group.run(1)
    _, verdict, _ = confirm(group.watch, 3, answered=False, busy=False)
    assert verdict is Verdict.MOVED


def test_busy_beyond_the_ceiling_is_acted_on():
    group = Group(hold={(20, 2): Doing.FORWARD}, watch=Watch(bounds=Bounds(ceiling_s=5.0)))
    group.run(30, until=is_suspect)
    group.watch, first, _ = confirm(group.watch, 3, answered=True, busy=True)
    group.run(10, until=is_suspect)
    group.watch, second, _ = confirm(group.watch, 3, answered=True, busy=True)
    assert (first, second) == (Verdict.SLOW, Verdict.BLOCKED)


def test_when_all_wait_in_the_same_collective_and_answer_nobody_is_named():
    group = Group(hold={(20, seat): "inside" for seat in range(4)})
    group.run(5)
    assert sorted(group.suspects()) == [1, 2, 3, 4]
    for proc in range(1, 5):
        group.watch, verdict, _ = confirm(group.watch, proc, answered=True, busy=False)
        assert verdict is Verdict.WAITING
    finding = group.run(1, until=is_standstill)
    assert finding.suspects == ()
    assert group.run(5, until=is_standstill) is None, "told once"


@pytest.mark.parametrize("odd", [0, 3])
def test_a_collective_of_another_size_names_the_odd_one_out(odd):
    group = Group(hold={(20, seat): "inside" for seat in range(4)})
    group.trainees[odd].operation_bytes = 128
    finding = group.run(10, until=is_standstill)
    assert finding.suspects == (odd + 1,)
    assert "128 bytes" in finding.detail


def test_two_against_two_name_nobody():
    group = Group(hold={(20, seat): "inside" for seat in range(4)})
    for seat in (0, 1):
        group.trainees[seat].operation_bytes = 128
    assert group.run(10, until=is_standstill).suspects == ()


def test_the_first_steps_have_a_generous_deadline():
    group = Group(hold={(1, 2): Doing.FORWARD})
    assert group.run(30, until=is_suspect) is None
    group.now_ns += int(600e9)
    assert group.run(1, until=is_suspect).proc == 3


@pytest.mark.parametrize("doing", [Doing.WAITING, Doing.RECOVERING])
def test_who_waits_for_the_supervisor_is_not_judged_nor_are_those_that_wait_for_it(doing):
    group = Group(hold={(20, 2): Doing.FORWARD})
    group.run(3)
    group.trainees[2].doing = doing
    assert group.run(30, until=lambda f: not isinstance(f, DeadlineChanged)) is None


def test_those_that_wait_for_one_that_left_its_loop_name_it():
    group = Group(hold={(20, 2): Doing.FORWARD})
    group.run(3)
    group.trainees[2].doing = Doing.LEAVING
    assert group.run(10, until=is_standstill).suspects == (3,)
    assert group.suspects() == []


def test_long_steps_teach_long_deadlines():
    group = Group(delay_s={(step, seat): 0.5 for step in range(300) for seat in range(4)})
    group.run(60)
    forward = [f for _, f in group.findings if isinstance(f, DeadlineChanged) and f.phase == "forward"]
    assert forward
    assert 5.0 < forward[-1].allowed_s < 7.0


def page(*, moved_s, entered=3, returned=2, doing=Doing.BACKWARD, term=1):
    reading = Trainee(until_ns=0, doing=doing, moved_ns=int(moved_s * 1e9), step=9).reading(term)
    return reading._replace(entered=entered, returned=returned)


def asked(readings, now_s):
    watch, _ = observe(Watch(bounds=Bounds(unlearned_s=2.0)), readings, 0)
    return [f.proc for f in observe(watch, readings, int(now_s * 1e9))[1] if is_suspect(f)]


def test_among_those_in_collectives_only_the_ones_behind_by_number_are_suspected():
    readings = {1: page(moved_s=1), 2: page(moved_s=1, entered=2, returned=1), 3: page(moved_s=1)}
    assert asked(readings, 5.0) == [2]


def test_nobody_is_asked_before_all_that_wait_in_the_same_collective_are_overdue():
    assert asked({1: page(moved_s=1), 2: page(moved_s=4)}, 5.0) == []
    assert asked({1: page(moved_s=1), 2: page(moved_s=2.5)}, 5.0) == [1, 2]


def test_numbers_of_different_terms_are_not_compared():
    assert asked({1: page(moved_s=4), 2: page(moved_s=4, entered=1, term=2)}, 5.0) == []
    assert asked({1: page(moved_s=1), 2: page(moved_s=1, entered=1, returned=0, term=2)}, 5.0) == [1, 2]


def test_a_process_that_waits_for_the_supervisor_is_never_asked():
    assert asked({1: page(moved_s=1, doing=Doing.WAITING, returned=3)}, 5000.0) == []


def test_a_silence_that_ended_in_another_term_teaches_nothing():
    watch = Watch()
    for beat in range(100):
        readings = {1: page(moved_s=beat * 5.0, term=beat)}
        watch, _ = observe(watch, readings, int(beat * 5e9))
    assert watch.learned == {}


@pytest.mark.parametrize(("rehearsed_s", "expected_s"), [(0.0, 60.0), (0.1, 5.0), (1.0, 30.0), (100.0, 600.0)])
def test_before_anything_is_learned_the_rehearsal_bounds_a_step(rehearsed_s, expected_s):
    trainee = Trainee(until_ns=0, doing=Doing.FORWARD, moved_ns=0)
    reading = trainee.reading()._replace(rehearsed_ns=int(rehearsed_s * 1e9))
    watch, _ = observe(Watch(), {1: reading}, 0)
    assert allowed(watch, 1) == pytest.approx(expected_s)


def aborted(*, entered=7, returned=6, size_bytes=64, operation="allreduce", term=1):
    reading = page(moved_s=1, entered=entered, returned=returned, term=term)
    return reading._replace(operation=CODES[operation], operation_bytes=size_bytes)


def test_who_aborted_in_a_collective_is_the_victim_of_the_seat_that_called_another_one():
    found = autopsy({1: aborted(), 2: aborted(size_bytes=128, returned=7), 3: aborted(returned=7)}, 1)
    called = "p1: allreduce of 64 bytes, p2: allreduce of 128 bytes, p3: allreduce of 64 bytes"
    assert found == Mismatch(detail=f"collective 7 differs ({called})", suspects=(2,))


def test_who_aborted_may_be_the_odd_one_itself():
    found = autopsy({1: aborted(operation="broadcast"), 2: aborted(), 3: aborted()}, 1)
    assert found.suspects == (1,)


def test_without_a_majority_nobody_is_named_but_the_mismatch_is():
    found = autopsy({1: aborted(), 2: aborted(size_bytes=128)}, 1)
    assert found.suspects == ()
    assert "differs" in found.detail


@pytest.mark.parametrize(
    "readings",
    [
        {1: aborted(), 2: aborted(), 3: aborted()},
        {1: aborted(returned=7), 2: aborted(size_bytes=128)},  # it was in no collective
        {1: aborted(), 2: aborted(entered=8, size_bytes=128)},  # the other went on
        {1: aborted(), 2: aborted(term=2, size_bytes=128)},
        {1: aborted(operation="send"), 2: aborted(operation="recv")},  # a pipeline
        {2: aborted()},
    ],
)
def test_an_abort_that_no_collective_explains_is_left_to_other_detectors(readings):
    assert autopsy(readings, 1) == Agreement()


def test_an_abort_is_explained_once_the_others_have_come_to_the_same_collective():
    assert awaits_witnesses({1: aborted(), 2: aborted(size_bytes=128), 3: aborted(entered=6)}, 1)
    assert not awaits_witnesses({1: aborted(), 2: aborted(size_bytes=128), 3: aborted(returned=7)}, 1)
    assert not awaits_witnesses({1: aborted(returned=7), 3: aborted(entered=6)}, 1)
    assert not awaits_witnesses({1: aborted(), 3: aborted(entered=6, term=2)}, 1)


def test_a_section_that_was_seen_three_times_has_a_deadline_from_its_longest():
    watch, seen = Watch(), []
    for visit in range(5):
        began = Trainee(until_ns=0, doing=Doing.SECTION, moved_ns=(20 * visit + 1) * 10**9, step=9).reading()
        watch, _ = observe(watch, {1: began}, began.moved_ns)
        seen.append(allowed(watch, 1))
        ended = Trainee(until_ns=0, moved_ns=began.moved_ns + (visit + 1) * 10**8, step=9).reading()
        watch, _ = observe(watch, {1: ended}, ended.moved_ns)
    assert seen == [600.0, 600.0, 600.0, pytest.approx(9.0), pytest.approx(12.0)]


def test_sections_that_nobody_looked_at_have_taught_their_length_all_the_same():
    watch, seen = Watch(), []
    for visit in range(5):
        between = page(moved_s=visit + 1, doing=Doing.BETWEEN)
        reading = between._replace(sections_ended=visit, ended_hash=7, ended_ns=visit * 10**8)
        watch, _ = observe(watch, {1: reading, 2: page(moved_s=1, doing=Doing.SECTION)}, reading.moved_ns)
        seen.append(allowed(watch, 2))
    assert seen == [600.0, 600.0, 600.0, pytest.approx(9.0), pytest.approx(12.0)]


def test_one_that_answers_in_an_earlier_collective_than_the_others_is_to_blame():
    """It may stand in a native call right after it launched its part: the others are through with that one."""
    readings = {1: page(moved_s=1), 2: page(moved_s=1, entered=2, returned=1), 3: page(moved_s=1)}
    watch, _ = observe(Watch(bounds=Bounds(unlearned_s=2.0)), readings, 0)
    watch, (suspect,) = observe(watch, readings, 5 * 10**9)
    assert (suspect.proc, confirm(watch, suspect.proc, answered=True, busy=False)[1]) == (2, Verdict.BLOCKED)


def test_one_that_does_not_answer_is_to_blame_wherever_it_is():
    readings = {1: page(moved_s=1), 2: page(moved_s=1, entered=2, returned=1)}
    watch, _ = observe(Watch(bounds=Bounds(unlearned_s=2.0)), readings, 0)
    watch, (suspect,) = observe(watch, readings, 5 * 10**9)
    assert confirm(watch, suspect.proc, answered=False, busy=False)[1] is Verdict.STUCK


def test_one_that_is_behind_in_a_collective_that_nobody_has_left_is_to_blame():
    readings = {1: page(moved_s=1, returned=1), 2: page(moved_s=1, entered=2, returned=1)}
    watch, _ = observe(Watch(bounds=Bounds(unlearned_s=2.0)), readings, 0)
    watch, (suspect,) = observe(watch, readings, 5 * 10**9)
    assert confirm(watch, suspect.proc, answered=True, busy=False)[1] is Verdict.BLOCKED
