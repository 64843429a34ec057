"""From what the user wrote to an open store and a generation in it; and what cannot be, in words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Never

import msgspec
import typer

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import IDENTITY_KEY, Identity
from closeranks.checkpoint.history import Generation, History
from closeranks.checkpoint.inventory import Home, Opened, open_point, take_stock
from closeranks.checkpoint.problems import CheckpointProblem, StoreRefused
from closeranks.checkpoint.stores.opening import found, open_store
from closeranks.checkpoint.stores.store import Store
from closeranks.cli.byte_bar import byte_bar

PROBLEM: Final = 1
USAGE: Final = 2
_RUN_FILE: Final = "run.json"
_SHOWN: Final = 3  # names of a foreign folder
_STEP: Final = re.compile(r"step[:= ]?(-?\d+)")
_FOREIGN: Final = (
    (".metadata", "a checkpoint of torch.distributed.checkpoint"),
    ("*.safetensors", "safetensors files"),
    ("*.pt", "files of torch.save"),
    ("*.pth", "files of torch.save"),
    ("*.bin", "files of torch.save"),
)


class _RunOptions(msgspec.Struct):
    store: str | None = None


class _Run(msgspec.Struct):
    """What is wanted of run.json, whatever else a newer version puts there."""

    options: _RunOptions


class Session:
    """An open store."""

    def __init__(self, text: str, store: Store, identity: Identity) -> None:
        self.text = text
        self.store = store
        self.identity = identity
        self.log = CommitLog(store)
        self.history: History = self.log.refresh()

    def generation(self, text: str) -> Generation:
        """The one that the user means: a number, ``newest``, ``verified`` or ``step:N``."""
        alive = self.history.generations
        step = _STEP.fullmatch(text)
        if text == "newest":
            newest = self.history.newest(trusted=False) or next(iter([*alive.values()][::-1]), None)
            return newest or fail(f"{self.store.url}: no checkpoint has been committed yet", PROBLEM)
        if text == "verified":
            wanted = "a restore drill makes one: closeranks ckpt restore-drill"
            return self.history.last_verified() or fail(
                f"{self.store.url}: no generation is verified; {wanted}", PROBLEM
            )
        if step is not None:
            of_step = [one for one in alive.values() if one.manifest.step == int(step[1])]
            steps = _listed([str(one.manifest.step) for one in alive.values()])
            return (
                of_step[-1]
                if of_step
                else fail(f"{self.store.url}: step {step[1]} is not there; steps: {steps}", USAGE)
            )
        if not text.isdigit():
            fail(f"generation: expected a number, newest, verified or step:N, got {text!r}", USAGE)
        return alive.get(int(text)) or self._absent(int(text))

    def _absent(self, number: int) -> Never:
        alive = _listed(list(map(str, self.history.generations)))
        if number in self.history.retired:
            fail(f"{self.store.url}: generation {number} was retired; alive: {alive}", USAGE)
        hint = f"; for a step: step:{number}" if self._has_step(number) else ""
        fail(f"{self.store.url}: generation {number} is not there; alive: {alive}{hint}", USAGE)

    def _has_step(self, number: int) -> bool:
        return any(one.manifest.step == number for one in self.history.generations.values())

    def open(self, generation: Generation) -> Opened:
        """A generation with the indices of all writers."""
        home = Home(self.store.url, 0, self.store, log=self.log)
        stock = take_stock([home])
        chosen = next(one for one in stock.found if one.point.generation == generation.number)
        opened = open_point(chosen, [home])
        if len(opened.indices) < generation.manifest.world:
            fail(f"generation {generation.number}: {'; '.join(opened.notes)}", PROBLEM)
        return opened


@contextlib.contextmanager
def session(target: str) -> Iterator[Session]:
    """The store at a path or URL, or of the run in a folder. Ends the command where there is none."""
    text = _store_of(target)
    try:
        store = open_store(text)
        try:
            yield Session(text, store, found(store, "", make=False, now_wall_s=0.0))
        finally:
            store.close()
    except StoreRefused as problem:
        fail(str(problem), USAGE)
    except CheckpointProblem as problem:
        fail(str(problem), PROBLEM)


def store_or_new(target: str) -> str:
    """The store that the user means, which need not exist."""
    is_there = "://" in target or Path(target).expanduser().exists()
    is_run = is_there and "://" not in target and (Path(target).expanduser() / _RUN_FILE).is_file()
    return _store_of_run(Path(target).expanduser()) if is_run else target


def fail(message: str, code: int) -> Never:
    """Say it and leave."""
    typer.echo(f"closeranks ckpt: {message}", err=True)
    raise typer.Exit(code)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal, on standard error and only where someone looks."""
    with byte_bar() as bars:
        task = bars.add_task(what, total=None)

        def told(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        yield told


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _store_of(target: str) -> str:
    if "://" in target:
        return target
    folder = Path(target).expanduser()
    if not folder.exists():
        fail(
            f"{target}: no such folder (seen from {Path.cwd()}); give a store's folder or URL, or a run's folder", USAGE
        )
    if folder.is_file():
        fail(f"{target}: expected a folder, got a file; give the folder of the store or of the run", USAGE)
    if (folder / _RUN_FILE).is_file():
        return _store_of_run(folder)
    _require_store(folder, target)
    return target


def _store_of_run(folder: Path) -> str:
    path = folder / _RUN_FILE
    try:
        store = msgspec.json.decode(path.read_bytes(), type=_Run).options.store
    except (OSError, msgspec.MsgspecError) as error:
        fail(f"{path}: cannot be read: {error}; give the store itself", USAGE)
    return store or fail(f"{folder}: this run had no --store, so nothing of it was saved", USAGE)


def _require_store(folder: Path, target: str) -> None:
    """Say what a folder is instead of a store."""
    try:
        if (folder / IDENTITY_KEY).exists():
            return
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        fail(f"{target}: {error.strerror}", PROBLEM)
    above = next((parent for parent in folder.absolute().parents if (parent / IDENTITY_KEY).exists()), None)
    if above is not None:
        fail(f"{target}: this is a part of a store; give {above}", USAGE)
    if not names:
        fail(f"{target}: the folder is empty: no checkpoint was ever saved here (no {IDENTITY_KEY})", USAGE)
    below = [name for name in names if (folder / name / IDENTITY_KEY).exists() or (folder / name / _RUN_FILE).exists()]
    if below:
        fail(f"{target}: not a store itself; did you mean {folder / below[-1]}?", USAGE)
    kind = next((kind for pattern, kind in _FOREIGN if any(folder.glob(pattern))), "")
    holds = (
        f"it holds {kind}; to take it over: closeranks ckpt import STORE {target}"
        if kind
        else f"it holds {_some(names)}"
    )
    fail(f"{target}: expected a checkpoint store, got a folder without {IDENTITY_KEY}; {holds}", USAGE)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
