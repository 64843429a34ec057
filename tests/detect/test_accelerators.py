from __future__ import annotations

import pytest

from closeranks.detect.accelerators import Device, Recovery, delta, judge, recovery_of, slowed_by

GOOD = Device(name="gpu0", recovery=0, corrected=70, uncorrected=3, remapped=2, pcie_width=16, pcie_width_max=16)


def changed(**fields):
    return Device(**{name: getattr(GOOD, name) for name in GOOD.__struct_fields__} | fields)


@pytest.mark.parametrize("action", list(Recovery)[1:])
def test_every_recovery_action_but_none_drains(action):
    (concern,) = judge(changed(recovery=int(action)))
    assert concern.drain and concern.detail.startswith("the device asks for ")


def test_an_action_of_a_newer_driver_is_taken_for_one():
    assert recovery_of(9) == ("recovery action 9, which is not known here", True)


def test_totals_of_the_past_are_no_concern_and_what_grows_is():
    assert judge(GOOD) == judge(GOOD, GOOD) == ()
    (concern,) = judge(changed(uncorrected=4), GOOD)
    assert concern.drain and concern.detail == "1 new memory errors that could not be corrected"
    (concern,) = judge(changed(remapped=3), GOOD)
    assert not concern.drain


def test_a_counter_that_fell_began_anew_with_the_device():
    assert [delta(5, 7), delta(5, 5), delta(5, 1), delta(None, 5), delta(5, None)] == [2, 0, 1, None, None]


def test_reasons_that_do_not_slow_are_none():
    assert slowed_by(0x1 | 0x4) == ()
    assert slowed_by(0x8 | 0x80) == ("hardware slowdown", "power brake")


def test_a_slow_link_counts_under_load_only():
    slow = {"pcie_generation": 1, "pcie_generation_max": 5}
    assert judge(changed(clocks_reasons=0x1, **slow)) == judge(changed(**slow)) == ()
    (concern,) = judge(changed(clocks_reasons=0x4, **slow))
    assert concern.sign == "gpu0 PCIe generation"


def test_what_a_device_does_not_tell_is_no_concern_of_its_own():
    assert judge(Device(name="gpu0")) == ()
