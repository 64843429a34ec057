from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.detect import telemetry
from closeranks.detect.accelerators import Device
from closeranks.detect.telemetry import AVAILABLE, FREE, OFFSET, STALLED, Sample, Watch
from closeranks.events import NodeUnwell, NodeWell

GIB = 2.0**30


def device(**fields):
    return Device(name="gpu0", **{"recovery": 0, "corrected": 10, "uncorrected": 0, "temperature_c": 60} | fields)


def seen(samples, watch=None):
    watch, found = watch or Watch(), []
    for sample in samples:
        watch, news = telemetry.observe(watch, sample)
        found += news
    return watch, found


def every_10_s(values, count):
    """``values(k)``: host values and devices of sample k."""
    for k in range(count):
        host, devices = values(k)
        yield Sample(
            at_s=10.0 * k,
            host={STALLED: 0.0, AVAILABLE: 64 * GIB, FREE: 500 * GIB, OFFSET: 1e9} | host,
            devices=devices,
        )


def unwell(found):
    return [(event.sign, event.drain) for event in found if isinstance(event, NodeUnwell)]


def test_a_day_of_a_healthy_node_tells_nothing():
    draw = random.Random(3)

    def values(_):
        host = {STALLED: draw.uniform(0, 0.05), AVAILABLE: draw.gauss(64, 3) * GIB, FREE: draw.gauss(500, 1) * GIB}
        return host, (device(temperature_c=round(draw.gauss(70, 2)), corrected=10),)

    assert not seen(every_10_s(values, 2000))[1]


def test_a_rising_temperature_drains_the_node_before_it_is_too_hot():
    draw = random.Random(4)
    samples = every_10_s(lambda k: ({}, (device(temperature_c=round(60 + k / 40 + draw.gauss(0, 1))),)), 1000)
    _, found = seen(samples)
    assert unwell(found) == [("gpu0 temperature", True)]
    assert "a minute, to 87 C" in found[0].detail


def test_a_device_that_warms_up_when_work_begins_is_no_trend():
    assert not seen(every_10_s(lambda k: ({}, (device(temperature_c=min(75, 40 + k)),)), 1000))[1]


def test_corrected_errors_that_come_more_and_more_often_drain_the_node():
    _, found = seen(every_10_s(lambda k: ({}, (device(corrected=int((k / 100) ** 3)),)), 1000))
    assert ("gpu0 corrected", True) in unwell(found)


def test_corrected_errors_at_an_even_pace_do_not():
    assert not seen(every_10_s(lambda k: ({}, (device(corrected=3 * k),)), 1000))[1]


def test_new_uncorrected_errors_are_told_once_and_are_over_after_an_hour():
    _, found = seen(every_10_s(lambda k: ({}, (device(uncorrected=int(k > 5)),)), 400))
    assert [type(event) for event in found] == [NodeUnwell, NodeWell]
    assert found[0].drain


def test_errors_from_before_the_run_are_none():
    assert not seen(every_10_s(lambda _: ({}, (device(uncorrected=7),)), 10))[1]


@pytest.mark.parametrize("gone", [(), None])
def test_a_device_that_stops_to_answer_is_missed(gone):
    _, found = seen(every_10_s(lambda k: ({}, (device(),) if k < 5 or k > 20 else gone), 30))
    assert unwell(found) == [("gpu0 missing", True)]
    assert found[-1] == NodeWell(sign="gpu0 missing")


def test_a_value_that_stops_to_come_is_missed_and_one_that_never_came_is_not():
    _, found = seen(every_10_s(lambda k: ({STALLED: 0.0 if k < 5 else None, "never": None}, None), 20))
    assert unwell(found) == [("memory stalled missing", False)]


def test_what_lasts_one_sample_only_is_not_told():
    devices = [(device(clocks_reasons=8 * (k == 9)),) for k in range(20)]
    assert not seen(every_10_s(lambda k: ({STALLED: 0.5 if k == 7 else 0.0}, devices[k]), 20))[1]


def test_what_lasts_is_told_and_its_end_too():
    _, found = seen(every_10_s(lambda k: ({STALLED: 0.5 if 5 <= k < 12 else 0.0}, None), 20))
    assert [type(event) for event in found] == [NodeUnwell, NodeWell]


def test_a_disk_that_fills_is_told_before_it_is_full():
    _, found = seen(every_10_s(lambda k: ({FREE: (100 - k / 6) * GIB}, None), 500))
    assert unwell(found) == [(FREE, False)]


def test_memory_that_runs_out_is_told_before_it_has():
    _, found = seen(every_10_s(lambda k: ({AVAILABLE: (64 - k / 10) * GIB}, None), 500))
    assert unwell(found) == [(AVAILABLE, False)]


def test_a_clock_that_is_set_is_told():
    _, found = seen(every_10_s(lambda k: ({OFFSET: 1e9 + (40.0 if k > 5 else 0.0)}, None), 20))
    assert found == [NodeUnwell(sign="clock jump", detail="the clock was set by +40.0 s", drain=False)]


@given(st.lists(st.tuples(st.none() | st.floats(-1e12, 1e12), st.none() | st.integers(0, 2**60)), max_size=40))
def test_no_sample_breaks_it(values):
    seen(every_10_s(lambda k: ({FREE: values[k][0]}, (device(corrected=values[k][1]),)), len(values)))


@pytest.mark.parametrize(
    ("sent", "again", "told"), [(1000, 250, ["packet loss"]), (1000, 20, []), (20, 20, []), (0, 0, [])]
)
def test_a_node_whose_segments_are_lost_is_told_of_once_and_stays_in_use(sent, again, told):
    counted = {telemetry.SENT: float(sent), telemetry.AGAIN: float(again)}
    samples = every_10_s(lambda k: ({name: k * value for name, value in counted.items()}, None), 5)
    _, found = seen(samples)
    assert unwell(found) == [(sign, False) for sign in told]
    assert [event.detail for event in found] == ["20% of the segments that it sent were sent again"] * len(told)


def test_totals_of_segments_from_before_the_run_count_for_nothing():
    lost = {telemetry.SENT: 1e6, telemetry.AGAIN: 5e5}
    assert not seen(every_10_s(lambda _: (lost, None), 5))[1]
