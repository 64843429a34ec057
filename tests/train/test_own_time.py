"""Own time, with clocks and marks that the test sets."""

from __future__ import annotations

import os
import time

import pytest

from closeranks import vitals
from closeranks.train import device_time, own_time
from closeranks.train.device_time import DeviceTime
from closeranks.train.own_time import OwnTime
from closeranks.vitals import Field, Vitals


@pytest.fixture
def page():
    fd = vitals.create_memfd("test")
    yield Vitals(fd)
    os.close(fd)


def own_ns(page):
    return page.words[Field.OWN_NS]


def test_own_time_runs_from_the_last_update_to_the_last_launch_of_the_backward_pass(page):
    own = OwnTime(page)
    own.begin(1_000)
    own.open(5_000)
    assert own_ns(page) == 0
    own.launch(9_000, 7)
    own.launch(9_500, 7)
    own.launch(80_000, -1)  # after the backward pass, at whose end DDP waited for the others
    assert own_ns(page) == 8_500


def test_a_first_attempt_counts_from_its_opening(page):
    own = OwnTime(page)
    own.open(5_000)
    own.launch(6_000, -1)
    assert own_ns(page) == 1_000


def test_waits_and_labelled_sections_are_taken_off(page):
    own = OwnTime(page)
    began_ns = time.monotonic_ns()
    own.begin(began_ns)
    own.open(began_ns)
    own.waited(time.monotonic_ns() - 1_000_000_000)
    with own.apart():
        own.waited(time.monotonic_ns() - 5_000_000_000)  # a wait inside of a section counts once, with it
    own.launch(began_ns + 3_000_000_000, -1)
    assert 1_900_000_000 < own_ns(page) <= 2_000_000_000


def test_while_a_step_is_open_the_own_time_of_the_one_before_is_known(page):
    assert page.own_ns == 0
    own = OwnTime(page)
    own.open(5_000)
    own.launch(6_000, -1)
    page.close_step(0, 1, 5_000, 0.5)
    own.open(9_000)
    assert (own_ns(page), page.own_ns) == (0, 1_000)


def test_after_a_recovery_nothing_of_before_counts(page):
    own = OwnTime(page)
    own.begin(1_000)
    own.forget()
    own.open(900_000)
    own.launch(900_500, 3)
    assert own_ns(page) == 500


class Stream:
    """Marks get the time at which the device will come to them."""

    def __init__(self):
        self.now_ms = 0.0
        self.done_ms = 0.0

    def mark(self):
        stream, at_ms = self, self.now_ms

        class Mark:
            def query(self):
                return at_ms <= stream.done_ms

            def elapsed_time(self, other):
                return other.at_ms - at_ms

        mark = Mark()
        mark.at_ms = at_ms
        return mark


def test_the_device_measures_and_is_never_waited_for():
    stream = Stream()
    device = DeviceTime(stream.mark)
    for step in range(3):
        stream.now_ms = 100.0 * step
        device.begin()
        for launch_ms in (30.0, 40.0 + step):
            stream.now_ms = 100.0 * step + launch_ms
            device.launch()
    assert device.read_ns() == 0
    stream.done_ms = 120.0
    assert device.read_ns() == 40_000_000
    stream.done_ms = 1e9
    device.forget()
    assert device.read_ns() == 41_000_000  # that of the third step was forgotten


def test_on_an_accelerator_its_measure_is_shown(page, monkeypatch):
    stream = Stream()
    monkeypatch.setattr(device_time, "in_use", lambda: True)
    monkeypatch.setattr(own_time, "DeviceTime", lambda: DeviceTime(stream.mark))
    own = OwnTime(page)
    for step in range(3):
        stream.now_ms = stream.done_ms = 100.0 * step
        own.begin(1_000 * step + 1)
        own.open(1_000 * step + 2)
        stream.now_ms += 60.0
        own.launch(1_000 * step + 3, 5)
    assert own_ns(page) == 60_000_000


def test_without_an_accelerator_none_is_touched():
    assert not device_time.in_use()
