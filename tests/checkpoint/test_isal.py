import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.checkpoint import erasure, isal


@pytest.fixture(scope="module")
def library():
    if importlib.util.find_spec("pyeclib") is None and not list(isal._places()):
        pytest.skip("ISA-L is not installed")
    return isal.Isal(next(isal._places()))


@settings(max_examples=50)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5000), st.integers(0, 2**32))
def test_isal_gives_the_bytes_that_numpy_gives(library, inputs, outputs, length, seed):
    random = np.random.default_rng(seed)
    matrix = random.integers(0, 256, (outputs, inputs), np.uint8)
    blocks = list(random.integers(0, 256, (inputs, length), np.uint8))
    ours, theirs = ([np.zeros(length, np.uint8) for _ in range(outputs)] for _ in range(2))
    erasure.multiply(matrix, blocks, ours)
    library.multiply(matrix, blocks, theirs)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)), f"seed {seed}"


def test_memory_that_is_not_aligned_is_coded_alike(library):
    store = np.random.default_rng(0).integers(0, 256, 5 * 1003, np.uint8)
    blocks = [store[1 + 1001 * n : 1 + 1001 * n + 999] for n in range(4)]
    matrix = erasure.coding_matrix(4, 2)[4:]
    ours, theirs = ([np.zeros(999, np.uint8) for _ in range(2)] for _ in range(2))
    erasure.multiply(matrix, blocks, ours)
    library.multiply(matrix, blocks, theirs)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("blocks", [[np.zeros(8, np.uint8), np.zeros(9, np.uint8)], [np.zeros(16, np.uint8)[::2]] * 2])
def test_blocks_that_the_library_would_overrun_are_refused(library, blocks):
    with pytest.raises(ValueError, match="one length"):
        library.multiply(np.ones((1, 2), np.uint8), blocks, [np.zeros(8, np.uint8)])


def test_a_matrix_of_another_size_is_refused(library):
    with pytest.raises(ValueError, match="matrix of 2 x 2"):
        library.multiply(np.ones((2, 2), np.uint8), [np.zeros(8, np.uint8)], [np.zeros(8, np.uint8)])


def test_the_library_is_used_where_it_is_installed(library):
    isal.kernel.cache_clear()
    assert isal.kernel().name == "isa-l"


def test_without_a_library_numpy_does_it(monkeypatch):
    monkeypatch.setattr(isal, "_places", lambda: iter(["/nonexistent/libisal.so.2", "libc.so.6"]))
    isal.kernel.cache_clear()
    assert isal.kernel() == ("numpy", erasure.multiply)
    isal.kernel.cache_clear()


def test_a_library_that_computes_something_else_is_not_used(monkeypatch):
    def wrong(_self, matrix, inputs, outputs):
        erasure.multiply(matrix, inputs, outputs)
        outputs[0][-1] ^= 1

    monkeypatch.setattr(isal.Isal, "multiply", wrong)
    isal.kernel.cache_clear()
    assert isal.kernel().name == "numpy"
    isal.kernel.cache_clear()
