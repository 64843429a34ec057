"""Runs a command undisturbed and with faults, as a user would, and collects what each run left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from closeranks import journal
from closeranks.drill.blows import kernel_log_of
from closeranks.drill.fault import ENVIRONMENT, Fault, Kind
from closeranks.drill.plan import RunSpec
from closeranks.drill.verdict import Evidence, Final
from closeranks.events import Record

_GRACE_S = 35.0  # the supervisor gives each process 30 s
_OUTPUT_BYTES = 4000
_WATCH_S = 0.5

Progress = Callable[[Path, float], None]  # run folder, seconds since the start


class Runner:
    """Makes runs below ``folder`` (created; nothing in it is ever overwritten).

    What a run prints goes to ``output.log`` in its place, or, if ``visible``, where ours goes.
    """

    def __init__(self, folder: Path, progress: Progress | None = None, *, visible: bool = False) -> None:
        self._folder = folder
        self._progress = progress
        self._visible = visible
        self._undisturbed: dict[RunSpec, Evidence] = {}
        self._made = 0
        self._drilled: Path | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def undisturbed(self, run: RunSpec) -> Evidence:
        """The run without faults; made once for each command."""
        if run not in self._undisturbed:
            self._undisturbed[run] = self._make(run, self._place("undisturbed"), None)
        return self._undisturbed[run]

    def drilled(self, run: RunSpec, faults: tuple[Fault, ...]) -> Evidence:
        """One run with these faults."""
        self._drilled = self._place("drilled")
        return self._make(run, self._drilled, faults)

    def discard_drilled(self) -> None:
        """Remove what the last run with faults left on the disk."""
        if self._drilled is not None:
            shutil.rmtree(self._drilled, ignore_errors=True)
            self._drilled = None

    def _place(self, name: str) -> Path:
        self._made += 1
        place = self._folder / f"{self._made:02d}-{name}"
        place.mkdir(mode=0o700)
        return place

    def _make(self, run: RunSpec, place: Path, faults: tuple[Fault, ...] | None) -> Evidence:
        environment = {key: value for key, value in os.environ.items() if key != ENVIRONMENT} | memory_of(place)
        if faults is not None:
            plan = place / "faults.json"
            plan.write_bytes(msgspec.json.encode(faults))
            plan.chmod(0o600)
            environment[ENVIRONMENT] = str(plan.resolve())
            if any(fault.kind is Kind.XID for fault in faults):
                heard = ("--kernel-log", str(kernel_log_of(plan.resolve())))
                run = msgspec.structs.replace(run, options=(*run.options, *heard))
        with (place / "output.log").open("wb") as output:
            process = subprocess.Popen(
                command_line(run, place / "run"),
                stdin=subprocess.DEVNULL,
                stdout=None if self._visible else output,
                stderr=None if self._visible else subprocess.STDOUT,
                env=environment,
            )
            exit_code = self._wait(process, place / "run", run.timeout_s)
        return collect(place, exit_code)

    def _wait(self, process: subprocess.Popen[bytes], run_folder: Path, timeout_s: float) -> int | None:
        began_s = time.monotonic()
        try:
            while (spent_s := time.monotonic() - began_s) < timeout_s:
                try:
                    return process.wait(timeout=min(_WATCH_S, max(0.01, timeout_s - spent_s)))
                except subprocess.TimeoutExpired:
                    if self._progress is not None:
                        self._progress(run_folder, time.monotonic() - began_s)
        finally:
            end(process)
        return None


def memory_of(place: Path) -> dict[str, str]:
    """The environment in which what a run remembers of nodes stays in ``place``: drilled faults blame no machine."""
    return {"XDG_STATE_HOME": str(place.absolute() / "state")}


def command_line(run: RunSpec, run_folder: Path) -> list[str]:
    """What a user would type to make this run."""
    launcher = [sys.executable, "-m", "closeranks", "run"]
    sizes = ["--nproc-per-node", str(run.seats), "--spares", str(run.spares)]
    store = str(run_folder.parent.absolute() / "store")
    saving = ["--store", store, "--save-every", run.save_every] if run.save_every else []
    return [*launcher, *sizes, *saving, *run.options, "--run-dir", str(run_folder), *run.command]


def end(process: subprocess.Popen[bytes]) -> None:
    """Make sure that a run is over: orderly within its grace period, else by force (its guardian cleans up)."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def collect(place: Path, exit_code: int | None) -> Evidence:
    """What the run in ``place`` left behind; what cannot be read counts as absent."""
    return Evidence(
        exit_code=exit_code,
        records=_records(place / "run" / "journal.jsonl"),
        finals=finals_of(place / "run"),
        output=tail_of(place / "output.log"),
    )


def finals_of(run_folder: Path) -> dict[int, Final]:
    """The final states that the seats of a run wrote, by seat."""
    finals = {}
    for path in (run_folder / "final").glob("seat*.json"):
        try:
            finals[int(path.stem.removeprefix("seat"))] = msgspec.json.decode(path.read_bytes(), type=Final)
        except (OSError, ValueError):  # msgspec's errors are ValueErrors too
            continue
    return finals


def tail_of(path: Path) -> str:
    """The end of a text file, empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _OUTPUT_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _records(path: Path) -> tuple[Record, ...]:
    return tuple(journal.read(path).records) if path.exists() else ()
