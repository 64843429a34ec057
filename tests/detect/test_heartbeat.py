import itertools
import math
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.detect.heartbeat import Bounds, Standing, beat, confirmed, first_pulse, look, look_at_all

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import _arrivals

BOUNDS = Bounds(floor_s=1.5, ceiling_s=3.0)


def regular(beats=20, node="n1"):
    pulse = first_pulse(node, BOUNDS, 0.0)
    for number in range(1, beats + 1):
        pulse, _ = beat(pulse, number * 0.5)
    return pulse


def test_before_anything_is_learned_the_deadline_is_the_ceiling():
    pulse = regular(beats=7)
    assert pulse.due_s == 3.5 + 3.0
    assert look(pulse, 6.49)[1] is None
    pulse, suspicion = look(pulse, 6.5)
    assert suspicion.reason == "no beat of n1 for 3.00 s, 3.00 s are allowed: too little is learned from 7 beats"


def test_regular_beats_bring_the_deadline_down_to_the_floor_and_that_is_told_once():
    pulse, told = first_pulse("n1", BOUNDS, 0.0), []
    for number in range(1, 200):
        pulse, change = beat(pulse, number * 0.5)
        told += [change] if change else []
    assert pulse.allowed_s == 1.5
    assert [(change.phase, change.allowed_s) for change in told] == [("heartbeat of n1", 1.5)]
    assert told[0].reason == "beats come every 0.50 s, give or take 0.000 s, and no deadline is shorter"


def test_a_silence_is_suspected_once():
    pulse, suspicion = look(regular(), 11.5)
    assert suspicion.node == "n1"
    assert suspicion.silent_s == 1.5
    assert pulse.standing is Standing.SUSPECT
    assert pulse.due_s == math.inf
    assert look(pulse, 100.0) == (pulse, None)


def test_a_late_beat_widens_the_deadline_so_that_the_same_pause_raises_no_alarm_again():
    pulse, _ = look(regular(), 11.5)
    pulse, change = beat(pulse, 11.6)
    assert pulse.standing is Standing.HEARD
    assert change.allowed_s == pulse.allowed_s > 1.6
    assert change.reason.startswith("a beat came after 1.60 s, when it was suspected already")
    assert look(pulse, 11.6 + 1.6)[1] is None


def test_what_a_false_alarm_widened_is_forgiven_in_time():
    pulse, _ = look(regular(), 11.5)
    pulse, _ = beat(pulse, 11.6)
    for number in range(1, 2000):
        pulse, _ = beat(pulse, 11.6 + number * 0.5)
    assert pulse.allowed_s == 1.5


def test_a_confirmed_end_is_not_suspected_again_and_a_beat_brings_the_node_back():
    pulse, _ = look(regular(), 11.5)
    pulse = confirmed(pulse)
    assert pulse.standing is Standing.CONFIRMED
    assert look(pulse, 99.0) == (pulse, None)
    assert beat(pulse, 100.0)[0].standing is Standing.HEARD


def test_an_observer_that_was_late_itself_suspects_nobody_for_that():
    pulse, suspicion = look(regular(), 15.0, late_s=4.9)
    assert suspicion is None
    assert pulse.due_s == pytest.approx(11.5 + 4.9)
    _, suspicion = look(pulse, 16.5)
    assert suspicion.silent_s == pytest.approx(16.5 - 10.0 - 4.9)


def test_an_observer_that_was_late_itself_learns_nothing_from_it():
    excused, _ = look(regular(), 15.0, late_s=4.9)
    for pulse in (beat(regular(), 15.0, late_s=4.9)[0], beat(excused, 15.0)[0]):
        assert (pulse.mean_s, pulse.variance_s2, pulse.beats) == (0.5, 0.0, 20)
        assert pulse.due_s == 16.5


def test_one_look_at_all_tells_who_is_overdue_and_when_to_look_again():
    pulses = {"n1": regular(), "n2": regular(19, "n2"), "n3": regular(22, "n3")}
    survey = look_at_all(pulses, 11.2)
    assert [suspicion.node for suspicion in survey.suspicions] == ["n2"]
    assert set(survey.changed) == {"n2"}
    assert survey.next_s == 11.5


def test_nobody_to_look_at_is_never_due():
    assert look_at_all({}, 0.0).next_s == math.inf


def test_a_floor_above_the_ceiling_is_refused():
    with pytest.raises(ValueError, match="floor 4 s and ceiling 3 s"):
        Bounds(floor_s=4.0, ceiling_s=3.0)


@settings(max_examples=50)
@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=60))
def test_the_deadline_stays_within_its_bounds_and_statistics_are_those_of_the_intervals(gaps_s):
    pulse, now_s = first_pulse("n1", Bounds(floor_s=1.5, ceiling_s=3.0, memory_beats=1000), 0.0), 0.0
    for now_s in itertools.accumulate(gaps_s):
        pulse, _ = look(pulse, now_s)
        pulse, _ = beat(pulse, now_s)
        assert 1.5 <= pulse.allowed_s <= 3.0
        assert pulse.due_s == now_s + pulse.allowed_s
    mean_s = now_s / len(gaps_s)
    assert pulse.mean_s == pytest.approx(mean_s, abs=1e-9)
    assert pulse.variance_s2 == pytest.approx(sum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s), abs=1e-6)


@settings(max_examples=50)
@given(st.lists(st.floats(0.01, 5.0), min_size=1, max_size=40))
def test_whoever_looks_when_told_finds_every_silence_beyond_its_deadline_and_no_other(gaps_s):
    pulse, now_s = first_pulse("n1", BOUNDS, 0.0), 0.0
    for gap_s in gaps_s:
        allowed_s, due_s = pulse.allowed_s, pulse.due_s
        now_s += gap_s
        late = now_s >= due_s
        pulse, suspicion = look(pulse, now_s)
        assert (suspicion is not None) == late
        assert suspicion is None or (suspicion.silent_s == pytest.approx(gap_s) and gap_s > allowed_s - 1e-9)
        pulse, _ = beat(pulse, now_s)


# --- quality ----------------------------------------------------------------------------------------------------

# Shape of delays: false suspicions per hour at most, and seconds to a suspicion on average at most. Every false
# suspicion costs one question on another way, no more.
QUALITY = {
    "quiet network": (0.0, 1.3),
    "lognormal": (4.0, 1.8),
    "Pareto": (3.0, 1.8),
    "collections": (5.0, 1.9),
    "collections, long": (8.0, 2.6),
}


@pytest.mark.parametrize("shape", _arrivals.DELAYS)
def test_jitter_is_seldom_taken_for_an_end_and_an_end_is_seen_soon(shape):
    quality = _arrivals.judged(_arrivals.DELAYS[shape], 2.0, seed=1)
    alarms, detection_s = QUALITY[shape]
    assert quality.suspicions_per_hour <= alarms
    assert quality.detection_s <= detection_s
    assert quality.worst_s <= _arrivals.BOUNDS.ceiling_s + 1e-9


def test_learning_halves_the_false_alarms_of_pauses_that_keep_coming():
    delay = _arrivals.DELAYS["collections, long"]
    times_s = [0.0, *_arrivals.arrivals(delay, 2 * 7200, random.Random(3))]
    fixed = sum(b - a > _arrivals.BOUNDS.floor_s for a, b in itertools.pairwise(times_s)) / 2
    assert _arrivals.judged(delay, 2.0, 3).suspicions_per_hour < fixed / 2
