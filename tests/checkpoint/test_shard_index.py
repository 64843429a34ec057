import msgspec
import pytest
from blake3 import blake3
from msgspec.structs import replace

from closeranks.checkpoint.extents import EXTENT_LIMIT_BYTES
from closeranks.checkpoint.format import Extent, ShardIndex, Slice
from closeranks.checkpoint.problems import Damaged, StoreRefused
from closeranks.checkpoint.shard_index import decode_index, encode_index

KEY = "data/t00000001-s000000000003-0123abcd/w00000.safetensors"
SLICES = (
    Slice(name="w", dtype="F32", global_shape=(4, 3), offsets=(2, 0), shape=(2, 3), at=4096, length=24),
    Slice(name="b", dtype="U8", global_shape=(5,), offsets=(0,), shape=(5,), at=4120, length=5),
)
EXTENTS = (
    Extent(at=0, length=4096, object=KEY, begin=0, stored=4096, xxh3="1" * 32),
    Extent(at=4096, length=29, object=KEY, begin=4096, stored=20, codec="zstd", blake3="2" * 64),
)
INDEX = ShardIndex(
    format=1, attempt="a", writer=0, image_bytes=4125, slices=SLICES, extents=EXTENTS, shared={"a": [1, None]}
)


def changed(which, number, **fields):
    parts = list(getattr(INDEX, which))
    parts[number] = replace(parts[number], **fields)
    return replace(INDEX, **{which: tuple(parts)})


def line_of(raw):
    return b"%b\n%b\n" % (raw, blake3(raw).hexdigest().encode())


def test_an_index_comes_back_from_its_bytes():
    assert decode_index(encode_index(INDEX), "here") == INDEX


@pytest.mark.parametrize(
    "lie",
    [
        replace(INDEX, image_bytes=0),
        replace(INDEX, image_bytes=2**60),
        replace(INDEX, image_bytes=4126),
        replace(INDEX, writer=-1),
        replace(INDEX, extents=()),
        replace(INDEX, extents=EXTENTS[1:]),
        replace(INDEX, extents=(EXTENTS[0], EXTENTS[0])),
        replace(INDEX, slices=(SLICES[0], SLICES[0])),
        changed("slices", 0, at=4100),
        changed("slices", 0, at=-1),
        changed("slices", 0, at=4110),
        changed("slices", 0, length=28),
        changed("slices", 0, shape=(3, 3)),
        changed("slices", 0, shape=(2**40, 2**40)),
        changed("slices", 0, shape=(-2, -3)),
        changed("slices", 0, offsets=(0,)),
        changed("slices", 0, dtype="F31"),
        changed("slices", 0, name=""),
        changed("extents", 0, length=0),
        changed("extents", 0, length=4095),
        changed("extents", 0, length=EXTENT_LIMIT_BYTES + 1, stored=EXTENT_LIMIT_BYTES + 1),
        changed("extents", 0, stored=4095),
        changed("extents", 0, at=1),
        changed("extents", 0, begin=-1),
        changed("extents", 0, object="data/../x"),
        changed("extents", 0, object="/etc/passwd"),
        changed("extents", 0, object="closeranks-store.json"),
        changed("extents", 0, xxh3=""),
        changed("extents", 0, xxh3="1" * 31),
        changed("extents", 0, xxh3="Z" * 32),
        changed("extents", 1, stored=2**40),
        changed("extents", 1, codec="lz9"),
        changed("extents", 1, blake3=""),
    ],
)
def test_an_index_whose_numbers_contradict_each_other_is_damaged_though_its_digest_is_right(lie):
    with pytest.raises(Damaged, match=r"^here: "):
        decode_index(encode_index(lie), "here")


def test_a_newer_format_is_refused_with_the_way_out_whatever_else_is_in_it():
    raw = msgspec.json.encode({"format": 2, "new": True})
    with pytest.raises(StoreRefused, match="use a newer closeranks"):
        decode_index(line_of(raw), "here")


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b"null", b'{"format":1}', b"[" * 50_000, b"\xff", b'{"format":"1"}']
)
def test_other_json_and_no_json_is_damaged(raw):
    with pytest.raises(Damaged):
        decode_index(line_of(raw), "here")


def test_without_its_digest_an_index_is_nothing():
    data = encode_index(INDEX)
    line = data.partition(b"\n")[0]
    for wrong in (b"", line, line + b"\n", data[:-1], data + b"\n", data.replace(b'"w"', b'"v"')):
        with pytest.raises(Damaged, match="digest in line 2"):
            decode_index(wrong, "here")
