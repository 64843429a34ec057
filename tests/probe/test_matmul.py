import numpy as np
import pytest

from closeranks.probe.matmul import factors, try_products


def test_a_device_that_multiplies_rightly_passes_in_any_precision():
    assert try_products(np.matmul, (16, 200, 300), seed=1).passed
    half = try_products(lambda a, b: (a.astype(np.float16) @ b.astype(np.float16)).astype(np.float32), (64,), seed=1)
    assert half.passed


def test_one_wrong_element_is_counted_and_told_with_its_place():
    def wrong(a, b):
        c = a @ b
        c[3, 4] += 1
        return c

    found = try_products(wrong, (32,), seed=1)
    assert (found.passed, found.wrong) == (False, 1)
    assert found.first.startswith("product 0 of size 32: [3, 4] is ")


def test_the_same_seed_makes_the_same_factors_and_their_sums_are_exact_in_half_precision():
    a, b = factors(300, 5)
    again, _ = factors(300, 5)
    assert np.array_equal(a, again)
    assert np.abs(a.astype(int)).sum(axis=1).max() <= 256
    assert not np.array_equal(a, b)


def test_a_size_beyond_what_is_exact_is_refused(monkeypatch):
    monkeypatch.setattr("closeranks.probe.matmul._EXACT", 4)
    with pytest.raises(ValueError, match="not certain to be exact"):
        factors(64, 1)
