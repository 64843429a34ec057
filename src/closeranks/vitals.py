"""The vitals page: what a worker shows of itself, in shared memory, without a socket or a lock.

One page per process. The training thread writes, the supervisor reads (and writes one word); a field is one aligned
8-byte word, so a reader sees either the old or the new value of it. Times are CLOCK_MONOTONIC nanoseconds, which all
processes of a node share. The page outlives its writer: the supervisor holds the memfd.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterator
from enum import IntEnum

from closeranks import sections
from closeranks.events import Category
from closeranks.signs import Doing, Reading, StepMark

PAGE_BYTES = 16384
_MAGIC = 0x636C6F7365726B31  # "closerk1"
RING_STEPS = 256
_RING_WORDS = 7  # step, attempt, opened_ns, closed_ns, own_ns, loss, gradient norm (bits of float64; NaN: not reported)


class Field(IntEnum):
    """Word indices of the page. What is written together lies together: see what every step writes, below."""

    MAGIC = 0
    RETURNED = 1  # collectives completed under this term
    OPERATION = 2  # code of the last launched collective, see operations.py
    OPERATION_BYTES = 3
    ENTERED = 4  # collectives launched under this term
    MOVED_NS = 5  # when the training thread last moved
    DOING = 6
    TERM = 7
    STEP = 8  # step of the open attempt, or the one to come
    ATTEMPT = 9
    LOSS = 10  # bits of a float64
    CLOSED_STEP = 11  # -1: none
    RING_HEAD = 12  # steps written to the ring so far
    OWN_NS = 13  # own time of the open attempt up to its last collective, see train/own_time.py; 0: none yet
    SECTION_HASH = 14  # first 8 bytes of the label's digest, 0 outside sections
    CATEGORY = 15  # index into list(Category)
    CATEGORY_SINCE_NS = 16
    SECONDS = 17  # 8 words: nanoseconds by category, closed intervals only
    GRAD_NORM = 25  # bits of a float64
    GROUP_HASH = 26  # which process group the last collective belongs to
    REHEARSED_NS = 27  # duration of the last rehearsal step
    LEASED_NS = 28  # the process may act until then; 0: for ever. The one word that the supervisor writes
    ENDED_HASH = 29  # of the section that ended last
    ENDED_NS = 30  # how long it took
    SECTIONS_ENDED = 31  # so far
    RING = 32
    SECTIONS = 1824


_WORDS = PAGE_BYTES // 8
_CATEGORIES = tuple(Category)
_INDEX = {category: index for index, category in enumerate(_CATEGORIES)}
_FORWARD, _BETWEEN = int(Doing.FORWARD), int(Doing.BETWEEN)
_NAN = float("nan")
# In the machine's own layout: each word is copied whole, so a reader never sees half of one.
_LAUNCHED = struct.Struct("@4q").pack_into  # from OPERATION on
_OPENED = struct.Struct("@5qd").pack_into  # from MOVED_NS on
_CLOSED = struct.Struct("@5qd2q").pack_into  # from MOVED_NS on
_MARK = struct.Struct("@5q2d").pack_into  # a slot of the ring
if Field.RING + RING_STEPS * _RING_WORDS > Field.SECTIONS or Field.SECTIONS + sections.WORDS > _WORDS:
    raise AssertionError("the ring or the sections do not fit the page")  # pragma: no cover - arithmetic on constants


def create_memfd(name: str) -> int:
    """A sealed-size anonymous page; the descriptor is close-on-exec."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, PAGE_BYTES)
    return fd


