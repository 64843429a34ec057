"""Nothing on the wheel happens too early, twice, or after it was cancelled; near moments come within a step."""

from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.serve.wheel import STEP_S, Wheel


class Handle:
    def __init__(self, when_s, do):
        self.when_s, self.do = when_s, do

    def cancel(self):
        self.do = None


class Loop:
    """A loop's clock, turned by the test."""

    def __init__(self):
        self.now_s, self.timers, self.told = 100.0, [], []

    def time(self):
        return self.now_s

    def call_at(self, when_s, do):
        self.timers.append(Handle(when_s, do))
        return self.timers[-1]

    def call_exception_handler(self, context):
        self.told.append(context)

    def run(self, until_s):
        while due := [timer for timer in self.timers if timer.do and timer.when_s <= until_s]:
            first = min(due, key=lambda timer: timer.when_s)
            self.timers.remove(first)
            self.now_s = max(self.now_s, first.when_s)
            first.do()
        self.now_s = until_s


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-1, 90), st.booleans()), max_size=30))
def test_each_moment_comes_once_and_not_too_early_unless_it_was_cancelled(wanted):
    loop = Loop()
    wheel, came = Wheel(loop), {}

    def note(number):
        assert number not in came
        came[number] = loop.now_s

    dues = [wheel.at(100.0 + after_s, lambda number=number: note(number)) for number, (after_s, _) in enumerate(wanted)]
    for due, (_, cancelled) in zip(dues, wanted, strict=True):
        if cancelled:
            due.cancel()
    loop.run(300.0)
    assert set(came) == {number for number, (_, cancelled) in enumerate(wanted) if not cancelled}
    for number, when_s in came.items():
        due_s = max(100.0, 100.0 + wanted[number][0])
        late_s = 17 * STEP_S if wanted[number][0] > 2 else STEP_S
        assert due_s <= when_s + 1e-9
        assert when_s <= due_s + late_s + 1e-9


def test_what_is_done_may_set_and_cancel_others():
    loop = Loop()
    wheel, said = Wheel(loop), []
    other = wheel.at(100.02, lambda: said.append("cancelled"))

    def first():
        other.cancel()
        said.append("first")
        wheel.at(loop.now_s, lambda: said.append("next"))

    wheel.at(100.01, first)
    loop.run(101.0)
    assert said == ["first", "next"]


def test_a_mistake_at_one_moment_is_told_and_keeps_no_other_from_coming():
    loop = Loop()
    wheel, said = Wheel(loop), []
    for when_s in (100.01, 100.01, 100.05):
        wheel.at(when_s, lambda: 1 / 0)
    wheel.at(100.05, lambda: said.append("came"))
    loop.run(101.0)
    assert said == ["came"]
    assert len(loop.told) == 3


def test_nothing_is_armed_for_moments_that_were_all_cancelled():
    loop = Loop()
    wheel = Wheel(loop)
    for number in range(50):
        wheel.at(160.0 + number / 10, lambda: None).cancel()
    wheel.at(float("inf"), lambda: None).cancel()
    loop.run(1e7)
    assert not [timer for timer in loop.timers if timer.do]
    assert not wheel._steps
