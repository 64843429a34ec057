"""Keepers with their arenas, for tests of processes: one node each, all on this machine."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.checkpoint.images import bytes_of, fill, whole

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.keeper_client import KeeperClient, start_keeper
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_messages import Final, Freed, FromKeeper, Opened, Publish, Refused
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.reading import Region, fetch, read_index
from closeranks.checkpoint.stores.directory import DirectoryStore

DEADLINE_S = 30.0
FLOATS = 2000


class Node:
    """A keeper, its client, and two arenas for each of its writers."""

    def __init__(self, store: Path | str, *, writers: Sequence[int] = (0,), lead: bool = True, **config: Any) -> None:
        self.config = KeeperConfig(store=str(store), job="job", owner=f"test/{os.getpid()}", lead=lead, **config)
        self.writers = tuple(writers)
        self.lead = lead
        self.arenas = [[Arena.create(f"w{writer}") for writer in writers] for _ in range(2)]
        self.saves = 0
        self.term = 0
        self.heard: list[FromKeeper] = []
        self.start()

    def start(self) -> None:
        self.client: KeeperClient = start_keeper(self.config)

    def open(self) -> Opened:
        opened = self.wait(lambda report: isinstance(report, Opened | Refused))
        assert isinstance(opened, Opened), opened
        self.term = opened.term
        return opened

    def fill(self, step: int, *, arena: int = 0, floats: int = FLOATS) -> None:
        for writer, one in zip(self.writers, self.arenas[arena], strict=True):
            fill(one, [whole(f"w{writer}/weight", floats)], step=step, content=content_of(step))

    def publish(
        self, step: int, *, world: int | None = None, attempt: str = "", deadline_s: float = DEADLINE_S, **more: Any
    ) -> int:
        arena = more.pop("arena", 0)
        self.saves += 1
        message = Publish(
            save=self.saves,
            step=step,
            attempt=attempt or self.attempt(step),
            writers=self.writers,
            world=len(self.writers) if world is None else world,
            lead=self.lead,
            layout="replicated",
            deadline_s=deadline_s,
            **more,
        )
        self.client.send(message, [one.fd for one in self.arenas[arena]])
        return self.saves

    def attempt(self, step: int) -> str:
        return attempt_name(self.term, step, secrets.token_hex(4))

    def wait(self, wanted: Any, timeout_s: float = DEADLINE_S) -> FromKeeper:
        """The first report that is wanted; all reports are in ``heard`` as well."""
        end_s = time.monotonic() + timeout_s
        while True:
            report = self.client.wait_for(lambda _: True, max(0.0, end_s - time.monotonic()))
            self.heard.append(report)
            if wanted(report):
                return report

    def until(self, holds: Any, timeout_s: float = DEADLINE_S) -> None:
        """Hear until it holds; it may hold already."""
        end_s = time.monotonic() + timeout_s
        while not holds():
            self.wait(lambda _: True, end_s - time.monotonic())

    def end_of(self, save: int) -> Any:
        """The final report of a save, after its Freed has come as well."""
        self.until(lambda: self.reports(save, Final) and self.reports(save, Freed))
        return self.reports(save, Final)[0]

    def all_of(self, kind: Any) -> list[Any]:
        return [one for one in self.heard if isinstance(one, kind)]

    def reports(self, save: int, kind: Any) -> list[Any]:
        return [one for one in self.heard if isinstance(one, kind) and getattr(one, "save", None) == save]

    def save(self, step: int, **more: Any) -> Any:
        self.fill(step, arena=more.get("arena", 0))
        return self.end_of(self.publish(step, **more))

    def close(self, deadline_s: float = DEADLINE_S) -> list[FromKeeper]:
        reports = self.client.close(deadline_s)
        for arenas in self.arenas:
            for arena in arenas:
                arena.close()
        return reports


def content_of(step: int) -> Any:
    return lambda name, length: bytes_of(name, length, seed=step)


def restored(store: Path, generation: int, floats: int = FLOATS) -> dict[str, bytes]:
    """All tensors of a committed generation, checked."""
    home = DirectoryStore(store)
    manifest = CommitLog(home).refresh().generations[generation].manifest
    found = {}
    for ref in manifest.shards:
        index = read_index(home, ref)
        for number, part in enumerate(index.slices):
            target = bytearray(part.length)
            fetch(home, index, [Region(number, (0,), part.shape, memoryview(target))])
            found[part.name] = bytes(target)
    assert all(len(data) == 4 * floats for data in found.values())
    return found


def expected(writers: Sequence[int], step: int, floats: int = FLOATS) -> dict[str, bytes]:
    return {f"w{n}/weight": bytes_of(f"w{n}/weight", 4 * floats, seed=step) for n in writers}


def tree_of(store: Path) -> dict[str, bytes]:
    """All that a store shows, by key."""
    files = (path for path in store.rglob("*") if path.is_file() and ".unfinished" not in path.parts)
    return {str(path.relative_to(store)): path.read_bytes() for path in files}
