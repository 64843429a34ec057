"""The history of nodes across runs: a small file of JSON lines, to which every run appends.

It lies in the store of the run where that is a folder, which all nodes of the job share, else in the user's own state
folder of each machine. It is a memory, not a truth: lines that are torn or not understood are skipped, and a file that
has grown too large loses its older half.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from closeranks.decide import quarantine
from closeranks.decide.node_records import Failed, KeptOut, Line, Worked, register_of
from closeranks.decide.quarantine import By, Register
from closeranks.events import AnyEvent, NodeBlamed, NodeQuarantined
from closeranks.run.options import RunOptions

FILE_NAME: Final = "nodes.jsonl"
LIMIT_BYTES: Final = 4 * 2**20
_LINE_LIMIT_BYTES: Final = 16 * 2**10
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class HistoryProblem(Exception):
    """The file cannot be read or written; what it held is still there."""


def default_file(environment: Mapping[str, str]) -> Path:
    """The file of this user on this machine, as the XDG base directories have it."""
    state = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "closeranks" / FILE_NAME


def file_of(options: RunOptions, environment: Mapping[str, str]) -> Path:
    """Where the history of a run's nodes is kept."""
    store = options.store
    if store is not None and "://" not in store:
        return Path(store) / FILE_NAME
    return default_file(environment)


class NodeHistory:
    """One file. Several processes may append at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Register:
        """What is known of nodes, in wall-clock times; nothing, where there is no file.

        Raises:
            HistoryProblem: there is one that cannot be read.
        """
        return register_of(self._lines())

    def add(self, line: Line) -> None:
        """Append one fact.

        Raises:
            HistoryProblem: it is not in the file, or it may not last.
        """
        try:
            self.path.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            self._shorten()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self.path, flags, _PRIVATE_FILE)
            try:
                # A line that was torn by a crash must not take this one with it; empty lines are skipped.
                os.write(fd, b"\n" + _encoder.encode(line) + b"\n")
            finally:
                os.close(fd)
        except OSError as error:
            raise HistoryProblem(f"{self.path}: the history of nodes was not written: {error.strerror}") from error

    def _lines(self) -> Iterator[Line]:
        for text in self._bytes().split(b"\n"):
            if 0 < len(text) <= _LINE_LIMIT_BYTES:
                with contextlib.suppress(msgspec.MsgspecError):
                    yield _decoder.decode(text)

    def _bytes(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                file.seek(max(0, size_bytes - LIMIT_BYTES))
                return file.read(LIMIT_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise HistoryProblem(f"{self.path}: the history of nodes cannot be read: {error.strerror}") from error

    def _shorten(self) -> None:
        """Keep the newer half of a file that has grown too large; what others append meanwhile may be lost."""
        try:
            if self.path.stat().st_size <= LIMIT_BYTES:
                return
        except FileNotFoundError:
            return
        kept = self._bytes()[-LIMIT_BYTES // 2 :]
        beside = self.path.with_name(f"{FILE_NAME}.{os.getpid()}")
        try:
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE), "wb") as file:
                file.write(kept[kept.find(b"\n") + 1 :])
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)


class Scribe:
    """Writes down what a run tells about nodes. A history that cannot be written is told once and ends nothing."""

    def __init__(self, history: NodeHistory, run: str, say: Callable[[str], None]) -> None:
        self._history = history
        self._run = run
        self._say = say
        self._lost = False

    def register(self) -> Register:
        """What is known of nodes, in times of this process's monotonic clock."""
        try:
            found = self._history.read()
        except HistoryProblem as problem:
            self._complain(problem)
            return Register()
        return quarantine.moved(found, time.monotonic() - time.time())

    def note(self, event: AnyEvent) -> None:
        """An event that may be about a node's health."""
        now_s = time.time()
        match event:
            case NodeBlamed(host=host, fault=fault, unit=unit, incident=incident):
                self._add(Failed(host=host, wall_s=now_s, run=self._run, incident=incident, fault=fault, unit=unit))
            case NodeQuarantined(host=host, hours=hours, reason=reason):
                self._add(KeptOut(host=host, wall_s=now_s, hours=hours, reason=reason, by=By.RULE))

    def worked(self, host: str, hours: float) -> None:
        """This node held seats for so long."""
        self._add(Worked(host=host, wall_s=time.time(), hours=hours))

    def _add(self, line: Line) -> None:
        try:
            self._history.add(line)
        except HistoryProblem as problem:
            self._complain(problem)

    def _complain(self, problem: HistoryProblem) -> None:
        if not self._lost:
            self._say(f"closeranks: {problem}; the run goes on without it")
        self._lost = True
