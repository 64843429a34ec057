import json
import math

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.images import bytes_of, whole

from closeranks.checkpoint.image import ALIGNMENT_BYTES, DTYPES, HEADER_LIMIT_BYTES, Leaf, lay_out, read_header
from closeranks.checkpoint.problems import Damaged


@st.composite
def boxes(draw):
    sizes = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=4))
    return tuple(a + b + c for a, b, c in sizes), tuple(a for a, _, _ in sizes), tuple(b for _, b, _ in sizes)


@st.composite
def leaf_lists(draw):
    names = draw(st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=8))
    return [Leaf(name + ".", draw(st.sampled_from(sorted(DTYPES))), *draw(boxes())) for name in names]


def image_of(leaves):
    layout = lay_out(leaves)
    image = bytearray(layout.image_bytes)
    image[: len(layout.header)] = layout.header
    for part in layout.slices:
        image[part.at : part.at + part.length] = bytes_of(part.name, part.length)
    return layout, bytes(image)


@given(leaf_lists())
def test_any_safetensors_reader_finds_every_box_with_its_type_and_bytes(leaves):
    _, image = image_of(leaves)
    found = dict(safetensors.deserialize(image))
    assert len(found) == len(leaves)
    for leaf in leaves:
        key = leaf.name if leaf.shape == leaf.global_shape else f"{leaf.name}@{','.join(map(str, leaf.offsets))}"
        tensor = found[key]
        assert (tensor["dtype"], tuple(tensor["shape"])) == (leaf.dtype, leaf.shape)
        assert bytes(tensor["data"]) == bytes_of(leaf.name, math.prod(leaf.shape) * DTYPES[leaf.dtype])


@given(leaf_lists())
def test_data_begins_at_a_page_and_every_tensor_at_a_multiple_of_its_item_size(leaves):
    layout, _ = image_of(leaves)
    assert len(layout.header) % ALIGNMENT_BYTES == 0
    assert all(part.at % DTYPES[part.dtype] == 0 for part in layout.slices)
    assert [part.name for part in layout.slices] == [leaf.name for leaf in leaves]


@given(leaf_lists())
def test_a_header_reads_back_as_it_was_laid_out(leaves):
    layout, image = image_of(leaves)
    header = read_header(image)
    assert header.file_bytes == layout.image_bytes
    assert sorted((s.at, s.length) for s in header.tensors.values()) == sorted((s.at, s.length) for s in layout.slices)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_torch_reads_every_type_that_an_image_may_have(dtype):
    _, image = image_of([whole("x", 3, dtype=dtype)])
    tensor = safetensors.torch.load(image)["x"]
    assert tensor.view(torch.uint8).numpy().tobytes() == bytes_of("x", 3 * DTYPES[dtype])


@pytest.mark.parametrize(
    ("leaf", "word"),
    [
        (whole("x", 2, dtype="F33"), "F33"),
        (whole("", 2), "name"),
        (whole("__metadata__", 2), "name"),
        (Leaf("x", "F32", (4,), (2,), (3,)), "not inside"),
        (Leaf("x", "F32", (4,), (-1,), (3,)), "not inside"),
        (Leaf("x", "F32", (4, 4), (0,), (3,)), "dimensions"),
        (whole("x", 2**45), "larger"),
    ],
)
def test_an_impossible_box_is_refused_by_name(leaf, word):
    with pytest.raises(ValueError, match=word):
        lay_out([leaf])


def test_two_tensors_of_one_name_are_refused():
    with pytest.raises(ValueError, match="'x@2' names two tensors"):
        lay_out([Leaf("x", "F32", (4,), (2,), (2,)), whole("x@2", 7)])


def header_of(entries, length=None):
    text = json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text


X = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\0" * 8,
        header_of({"x": X}, HEADER_LIMIT_BYTES + 1),
        header_of({"x": X}, 2**63),
        header_of({"x": X})[:-1],
        header_of({"x": X | {"dtype": "U9"}}),
        header_of({"x": X | {"shape": [5]}}),
        header_of({"x": X | {"shape": [-4]}}),
        header_of({"x": X | {"shape": [2**70]}}),
        header_of({"x": X | {"data_offsets": [1, 5]}}),
        header_of({"x": X, "y": X}),
        header_of({"x": X | {"more": 1}}),
        header_of([1]),
        header_of({"__metadata__": {"a": 1}}),
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        (4).to_bytes(8, "little") + b"\xff\xfe{}",
    ],
)
def test_a_header_that_lies_is_damaged(head):
    with pytest.raises(Damaged):
        read_header(head)
