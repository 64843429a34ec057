"""The keeper of a node: a process that makes images in shared memory last, whatever happens to who filled them.

One thread hears messages and keeps the book, one for each tier does the work. Nothing here needs torch.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.format import ShardIndex
from closeranks.checkpoint.keeper_book import Book, Outcome, lost
from closeranks.checkpoint.keeper_link import Link, LinkBroken, Message
from closeranks.checkpoint.keeper_messages import Begin, Drill, Finish, FromKeeper, Publish, Sealed, ToKeeper
from closeranks.checkpoint.keeper_tasks import Tasks
from closeranks.checkpoint.keeper_work import Event, Images, Lane, Mailbox, Ticket, said
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.checkpoint.tiers import DURABLE, MEMORY, Last, due, stagger_s
from closeranks.run.linux import die_with_parent

_LAG_S: Final = 1.0
_ARENAS_KEPT: Final = 2  # saves whose arenas stay mapped: mapping them anew costs as much as a copy
_TIDY, _DRILL = "tidy", "drill"
_PARENT_GONE = signal.SIGUSR1
_SELECT_S_MAX: Final = 3600.0


class Keeper:
    """The main thread: all state is here, and none of it is touched by another one."""

    def __init__(self, link: Link, begin: Begin) -> None:
        config = begin.config
        self._link, self._config, self._parent_pid = link, config, begin.parent_pid
        self._mailbox = Mailbox()
        self._tasks = Tasks(config, self._mailbox)
        self._book = Book(_LAG_S)
        self._tiers = {tier.name: tier for tier in config.tiers.tiers}
        self._lanes = {name: Lane(name, self._mailbox) for name in (*self._tiers, MEMORY, _TIDY, _DRILL)}
        self._waiting: dict[str, deque[Callable[[], None]]] = {name: deque() for name in self._lanes}
        self._tickets: dict[tuple[int, str], Ticket] = {}
        self._last: dict[str, Last] = {}
        self._arenas: dict[int, Arena] = {}  # by inode
        self._arenas_of: dict[int, tuple[int, ...]] = {}  # by save, oldest first
        self._end_s: float | None = None  # when it ends at the latest, once that is known
        self._finishing = False
        self._drill_s = None if config.drill_every_s is None else time.monotonic() + config.drill_every_s

    def run(self, messages: Iterable[Message]) -> None:
        """Serve, these messages first, until the parent says Finish or is gone and what was taken has ended."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts the run tells its supervisor
        for number in (signal.SIGTERM, _PARENT_GONE):
            signal.signal(number, lambda number, _frame: self._mailbox.post(Event("signal", save=number)))
        if not die_with_parent(self._parent_pid, _PARENT_GONE):
            return
        self._begin(DURABLE, self._tasks.open)
        for message, fds in messages:
            self._hear(message, fds)
        with selectors.DefaultSelector() as selector:
            selector.register(self._mailbox.fd, selectors.EVENT_READ)
            selector.register(self._link.sock, selectors.EVENT_READ)
            while not self._is_over():
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._link.wants_to_write else 0)
                if self._parent_pid:
                    selector.modify(self._link.sock, events)
                elif self._link.sock in selector.get_map():
                    selector.unregister(self._link.sock)
                selector.select(self._patience_s())
                self._round()

    def _round(self) -> None:
        if self._parent_pid:
            try:
                self._link.flush()
                for message, fds in self._link.receive():
                    self._hear(message, fds)
            except LinkBroken:
                self._orphaned()
        for event in self._mailbox.take():
            self._note(event)
        now_s = time.monotonic()
        self._follow(self._book.expire(now_s))
        if self._drill_s is not None and now_s >= self._drill_s and self._config.drill_every_s is not None:
            self._drill_s = now_s + self._config.drill_every_s
            if not self._waiting[_DRILL]:
                self._begin(_DRILL, lambda: self._tasks.drill(None, asked=False))

    def _is_over(self) -> bool:
        if self._end_s is None:
            return False
        now_s = time.monotonic()
        if now_s >= self._end_s:
            self._follow(self._book.give_up_all("the keeper had to end before it was done", now_s))
            return True
        busy = any(lane.busy_since_s is not None or self._waiting[name] for name, lane in self._ending_lanes())
        return self._finishing and not len(self._book) and not busy

    def _ending_lanes(self) -> Iterator[tuple[str, Lane]]:
        """Those that are waited for at the end: not the drill, which only reads."""
        return ((name, lane) for name, lane in self._lanes.items() if name != _DRILL)

    def _patience_s(self) -> float:
        times = [at for at in (self._book.next_s(), self._end_s, self._drill_s) if at is not None]
        return min(max(0.0, min(times) - time.monotonic()), _SELECT_S_MAX) if times else _SELECT_S_MAX

    # --- what the parent says -------------------------------------------------------------------------------

    def _hear(self, message: ToKeeper, fds: tuple[int, ...]) -> None:
        match message:
            case Publish():
                self._publish(message, self._mapped(message.save, fds))
            case Drill():
                self._begin(_DRILL, lambda: self._tasks.drill(message.generation, asked=True))
            case Finish():
                self._finish_by(time.monotonic() + message.deadline_s)
            case Begin():
                raise LinkBroken("a keeper begins once")

    def _publish(self, publish: Publish, arenas: tuple[Arena, ...]) -> None:
        now_s = time.monotonic()
        named = due(self._config.tiers, self._last, publish.step, now_s) if publish.tiers is None else publish.tiers
        names = tuple(name for name in self._tiers if name in named)
        self._last |= {name: Last(publish.step, now_s) for name in names}
        self._follow(self._book.take(publish, (MEMORY, *names), now_s))
        if self._finishing:
            self._follow(self._book.give_up(publish.save, "it was published after Finish", now_s))
            return
        images = Images(publish, arenas, self._config.options)
        for name in (MEMORY, *names):
            delay_s = stagger_s(self._tiers[name], publish.writers[0], publish.world) if name in self._tiers else 0.0
            ticket = self._tickets[publish.save, name] = Ticket(images, name, delay_s, self._mailbox)
            self._let_go_of_older(ticket, now_s)
            self._begin(name, lambda ticket=ticket: self._tasks.save(ticket))  # type: ignore[misc]

    def _let_go_of_older(self, newer: Ticket, now_s: float) -> None:
        """A save of the same state that still waits for this tier is obsolete."""
        for (number, tier), ticket in list(self._tickets.items()):
            same = tier == newer.tier and ticket.publish.group == newer.publish.group and ticket is not newer
            if newer.publish.passes_over and same and not ticket.started and tier != MEMORY:
                problem = f"it still waited for its turn when step {newer.publish.step} came"
                ticket.cancel()
                self._follow(self._book.ended(number, tier, lost(ticket.publish, tier, problem), now_s))

    def _mapped(self, save: int, fds: tuple[int, ...]) -> tuple[Arena, ...]:
        """The arenas behind the descriptors. Those of the last saves stay mapped; others are given back."""
        inodes = tuple(os.fstat(fd).st_ino for fd in fds)
        for fd, inode in zip(fds, inodes, strict=True):
            if inode in self._arenas:
                os.close(fd)
            else:
                self._arenas[inode] = Arena.of(fd)
        self._arenas_of[save] = inodes
        old = [number for number in list(self._arenas_of)[:-_ARENAS_KEPT] if number not in self._book]
        for number in old:
            del self._arenas_of[number]
        used = {inode for of_save in self._arenas_of.values() for inode in of_save}
        for inode in [inode for inode in self._arenas if inode not in used]:
            self._arenas.pop(inode).close()
        return tuple(self._arenas[inode] for inode in inodes)

    # --- what the threads say -------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        now_s = time.monotonic()
        match event.what:
            case "report" if event.report is not None:
                self._tell(event.report)
            case "has_read":
                self._follow(self._book.has_read(event.save, event.tier, now_s))
            case "ended":
                self._follow(self._book.ended(event.save, event.tier, event.report, now_s))
            case "digested" if (publish := self._book.holds(event.save)) is not None:
                # Here and not in the thread: the arenas are the save's own until Freed goes out from this thread.
                self._tell(_sealed(publish, event.seals))
            case "committed" if self._config.lead and not self._waiting[_TIDY]:
                self._begin(_TIDY, self._tasks.tidy)
            case "idle":
                self._lanes[event.tier].busy_since_s = None
                self._start_next(event.tier)
            case "signal":
                self._signalled(signal.Signals(event.save))

    def _signalled(self, number: signal.Signals) -> None:
        if number is _PARENT_GONE:
            # The kernel says so too when only the thread that started us has ended.
            if os.getppid() != self._parent_pid:
                self._orphaned()
        elif self._end_s is None:
            # The parent got the same notice and may have a last save for us: stay until it says Finish.
            self._end_s = time.monotonic() + self._config.notice_s

    def _orphaned(self) -> None:
        """Nobody hears us any more: a save that is under way is finished, then the process ends."""
        if self._parent_pid:
            self._parent_pid = 0
            self._finish_by(time.monotonic() + self._config.notice_s)

    def _finish_by(self, end_s: float) -> None:
        self._finishing = True
        self._drill_s = None
        self._waiting[_DRILL].clear()
        self._end_s = end_s if self._end_s is None else min(self._end_s, end_s)

    # --- what follows ---------------------------------------------------------------------------------------

    def _begin(self, lane: str, work: Callable[[], None]) -> None:
        self._waiting[lane].append(work)
        self._start_next(lane)

    def _start_next(self, name: str) -> None:
        lane = self._lanes[name]
        if lane.busy_since_s is None and self._waiting[name]:
            lane.start(self._waiting[name].popleft())

    def _follow(self, outcome: Outcome) -> None:
        for pair in outcome.given_up:
            self._tickets[pair].cancel()
        for report in outcome.reports:
            self._tell(report)
        for pair in [pair for pair in self._tickets if pair[0] not in self._book]:
            del self._tickets[pair]

    def _tell(self, report: FromKeeper) -> None:
        if self._parent_pid:
            try:
                self._link.send(report)
            except LinkBroken:
                self._orphaned()


def _sealed(publish: Publish, seals: Iterable[tuple[Arena, ShardIndex]]) -> FromKeeper:
    try:
        for arena, index in seals:
            arena.seal(index)
    except (CheckpointProblem, ValueError) as problem:
        return lost(publish, MEMORY, said(problem))
    return Sealed(save=publish.save, step=publish.step)


def main(argv: list[str]) -> int:
    """``python -P -m closeranks.checkpoint.keeper SOCKET_FD``: started by ``start_keeper``."""
    link = Link(socket.socket(fileno=int(argv[0])))
    messages: list[Message] = []
    try:
        poll = select.poll()  # its number may be beyond what select() takes
        poll.register(link.sock, select.POLLIN)
        while not messages:
            poll.poll()
            messages = link.receive()
    except LinkBroken:
        return 0  # the parent ended before it said anything
    (begin, _), *rest = messages
    if not isinstance(begin, Begin):
        return 1
    os.nice(begin.config.priority)
    Keeper(link, begin).run(rest)
    os._exit(0)  # a thread that hangs in a dead file system must not keep the process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
