"""What a journal tells of state that lasts: saves and what they cost, what is durable, what was loaded."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from closeranks.events import (
    AnyEvent,
    CheckpointCommitted,
    CheckpointVerified,
    Record,
    SaveFailed,
    SaveIntervalChosen,
    SnapshotTaken,
    StateLoaded,
    StoreOpened,
    TierMissed,
)

_PROBLEMS_MAX = 20  # newest ones


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of a duration, seconds."""

    median_s: float
    longest_s: float


class Saves(msgspec.Struct, frozen=True, kw_only=True):
    """The saves of a run with a store."""

    store: str
    committed: int
    durable_step: int | None  # newest that this run made durable
    durable_generation: int | None
    written_bytes: int
    reused_bytes: int
    pause: Spread | None  # of training, the slowest seat of each snapshot
    took: Spread | None  # from the snapshot to the commit
    interval_s: float | None
    interval_reason: str
    verified: str  # what the newest restore drill found; "" before the first
    loaded: tuple[str, ...]
    problems: tuple[str, ...]


def saves_of(records: Sequence[Record]) -> Saves | None:
    """None: the run has no store."""
    events: list[AnyEvent] = [record.event for record in records]
    opened = next((event for event in events if isinstance(event, StoreOpened)), None)
    if opened is None:
        return None
    commits = [event for event in events if isinstance(event, CheckpointCommitted)]
    pauses = [event.pause_s for event in events if isinstance(event, SnapshotTaken)]
    chosen = next((event for event in reversed(events) if isinstance(event, SaveIntervalChosen)), None)
    drilled = next((event for event in reversed(events) if isinstance(event, CheckpointVerified)), None)
    return Saves(
        store=opened.store,
        committed=len(commits),
        durable_step=commits[-1].step if commits else None,
        durable_generation=commits[-1].generation if commits else None,
        written_bytes=sum(commit.written_bytes for commit in commits),
        reused_bytes=sum(commit.reused_bytes for commit in commits),
        pause=_spread(pauses),
        took=_spread([commit.took_s for commit in commits]),
        interval_s=None if chosen is None else chosen.interval_s,
        interval_reason="" if chosen is None else chosen.reason,
        verified="" if drilled is None else _verified(drilled),
        loaded=tuple(_loaded(event) for event in events if isinstance(event, StateLoaded)),
        problems=tuple(text for event in events if (text := _problem(event)))[-_PROBLEMS_MAX:],
    )


def lines_of(saves: Saves) -> list[str]:
    """The same for people, a line each."""
    newest = (
        "none" if saves.durable_step is None else f"step {saves.durable_step}, generation {saves.durable_generation}"
    )
    lines = [f"{saves.store}: {saves.committed} saves durable, the newest is {newest}"]
    if saves.pause is not None:
        lines.append(f"training paused {_words(saves.pause)} for each snapshot")
    if saves.took is not None:
        reused = f", {saves.reused_bytes:,} reused" if saves.reused_bytes else ""
        lines.append(f"durable after {_words(saves.took)}; {saves.written_bytes:,} bytes written{reused}")
    if saves.interval_s is not None:
        lines.append(f"every {saves.interval_s:.4g} s: {saves.interval_reason}")
    if saves.verified:
        lines.append(saves.verified)
    return lines + list(saves.loaded) + [f"PROBLEM: {problem}" for problem in saves.problems]


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(median_s=statistics.median(values), longest_s=max(values)) if values else None


def _words(spread: Spread) -> str:
    return f"{spread.median_s:.3g} s (longest {spread.longest_s:.3g} s)"


def _verified(event: CheckpointVerified) -> str:
    verdict = "verified" if event.held else "NOT RESTORABLE"
    return f"generation {event.generation} {verdict}: {event.detail}"


def _loaded(event: StateLoaded) -> str:
    passed = f"; passed over: {'; '.join(event.passed_over)}" if event.passed_over else ""
    return f"went on after step {event.step}, read from {event.source} in {event.took_s:.2f} s{passed}"


def _problem(event: AnyEvent) -> str:
    if isinstance(event, SaveFailed):
        return f"step {event.step} did not become durable: {event.problem}"
    if isinstance(event, TierMissed):
        return f"step {event.step} did not reach {event.tier}: {event.problem}"
    return ""
