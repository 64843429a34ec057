import itertools

import pytest

from closeranks.events import Category
from closeranks.observe.goodput import ledger
from closeranks.observe.history import history_of
from closeranks.observe.timeline import lanes
from synthetic_journal import Tape, eventful_run


@pytest.mark.parametrize("seed", range(3))
def test_the_lane_of_a_seat_covers_the_whole_run_without_gap_or_overlap(seed):
    history = history_of(eventful_run(seed).end().records)
    for lane in lanes(history)[: history.seats]:
        spans = [segment.span for segment in lane.segments]
        assert spans[0].begin_s == history.span.begin_s
        assert spans[-1].end_s == history.span.end_s
        assert all(before.end_s == after.begin_s for before, after in itertools.pairwise(spans))


def test_lanes_and_ledger_tell_the_same():
    history = history_of(eventful_run().end().records)
    for lane, place in zip(lanes(history), ledger(history).places, strict=True):
        assert lane.name == place.name
        drawn = dict.fromkeys(Category, 0.0)
        for segment in lane.segments:
            drawn[segment.category] += segment.span.length_s
        assert {c: s for c, s in drawn.items() if s > 0} == pytest.approx(place.seconds, abs=0.05)


def test_segments_name_the_incarnation_that_sat_there():
    tape = Tape(seats=2, spares=0)
    tape.begin()
    tape.train(2)
    tape.lose(1)
    names = [segment.process for segment in lanes(history_of(tape.end().records))[1].segments]
    assert [name for name, _ in itertools.groupby(name for name in names if name)] == ["s1.1", "s1.2"]
