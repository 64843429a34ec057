"""Our end of a keeper: starts it, talks to it without ever blocking, and notices its death at once."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from closeranks import frames
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_messages import (
    Begin,
    Committed,
    Drill,
    Finish,
    Freed,
    FromKeeper,
    Kept,
    Publish,
    SaveLost,
)
from closeranks.checkpoint.problems import CheckpointProblem

_READ_BYTES = 2**18
_PENDING_BYTES_MAX = 4 * 2**20
_OVERDUE_S = 5.0  # past a save's deadline: the keeper reports by itself, so one that does not is frozen
_EXIT_S = 2.0
_LAST_WORDS_BYTES = 4000


class KeeperLost(CheckpointProblem):
    """The keeper ended or froze without being asked. Every save in work was reported as lost and freed before."""


class _Chunk(NamedTuple):
    data: memoryview
    fds: tuple[int, ...]  # our own duplicates; travel with the first byte


class _Save:
    """What a published save still owes."""

    def __init__(self, message: Publish) -> None:
        self.step = message.step
        self.overdue_s = time.monotonic() + message.deadline_s + _OVERDUE_S
        self.final = False
        self.freed = False


def start_keeper(config: KeeperConfig) -> KeeperClient:
    """Start a keeper. Its first report is Opened or Refused; it ends with this process, at the latest.

    Raises:
        OSError: no process could be started.
    """
    ours, theirs = socket.socketpair()
    words_fd = os.memfd_create("closeranks-keeper-stderr")
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "closeranks.checkpoint.keeper", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=words_fd,
                stderr=words_fd,
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        os.close(words_fd)
        raise
    client = KeeperClient(process, ours, words_fd)
    client.send(Begin(config=config, parent_pid=os.getpid()))
    return client


class KeeperClient:
    """For one thread. Wait for ``fileno()`` to become readable, or for ``due_s()``, and call ``receive()``."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket, words_fd: int) -> None:
        sock.setblocking(False)
        self._process = process
        self._sock = sock
        self._words_fd = words_fd
        self._decoder: frames.Decoder[FromKeeper] = frames.Decoder(FromKeeper)
        self._pending: deque[_Chunk] = deque()
        self._unread: deque[FromKeeper] = deque()
        self._saves: dict[int, _Save] = {}
        self._lost = ""  # why, once the keeper is gone
        self._closed = False

    @property
    def pid(self) -> int:
        """Of the keeper."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when there is something to receive, the keeper's death included."""
        return self._sock.fileno()

    def due_s(self) -> float | None:
        """On the monotonic clock: when ``receive`` is to be called even if nothing can be read; None: no need."""
        owed = [save.overdue_s for save in self._saves.values()]
        return min(owed) if owed else None

    def send(self, message: Publish | Drill | Finish | Begin, fds: Sequence[int] = ()) -> None:
        """Send, now or at the next call. The descriptors may be closed on return; the arenas belong to the save.

        Raises:
            KeeperLost: the keeper is gone, and ``receive`` has said so; the message was not taken.
        """
        if self._lost and not self._unread:
            raise KeeperLost(self._lost)
        if isinstance(message, Publish):
            if len(fds) != len(message.writers):
                raise ValueError(f"save {message.save}: {len(message.writers)} writers and {len(fds)} arenas")
            if message.save in self._saves:
                raise ValueError(f"save {message.save} was published before; give each a number of its own")
            self._saves[message.save] = _Save(message)
        data = memoryview(frames.encode(message))
        self._pending.append(_Chunk(data, tuple(os.dup(fd) for fd in fds)))
        self._flush()
        waiting_bytes = sum(len(chunk.data) for chunk in self._pending)
        if waiting_bytes > _PENDING_BYTES_MAX:
            self._lose(f"does not read: {waiting_bytes} bytes wait for it")

    def receive(self) -> list[FromKeeper]:
        """What has arrived; empty when nothing has. Never blocks.

        Raises:
            KeeperLost: the keeper is gone and all its saves were reported.
        """
        if not self._lost:
            self._flush()
            self._read()
            self._look_at_deadlines()
        reports = list(self._unread)
        self._unread.clear()
        if not reports and self._lost:
            raise KeeperLost(self._lost)
        return reports

    def wait_for(self, wanted: Callable[[FromKeeper], bool], timeout_s: float) -> FromKeeper:
        """The first report that is wanted; those passed over come with the next ``receive``.

        Raises:
            TimeoutError: it did not come in time.
            KeeperLost: the keeper is gone; it will not come.
        """
        passed: list[FromKeeper] = []
        end_s = time.monotonic() + timeout_s
        try:
            while True:
                reports = self.receive()
                for place, report in enumerate(reports):
                    if wanted(report):
                        self._unread.extendleft(reversed(reports[place + 1 :]))
                        return report
                    passed.append(report)
                if not reports and not self._wait_readable(end_s):
                    raise TimeoutError(f"the keeper (pid {self.pid}) did not report in {timeout_s:g} s")
        finally:
            self._unread.extendleft(reversed(passed))

    def close(self, deadline_s: float) -> list[FromKeeper]:
        """Let it finish by the deadline, end it, and return its last reports. Not an error when it is gone already."""
        if self._closed:
            return []
        end_s = time.monotonic() + deadline_s + _EXIT_S
        if not self._lost:
            self.send(Finish(deadline_s=deadline_s))
        while not self._lost and self._wait_readable(end_s):
            self._flush()
            self._read()
            self._look_at_deadlines()
        self._lose("was ended")
        self._closed = True
        reports = list(self._unread)
        self._unread.clear()
        os.close(self._words_fd)
        self._sock.close()
        return reports

    def _wait_readable(self, end_s: float) -> bool:
        due_s = self.due_s()
        until_s = end_s if due_s is None else min(end_s, due_s)
        events = select.POLLIN | (select.POLLOUT if self._pending else 0)
        poll = select.poll()
        poll.register(self._sock, events)
        poll.poll(max(0.0, until_s - time.monotonic()) * 1000)
        return time.monotonic() < end_s

    def _read(self) -> None:
        while not self._lost:
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lose("")
                return
            try:
                reports = self._decoder.feed(data)
            except frames.FrameError as error:
                self._lose(f"sent what is no report: {error}")
                return
            for report in reports:
                self._note(report)

    def _note(self, report: FromKeeper) -> None:
        self._unread.append(report)
        save = self._saves.get(report.save) if isinstance(report, Freed | Committed | Kept | SaveLost) else None
        if save is None or not isinstance(report, Freed | Committed | Kept | SaveLost):
            return
        if isinstance(report, Freed):
            save.freed = True
        else:
            save.final = True
        if save.freed and save.final:
            del self._saves[report.save]

    def _flush(self) -> None:
        while self._pending and not self._lost:
            chunk = self._pending[0]
            try:
                sent = (
                    socket.send_fds(self._sock, [chunk.data], chunk.fds) if chunk.fds else self._sock.send(chunk.data)
                )
            except BlockingIOError:
                return
            except OSError:  # it is gone: what it said last is read first, then its end is seen
                self._drop_pending()
                return
            for fd in chunk.fds:
                os.close(fd)
            if sent < len(chunk.data):
                self._pending[0] = _Chunk(chunk.data[sent:], ())
            else:
                self._pending.popleft()

    def _drop_pending(self) -> None:
        for chunk in self._pending:
            for fd in chunk.fds:
                os.close(fd)
        self._pending.clear()

    def _look_at_deadlines(self) -> None:
        due_s = self.due_s()
        if due_s is not None and time.monotonic() >= due_s:
            self._lose(f"is frozen: a save's deadline passed {_OVERDUE_S:g} s ago without a word")

    def _lose(self, why: str) -> None:
        """The keeper is no more: reap it, and say for every save in work that it is lost and freed."""
        if self._lost:
            return
        how = self._reap(kill=bool(why))
        self._lost = f"the keeper (pid {self.pid}) {why or how}{self._last_words()}"
        self._drop_pending()
        for number, save in self._saves.items():
            if not save.final:
                problem = f"{self._lost}; whether the save was committed is known when the store is read again"
                self._unread.append(SaveLost(save=number, step=save.step, tier="", problem=problem))
            if not save.freed:
                self._unread.append(Freed(save=number))
        self._saves.clear()

    def _reap(self, *, kill: bool) -> str:
        if kill:
            self._process.kill()
        try:
            code = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:  # it closed its socket and lives: useless, and it holds arenas
            self._process.kill()
            code = self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            size = os.fstat(self._words_fd).st_size
            words = os.pread(self._words_fd, _LAST_WORDS_BYTES, max(0, size - _LAST_WORDS_BYTES))
            text = words.decode(errors="replace").strip()
            return f"; its last words:\n{text}" if text else ""
        return ""
