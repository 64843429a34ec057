"""k data blocks and m parity blocks of which any k are enough: Reed-Solomon over GF(256). Pure; NumPy alone.

Block number i < k is data as it is, block k + j is the j-th row of a Cauchy matrix times the data. Every square part of
a Cauchy matrix is invertible, and stays so when rows and columns are scaled; here they are scaled so that the first row
and the first column are ones. So the first parity block is the XOR of the data, and with k = 1 all blocks are copies.

Source: Blömer, Kalfane, Karp, Karpinski, Luby, Zuckerman: An XOR-Based Erasure-Resilient Coding Scheme (1995); the
field is that of ISA-L, x^8 + x^4 + x^3 + x^2 + 1 (0x11d).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

BLOCKS_MAX: Final = 256  # k + m: so many different elements has the field
_POLYNOMIAL: Final = 0x11D
_STRIP_BYTES: Final = 32 * 2**10  # so that what is worked on stays in the nearest cache


class Multiply(Protocol):
    """Fills ``outputs`` with ``matrix`` times ``inputs``."""

    def __call__(self, matrix: Bytes, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
        """``matrix``: [outputs, inputs]; all blocks are contiguous and of one length; no output is an input."""
        ...


def _products() -> Bytes:
    """PRODUCTS[a, b] = a times b."""
    powers, logarithms, value = np.zeros(510, np.uint8), np.zeros(256, np.int64), 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logarithms[value] = exponent
        value <<= 1
        if value > 0xFF:  # noqa: PLR2004 -- a byte
            value ^= _POLYNOMIAL
    products: Bytes = powers[logarithms[:, None] + logarithms[None, :]]
    products[0, :] = products[:, 0] = 0
    return products


PRODUCTS: Final = _products()
_INVERSES: Final = np.argmax(PRODUCTS == 1, axis=1).astype(np.uint8)  # of 0: 0, which nobody asks for


@functools.cache
def coding_matrix(data: int, parity: int) -> Bytes:
    """All blocks from the data blocks: [data + parity, data], the identity on top.

    Raises:
        ValueError: there is no such code over GF(256).
    """
    if data < 1 or parity < 0 or data + parity > BLOCKS_MAX:
        raise ValueError(f"expected 1 data block or more and {BLOCKS_MAX} blocks at most, got {data}+{parity}")
    rows, columns = np.arange(data, data + parity, dtype=np.uint8), np.arange(data, dtype=np.uint8)
    cauchy = _INVERSES[rows[:, None] ^ columns[None, :]]
    if parity:
        cauchy = PRODUCTS[cauchy, _INVERSES[cauchy[:1, :]]]  # the first row becomes ones
        cauchy = PRODUCTS[cauchy, _INVERSES[cauchy[:, :1]]]  # the first column as well
    matrix = np.concatenate([np.eye(data, dtype=np.uint8), cauchy])
    matrix.flags.writeable = False
    return matrix


def recovery_matrix(data: int, parity: int, present: Sequence[int], wanted: Sequence[int]) -> Bytes:
    """The wanted blocks from those ``present``, of which there must be exactly ``data``: [wanted, data].

    Raises:
        ValueError: too few, too many or the same block twice.
    """
    if len(present) != data or len(set(present)) != data:
        raise ValueError(f"expected {data} different blocks, got {list(present)}")
    matrix = coding_matrix(data, parity)
    return _product(matrix[list(wanted)], _inverse(matrix[list(present)]))


def multiply(matrix: Bytes, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
    """The kernel without any library but NumPy: a table look-up and an XOR for each coefficient."""
    length = len(outputs[0]) if outputs else 0
    product = np.empty(min(length, _STRIP_BYTES), np.uint8)
    for begin in range(0, length, _STRIP_BYTES):
        end = min(begin + _STRIP_BYTES, length)
        for row, output in zip(matrix, outputs, strict=True):
            _multiply_strip(row, [block[begin:end] for block in inputs], output[begin:end], product[: end - begin])


def _multiply_strip(row: Bytes, inputs: Sequence[Bytes], output: Bytes, product: Bytes) -> None:
    output[:] = 0
    for coefficient, block in zip(row.tolist(), inputs, strict=True):
        if coefficient == 1:
            np.bitwise_xor(output, block, out=output)
        elif coefficient:
            np.take(PRODUCTS[coefficient], block, out=product, mode="clip")  # "raise" would take a copy first
            np.bitwise_xor(output, product, out=output)


def _product(left: Bytes, right: Bytes) -> Bytes:
    product: Bytes = np.bitwise_xor.reduce(PRODUCTS[left[:, :, None], right[None, :, :]], axis=1)
    return product


def _inverse(square: Bytes) -> Bytes:
    """By Gauss and Jordan."""
    size = len(square)
    work = np.concatenate([square, np.eye(size, dtype=np.uint8)], axis=1)
    for column in range(size):
        pivot = column + int(np.argmax(work[column:, column] != 0))
        work[[column, pivot]] = work[[pivot, column]]
        work[column] = PRODUCTS[work[column], _INVERSES[work[column, column]]]
        factors = work[:, column].copy()
        factors[column] = 0
        work ^= PRODUCTS[factors[:, None], work[column][None, :]]
    return work[:, size:].copy()
