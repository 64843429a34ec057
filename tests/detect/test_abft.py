import numpy as np
import pytest

from closeranks.detect.abft import limit, wrong_columns


def product(seed, shape=(96, 64, 48)):
    draw = np.random.default_rng(seed)
    rows, inner, columns = shape
    a = draw.standard_normal((rows, inner)).astype(np.float32)
    b = draw.standard_normal((inner, columns)).astype(np.float32)
    return a, b, a @ b


def test_rounding_is_never_taken_for_a_fault():
    assert all(wrong_columns(*product(seed), "float32") == () for seed in range(200))


@pytest.mark.parametrize("bit", [23, 26, 29, 30])
def test_a_flipped_exponent_bit_names_its_column(bit):
    a, b, c = product(1)
    c[5, 7:8].view(np.int32)[:] ^= 1 << bit
    assert wrong_columns(a, b, c, "float32") == (7,)


def test_what_is_not_finite_is_wrong():
    a, b, c = product(2)
    c[0, 3] = np.nan
    assert wrong_columns(a, b, c, "float32") == (3,)


def test_a_type_without_a_limit_is_refused():
    with pytest.raises(ValueError, match="products of int8 are not checked"):
        limit("int8")
