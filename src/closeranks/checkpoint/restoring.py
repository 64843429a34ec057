"""Carrying a restore plan out: verified reads into scratch, and another home or an older point where one fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from closeranks.checkpoint.format import ShardIndex
from closeranks.checkpoint.image import DTYPES
from closeranks.checkpoint.inventory import Home, Opened, open_point, take_stock
from closeranks.checkpoint.problems import Damaged, NothingToRestore, StoreProblem
from closeranks.checkpoint.reading import Region, fetch
from closeranks.checkpoint.restore_plan import (
    Fetch,
    Inventory,
    Need,
    NoPlan,
    Passed,
    Plan,
    Point,
    Rules,
    plan_restore,
    ruled_out,
    without,
)
from closeranks.checkpoint.stores.retry import retried
from closeranks.checkpoint.stores.store import Buffer

Wanted = Callable[[Point, Mapping[int, ShardIndex]], tuple[Sequence[Need], Sequence[Buffer]]]
"""What a reader wants of a point, and scratch memory for it, a target for each need: row-major, without gaps.

May raise Mismatch: a sound point that does not fit ends the restore, since an older one would not fit any better.
"""

Progress = Callable[[int, int], None]  # bytes that are there, of those that are needed

_TRIES: Final = 2  # of the reads of one shard, where the store says that it failed for a moment


class Use(NamedTuple):
    """What one home contributed."""

    read_bytes: int
    seconds: float


class Restored(NamedTuple):
    """A point whose bytes were read and checked; they are in the targets."""

    point: Point
    indices: Mapping[int, ShardIndex]  # by writer: small state is there
    used: Mapping[str, Use]  # by home
    refused: tuple[str, ...]  # homes, shards and points that could not be used, in words


class _Failed(NamedTuple):
    home: str
    writer: int
    problem: str


def restore(
    homes: Sequence[Home], wanted: Wanted, rules: Rules | None = None, progress: Progress | None = None
) -> Restored:
    """Fill the targets from the newest usable point, every byte checked, from its nearest home.

    A read that fails is replaced by the next home; a point that cannot be completed by the next older one.

    Raises:
        NothingToRestore: no point is usable; the message has a reason for each.
        Mismatch: by ``wanted``.
    """
    rules = rules or Rules()
    stock = take_stock(homes)
    refused = list(stock.notes)
    passed: list[Passed] = []
    for found in stock.found:
        reason = ruled_out(found.point, rules)
        if not reason:
            opened = open_point(found, homes)
            refused += opened.notes
            reason = ruled_out(opened.point, rules)
            done = reason or _read_point(opened, wanted, rules, refused, progress)
            if isinstance(done, Restored):
                return done._replace(refused=(*refused, *map(str, passed)))
            reason = done
        passed.append(Passed(step=found.point.step, generation=found.point.generation, reason=reason))
    names = ", ".join(home.name for home in homes)
    reasons = "; ".join([*map(str, passed), *refused]) or "no checkpoint has been made yet"
    raise NothingToRestore(f"{names}: expected a checkpoint that can be restored, got none: {reasons}")


def _read_point(
    opened: Opened, wanted: Wanted, rules: Rules, refused: list[str], progress: Progress | None
) -> Restored | str:
    needs, targets = wanted(opened.point, opened.indices)
    work = _Work(opened, needs, targets, progress)
    inventory = Inventory(points=(opened.point,))
    while True:
        plan = plan_restore(inventory, needs, rules)
        if isinstance(plan, NoPlan):
            return plan.passed[0].reason
        failed = work.carry_out(plan)
        if failed is None:
            return Restored(opened.point, opened.indices, work.used, ())
        refused.append(f"{failed.home}: shard of writer {failed.writer}: {failed.problem}")
        inventory = without(inventory, opened.point.attempt, failed.home, failed.writer)


class _Work:
    """The reads of one point; what was read stays read when the plan changes."""

    def __init__(
        self, opened: Opened, needs: Sequence[Need], targets: Sequence[Buffer], progress: Progress | None
    ) -> None:
        self._opened = opened
        self._needs = needs
        self._targets = [target.cast("B") for target in targets]
        self._progress = progress
        self._done: set[Fetch] = set()
        self._done_bytes = 0
        self.used: dict[str, Use] = {}

    def carry_out(self, plan: Plan) -> _Failed | None:
        """Do all reads that are left, shard by shard; the first that fails."""
        left = sorted(read for read in plan.fetches if read not in self._done)
        for (home, writer), reads in groupby(left, key=lambda read: (read.home, read.writer)):
            group = list(reads)
            began_s = time.monotonic()
            try:
                self.read_shard(home, writer, group)
            except (Damaged, StoreProblem) as problem:
                return _Failed(home, writer, str(problem))
            self._done.update(group)
            size = sum(map(self._size, group))
            self._done_bytes += size
            before = self.used.get(home, Use(0, 0.0))
            self.used[home] = Use(before.read_bytes + size, before.seconds + time.monotonic() - began_s)
        for number, first in plan.repeats:
            self._targets[number][:] = self._targets[first]
        return None

    def read_shard(self, home: str, writer: int, reads: Sequence[Fetch]) -> None:
        """Reads of one shard from one home. Raises Damaged and StoreProblem; their targets are then of no use."""
        store, index = self._opened.store(home), self._opened.index(home, writer)
        regions, scattered = [], []
        for read in reads:
            target = self._part(read)
            if target is None:
                target = memoryview(bytearray(self._size(read)))
                scattered.append((read, target))
            regions.append(Region(read.slice, read.slice_offsets, read.shape, target))
        told = self._told(sum(map(self._size, reads)))
        checks = self._opened.checks(home)
        retried(lambda: fetch(store, index, regions, told, checks=checks), tries=_TRIES)
        for read, data in scattered:
            _scatter(read, self._needs[read.need], data, self._targets[read.need])

    def _told(self, shard_bytes: int) -> Progress | None:
        """Progress of a shard as progress of all: extents are larger than what is needed of them."""
        tell, before, total = self._progress, self._done_bytes, sum(map(len, self._targets))
        if tell is None:
            return None
        return lambda done, of: tell(before + shard_bytes * done // max(of, 1), total)

    def _size(self, read: Fetch) -> int:
        return int(np.prod(read.shape, dtype=np.int64)) * DTYPES[self._needs[read.need].dtype]

    def _part(self, read: Fetch) -> Buffer | None:
        """Where in the target the box lies, if that is one run of bytes."""
        whole = self._needs[read.need].shape
        split = next((d for d, size in enumerate(read.shape) if size > 1), len(whole))
        if read.shape[split + 1 :] != whole[split + 1 :]:
            return None
        item = DTYPES[self._needs[read.need].dtype]
        strides = _strides(whole, item)
        begin = sum(offset * stride for offset, stride in zip(read.need_offsets, strides, strict=True))
        return self._targets[read.need][begin : begin + self._size(read)]


def _strides(shape: tuple[int, ...], item: int) -> list[int]:
    strides = [item] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return strides


def _scatter(read: Fetch, need: Need, data: Buffer, target: Buffer) -> None:
    """Put the bytes of a box to their places among those of the need."""
    kind = np.dtype((np.void, DTYPES[need.dtype]))
    whole = np.frombuffer(target, kind).reshape(need.shape)
    area = tuple(slice(o, o + n) for o, n in zip(read.need_offsets, read.shape, strict=True))
    whole[area] = np.frombuffer(data, kind).reshape(read.shape)


def read_need(opened: Opened, need: Need, reads: Sequence[Fetch]) -> Buffer:
    """One box, checked, by those reads of a plan that are for it.

    Raises:
        Damaged, StoreProblem: a part of it cannot be read.
    """
    target = memoryview(bytearray(_bytes_of(need)))
    work = _Work(opened, [need], [target], None)
    for (home, writer), group in groupby(sorted(reads), key=lambda read: (read.home, read.writer)):
        work.read_shard(home, writer, [replace(read, need=0) for read in group])
    return target


def _bytes_of(need: Need) -> int:
    return int(np.prod(need.shape, dtype=np.int64)) * DTYPES[need.dtype]
