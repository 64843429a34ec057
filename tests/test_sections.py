"""Totals by operation in a page that another process reads."""

from __future__ import annotations

import os

import pytest

from closeranks import vitals
from closeranks.signs import Spent, StepMark
from closeranks.vitals import RING_STEPS, Vitals


@pytest.fixture
def pages():
    """The page as its writer and as its reader have it."""
    fd = vitals.create_memfd("test")
    yield Vitals(fd), Vitals(fd)
    os.close(fd)


def close_step(writer, step=0):
    writer.close_step(step, 1, 7, 0.5)


def test_a_reader_sees_the_totals_of_every_operation(pages):
    writer, reader = pages
    assert reader.sections.read() == Spent(0, {})
    for _ in range(3):
        writer.sections.add("data", 500_000_000)
    writer.sections.add("Vorwärts", 250_000_000)
    close_step(writer)
    assert reader.sections.read() == Spent(1, {"data": 1.5, "Vorwärts": 0.25})


def test_what_is_read_is_that_of_the_closed_steps_however_late_the_reader_comes(pages):
    """Amid a step some have loaded their data for it and some have not: one more step's worth told the wrong cause."""
    writer, reader = pages
    for step in range(3):
        writer.sections.add("data", 20_000_000)
        close_step(writer, step)
    writer.sections.add("data", 20_000_000)
    writer.sections.add("forward", 40_000_000)
    assert reader.sections.read() == Spent(3, {"data": 0.06})


def test_a_copy_that_is_not_whole_tells_nothing(pages, monkeypatch):
    """Killed between two words of it; a reader that only came amid it looks again."""
    writer, reader = pages
    writer.sections.add("data", 20_000_000)
    close_step(writer)
    monkeypatch.setattr(writer.sections, "_copy", None)
    with pytest.raises(TypeError):
        close_step(writer, 1)
    assert reader.sections.read() == Spent(0, {})


def test_long_names_are_cut_between_characters_and_operations_beyond_the_room_are_left_out(pages):
    writer, reader = pages
    writer.sections.add("ä" * 40, 1_000_000_000)
    for number in range(40):
        writer.sections.add(f"operation {number}", 1_000_000_000)
    close_step(writer)
    found = reader.sections.read().by_operation_s
    assert "ä" * 28 in found
    assert len(found) == 24


def test_operations_and_closed_steps_do_not_touch_each_other(pages):
    writer, reader = pages
    writer.sections.add("data", 1)
    for step in range(RING_STEPS + 3):
        writer.words[vitals.Field.OWN_NS] = 10 * step
        writer.reals[vitals.Field.GRAD_NORM] = 0.25 * step
        close_step(writer, step)
    head, marks = reader.steps_since(0)
    last = RING_STEPS + 2
    assert head == last + 1
    assert marks[-1]._replace(closed_ns=0) == StepMark(last, 1, 7, 0, 0.5, 10 * last, 0.25 * last)
    assert reader.sections.read() == Spent(head, {"data": 1e-9})