class Vitals:
    """A mapped page; give it the descriptor, it does not close it."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, PAGE_BYTES)
        raw = memoryview(self._map)
        self.words = raw.cast("q")
        self.reals = raw.cast("d")
        self.sections = sections.Sections(self._map, Field.SECTIONS * 8)
        self.term = 0
        self._entered = 0
        self._head = 0
        self._category = _CATEGORIES[0]  # as a page that nobody has written to says

    def lease(self, until_ns: int) -> None:
        """By the supervisor: no update may begin after this, whatever becomes of the supervisor meanwhile."""
        self.words[Field.LEASED_NS] = until_ns

    @property
    def may_act(self) -> bool:
        """Whether an update may begin now."""
        leased_ns = self.words[28]
        return leased_ns == 0 or time.monotonic_ns() < leased_ns

    def close(self) -> None:
        """Unmap. The object cannot be used afterwards."""
        self.sections.close()
        self.words.release()
        self.reals.release()
        self._map.close()

    # --- writer: the training thread ---------------------------------------------------------------------------

    def begin(self, category: Category) -> None:
        """First write of a process."""
        words, now_ns = self.words, time.monotonic_ns()
        words[Field.CLOSED_STEP] = -1
        words[Field.CATEGORY] = _INDEX[category]
        words[Field.CATEGORY_SINCE_NS] = now_ns
        self._category = category
        words[Field.MOVED_NS] = now_ns
        self.reals[Field.LOSS] = float("nan")
        self.reals[Field.GRAD_NORM] = float("nan")
        words[Field.MAGIC] = _MAGIC

    # What every step writes uses plain numbers and packs neighbours at once: looking up a member of Field takes four
    # times as long as a write, and five words packed take no longer than three written one by one. A pack writes word
    # by word in order, so the head of the ring moves after the slot is filled.

    def move(self, doing: int) -> None:
        """The training thread went on to something else."""
        words = self.words
        words[6] = doing
        words[5] = time.monotonic_ns()

    @contextlib.contextmanager
    def amid(self, doing: int) -> Iterator[None]:
        """The training thread does this for a while, and then again what it did before."""
        before = self.words[Field.DOING]
        self.move(doing)
        try:
            yield
        finally:
            self.move(before)

    @contextlib.contextmanager
    def section(self, label: int) -> Iterator[None]:
        """A labelled section. The reader may look too seldom to see it, so its length stays there to be read."""
        words, began_ns = self.words, time.monotonic_ns()
        words[Field.SECTION_HASH] = label
        try:
            with self.amid(Doing.SECTION):
                yield
                words[Field.ENDED_HASH], words[Field.ENDED_NS] = label, time.monotonic_ns() - began_ns
                words[Field.SECTIONS_ENDED] += 1
        finally:
            words[Field.SECTION_HASH] = 0

    def open_step(self, step: int, attempt: int, now_ns: int) -> None:
        """An attempt was opened."""
        _OPENED(self._map, 40, now_ns, _FORWARD, self.term, step, attempt, _NAN)

    def enter(self, operation: int, size_bytes: int, now_ns: int) -> None:
        """A collective is about to be launched."""
        self._entered = entered = self._entered + 1
        _LAUNCHED(self._map, 16, operation, size_bytes, entered, now_ns)

    def spend(self, category: Category, at_ns: int | None = None) -> None:
        """From now on (or since ``at_ns``, not before the last switch) seconds go to ``category``."""
        if category is self._category:  # the interval that is open goes on
            return
        words, before = self.words, _INDEX[self._category]
        now_ns = time.monotonic_ns() if at_ns is None else max(at_ns, words[16])
        words[17 + before] += now_ns - words[16]
        words[15] = _INDEX[category]
        words[16] = now_ns
        self._category = category

    def close_step(self, step: int, attempt: int, opened_ns: int, loss: float) -> None:
        """Append to the ring of closed steps; the reader must look at least once every RING_STEPS steps."""
        page, now_ns, head = self._map, time.monotonic_ns(), self._head
        self.sections.step_closed(head + 1)
        slot = 256 + head % RING_STEPS * 56
        _MARK(page, slot, step, attempt, opened_ns, now_ns, self.words[13], loss, self.reals[25])
        self._head = head = head + 1
        _CLOSED(page, 40, now_ns, _BETWEEN, self.term, step + 1, attempt, loss, step, head)

    def begin_term(self, term: int) -> None:
        """A new membership: collectives are counted anew."""
        self.term, self._entered = term, 0
        words = self.words
        words[Field.TERM], words[Field.ENTERED], words[Field.RETURNED] = term, 0, 0

    # --- reader: the supervisor --------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether the writer has written at all: scripts without the library never do."""
        return bool(self.words[Field.MAGIC] == _MAGIC)

    def read(self) -> Reading:
        """Look at the page."""
        w = self.words
        return Reading(
            moved_ns=w[Field.MOVED_NS],
            doing=Doing(w[Field.DOING]),
            term=w[Field.TERM],
            step=w[Field.STEP],
            attempt=w[Field.ATTEMPT],
            closed_step=w[Field.CLOSED_STEP],
            entered=w[Field.ENTERED],
            returned=w[Field.RETURNED],
            operation=w[Field.OPERATION],
            operation_bytes=w[Field.OPERATION_BYTES],
            section_hash=w[Field.SECTION_HASH],
            own_ns=w[Field.OWN_NS],
            loss=self.reals[Field.LOSS],
            grad_norm=self.reals[Field.GRAD_NORM],
            rehearsed_ns=w[Field.REHEARSED_NS],
            sections_ended=w[Field.SECTIONS_ENDED],
            ended_hash=w[Field.ENDED_HASH],
            ended_ns=w[Field.ENDED_NS],
        )

    def steps_since(self, head: int) -> tuple[int, list[StepMark]]:
        """The new head and the steps closed since ``head`` (those still in the ring)."""
        new = self.words[Field.RING_HEAD]
        marks = []
        for index in range(max(head, new - RING_STEPS), new):
            base = Field.RING + (index % RING_STEPS) * _RING_WORDS
            w = self.words
            loss, grad_norm = self.reals[base + 5], self.reals[base + 6]
            marks.append(StepMark(w[base], w[base + 1], w[base + 2], w[base + 3], loss, w[base + 4], grad_norm))
        return new, marks

    @property
    def own_ns(self) -> int:
        """Own time of the newest closed step, 0 before the first. That of the open step is not known yet."""
        head = self.words[Field.RING_HEAD]
        return self.words[Field.RING + (head - 1) % RING_STEPS * _RING_WORDS + 4] if head else 0

    def account(self, now_ns: int) -> dict[Category, float]:
        """Seconds by category up to ``now_ns``, the open interval included."""
        w = self.words
        seconds = {c: w[Field.SECONDS + i] / 1e9 for i, c in enumerate(_CATEGORIES)}
        seconds[_CATEGORIES[w[Field.CATEGORY]]] += max(0, now_ns - w[Field.CATEGORY_SINCE_NS]) / 1e9
        return {c: s for c, s in seconds.items() if s > 0}
