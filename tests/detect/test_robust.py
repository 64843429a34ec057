import itertools

import numpy as np
import pytest

from closeranks.detect.robust import comparators, coordinate_median, krum, trimmed_mean

HONEST = np.random.default_rng(0).normal(1.0, 0.1, (8, 50))


def attacked(value):
    bad = HONEST.copy()
    bad[3] = value
    return bad


@pytest.mark.parametrize("value", [-1e9, 1e9, np.inf, np.nan])
def test_one_wild_rank_cannot_move_them(value):
    bad = attacked(value)
    assert np.allclose(trimmed_mean(bad, 1), HONEST.mean(axis=0), atol=0.2)
    assert np.allclose(coordinate_median(bad), HONEST.mean(axis=0), atol=0.2)
    assert krum(bad, 1) != 3


def test_the_median_is_numpys():
    for ranks in (7, 8):
        assert np.allclose(coordinate_median(HONEST[:ranks]), np.median(HONEST[:ranks], axis=0))


@pytest.mark.parametrize("count", range(1, 11))
def test_the_comparators_sort(count):
    for values in itertools.product((0, 1), repeat=count):  # who sorts all of zeros and ones sorts everything
        rows = list(values)
        for low, high in comparators(count):
            rows[low], rows[high] = min(rows[low], rows[high]), max(rows[low], rows[high])
        assert rows == sorted(values)


def test_what_cannot_be_borne_is_refused_with_the_number_that_can():
    with pytest.raises(ValueError, match="trim=4 of 8 ranks"):
        trimmed_mean(HONEST, 4)
    with pytest.raises(ValueError, match="at least 9 ranks, got 8"):
        krum(HONEST, 3)
