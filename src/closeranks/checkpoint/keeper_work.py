"""The threads of a keeper: one for each tier, so that a slow one holds up nothing but itself."""

from __future__ import annotations

import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from closeranks.checkpoint.arena import Arena, Filled
from closeranks.checkpoint.format import ShardIndex
from closeranks.checkpoint.keeper_messages import FromKeeper, Progress, Publish
from closeranks.checkpoint.problems import CheckpointProblem, Damaged
from closeranks.checkpoint.writing import Options, seal_index

_PROGRESS_S: Final = 0.5  # between two reports of one stage


class GivenUp(Exception):
    """The save was given up while it was worked on; its report is out already."""


class Event(NamedTuple):
    """What a thread tells the main one."""

    what: str  # "report", "has_read", "ended", "digested", "committed", "idle", "signal"
    tier: str = ""
    save: int = -1
    report: FromKeeper | None = None
    seals: tuple[tuple[Arena, ShardIndex], ...] = ()


class Mailbox:
    """From the threads to the main one, which waits for ``fd`` to become readable."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def post(self, event: Event) -> None:
        """Called from any thread, and from signal handlers."""
        self._events.put(event)
        os.eventfd_write(self.fd, 1)

    def take(self) -> list[Event]:
        """All events that have arrived; never blocks."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        events = []
        while not self._events.empty():
            events.append(self._events.get())
        return events


class Images:
    """The arenas of one save, shared by the tiers that write it; sealed once, by the first that needs it."""

    def __init__(self, publish: Publish, arenas: Sequence[Arena], options: Options) -> None:
        self.publish = publish
        self._arenas = tuple(arenas)
        self._options = options
        self._lock = threading.Lock()
        self._sealed: list[Filled] = []

    def whole(self) -> list[Filled]:
        """The images as they are, in the order of the save's writers.

        Raises:
            Damaged: an arena holds no whole image of the save's step; nothing of it may be used.
        """
        return self._sealed or [self._filled(*pair) for pair in zip(self.publish.writers, self._arenas, strict=True)]

    def sealed(self, progress: Callable[[str, int, int], None], mailbox: Mailbox) -> list[Filled]:
        """The images with the indices that memory homes keep.

        Raises:
            Damaged: as ``whole``.
        """
        with self._lock:
            if not self._sealed:
                images = self.whole()
                indices = [
                    seal_index(filled, self.publish.attempt, writer, self._options, progress)
                    for writer, filled in zip(self.publish.writers, images, strict=True)
                ]
                self._sealed = [
                    dataclasses.replace(filled, index=index) for filled, index in zip(images, indices, strict=True)
                ]
                pairs = tuple(zip(self._arenas, indices, strict=True))
                mailbox.post(Event("digested", save=self.publish.save, seals=pairs))
            return self._sealed

    def _filled(self, writer: int, arena: Arena) -> Filled:
        filled = arena.filled()
        where = f"save {self.publish.save}: the arena of writer {writer}"
        if filled is None:
            raise Damaged(f"{where}: expected a whole image of step {self.publish.step}, got a torn or empty one")
        if filled.step != self.publish.step:
            raise Damaged(f"{where}: expected the image of step {self.publish.step}, got that of step {filled.step}")
        return filled


class Ticket:
    """One tier's share of one save, in its thread's hands. ``cancel`` may come from the main thread at any time."""

    def __init__(self, images: Images, tier: str, delay_s: float, mailbox: Mailbox) -> None:
        self.images = images
        self.publish = images.publish
        self.tier = tier
        self.started = False  # set by its thread
        self.began_s = time.monotonic()
        self.deadline_s = self.began_s + images.publish.deadline_s
        self._delay_s = delay_s
        self._mailbox = mailbox
        self._cancelled = threading.Event()
        self._told_s: dict[str, float] = {}  # by stage

    def cancel(self) -> None:
        """Its report is out: stop as soon as possible, publish nothing."""
        self._cancelled.set()

    def check(self) -> None:
        """Go on only if the save is still wanted.

        Raises:
            GivenUp: it is not.
        """
        if self._cancelled.is_set():
            raise GivenUp

    def wait(self, seconds: float) -> None:
        """Let time pass, unless the save is given up meanwhile.

        Raises:
            GivenUp: it was.
        """
        if self._cancelled.wait(seconds):
            raise GivenUp

    def wait_for_turn(self) -> None:
        """Stagger: begin when it is this writer's turn."""
        self.wait(max(0.0, self._delay_s - (time.monotonic() - self.began_s)))

    def sealed(self) -> list[Filled]:
        """The images with their fast digests; see Images."""
        return self.images.sealed(self.progress, self._mailbox)

    def progress(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Tell how far it is, now and then; also the place where a save that was given up stops.

        Raises:
            GivenUp: it was.
        """
        self.check()
        now_s = time.monotonic()
        if now_s < self._told_s.get(stage, -_PROGRESS_S) + _PROGRESS_S:
            return
        self._told_s[stage] = now_s
        report = Progress(
            save=self.publish.save, tier=self.tier, stage=stage, done_bytes=done_bytes, total_bytes=total_bytes
        )
        self._mailbox.post(Event("report", self.tier, self.publish.save, report))

    def has_read(self) -> None:
        """The arenas are not needed any more."""
        self._mailbox.post(Event("has_read", self.tier, self.publish.save))


class Lane:
    """The thread of one tier: one piece of work at a time."""

    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self.name = name
        self.busy_since_s: float | None = None  # for the main thread only
        self._mailbox = mailbox
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"lane-{name}", daemon=True).start()

    def start(self, work: Callable[[], None]) -> None:
        """Begin; ``work`` reports by itself and raises nothing. "idle" is posted when it has returned."""
        self.busy_since_s = time.monotonic()
        self._work.put(work)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            work()
            del work  # an idle lane holds no arena
            self._mailbox.post(Event("idle", self.name))


def said(error: BaseException) -> str:
    """The words for a report. Problems of ours are sentences; anything else is a mistake and shows its kind."""
    if isinstance(error, CheckpointProblem):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}; this is a mistake in closeranks, please report it"
