"""The kernel of erasure coding in Intel's ISA-L, where it is installed: as fast as memory, the same bytes as NumPy's.

It is found as the system's ``libisal`` (package libisal2) or inside an installed pyeclib wheel, which brings its own.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from closeranks.checkpoint import erasure
from closeranks.checkpoint.erasure import Bytes, Multiply

_TABLE_BYTES: Final = 32  # of one coefficient
_SAMPLE_BYTES: Final = 1000  # no multiple of a vector register
_Pointers = ctypes.c_void_p


class Kernel(NamedTuple):
    """A way to multiply, and what to call it."""

    name: str  # "isa-l" or "numpy"
    multiply: Multiply


class Isal:
    """The library, loaded."""

    def __init__(self, path: str) -> None:
        """Load it.

        Raises:
            OSError: it cannot be loaded.
            AttributeError: it is something else.
        """
        library = ctypes.CDLL(path)  # calls into it release the interpreter lock
        self._init = library.ec_init_tables
        self._init.argtypes = [ctypes.c_int, ctypes.c_int, _Pointers, _Pointers]
        self._init.restype = None
        self._encode = library.ec_encode_data
        self._encode.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, _Pointers, _Pointers, _Pointers]
        self._encode.restype = None

    def multiply(self, matrix: Bytes, inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> None:
        """See Multiply."""
        rows, columns = matrix.shape
        length = _common_length([*inputs, *outputs])
        if not outputs or not length:
            return
        if (rows, columns) != (len(outputs), len(inputs)):
            raise ValueError(f"a matrix of {rows} x {columns} for {len(inputs)} inputs and {len(outputs)} outputs")
        coefficients = np.ascontiguousarray(matrix)
        tables = np.empty(_TABLE_BYTES * rows * columns, np.uint8)
        self._init(columns, rows, coefficients.ctypes.data, tables.ctypes.data)
        sources = (ctypes.c_void_p * columns)(*(block.ctypes.data for block in inputs))
        targets = (ctypes.c_void_p * rows)(*(block.ctypes.data for block in outputs))
        self._encode(length, columns, rows, tables.ctypes.data, sources, targets)


@functools.cache
def kernel() -> Kernel:
    """The fastest kernel of this machine. A library that computes other bytes than NumPy is not used."""
    for path in _places():
        try:
            isal = Isal(path)
        except (OSError, AttributeError):
            continue
        if _agrees(isal.multiply):
            return Kernel("isa-l", isal.multiply)
    return Kernel("numpy", erasure.multiply)


def _places() -> Iterator[str]:
    name = ctypes.util.find_library("isal")
    if name is not None:
        yield name
    wheel = importlib.util.find_spec("pyeclib")
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        for path in sorted(Path(folder).parent.glob("pyeclib.libs/libisal*.so*")):
            yield str(path)


def _agrees(multiply: Multiply) -> bool:
    draw = np.random.default_rng(0)
    matrix = draw.integers(0, 256, (3, 5), np.uint8)
    inputs = list(draw.integers(0, 256, (5, _SAMPLE_BYTES), np.uint8))
    ours, theirs = ([np.empty(_SAMPLE_BYTES, np.uint8) for _ in range(3)] for _ in range(2))
    erasure.multiply(matrix, inputs, ours)
    multiply(matrix, inputs, theirs)
    return all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


def _common_length(blocks: Sequence[Bytes]) -> int:
    lengths = {len(block) for block in blocks}
    if len(lengths) > 1 or any(not block.flags.c_contiguous for block in blocks):
        raise ValueError(f"expected contiguous blocks of one length, got {sorted(lengths)}")
    return lengths.pop() if lengths else 0
