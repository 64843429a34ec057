"""What all homes of a job's state hold together: points to go back to, and the indices that lead to their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import DATA_PREFIX, ShardIndex, ShardRef
from closeranks.checkpoint.history import EMPTY, History, Verification
from closeranks.checkpoint.image import index_key
from closeranks.checkpoint.keys import attempt_of, indexed_writer, step_of
from closeranks.checkpoint.problems import CheckpointProblem, Damaged, StoreProblem
from closeranks.checkpoint.reading import Checks, read_index
from closeranks.checkpoint.restore_plan import Holding, Point, newest_first
from closeranks.checkpoint.shard_index import INDEX_LIMIT_BYTES, decode_index
from closeranks.checkpoint.stores.retry import retried
from closeranks.checkpoint.stores.store import Store

_READERS: Final = 8


class Home(NamedTuple):
    """A place where images are. Only the durable one has a log."""

    name: str  # no two homes have the same
    tier: int  # 0 is the nearest
    store: Store
    log: CommitLog | None = None
    world: int | None = None  # writers of what it holds, for attempts that no log knows
    checks: Checks = Checks.STRONG  # what is compared when it is read; FAST where bytes are as safe as in this process


class Found(NamedTuple):
    """A point, whose indices were not read yet: the slices of its holdings are empty."""

    point: Point
    refs: tuple[ShardRef, ...]  # by writer, of the commit; none if there was no commit


class Stock(NamedTuple):
    """All that is known before any index is read."""

    found: tuple[Found, ...]  # newest first
    notes: tuple[str, ...]  # homes that could not be asked, and what cannot be used


def take_stock(homes: Sequence[Home]) -> Stock:
    """Ask every home what it holds. One that does not answer is noted, and the others count.

    Cheap: logs and listings, no index.
    """
    notes: list[str] = []
    histories = {home.name: _history(home, notes) for home in homes if home.log is not None}
    points: dict[str, Found] = {}
    for home in homes:
        if home.log is not None:
            points |= {found.point.attempt: found for found in _committed(home, histories[home.name])}
    for home in homes:
        if home.log is None:
            _add_listed(home, points, notes)
    order = newest_first([found.point for found in points.values()])
    return Stock(tuple(points[point.attempt] for point in order), tuple(notes))


def _history(home: Home, notes: list[str]) -> History:
    assert home.log is not None
    try:
        return home.log.refresh()
    except CheckpointProblem as problem:
        notes.append(str(problem))
        return EMPTY


def _committed(home: Home, history: History) -> list[Found]:
    found = []
    for generation in history.generations.values():
        manifest = generation.manifest
        point = Point(
            step=manifest.step,
            generation=generation.number,
            world=manifest.world,
            attempt=manifest.attempt,
            group=manifest.group,
            trusted=generation.is_good,
            verified=generation.verified is Verification.HELD,
            holdings=tuple(
                Holding(home=home.name, tier=home.tier, writer=writer, slices=()) for writer in range(manifest.world)
            ),
        )
        found.append(Found(point, manifest.shards))
    return found


def _add_listed(home: Home, points: dict[str, Found], notes: list[str]) -> None:
    """Add what a home without a log holds: whatever has an index there is whole."""
    try:
        keys = retried(lambda: [listed.key for listed in home.store.list(DATA_PREFIX)])
    except CheckpointProblem as problem:
        notes.append(f"{home.name}: {problem}")
        return
    writers: dict[str, list[int]] = {}
    for key in keys:
        attempt = attempt_of(key)
        writer = indexed_writer(attempt, key) if attempt else -1
        if writer >= 0:
            writers.setdefault(attempt, []).append(writer)
    for attempt, present in writers.items():
        holdings = tuple(Holding(home=home.name, tier=home.tier, writer=writer, slices=()) for writer in present)
        known = points.get(attempt)
        if known is None and home.world is None:
            notes.append(f"{home.name}: attempt {attempt} was never committed, and nothing says how many wrote it")
        elif known is None:
            point = Point(
                step=step_of(attempt), generation=None, world=home.world or 0, attempt=attempt, holdings=holdings
            )
            points[attempt] = Found(point, ())
        else:
            point = replace(known.point, holdings=(*known.point.holdings, *holdings))
            points[attempt] = known._replace(point=point)


@dataclass(slots=True)
class Opened:
    """A point with the indices of its writers, each from the nearest home that gave it."""

    point: Point
    indices: Mapping[int, ShardIndex]  # by writer
    notes: tuple[str, ...]  # homes whose index was of no use
    _found: Found
    _homes: Mapping[str, Home]
    _known: dict[tuple[str, int], ShardIndex] = field(default_factory=dict)

    def index(self, home: str, writer: int) -> ShardIndex:
        """The index of a writer as this home has it: the same slices, with extents and digests of its own.

        Raises:
            Damaged: it is not what it should be.
            StoreProblem: the home does not answer.
        """
        index = self._known.get((home, writer))
        if index is None:
            index = self._known[home, writer] = _read(self._homes[home], self._found, writer)
            if index.slices != self.indices[writer].slices:
                raise Damaged(f"{home}: writer {writer} has other slices here than in the other homes")
        return index

    def store(self, home: str) -> Store:
        """The store behind a home's name."""
        return self._homes[home].store

    def checks(self, home: str) -> Checks:
        """Which digests are compared in what is read from there."""
        return self._homes[home].checks


def open_point(found: Found, homes: Sequence[Home]) -> Opened:
    """Read the index of every writer, from its nearest home that has it. A home that fails is left out, and noted."""
    by_name = {home.name: home for home in homes}
    of_writer: dict[int, list[Holding]] = {}
    for holding in sorted(found.point.holdings, key=lambda h: (h.tier, h.home)):
        of_writer.setdefault(holding.writer, []).append(holding)
    indices: dict[int, ShardIndex] = {}
    known: dict[tuple[str, int], ShardIndex] = {}
    holdings: list[Holding] = []
    notes: list[str] = []

    def first(of: list[Holding]) -> tuple[list[Holding], ShardIndex | None, list[str]]:
        refused: list[str] = []
        for place, holding in enumerate(of):
            try:
                return of[place:], _read(by_name[holding.home], found, holding.writer), refused
            except (Damaged, StoreProblem) as problem:
                refused.append(f"{holding.home}: {problem}")
        return [], None, refused

    with ThreadPoolExecutor(_READERS, thread_name_prefix="index") as pool:
        for usable, index, refused in pool.map(first, of_writer.values()):
            notes += refused
            if index is not None:
                indices[index.writer] = known[usable[0].home, index.writer] = index
                holdings += [replace(holding, slices=index.slices) for holding in usable]
    point = replace(found.point, holdings=tuple(holdings))
    return Opened(point, indices, tuple(notes), found, by_name, known)


def _read(home: Home, found: Found, writer: int) -> ShardIndex:
    if home.log is not None:
        return retried(lambda: read_index(home.store, found.refs[writer]))
    key = index_key(found.point.attempt, writer)
    index = decode_index(retried(lambda: home.store.read(key, INDEX_LIMIT_BYTES)), f"{home.store.url}/{key}")
    if (index.attempt, index.writer) != (found.point.attempt, writer):
        raise Damaged(
            f"{home.store.url}/{key}: expected writer {writer} of {found.point.attempt}, got writer {index.writer} of "
            f"{index.attempt}",
            object_key=key,
        )
    return index
