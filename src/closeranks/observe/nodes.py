"""The nodes of a job: what is known of each, who coordinated when, and which node each seat was on. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from closeranks.events import (
    CoordinatorBegan,
    CoordinatorFollowed,
    CoordinatorLost,
    NodeAccepted,
    NodeGone,
    NodeStarted,
    Record,
    RunEnded,
    TermBegan,
)
from closeranks.observe.merge import Merged, NodeJournal


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One journal of a job, or a node without one. Times are seconds since the job began."""

    node: str
    hostname: str  # "" where unknown, like ``boot``
    boot: str
    slots: int | None
    journal: str  # where it was found; "" for none
    from_s: float | None  # first and last record
    to_s: float | None
    clock: str  # how its times were placed; "" without a journal
    decisions_missed: int  # that others heard between the first that it heard and its last record, or its being gone
    events: tuple[str, ...]  # accepted, cut off, gone, ended: what became of it, in order


class CoordinatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One leadership."""

    epoch: int
    node: str
    at_s: float  # of its first decision, since the job began
    reason: str  # "" if no journal at hand tells


class Sitting(msgspec.Struct, frozen=True, kw_only=True):
    """One seat on one node, from term to term."""

    seat: int
    node: str
    from_s: float
    to_s: float


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says about the nodes of a job; nothing for a run on one."""

    rows: tuple[NodeRow, ...] = ()
    coordinators: tuple[CoordinatorRow, ...] = ()
    sittings: tuple[Sitting, ...] = ()


NO_NODES: Final = Nodes()


def nodes_of(merged: Merged) -> Nodes:
    """Look at a merged stream and the journals that it came from."""
    if merged.clocks is None:
        return NO_NODES
    began_s = merged.records[0].mono_s
    rows = [_row(merged, number, began_s) for number in range(len(merged.journals))]
    rows += [_absent(merged, node, began_s) for node in merged.absent]
    return Nodes(
        rows=tuple(sorted(rows, key=lambda row: (row.node, row.from_s is None, row.from_s or 0.0))),
        coordinators=tuple(_coordinators(merged.records, began_s)),
        sittings=tuple(_sittings(merged.records, began_s)),
    )


def seats_on(sittings: Sequence[Sitting], node: str) -> str:
    """``2, 3 (from 12.3 s)``: the seats that were on a node and since when, if not since the first term."""
    first_s = min((sitting.from_s for sitting in sittings), default=0.0)
    last_s = max((sitting.to_s for sitting in sittings), default=0.0)
    texts = []
    for sitting in sittings:
        if sitting.node != node:
            continue
        since = "" if sitting.from_s == first_s else f"from {sitting.from_s:.1f} s"
        until = "" if sitting.to_s == last_s else f"to {sitting.to_s:.1f} s"
        when = " ".join(part for part in (since, until) if part)
        texts.append(f"{sitting.seat} ({when})" if when else str(sitting.seat))
    return ", ".join(texts)


def span_text(row: NodeRow) -> str:
    """From when to when a node's journal tells."""
    return "missing" if row.from_s is None or row.to_s is None else f"{row.from_s:.1f} to {row.to_s:.1f}"


def coordinator_text(row: CoordinatorRow) -> str:
    """One leadership in words."""
    return f"epoch {row.epoch} on {row.node} from {row.at_s:.1f} s{f': {row.reason}' if row.reason else ''}"


# --- rows -------------------------------------------------------------------------------------------------------


def _row(merged: Merged, number: int, began_s: float) -> NodeRow:
    journal, clocks = merged.journals[number], merged.clocks
    assert clocks is not None
    clock = clocks.journals[number]
    times_s = [clock.job_s(record.mono_s) - began_s for record in journal.records]
    started = next((r.event for r in journal.records if isinstance(r.event, NodeStarted)), None)
    boot = "" if started is None else started.boot
    told = [*_own_events(journal, times_s), *_told_of(merged.records, journal.node, boot, began_s)]
    how = "by wall time" if clocks.by_wall[number] else "by shared decisions"
    return NodeRow(
        node=journal.node,
        hostname="" if started is None else started.hostname,
        boot=boot,
        slots=None if started is None else started.slots,
        journal=journal.source,
        from_s=min(times_s),
        to_s=max(times_s),
        clock=how,
        decisions_missed=_missed(merged.records, journal, max(times_s) + began_s, boot),
        events=tuple(text for _, text in sorted(told)),
    )


