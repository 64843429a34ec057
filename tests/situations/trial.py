"""One ``closeranks run`` that a test follows by its journal and disturbs from outside."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.warm import WarmRun

from closeranks.drill.runner import finals_of
from closeranks.drill.verdict import Final
from closeranks.events import Event, ProcessSeated, ProcessStarted, Record
from closeranks.journal import follow
from real_run import eventually, gone

SOURCE = Path(__file__).parents[2] / "src"
EXAMPLES = Path(__file__).parents[2] / "examples"
RANK = Path(__file__).with_name("rank.py")
COLD = (sys.executable, "-m", "closeranks", "run")
WITHIN_S = 60.0  # a start on a busy machine; nothing waits for it to pass

E = TypeVar("E", bound=Event)


def _begin_cold(command: list[str], cwd: Path, environment: dict[str, str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as out:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _is(record: Record, kind: type[Event], fields: dict[str, Any]) -> bool:
    return isinstance(record.event, kind) and all(getattr(record.event, k) == v for k, v in fields.items())


class Ended(NamedTuple):
    """How a run ended, and all that it left."""

    code: int
    output: str
    records: tuple[Record, ...]
    finals: dict[int, Final]

    def events(self, kind: type[E]) -> list[E]:
        return [record.event for record in self.records if isinstance(record.event, kind)]


class Trial:
    """A run in the background. Events are waited for in the order in which they are written.

    Without a launcher it is forked from what has imported torch already.
    """

    def __init__(self, folder: Path, *words: str, launcher: tuple[str, ...] | None = None) -> None:
        self.folder = folder / "run"
        self._output = folder / "output.log"
        words = ("--run-dir", str(self.folder), *words)
        environment = os.environ | {"PYTHONPATH": str(SOURCE)}
        if launcher is None:
            self.process = WarmRun(words, cwd=folder, environment=environment, output=self._output)
        else:
            self.process = _begin_cold([*launcher, *words], folder, environment, self._output)
        self.records: list[Record] = []
        self._written: queue.Queue[Record | None] = queue.Queue()
        self._over = threading.Event()
        for work in (self._follow, self._wait_for_end):
            threading.Thread(target=work, daemon=True).start()

    def _follow(self) -> None:
        for record in follow(self.folder / "journal.jsonl", self._over):
            self._written.put(record)
        self._written.put(None)

    def _wait_for_end(self) -> None:
        self.process.wait()
        self._over.set()

    # --- seeing -------------------------------------------------------------------------------------------------

    def wait_for(self, kind: type[E], *, within_s: float = WITHIN_S, **fields: Any) -> Record:
        """The next record of such an event that nobody waited for yet."""
        end_s = time.monotonic() + within_s
        while True:
            record = self._next(end_s, f"{kind.__name__} {fields}")
            if _is(record, kind, fields):
                return record

    def see(self, kind: type[Event], **fields: Any) -> None:
        """Wait for such an event, unless one has come already."""
        if not any(_is(record, kind, fields) for record in self.records):
            self.wait_for(kind, **fields)

    def _next(self, end_s: float, what: str) -> Record:
        try:
            record = self._written.get(timeout=max(0.0, end_s - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"no {what} in time\n{self.output()}") from None
        assert record is not None, f"the run ended without {what}\n{self.output()}"
        self.records.append(record)
        return record

    def wait_for_output(self, text: str, *, within_s: float = WITHIN_S) -> None:
        """For scripts that show nothing but what they print."""
        assert eventually(lambda: text in self.output(), within_s), self.output()

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def pid(self, seat: int) -> int:
        """The process that sits in the seat, as far as the journal was read."""
        seated = [r.event for r in self.records if isinstance(r.event, ProcessSeated)]
        proc = [event.proc for event in seated if event.seat == seat][-1]
        return self.pids()[proc]

    def pids(self) -> dict[int, int]:
        """By process number: every process that was started so far."""
        return {r.event.proc: r.event.pid for r in self.records if isinstance(r.event, ProcessStarted)}

    # --- acting -------------------------------------------------------------------------------------------------

    def strike(self, seat: int, how: signal.Signals = signal.SIGKILL) -> float:
        """Signal the process of a seat; the time at which it was done, on the journal's clock."""
        at_s = time.monotonic()
        self.kill(self.pid(seat), how)
        return at_s

    def kill(self, pid: int, how: signal.Signals = signal.SIGKILL) -> None:
        assert pid in self.pids().values(), "tests signal processes of their own run only"
        os.kill(pid, how)

    def let_go(self, name: str) -> None:
        """Let ranks that sit idle go on."""
        (self.folder / name).touch()

    def end(self, within_s: float = WITHIN_S) -> Ended:
        """Wait for the end, and see that nothing is left behind."""
        end_s = time.monotonic() + within_s
        while (record := self._take(end_s)) is not None:
            self.records.append(record)
        code = self.process.wait()
        left = [pid for pid in self.pids().values() if not gone(pid)]
        assert not left, f"left behind: {left}\n{self.output()}"
        return Ended(code, self.output(), tuple(self.records), finals_of(self.folder))

    def _take(self, end_s: float) -> Record | None:
        try:
            return self._written.get(timeout=max(0.0, end_s - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"the run did not end in time\n{self.output()}") from None

    def clean_up(self) -> None:
        """Whatever happened in the test: the guardian ends the rest."""
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.wait()
