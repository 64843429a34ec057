import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.checkpoint import erasure
from closeranks.checkpoint.erasure import PRODUCTS, coding_matrix, multiply, recovery_matrix


def encoded(data, parity, length, seed):
    blocks = list(np.random.default_rng(seed).integers(0, 256, (data, length), np.uint8))
    coded = [np.empty(length, np.uint8) for _ in range(parity)]
    multiply(coding_matrix(data, parity)[data:], blocks, coded)
    return blocks + coded


def recovered(blocks, data, parity, lost):
    present = [number for number in range(data + parity) if number not in lost][:data]
    out = [np.empty_like(blocks[0]) for _ in lost]
    multiply(recovery_matrix(data, parity, present, lost), [blocks[number] for number in present], out)
    return out


def product_by_hand(a, b):
    result = 0
    for bit in range(8):
        if b >> bit & 1:
            result ^= a << bit
    for bit in range(14, 7, -1):
        if result >> bit & 1:
            result ^= 0x11D << (bit - 8)
    return result


def test_products_are_those_of_polynomials_over_two_elements_modulo_0x11d():
    for a, b in itertools.product((0, 1, 2, 3, 29, 128, 200, 255), range(256)):
        assert PRODUCTS[a, b] == product_by_hand(a, b)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 40_000))
def test_any_two_lost_blocks_of_4_plus_2_come_back_bit_for_bit(seed, length):
    blocks = encoded(4, 2, length, seed)
    for lost in itertools.combinations(range(6), 2):
        for number, block in zip(lost, recovered(blocks, 4, 2, lost), strict=True):
            assert np.array_equal(block, blocks[number]), f"seed {seed}, length {length}, lost {lost}"


@settings(max_examples=50)
@given(st.data(), st.integers(1, 12), st.integers(0, 6), st.integers(0, 2**32))
def test_any_losses_of_any_code_come_back_as_long_as_enough_is_left(draw, data, parity, seed):
    blocks = encoded(data, parity, 97, seed)
    lost = draw.draw(st.lists(st.integers(0, data + parity - 1), unique=True, max_size=parity))
    for number, block in zip(lost, recovered(blocks, data, parity, lost), strict=True):
        assert np.array_equal(block, blocks[number])


def test_the_first_parity_block_is_the_xor_of_the_data():
    blocks = encoded(5, 3, 1000, seed=1)
    assert np.array_equal(blocks[5], np.bitwise_xor.reduce(blocks[:5]))


def test_with_one_data_block_all_blocks_are_copies():
    blocks = encoded(1, 3, 1000, seed=1)
    assert all(np.array_equal(block, blocks[0]) for block in blocks)


def test_the_largest_code_of_the_field_can_lose_any_of_its_blocks():
    blocks = encoded(200, 56, 5, seed=1)
    lost = list(np.random.default_rng(2).permutation(256)[:56])
    for number, block in zip(lost, recovered(blocks, 200, 56, lost), strict=True):
        assert np.array_equal(block, blocks[number])


@pytest.mark.parametrize(("data", "parity"), [(0, 2), (-1, 2), (4, -1), (200, 57)])
def test_a_code_that_the_field_does_not_have_is_refused(data, parity):
    with pytest.raises(ValueError, match="data block"):
        coding_matrix(data, parity)


@pytest.mark.parametrize("present", [[0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 3, 4]])
def test_too_few_blocks_or_the_same_twice_are_no_basis_for_a_recovery(present):
    with pytest.raises(ValueError, match="different blocks"):
        recovery_matrix(4, 2, present, [5])


def test_long_blocks_are_coded_as_short_ones_are(monkeypatch):
    at_once = encoded(4, 2, 5000, seed=3)
    monkeypatch.setattr(erasure, "_STRIP_BYTES", 64)
    assert all(np.array_equal(a, b) for a, b in zip(at_once, encoded(4, 2, 5000, seed=3), strict=True))
