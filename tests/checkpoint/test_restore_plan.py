import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.checkpoint.format import Slice
from closeranks.checkpoint.restore_plan import (
    Holding,
    Inventory,
    Need,
    NoPlan,
    Plan,
    Point,
    Rules,
    newest_first,
    plan_restore,
    without,
)


def piece(name, whole, offsets, shape, dtype="F32"):
    length = 4 * math.prod(shape)
    return Slice(name=name, dtype=dtype, global_shape=whole, offsets=offsets, shape=shape, at=0, length=length)


def halves(name="w", rows=8):
    """A tensor of two writers."""
    return [(piece(name, (rows, 2), (k * rows // 2, 0), (rows // 2, 2)),) for k in range(2)]


def homes(shards, *named, start=0):
    """Every shard in every home; the first home is the nearest."""
    return tuple(
        Holding(home=home, tier=tier, writer=writer, slices=slices)
        for tier, home in enumerate(named, start)
        for writer, slices in enumerate(shards)
    )


def point(step, *named, generation=None, shards=None, **more):
    shards = halves() if shards is None else shards
    more = {"world": len(shards), "attempt": f"a{step}", "holdings": homes(shards, *named), **more}
    return Point(step=step, generation=generation, **more)


def need(name="w", whole=(8, 2), offsets=(0, 0), shape=None, reader=0, dtype="F32"):
    return Need(reader=reader, name=name, dtype=dtype, global_shape=whole, offsets=offsets, shape=shape or whole)


def reasons(plan):
    return [str(passed) for passed in plan.passed]


def test_the_newest_step_is_read_from_its_nearest_home():
    inventory = Inventory(points=(point(10, "store", generation=1), point(20, "memory", "store", generation=2)))
    plan = plan_restore(inventory, [need()])
    assert (plan.point.step, {fetch.home for fetch in plan.fetches}, plan.passed) == (20, {"memory"}, ())


def test_a_shard_that_is_lost_nearby_comes_from_further_away_and_the_others_stay_near():
    inventory = without(Inventory(points=(point(20, "memory", "store", generation=2),)), "a20", "memory", 1)
    plan = plan_restore(inventory, [need()])
    assert {(fetch.writer, fetch.home) for fetch in plan.fetches} == {(0, "memory"), (1, "store")}


def test_a_shard_that_is_lost_everywhere_passes_the_point_over_with_the_reason():
    inventory = Inventory(points=(point(10, "store", generation=1), point(20, "memory")))
    plan = plan_restore(without(inventory, "a20", "memory", 1), [need()])
    assert plan.point.step == 10
    assert reasons(plan) == ["step 20 (in memory only): no home has the shard of writer 1 (of 2)"]


def test_bytes_that_nobody_needs_may_be_lost_when_small_state_is_not_wanted():
    inventory = without(Inventory(points=(point(20, "memory"),)), "a20", "memory", 1)
    part = need(shape=(4, 2))
    assert isinstance(plan_restore(inventory, [part], Rules(whole=False)), Plan)
    hole = plan_restore(inventory, [need(shape=(5, 2))], Rules(whole=False))
    assert hole.reason == "step 20 (in memory only): no home has w[4:5, 0:2] of [8, 2]"


@pytest.mark.parametrize(
    ("rules", "more", "reason"),
    [
        (Rules(), {"trusted": False}, "corruption was suspected"),
        (Rules(verified=True), {}, "no restore drill has verified it"),
        (Rules(step=7), {}, "step 7 was asked for"),
        (Rules(generation=7), {}, "generation 7 was asked for"),
        (Rules(newest_step=19), {}, "newer than step 19"),
        (Rules(group="embeddings"), {}, "it holds all state, not the part 'embeddings'"),
        (Rules(), {"group": "embeddings"}, "it holds the part 'embeddings', not all state"),
    ],
)
def test_a_point_outside_the_rules_is_passed_over_with_the_reason(rules, more, reason):
    plan = plan_restore(Inventory(points=(point(20, "store", generation=2, **more),)), [need()], rules)
    assert isinstance(plan, NoPlan)
    assert reason in plan.reason


def test_what_the_rules_ask_for_is_found():
    inventory = Inventory(
        points=(
            point(10, "store", generation=1, verified=True),
            point(20, "store", generation=2, trusted=False),
            point(15, "store", generation=3, group="embeddings"),
        )
    )
    found = [
        plan_restore(inventory, [need()], rules).point.generation
        for rules in (Rules(verified=True), Rules(trusted=False), Rules(group="embeddings"), Rules(generation=1))
    ]
    assert found == [1, 2, 3, 1]


def test_another_model_is_told_tensor_by_tensor():
    inventory = Inventory(points=(point(20, "store", generation=2),))
    assert "is F32 [8, 2] in it, and BF16 [8, 2] is needed" in plan_restore(inventory, [need(dtype="BF16")]).reason
    assert "is F32 [8, 2] in it, and F32 [8, 3] is needed" in plan_restore(inventory, [need(whole=(8, 3))]).reason
    strangers = [need(f"x{k}") for k in range(5)]
    assert "it does not hold tensors x0, x1, x2 and 2 more" in plan_restore(inventory, strangers).reason


def test_nothing_at_all_is_a_reason_too():
    assert plan_restore(Inventory(points=()), [need()]).reason == "no home knows of any checkpoint"


def test_readers_that_contradict_each_other_are_the_callers_mistake():
    with pytest.raises(ValueError, match=r"need 1, w: expected F32 \[8, 2\] as by other readers, got F32 \[9, 2\]"):
        plan_restore(Inventory(points=()), [need(), need(whole=(9, 2))])


def test_equal_needs_are_fetched_once():
    plan = plan_restore(Inventory(points=(point(20, "store"),)), [need(reader=k) for k in range(3)])
    assert {fetch.need for fetch in plan.fetches} == {0}
    assert plan.repeats == ((1, 0), (2, 0))


def test_a_scalar_and_an_empty_tensor_are_found():
    shards = [(piece("step", (), (), ()), piece("none", (0, 3), (0, 0), (0, 3)))]
    inventory = Inventory(points=(point(20, "store", shards=shards),))
    plan = plan_restore(inventory, [need("step", whole=(), offsets=(), shape=()), need("none", whole=(0, 3))])
    assert [(fetch.slice, fetch.shape) for fetch in plan.fetches] == [(0, ())]


def test_an_empty_need_of_a_tensor_that_is_not_there_is_missing_all_the_same():
    plan = plan_restore(Inventory(points=(point(20, "store"),)), [need("none", whole=(0, 3))])
    assert "does not hold tensor none" in plan.reason


def test_the_committed_one_of_two_points_of_a_step_is_tried_first():
    twins = [point(20, "memory", attempt="b"), point(20, "store", generation=4), point(20, "store", generation=6)]
    assert [twin.generation for twin in newest_first(twins)] == [6, 4, None]


# --- properties -------------------------------------------------------------------------------------------------


@st.composite
def layouts(draw, rows):
    """Rows of a tensor over some writers, some of them in two."""
    cuts = sorted({0, rows, *draw(st.lists(st.integers(0, rows), max_size=3))})
    return [(start, end) for start, end in itertools.pairwise(cuts)]


@st.composite
def inventories(draw):
    """Points of one tensor of 8 rows, in layouts of their own, some of whose shards have lost homes."""
    points = []
    for step in range(draw(st.integers(0, 4))):
        spans = draw(layouts(8))
        shards = [(piece("w", (8, 2), (a, 0), (b - a, 2)),) for a, b in spans]
        holdings = [h for h in homes(shards, "memory", "peer", "store") if draw(st.integers(0, 3))]
        holdings = draw(st.permutations(holdings))
        generation = draw(st.one_of(st.none(), st.just(step + 1)))
        points.append(point(step, generation=generation, shards=shards, holdings=tuple(holdings)))
    return Inventory(points=tuple(draw(st.permutations(points))))


def is_complete(candidate):
    return {h.writer for h in candidate.holdings} == set(range(candidate.world))


@settings(max_examples=200, deadline=None)
@given(inventories(), layouts(8))
def test_the_plan_is_the_newest_whole_point_and_every_byte_is_read_once_and_from_its_nearest_home(inventory, spans):
    needs = [need(offsets=(a, 0), shape=(b - a, 2), reader=k) for k, (a, b) in enumerate(spans)]
    plan = plan_restore(inventory, needs)
    whole = [p.step for p in inventory.points if is_complete(p)]
    if not whole:
        assert isinstance(plan, NoPlan)
        assert len(plan.passed) == len(inventory.points)
        return
    assert plan.point.step == max(whole)
    assert [p.step for p in plan.passed] == sorted(
        (p.step for p in inventory.points if p.step > plan.point.step), reverse=True
    )
    nearest = {
        writer: min(h.tier for h in plan.point.holdings if h.writer == writer) for writer in range(plan.point.world)
    }
    tiers = {"memory": 0, "peer": 1, "store": 2}
    counts = np.zeros((8, 2), int)
    for fetch in plan.fetches:
        assert tiers[fetch.home] == nearest[fetch.writer]
        start = needs[fetch.need].offsets[0] + fetch.need_offsets[0]
        counts[start : start + fetch.shape[0], :] += fetch.shape[1] // 2
        source = next(h for h in plan.point.holdings if h.writer == fetch.writer).slices[fetch.slice]
        assert source.offsets[0] + fetch.slice_offsets[0] == start
    assert (counts == 1).all()


@settings(max_examples=200, deadline=None)
@given(inventories(), st.randoms(use_true_random=False))
def test_failing_reads_lead_to_further_homes_and_then_to_an_older_step_and_never_back(inventory, random):
    plan = plan_restore(inventory, [need()])
    while isinstance(plan, Plan):
        failed, before = random.choice(plan.fetches), plan.point
        inventory = without(inventory, before.attempt, failed.home, failed.writer)
        plan = plan_restore(inventory, [need()])
        left = [h for h in before.holdings if h.writer == failed.writer and h.home != failed.home]
        if left:
            nearest = min(left, key=lambda h: h.tier)
            assert plan.point.step == before.step
            assert {f.home for f in plan.fetches if f.writer == failed.writer} == {nearest.home}
        else:
            assert isinstance(plan, NoPlan) or plan.point.step < before.step


def test_values_of_a_plan_can_be_sent():
    plan = plan_restore(Inventory(points=(point(20, "store", generation=2),)), [need()])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan) == plan