def _absent(merged: Merged, node: str, began_s: float) -> NodeRow:
    accepted = [r.event for r in merged.records if isinstance(r.event, NodeAccepted) and r.event.node == node]
    return NodeRow(
        node=node,
        hostname="",
        boot=accepted[-1].boot if accepted else "",
        slots=accepted[-1].slots if accepted else None,
        journal="",
        from_s=None,
        to_s=None,
        clock="",
        decisions_missed=0,
        events=tuple(text for _, text in _told_of(merged.records, node, "", began_s)),
    )


def _own_events(journal: NodeJournal, times_s: Sequence[float]) -> Iterator[tuple[float, str]]:
    for at_s, record in zip(times_s, journal.records, strict=True):
        event = record.event
        if isinstance(event, CoordinatorFollowed):
            yield at_s, f"{at_s:.1f} s: follows {event.leader}, epoch {event.epoch}"
        elif isinstance(event, CoordinatorLost):
            yield at_s, f"{at_s:.1f} s: without a coordinator, {event.detail}"
        elif isinstance(event, RunEnded) and record.stamp is None:
            yield at_s, f"{at_s:.1f} s: {event.outcome}, {event.reason}"


def _told_of(records: Sequence[Record], node: str, boot: str, began_s: float) -> Iterator[tuple[float, str]]:
    """What coordinators said about a node; an empty ``boot`` stands for any."""
    for record in records:
        event, at_s = record.event, record.mono_s - began_s
        if not isinstance(event, NodeAccepted | NodeGone) or event.node != node or (boot and event.boot != boot):
            continue
        yield at_s, f"{at_s:.1f} s: {'accepted' if isinstance(event, NodeAccepted) else f'gone, {event.detail}'}"


def _missed(records: Sequence[Record], journal: NodeJournal, to_s: float, boot: str) -> int:
    heard = {_key(record) for record in journal.records if record.stamp is not None}
    decided = [record for record in records if record.stamp is not None]
    first = next((number for number, record in enumerate(decided) if _key(record) in heard), len(decided))
    missed, gone = 0, False
    for record in decided[first:]:
        event = record.event
        if isinstance(event, NodeAccepted | NodeGone) and (event.node, event.boot) == (journal.node, boot):
            gone = isinstance(event, NodeGone)
        missed += record.mono_s <= to_s and not gone and _key(record) not in heard
    return missed


def _key(record: Record) -> tuple[int, int]:
    return (0, 0) if record.stamp is None else (record.stamp.epoch, record.stamp.seq)


# --- over time --------------------------------------------------------------------------------------------------


def _coordinators(records: Sequence[Record], began_s: float) -> Iterator[CoordinatorRow]:
    firsts: dict[int, Record] = {}
    reasons: dict[int, str] = {}
    for record in records:
        if record.stamp is not None:
            firsts.setdefault(record.stamp.epoch, record)
            if isinstance(record.event, CoordinatorBegan):
                reasons[record.stamp.epoch] = record.event.reason
    for epoch, first in firsts.items():
        yield CoordinatorRow(epoch=epoch, node=first.node, at_s=first.mono_s - began_s, reason=reasons.get(epoch, ""))


def _sittings(records: Sequence[Record], began_s: float) -> Iterator[Sitting]:
    terms = [(record.mono_s - began_s, record.event.nodes) for record in records if isinstance(record.event, TermBegan)]
    end_s = max(record.mono_s for record in records) - began_s
    for seat in range(max((len(nodes) for _, nodes in terms), default=0)):
        since_s, node = 0.0, None
        for at_s, nodes in terms:
            here = nodes[seat] if seat < len(nodes) else ""
            if node is None:
                since_s, node = at_s, here
            elif here != node:
                yield Sitting(seat=seat, node=node, from_s=since_s, to_s=at_s)
                since_s, node = at_s, here
        yield Sitting(seat=seat, node=node or "", from_s=since_s, to_s=end_s)
