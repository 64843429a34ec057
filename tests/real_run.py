"""Runs of the real command line in the background, and a way to wait for something with a deadline."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from closeranks.events import Event
from closeranks.journal import read
from closeranks.run.descendants import read_stat

_MAIN = "from closeranks.cli.main import main; main()"
_LOOK_S = 0.01
_SOURCE = Path(__file__).parents[1] / "src"


def eventually(condition: Callable[[], object], within_s: float) -> bool:
    """Whether the condition comes true in time. For what other processes do and nothing reports.

    Counted by looks: a machine that stands still for a while stands still for those processes, too.
    """
    for _ in range(math.ceil(within_s / _LOOK_S)):
        if condition():
            return True
        time.sleep(_LOOK_S)
    return bool(condition())


def gone(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is None or stat.dead


class Run:
    """One ``closeranks run`` in the background."""

    def __init__(self, folder: Path, *arguments: str, cwd: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-c", _MAIN, "run", "--run-dir", str(folder), *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(_SOURCE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def events(self, kind: type[Event]) -> list:
        path = self.folder / "journal.jsonl"
        if not path.exists():
            return []
        return [record.event for record in read(path).records if isinstance(record.event, kind)]

    def wait_for(self, kind: type[Event], count: int = 1, within_s: float = 60.0) -> list:  # they start cold
        assert eventually(lambda: len(self.events(kind)) >= count or self.process.poll() is not None, within_s)
        found = self.events(kind)
        assert len(found) >= count, f"the run ended early: {self.process.communicate()[0]}"
        return found

    def end(self, within_s: float = 60.0) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=within_s)
        return self.process.returncode, output

    def clean_up(self) -> None:
        if self.process.poll() is None:
            for number in (signal.SIGINT, signal.SIGINT):  # twice: now
                self.process.send_signal(number)
                try:
                    self.process.communicate(timeout=5)
                    return
                except subprocess.TimeoutExpired:
                    continue
            self.process.kill()
        self.process.communicate()
