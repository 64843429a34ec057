"""Special functions against a high-precision oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.plan import special
from closeranks.plan.checks import NotSolvableError

mpmath = pytest.importorskip("mpmath")


@pytest.mark.parametrize("shape", [0.5, 1, 2.5, 10, 420, 5_000])
@pytest.mark.parametrize("fold", [0.1, 0.9, 1.0, 1.1, 3.0])
def test_incomplete_gamma(shape, fold):
    x = shape * fold
    lower = float(mpmath.gammainc(shape, 0, x, regularized=True))
    upper = float(mpmath.gammainc(shape, x, mpmath.inf, regularized=True))
    assert special.gamma_p(shape, x) == pytest.approx(lower, rel=1e-10, abs=1e-300)
    assert special.gamma_q(shape, x) == pytest.approx(upper, rel=1e-10, abs=1e-300)


@settings(deadline=None)
@given(st.floats(1e-6, 1 - 1e-6), st.floats(1, 1_000))
def test_chi_square_quantile_inverts_its_law(probability, freedom):
    x = special.chi2_quantile(probability, freedom)
    assert special.gamma_p(freedom / 2, x / 2) == pytest.approx(probability, rel=1e-9)


def test_known_chi_square_quantiles():
    got = special.chi2_quantile(np.array([0.95, 0.975, 0.025]), np.array([2, 10, 10]))
    assert got == pytest.approx([5.991464547107979, 20.483177350807388, 3.2469727802368413], rel=1e-12)


@settings(deadline=None)
@given(st.floats(0.001, 0.999), st.floats(0.01, 300))
def test_poisson_quantile_is_the_smallest(probability, mean):
    count = special.poisson_quantile(probability, mean)
    assert special.poisson_tail(count, mean) <= 1 - probability
    assert count == 0 or special.poisson_tail(count - 1, mean) > 1 - probability


def test_nothing_is_certain_about_a_poisson_count():
    with pytest.raises(NotSolvableError, match="no finite count is certain"):
        special.poisson_quantile(1.0, 3.0)


def test_golden_section_finds_many_minima_at_once():
    goals = np.array([0.1, 2.0, 7.5])
    assert special.golden_minimum(np.zeros(3), np.full(3, 10.0), lambda x: (x - goals) ** 2) == pytest.approx(goals)
