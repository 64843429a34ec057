from __future__ import annotations

import itertools

import pytest

from closeranks.detect.straggler import Slow, Window
from closeranks.detect.straggler_cause import Cause, Place, explain, shared
from closeranks.detect.timings import COLLECTING, FETCHING, UPDATING
from closeranks.signs import Spent


def slow_in(sections_s, own_s=None, slower=0.2):
    """Process 0 of three is slow in all of three windows."""
    own_s = own_s or {0: 1.2, 1: 1.0, 2: 1.0}
    windows = (window(own_s, slower, *(spent_until(step, sections_s) for step in (5, 10))),) * 3
    return Slow(slower={0: slower}, z=8.0, windows=windows)


def window(own_s, slower, before, after):
    return Window(
        steps=5, own_s=own_s, slow={0: slower}, z={0: 8.0}, before=before, after=after, spread=0.01, apart_s=0.1
    )


def spent_until(step, sections_s):
    return {
        proc: Spent(step, {name: step * s for name, s in sections.items()}) for proc, sections in sections_s.items()
    }


@pytest.mark.parametrize(
    ("slow", "others", "cause"),
    [
        ({"data": 0.3, "forward": 0.4}, {"data": 0.1, "forward": 0.4}, Cause.DATA),
        ({FETCHING: 0.3, UPDATING: 0.1}, {FETCHING: 0.1, UPDATING: 0.1}, Cause.DATA),
        ({COLLECTING: 0.25, "forward": 0.6}, {COLLECTING: 0.01, "forward": 0.4}, Cause.GARBAGE),
        ({"data": 0.1, "forward": 0.6, UPDATING: 0.1}, {"data": 0.1, "forward": 0.4, UPDATING: 0.1}, Cause.WORK),
        ({"data": 0.1, "forward": 0.5, UPDATING: 0.12}, {"data": 0.1, "forward": 0.4, UPDATING: 0.1}, Cause.DEVICE),
        ({"data": 0.1, "forward": 0.6}, {"data": 0.1, "forward": 0.4}, Cause.COMPUTE),
        ({"data": 0.1}, {"data": 0.1}, Cause.COMPUTE),
        ({"backward": 0.5}, {"backward": 0.7}, Cause.UNKNOWN),  # the others' holds their wait
        ({}, {"data": 0.1}, Cause.UNKNOWN),
        ({}, {}, Cause.UNKNOWN),
    ],
)
def test_the_cause_is_the_operation_that_accounts_for_the_excess(slow, others, cause):
    assert explain(slow_in({0: slow, 1: others, 2: others})).cause is cause


def test_a_process_without_an_operation_blinds_nobody():
    found = explain(slow_in({0: {"data": 0.3}, 1: {"data": 0.1}, 2: {}}))
    assert found.cause is Cause.DATA
    assert "data takes 300 ms a step, 100 ms elsewhere" in found.evidence


def test_an_operation_inside_another_is_the_one_that_is_named():
    inner, outer = {"forward": 0.5, "attention": 0.4}, {"forward": 0.3, "attention": 0.2}
    assert "attention" in explain(slow_in({0: inner, 1: outer, 2: outer})).evidence


def test_what_was_told_of_more_steps_by_one_than_by_another_is_compared_by_the_step():
    """Nodes tell of it in their beats, one now, another a second ago, and a step may take less."""
    of_slow, of_others = {"data": 0.3, "forward": 0.4}, {"data": 0.1, "forward": 0.4}
    told = [{0: 4, 1: 12}, {0: 16, 1: 12}, {0: 16, 1: 28}, {0: 32, 1: 28}]
    known = [
        {0: Spent(at[0], {name: s * at[0] for name, s in of_slow.items()})}
        | {proc: Spent(at[1], {name: s * at[1] for name, s in of_others.items()}) for proc in (1, 2)}
        for at in told
    ]
    windows = tuple(window({0: 1.2, 1: 1.0, 2: 1.0}, 0.2, *pair) for pair in itertools.pairwise(known))
    found = explain(Slow(slower={0: 0.2}, z=8.0, windows=windows))
    assert found.cause is Cause.DATA
    assert "data takes 300 ms a step, 100 ms elsewhere" in found.evidence


PLACES = {
    proc: Place(seat=proc, node=f"n{proc // 2}", domains={"switch": "s0" if proc < 4 else "s1"}) for proc in range(8)
}


@pytest.mark.parametrize(
    ("slow", "scope", "where"),
    [
        ({3}, "seat", "seat 3"),
        ({2, 3}, "node", "n1"),
        ({0, 1, 2, 3}, "switch", "s0"),
        ({1, 2}, "seats", "seats 1, 2"),
        ({0, 1, 2}, "seats", "seats 0, 1, 2"),
    ],
)
def test_what_is_slow_together_is_put_down_to_what_it_shares(slow, scope, where):
    found = shared(frozenset(slow), PLACES)
    assert (found.scope, found.where) == (scope, where)


def test_processes_of_the_only_node_share_nothing_that_others_do_not():
    places = {proc: Place(seat=proc) for proc in range(4)}
    assert shared(frozenset({0, 1}), places).scope == "seats"
