import random

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint.codec import compress, decompress
from closeranks.checkpoint.problems import Damaged, StoreRefused


def weights(count):
    return np.random.default_rng(0).normal(size=count).astype(np.float32).tobytes()


@given(st.binary(min_size=1, max_size=50), st.sampled_from([1, 2, 4, 8]), st.integers(1, 200))
def test_what_was_compressed_comes_back(pattern, item_bytes, times):
    data = pattern * times
    packed = compress(memoryview(data), item_bytes)
    if packed is not None:
        codec, frame = packed
        target = bytearray(len(data))
        decompress(codec, memoryview(frame), memoryview(target))
        assert target == data


def test_planes_gain_on_weights_where_plain_compression_gains_too_little():
    data = memoryview(weights(2**16))
    plain, planes = compress(data, 1), compress(data, 4)
    assert planes[0] == "zstd4"
    assert len(planes[1]) < 0.9 * len(data)
    assert plain is None or len(plain[1]) > 1.05 * len(planes[1])


def test_noise_is_kept_as_it_is():
    assert compress(memoryview(random.Random(0).randbytes(10_000)), 4) is None


def test_a_frame_of_another_size_is_damaged_before_anything_is_allocated():
    bomb = zstandard.ZstdCompressor().compress(bytes(2**28))
    with pytest.raises(Damaged, match="expected 100 bytes inside, got 268435456"):
        decompress("zstd", memoryview(bomb), memoryview(bytearray(100)))
    sizeless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    with pytest.raises(Damaged, match="expected 100 bytes"):
        decompress("zstd", memoryview(sizeless), memoryview(bytearray(100)))


def test_garbage_and_odd_planes_are_damaged():
    with pytest.raises(Damaged):
        decompress("zstd", memoryview(b"not a frame"), memoryview(bytearray(4)))
    frame = zstandard.ZstdCompressor().compress(bytes(7))
    with pytest.raises(Damaged, match="planes"):
        decompress("zstd4", memoryview(frame), memoryview(bytearray(7)))


def test_a_codec_of_the_future_is_refused_by_name():
    with pytest.raises(StoreRefused, match="'lz9' is not one of"):
        decompress("lz9", memoryview(b""), memoryview(bytearray(4)))
