from __future__ import annotations

import random

import pytest

from closeranks.detect.trend import Reaches, Steady, mann_kendall, theil_sen, towards


def test_a_line_under_noise_is_found_and_its_end_foretold():
    draw = random.Random(1)
    points = [(60.0 * k, 70 + 0.2 * k + draw.gauss(0, 1)) for k in range(40)]
    found = towards(points, 87.0, 30)
    assert isinstance(found, Reaches)
    assert found.per_s * 60 == pytest.approx(0.2, rel=0.15)
    assert found.in_s / 60 == pytest.approx((87 - 70) / 0.2 - 39, rel=0.3)


def test_noise_alone_leads_nowhere():
    draw = random.Random(2)
    told = [isinstance(towards([(k, 70 + draw.gauss(0, 2)) for k in range(60)], 87.0, 30), Reaches) for _ in range(500)]
    assert sum(told) <= 2


def test_a_rise_that_is_over_is_no_trend():
    points = [(float(k), 40.0 + min(k, 5) * 7) for k in range(60)]
    assert isinstance(towards(points, 87.0, 30), Steady)


def test_what_falls_is_foretold_as_well_and_what_moves_away_is_not():
    falling = [(float(k), 100.0 - k) for k in range(30)]
    found = towards(falling, 0.0, 10)
    assert isinstance(found, Reaches) and found.in_s == pytest.approx(71)
    assert isinstance(towards(falling, 200.0, 10), Steady)


def test_a_bound_that_is_passed_is_reached_now():
    assert towards([(0.0, 10.0), (1.0, 0.0)], 0.0, 10) == Reaches(in_s=0.0, per_s=0.0)


def test_too_few_values_tell_nothing():
    assert isinstance(towards([], 1.0, 3), Steady)
    assert isinstance(towards([(0.0, 0.0), (1.0, 0.5)], 1.0, 3), Steady)


def test_wild_values_do_not_bend_the_line():
    points = [(float(k), 2.0 * k if k % 5 else 1e6) for k in range(40)]
    assert theil_sen(points)[0] == pytest.approx(2.0, rel=0.05)


def test_the_test_for_a_trend_agrees_with_worked_examples():
    assert mann_kendall([1, 2, 3, 4, 5]) == pytest.approx(9 / (5 * 4 * 15 / 18) ** 0.5)
    assert mann_kendall([3, 3, 3]) == 0.0
    assert mann_kendall([5, 4, 3, 2, 1]) == -mann_kendall([1, 2, 3, 4, 5])
