from __future__ import annotations

import pytest

from closeranks.run.cadence import Cadence


def test_what_lies_between_two_blocks_belongs_to_a_step():
    cadence = Cadence()
    assert cadence.steps_in(1.0) == 0
    for period_s in (0.0, 0.2, 0.001, 0.3):  # of the first, nobody knows when the one before was closed
        cadence.add(period_s)
    assert cadence.steps_in(1.0) == pytest.approx(5)  # the short one was closed with the one before


def test_only_the_newest_steps_tell():
    cadence = Cadence()
    for period_s in (*[0.001] * 40, *[0.1] * 32):
        cadence.add(period_s)
    assert cadence.steps_in(1.0) == pytest.approx(10)
