"""Checksummed matrix products: the column sums of ``C = A B`` are also ``(e^T A) B``, for the price of one row.

Both sides round differently, so they differ even when nothing is wrong, by an amount that grows with the unit
roundoff ``u`` of the type that ``C`` is stored in and with the size of the column. A column is wrong when its
residual, over its 2-norm, exceeds a limit of so many ``u``. A fault that changes a column by less than the rounding of
a sum over it cannot be told from rounding: low mantissa bits of single elements pass. ``docs/numerics.md`` has the
recall by bit.

Source: Huang and Abraham, "Algorithm-Based Fault Tolerance for Matrix Operations", IEEE Trans. Computers, 1984.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

Matrix = np.ndarray[Any, Any]

ROUNDOFF: Final[Mapping[str, float]] = MappingProxyType({"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8})
# Twice the largest residual of bench/abft.py and more. The sums themselves are taken in a wider type: in that of C they
# would need 80 u and more where the inner dimension is long.
FACTOR: Final[Mapping[str, float]] = MappingProxyType({"float32": 32.0, "float16": 4.0, "bfloat16": 4.0})


def limit(dtype: str) -> float:
    """The largest residual over the 2-norm of its column that counts as rounding.

    Raises:
        ValueError: products of this type are not checked.
    """
    if dtype not in FACTOR:
        raise ValueError(f"products of {dtype} are not checked; expected {', '.join(FACTOR)}")
    return FACTOR[dtype] * ROUNDOFF[dtype]


def residuals(a: Matrix, b: Matrix, c: Matrix) -> Matrix:
    """By column of ``c``, which should be ``a @ b``: the difference of the two checksums over the column's 2-norm."""
    with np.errstate(over="ignore", invalid="ignore"):
        told = c.sum(axis=0, dtype=np.float64)
        expected = a.sum(axis=0, dtype=np.float64) @ b.astype(np.float64)
        size = np.sqrt(np.square(c).sum(axis=0))
        found: Matrix = np.abs(told - expected) / np.maximum(size, np.finfo(np.float32).tiny)
    # One wild element makes the norm overflow, and anything is small beside that.
    return np.where(np.isfinite(size), found, np.inf)


def wrong_columns(a: Matrix, b: Matrix, c: Matrix, dtype: str) -> tuple[int, ...]:
    """Columns in which ``c`` is not ``a @ b``; what is not finite is wrong."""
    return tuple(np.flatnonzero(~(residuals(a, b, c) <= limit(dtype))).tolist())
