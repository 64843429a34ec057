import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint.format import Slice
from closeranks.checkpoint.rows import rows_of, scatter

ITEMS = {"U8": 1, "BF16": 2, "F32": 4, "F64": 8}


@st.composite
def cases(draw):
    sizes = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3)), max_size=4))
    dtype = draw(st.sampled_from(sorted(ITEMS)))
    return dtype, sizes, draw(st.integers(1, 40)), draw(st.integers(0, 2**16))


def slice_of(dtype, shape, at):
    length = int(np.prod(shape, dtype=int)) * ITEMS[dtype]
    return Slice(
        name="x", dtype=dtype, global_shape=shape, offsets=(0,) * len(shape), shape=shape, at=at, length=length
    )


@given(cases())
def test_scattering_all_pieces_in_any_order_gives_what_numpy_cuts_out(case):
    dtype, sizes, piece_bytes, seed = case
    shape = tuple(a + b + c for a, b, c in sizes)
    offsets, box = tuple(a for a, _, _ in sizes), tuple(b for _, b, _ in sizes)
    part = slice_of(dtype, shape, at=13)
    whole = np.frombuffer(random.Random(seed).randbytes(part.length), f"u{ITEMS[dtype]}").reshape(shape)
    expected = whole[tuple(slice(o, o + n) for o, n in zip(offsets, box, strict=True))].tobytes()
    image = bytes(13) + whole.tobytes()
    target = bytearray(len(expected))
    pieces = list(range(0, len(image), piece_bytes))
    random.Random(seed).shuffle(pieces)
    for rows in rows_of(part, offsets, box):
        for begin in pieces:
            scatter(rows, begin, memoryview(image)[begin : begin + piece_bytes], memoryview(target))
    assert bytes(target) == expected


def test_a_column_shard_is_one_set_of_rows_and_a_row_shard_one_row():
    part = slice_of("F32", (8, 6, 4), at=0)
    assert [rows.times for rows in rows_of(part, (0, 2, 0), (8, 3, 4))] == [8]
    assert [rows.times for rows in rows_of(part, (2, 0, 0), (3, 6, 4))] == [1]
    assert [rows.times for rows in rows_of(part, (0, 0, 1), (8, 6, 2))] == [48]


def test_bytes_between_two_rows_hold_nothing_of_the_box():
    (rows,) = rows_of(slice_of("U8", (4, 100), at=0), (0, 10), (4, 20))
    assert not rows.within(30, 110)
    assert list(rows.within(29, 111)) == [0, 1]
    assert list(rows.within(0, 400)) == [0, 1, 2, 3]


@pytest.mark.parametrize(("offsets", "shape"), [((0, 3), (4, 4)), ((-1, 0), (2, 2)), ((0,), (2,)), ((0, 0), (-1, 2))])
def test_a_box_outside_of_its_slice_is_refused(offsets, shape):
    with pytest.raises(ValueError, match="not inside 'x'"):
        list(rows_of(slice_of("F32", (4, 6), at=0), offsets, shape))
