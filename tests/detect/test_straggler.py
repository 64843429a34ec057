"""The straggler detector, on own times made from a seed."""

from __future__ import annotations

import math
import random

from hypothesis import example, given
from hypothesis import strategies as st

from closeranks.detect import straggler
from closeranks.detect.straggler import Eased, Slack, Slow, Step, Watch
from closeranks.detect.straggler_cause import Cause, explain
from closeranks.signs import Spent


def watched(steps, watch=None):
    """The detector after these steps, and each finding with the number of steps it took."""
    watch, found = watch or Watch(), []
    for count, step in enumerate(steps, start=1):
        watch, news = straggler.observe(watch, step)
        found += [(count, finding) for finding in news]
    return watch, found


def job(count, jitter, slower, seed=0, processes=4):
    """Steps whose own times vary by ``jitter``; ``slower[proc]`` adds its share."""
    draw = random.Random(seed)
    for _ in range(count):
        length = draw.uniform(0.5, 1.5)  # batches differ in length, for all alike
        yield Step(
            own_s={p: length * max(0.01, draw.gauss(1, jitter)) * (1 + slower.get(p, 0)) for p in range(processes)}
        )


def named(found):
    return [(count, set(finding.slower)) for count, finding in found if isinstance(finding, Slow)]


def test_a_straggler_of_15_percent_is_named_within_30_steps_and_nobody_else():
    for seed in range(20):
        watch, _ = watched(job(50 + seed, 0.02, {}, seed))
        _, found = watched(job(30, 0.02, {2: 0.15}, seed + 100), watch)
        assert [procs for _, procs in named(found)] == [{2}]


def test_the_slower_of_two_is_named():
    _, found = watched(job(30, 0.02, {1: 0.15}, processes=2))
    assert [procs for _, procs in named(found)] == [{1}]


def test_of_thousands_a_sample_tells_what_is_usual_and_whoever_is_slow_is_found_all_the_same():
    # Eight thousand processes took the coordinator a tenth of a second at a time.
    slower = {3: 0.15, 1001: 0.15, 1998: 0.15}
    watch, found = watched(job(15, 0.02, slower, processes=2000))
    assert named(found) == [(15, set(slower))]
    assert all(len(window.own_s) < 600 for window in watch.windows)
    watch, found = watched(job(25, 0.02, {}, processes=2000), watch)
    assert [finding.procs for _, finding in found] == [tuple(slower)]


def test_nobody_is_named_in_1000_clean_windows_at_5_percent_jitter():
    watch, found = watched(job(6000, 0.05, {}, processes=8))
    assert not found
    assert watch.windows and watch.windows[-1].steps <= 6  # so there were 1000 of them


def test_more_jitter_makes_longer_windows_instead_of_false_names():
    watch, found = watched(job(1000, 0.15, {}, processes=8))
    assert not found
    assert watch.windows[-1].steps > 20


def test_half_of_the_processes_can_be_slow_together():
    _, found = watched(job(40, 0.02, dict.fromkeys(range(4), 0.2), processes=8))
    assert set().union(*(procs for _, procs in named(found))) == {0, 1, 2, 3}


def test_a_process_that_shows_nothing_blinds_nobody():
    """One peer's published detector turns its reference into NaN when a rank lacks a section: nobody is flagged."""
    steps = [
        Step(own_s={**step.own_s, 3: math.nan} if number % 2 else {p: s for p, s in step.own_s.items() if p != 3})
        for number, step in enumerate(job(30, 0.02, {1: 0.15}))
    ]
    _, found = watched(steps)
    assert [procs for _, procs in named(found)] == [{1}]


def test_one_pause_in_a_window_is_no_straggler():
    pauses = enumerate(job(200, 0.02, {}))
    steps = [Step(own_s={**s.own_s, 0: s.own_s[0] * (5 if number % 5 == 0 else 1)}) for number, s in pauses]
    assert not watched(steps)[1]


def test_who_is_fast_again_is_told_to_be_and_can_be_named_again():
    watch, found = watched([*job(40, 0.02, {1: 0.2}), *job(60, 0.02, {}, 1), *job(40, 0.02, {1: 0.2}, 2)])
    kinds = [type(finding) for _, finding in found]
    assert kinds == [Slow, Eased, Slow]
    assert watch.named == {1}


def test_a_second_straggler_is_told_together_with_the_first():
    _, found = watched([*job(40, 0.02, {1: 0.2}), *job(40, 0.02, {1: 0.2, 3: 0.2}, 1)])
    assert [procs for _, procs in named(found)] == [{1}, {1, 3}]


def test_a_process_that_was_replaced_is_no_straggler_any_more():
    steps = [Step(own_s={p + 10 if p == 1 else p: s for p, s in step.own_s.items()}) for step in job(40, 0.02, {}, 1)]
    watch, _ = watched([*job(40, 0.02, {1: 0.2}), *steps])
    assert not watch.named


def test_the_open_window_is_dropped_by_a_disturbance():
    watch, _ = watched(job(3, 0.02, {1: 50.0}))
    watch = straggler.disturbed(watch)
    assert not watched(job(200, 0.02, {}), watch)[1]


def told(steps, slow_s):
    """What four processes have spent after so many steps, of which process 2 loads longer."""
    return {
        p: Spent(steps, {"data": steps * (0.1 + (slow_s if p == 2 else 0.0)), "forward": steps * 0.9}) for p in range(4)
    }


def test_the_cause_is_known_however_many_windows_end_with_what_was_told_at_once():
    """A beat may carry the steps of ten windows, and says once what was spent."""
    before, after = told(40, 0.2), told(80, 0.2)
    own_s = {p: 1.2 if p == 2 else 1.0 for p in range(4)}
    steps = [Step(own_s=dict.fromkeys(range(4), 1.0), spent=before)] * 40 + [Step(own_s=own_s, spent=after)] * 40
    found = [finding for _, finding in watched(steps)[1] if isinstance(finding, Slow)]
    assert [explain(one).cause for one in found] == [Cause.DATA]


def test_who_had_told_of_nothing_when_a_window_began_is_left_out_of_its_seconds():
    """Zero steps means not known: what it had spent since its start was taken for one window's."""
    before, after = told(40, 0.0) | {0: Spent(0, {})}, told(45, 0.0)
    steps = [Step(own_s=dict.fromkeys(range(4), 1.0), spent=spent) for spent in (*[before] * 5, *[after] * 5)]
    watch, _ = watched(steps)
    assert watch.windows[-1].sections_s().keys() == {1, 2, 3}


def test_steps_that_grow_while_nobody_has_more_to_do_are_spent_in_the_collectives():
    steps = [Step(own_s=s.own_s, period_s=max(s.own_s.values()) + 0.1) for s in job(100, 0.02, {})]
    slower = [Step(own_s=s.own_s, period_s=max(s.own_s.values()) + 0.6) for s in job(100, 0.02, {}, 1)]
    _, found = watched([*steps, *slower])
    assert [type(finding) for _, finding in found] == [Slack]
    assert found[0][1].apart_s > 0.3
    assert found[0][1].usual_s < 0.2


@given(st.lists(st.dictionaries(st.integers(0, 3), st.floats(allow_nan=True, allow_infinity=True)), max_size=60))
@example([{0: 5.99e307, 1: 5.99e307, 2: 5.99e307}] * 60)
def test_no_input_breaks_it(steps):
    watched(Step(own_s=own_s, spent={0: Spent(1, {"data": 1.0})}, period_s=1.0) for own_s in steps)
