"""Snapshots in memory: whose arena holds which step, which arena may be written next, and what a restart can use.

Arenas belong to worker processes, two each, but their memory belongs to whoever holds a descriptor: the vault keeps
one for every image that it may still need, so that the image outlives the worker that wrote it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container
from dataclasses import dataclass, field

from closeranks.run.worker import Worker

SLOTS = 2


@dataclass(slots=True, kw_only=True)
class Image:
    """One seat's part of a snapshot."""

    fd: int
    image_bytes: int


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """The state after one step, from all seats."""

    save: int
    step: int
    procs: dict[int, tuple[int, int]]  # by seat: process and slot that the image is to come from
    final: bool = False  # the last one of the run: it goes to every tier
    images: dict[int, Image] = field(default_factory=dict)  # by seat
    pause_s: float = 0.0
    data_position: object = None
    taken_mono_s: float = 0.0
    published: bool = False  # the keeper has it, or is about to
    sealed: bool = False  # the keeper knows its digests: a restart may use it
    freed: bool = False  # the keeper needs it no more

    @property
    def complete(self) -> bool:
        """Every seat has delivered."""
        return len(self.images) == len(self.procs)

    @property
    def image_bytes(self) -> int:
        """Of all seats."""
        return sum(image.image_bytes for image in self.images.values())

    def close(self) -> None:
        """Give the memory back, unless a worker still has it."""
        for image in self.images.values():
            os.close(image.fd)
        self.images.clear()


class Vault:
    """All snapshots that are not given up."""

    def __init__(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}  # by save

    def begin(self, save: int, step: int, members: dict[int, Worker]) -> Snapshot | None:
        """Choose an arena of each member for a new snapshot; None while one of them has none to spare."""
        procs: dict[int, tuple[int, int]] = {}
        for seat, worker in members.items():
            slot = self._free_slot(worker.proc)
            if slot is None:
                return None
            procs[seat] = (worker.proc, slot)
        snapshot = Snapshot(save=save, step=step, procs=procs)
        self._snapshots[save] = snapshot
        return snapshot

    def take(self, save: int, worker: Worker, image_bytes: int, pause_s: float) -> Snapshot | None:
        """A member delivered; the snapshot it belongs to, None if that was given up."""
        snapshot = self._snapshots.get(save)
        if snapshot is None or worker.seat is None:
            return None
        proc, slot = snapshot.procs.get(worker.seat, (-1, -1))
        if proc != worker.proc:
            return None
        fd = os.dup(worker.channels.arena_0 if slot == 0 else worker.channels.arena_1)
        snapshot.images[worker.seat] = Image(fd=fd, image_bytes=image_bytes)
        snapshot.pause_s = max(snapshot.pause_s, pause_s)
        if snapshot.complete:
            snapshot.taken_mono_s = time.monotonic()
        return snapshot

    def get(self, save: int) -> Snapshot | None:
        """The snapshot of this save, unless it was given up."""
        return self._snapshots.get(save)

    def of_step(self, step: int) -> Snapshot | None:
        """The newest complete snapshot of this step."""
        found = [snapshot for snapshot in self._snapshots.values() if snapshot.complete and snapshot.step == step]
        return max(found, key=lambda snapshot: snapshot.save, default=None)

    def drop(self, save: int) -> None:
        """Give a snapshot up."""
        snapshot = self._snapshots.pop(save, None)
        if snapshot is not None:
            snapshot.close()

    def drop_unpublished(self, but: Container[int]) -> None:
        """Give up what was delivered for saves that nobody will publish."""
        for save in [s.save for s in self._snapshots.values() if not s.published and s.save not in but]:
            self.drop(save)

    def seal(self, save: int) -> None:
        """The keeper knows the digests: older images are not needed for a restart any more."""
        if save in self._snapshots:
            self._snapshots[save].sealed = True
        self._tidy()

    def free(self, save: int) -> None:
        """The keeper needs the images no more."""
        if save in self._snapshots:
            self._snapshots[save].freed = True
        self._tidy()

    def restorable(self) -> Snapshot | None:
        """The newest snapshot that a restart can use."""
        sealed = [snapshot for snapshot in self._snapshots.values() if snapshot.sealed]
        return max(sealed, key=lambda snapshot: snapshot.save, default=None)

    def descriptors(self, step: int) -> tuple[int, ...]:
        """The arenas of the snapshot of ``step`` that a restart can use, in the order of the seats."""
        snapshot = self.restorable()
        if snapshot is None or snapshot.step != step:
            return ()
        return tuple(image.fd for _, image in sorted(snapshot.images.items()))

    def close(self) -> None:
        """Give up all."""
        for save in list(self._snapshots):
            self.drop(save)

    def _tidy(self) -> None:
        keep = self.restorable()
        for snapshot in list(self._snapshots.values()):
            # One that is freed without a seal was lost on its way; the newest sealed one stays for a restart.
            if snapshot.complete and snapshot.freed and snapshot is not keep:
                self.drop(snapshot.save)

    def _free_slot(self, proc: int) -> int | None:
        used = {slot for s in self._snapshots.values() for owner, slot in s.procs.values() if owner == proc}
        return next((slot for slot in range(SLOTS) if slot not in used), None)
