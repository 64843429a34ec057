import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.checkpoint import box_table
from closeranks.checkpoint.box_table import Boxes, first_of_equal
from closeranks.checkpoint.cover import Box, Hole, cover


def covered(sources, ranks, needs):
    """With lists of boxes in place of arrays."""
    return cover(arrays(sources, needs), np.array(ranks, int), arrays(needs, sources))


def arrays(boxes, others):
    dimensions = len((*boxes, *others, Box((), ()))[0].shape)
    shape = len(boxes), dimensions
    offsets = np.array([box.offsets for box in boxes], int).reshape(shape)
    return Boxes(offsets, np.array([box.shape for box in boxes], int).reshape(shape))


def area(box):
    return tuple(slice(start, start + size) for start, size in zip(box.offsets, box.shape, strict=True))


def painted(sources, ranks, needs, pieces, whole):
    """Carry the pieces out on arrays in which every element holds the lowest rank that has it, or -1."""
    best = np.full(whole, 10**6)
    for source, rank in zip(sources, ranks, strict=True):
        best[area(source)] = np.minimum(best[area(source)], rank)
    counts = [np.zeros(need.shape, int) for need in needs]
    got = [np.full(need.shape, -1) for need in needs]
    for source, need, source_offsets, need_offsets, shape in zip(*(column.tolist() for column in pieces), strict=True):
        target = area(Box(need_offsets, shape))
        counts[need][target] += 1
        got[need][target] = ranks[source]
        corner = [a + b for a, b in zip(needs[need].offsets, need_offsets, strict=True)]
        assert corner == [a + b for a, b in zip(sources[source].offsets, source_offsets, strict=True)]
        assert all(o >= 0 and o + n <= m for o, n, m in zip(source_offsets, shape, sources[source].shape, strict=True))
    return best, counts, got


@st.composite
def wholes(draw, most=9):
    return tuple(draw(st.lists(st.integers(1, most), min_size=0, max_size=3)))


@st.composite
def boxes_in(draw, whole):
    offsets = tuple(draw(st.integers(0, n)) for n in whole)
    return Box(offsets, tuple(draw(st.integers(0, n - o)) for n, o in zip(whole, offsets, strict=True)))


@st.composite
def grids(draw, whole):
    """All cells of a grid, or some of them."""
    cuts = [sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=4))}) for n in whole]
    cells = [Box((), ())]
    for cut in cuts:
        cells = [Box((*cell.offsets, a), (*cell.shape, b - a)) for cell in cells for a, b in itertools.pairwise(cut)]
    return draw(st.one_of(st.just(cells), st.lists(st.sampled_from(cells), max_size=len(cells), unique=True)))


@st.composite
def cases(draw):
    whole = draw(wholes())
    sources = draw(st.one_of(grids(whole), st.lists(boxes_in(whole), max_size=6)))
    sources = draw(st.permutations(sources))
    ranks = sorted(draw(st.lists(st.integers(0, 2), min_size=len(sources), max_size=len(sources))))
    needs = draw(st.one_of(grids(whole), st.lists(boxes_in(whole), max_size=6)))
    return whole, sources, ranks, needs


@settings(max_examples=300, deadline=None)
@given(cases())
def test_every_element_comes_exactly_once_and_from_the_lowest_rank_or_the_hole_is_one(case):
    whole, sources, ranks, needs = case
    found = covered(sources, ranks, needs)
    held = np.zeros(whole, bool)
    for source in sources:
        held[area(source)] = True
    if isinstance(found, Hole):
        assert math.prod(found.box.shape) > 0
        assert not held[area(found.box)].any()
        return
    assert all(held[area(need)].all() for need in needs)
    best, counts, got = painted(sources, ranks, needs, found, whole)
    for need, count, rank in zip(needs, counts, got, strict=True):
        assert (count == 1).all()
        assert (rank == best[area(need)]).all()


def rows(parts, length):
    cuts = [length * k // parts for k in range(parts + 1)]
    return [Box((a, 0), (b - a, 4)) for a, b in itertools.pairwise(cuts)]


def test_the_number_of_pieces_is_that_of_the_overlaps_and_no_more():
    assert len(covered(rows(400, 12_000), [0] * 400, rows(300, 12_000)).source) == 600


def test_many_equal_copies_of_a_tensor_are_read_from_one():
    whole = Box((0,), (8,))
    found = covered([whole] * 500, [0] * 500, [Box((k,), (1,)) for k in range(8)])
    assert set(found.source.tolist()) == {0}


def test_a_hole_in_a_large_grid_is_named_exactly():
    sources = [box for box in rows(100, 1000) if box.offsets[0] != 370]
    assert covered(sources, [0] * 99, rows(7, 1000)) == Hole(2, Box((370, 0), (10, 4)))


def test_a_box_is_written_as_a_slice():
    assert str(Box((0, 64), (128, 32))) == "[0:128, 64:96]"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12))
def test_the_first_of_equal_boxes_is_found(pairs):
    boxes = arrays([Box((a,), (b,)) for a, b in pairs], [])
    assert first_of_equal(boxes).tolist() == [pairs.index(pair) for pair in pairs]


def test_boxes_that_are_mixed_to_one_number_are_told_apart_all_the_same(monkeypatch):
    monkeypatch.setattr(box_table, "_MIX", 0)
    boxes = arrays([Box((0,), (1,)), Box((1,), (1,)), Box((0,), (1,))], [])
    assert first_of_equal(boxes).tolist() == [0, 1, 0]
