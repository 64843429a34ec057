import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.checkpoint import fragments
from closeranks.checkpoint.fragments import Code, Fragment, Source, checked_block, fragment_of, header_of
from closeranks.checkpoint.problems import Damaged
from closeranks.checkpoint.stores.keys import checked_key

KEY = "data/t00000001-s000000000003-0123abcd/w00000.safetensors"


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 200), st.integers(0, 100))
def test_parts_are_seen_as_one_run_of_bytes_with_zeros_beyond_the_end(parts, begin, length):
    whole = b"".join(parts)
    source = Source([memoryview(part) for part in parts])
    assert source.length == len(whole)
    assert source.block(begin, length).tobytes() == whole[begin : begin + length].ljust(length, b"\0")


def test_a_block_within_one_part_is_not_copied():
    part = np.arange(100, dtype=np.uint8)
    assert np.shares_memory(Source([part.data]).block(10, 50), part)


@settings(max_examples=50)
@given(st.integers(0, 2000), st.integers(1, 9), st.integers(0, 5), st.integers(1, 64))
def test_the_blocks_of_all_stripes_hold_every_byte_of_an_object_once_and_little_else(length, data, parity, block_bytes):
    before, fragments.BLOCK_BYTES = fragments.BLOCK_BYTES, block_bytes
    try:
        code = Code(length, data, parity)
        held = [code.data * code.block_bytes(stripe) for stripe in range(code.stripes)]
        assert all(one == code.stripe_bytes for one in held[:-1])
        assert length <= sum(held) < length + data
        assert list(code.stripes_of(0, length)) == list(range(code.stripes if length else 0))
    finally:
        fragments.BLOCK_BYTES = before


@given(st.integers(0, 10**12), st.integers(1, 200), st.integers(0, 56), st.randoms(use_true_random=False))
def test_the_name_of_a_fragment_is_a_key_and_tells_all_of_it(length, data, parity, draw):
    code = Code(length, data, parity)
    fragment = Fragment(KEY, code, draw.randrange(code.stripes), draw.randrange(data + parity))
    assert fragment_of(checked_key(fragment.name, "test")) == fragment


@pytest.mark.parametrize(
    "name",
    [
        KEY,
        f"{KEY}.f-10-4-2-0-6",  # a code 4+2 has no block 6
        f"{KEY}.f-10-0-2-0-0",
        f"{KEY}.f-10-200-200-0-0",
        f"{KEY}.f-10-4-2-1-0",  # ten bytes have no second stripe
        f"{KEY}.f-99999999999999999-4-2-0-0",
    ],
)
def test_other_names_are_no_fragments(name):
    assert fragment_of(name) is None


@pytest.mark.parametrize("change", ["name", "bit", "header", "length"])
def test_a_block_that_is_not_what_was_written_under_its_name_is_refused(change):
    name, block = f"{KEY}.f-10-4-2-0-1", b"some bytes"
    data = bytearray(header_of(name, memoryview(block)) + block)
    assert checked_block(name, bytes(data), len(block)).tobytes() == block
    if change == "bit":
        data[-1] ^= 1
    elif change == "header":
        data[5] ^= 1
    elif change == "length":
        data.pop()
    with pytest.raises(Damaged):
        checked_block(name.replace("-1", "-2") if change == "name" else name, bytes(data), len(block))
