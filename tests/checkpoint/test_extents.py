import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.images import whole

from closeranks.checkpoint.extents import Cut, cut, known
from closeranks.checkpoint.format import Extent, ShardIndex
from closeranks.checkpoint.image import lay_out

CHUNK = 4096
SIZES = st.lists(st.integers(0, 4 * CHUNK), max_size=12)


def layout_of(sizes):
    return lay_out([whole(f"t{number}", size, dtype="U8") for number, size in enumerate(sizes)])


def index_of(cuts, digests):
    extents = [
        Extent(at=at, length=length, object="o", begin=at, stored=length, xxh3=digest)
        for (at, length), digest in zip(cuts, digests, strict=True)
    ]
    return ShardIndex(format=1, attempt="a", writer=0, image_bytes=0, slices=(), extents=tuple(extents))


@given(SIZES)
def test_extents_cover_the_image_once_the_header_alone_none_longer_than_a_chunk(sizes):
    layout = layout_of(sizes)
    cuts = cut(layout.slices, layout.image_bytes, CHUNK)
    assert cuts[0] == (0, len(layout.header))
    at = 0
    for piece in cuts:
        assert piece.at == at
        assert piece.length > 0
        at += piece.length
    assert at == layout.image_bytes
    assert all(piece.length <= CHUNK for piece in cuts[1:])


@given(SIZES)
def test_an_extent_has_parts_of_several_tensors_only_if_they_fit_into_it_as_a_whole(sizes):
    layout = layout_of(sizes)
    for piece in cut(layout.slices, layout.image_bytes, CHUNK)[1:]:
        inside = [part for part in layout.slices if part.length and part.at < piece.at + piece.length]
        inside = [part for part in inside if part.at + part.length > piece.at]
        if len(inside) > 1:
            assert min(part.at for part in inside) == piece.at
            assert max(part.at + part.length for part in inside) == piece.at + piece.length


def test_small_tensors_lie_together_and_do_not_become_an_object_each():
    layout = layout_of([16] * 1000)
    assert len(cut(layout.slices, layout.image_bytes, CHUNK)) == 1 + -(-16 * 1000 // CHUNK)


def test_a_large_tensor_that_moves_keeps_all_its_extents():
    large = whole("large", 5 * CHUNK + 7, dtype="U8")
    one = lay_out([large, whole("after", 9, dtype="U8")])
    two = lay_out([whole("before", 123, dtype="U8"), large])

    def of_large(layout, part):
        cuts = cut(layout.slices, layout.image_bytes, CHUNK)
        return [Cut(p.at - part.at, p.length) for p in cuts if part.at <= p.at < part.at + part.length]

    assert of_large(one, one.slices[0]) == of_large(two, two.slices[1]) != []


def test_a_tensor_that_moved_is_known_by_its_digest_wherever_it_was():
    previous = index_of([Cut(0, 4096), Cut(4096, 10), Cut(4106, 20)], ["h", "a", "b"])
    found = known([Cut(0, 4096), Cut(4096, 20), Cut(4116, 10), Cut(4126, 10)], ["H", "b", "a", "c"], previous)
    assert [have and have.at for have in found] == [None, 4106, 4096, None]


def test_equal_digests_of_other_lengths_are_not_the_same_bytes():
    assert known([Cut(0, 11)], ["a"], index_of([Cut(0, 10)], ["a"])) == (None,)


def test_an_extent_without_a_fast_digest_is_never_known():
    assert known([Cut(0, 10)], [""], index_of([Cut(0, 10)], [""])) == (None,)


@pytest.mark.parametrize("chunk_bytes", [0, 4095, 2**27, -1])
def test_a_chunk_size_out_of_bounds_is_refused(chunk_bytes):
    with pytest.raises(ValueError, match="chunk_bytes"):
        cut([], 10, chunk_bytes)


def test_slices_that_leave_a_gap_are_refused():
    layout = layout_of([5, 5, 5])
    with pytest.raises(ValueError, match="the one before it ends at"):
        cut([layout.slices[0], layout.slices[2]], layout.image_bytes, CHUNK)
    with pytest.raises(ValueError, match="the image at"):
        cut(layout.slices, layout.image_bytes + 1, CHUNK)
