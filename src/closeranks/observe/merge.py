"""The journals of a job's nodes as one stream of records in job time. Pure.

Decisions are in the journal of every node that heard them: the same stamp is kept once. Steps are joined from the
nodes' parts. What a journal that is missing, torn or damaged would have told is said to be missing; only the starts and
ends of processes that others speak of are put in its place, so that every second of every seat has an owner.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from closeranks.events import (
    Account,
    AnyEvent,
    Category,
    Event,
    NodeAccepted,
    NodeGone,
    Record,
    RunEnded,
    RunStarted,
    StepClosed,
)
from closeranks.observe.clocks import Clock, Clocks, clocks_of
from closeranks.observe.history import is_of_several_nodes
from closeranks.observe.missing import absent_nodes, missing_journals, placed_by_wall, told_nothing, unread_decisions
from closeranks.observe.step_parts import join
from closeranks.observe.unrecorded import unrecorded_ends, unrecorded_starts


class NodeJournal(msgspec.Struct, frozen=True, kw_only=True):
    """One node's journal as it was found."""

    source: str  # where, for messages
    records: tuple[Record, ...]
    problems: tuple[str, ...] = ()  # damaged or torn lines, or why it cannot be read

    @property
    def node(self) -> str:
        """Who wrote it; "" if nobody did."""
        return self.records[0].node if self.records else ""


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """One job."""

    records: tuple[Record, ...]  # in job time, and in its order
    journals: tuple[NodeJournal, ...]  # those with records, in their own times
    clocks: Clocks | None  # of these; None: a run on one node
    absent: tuple[str, ...]  # nodes that records speak of, without a journal at hand
    problems: tuple[str, ...]


class MixedRunsError(Exception):
    """The journals belong to different runs."""


def merge(journals: Sequence[NodeJournal]) -> Merged:
    """One stream. The only journal of a run on one node is left as it is.

    Raises:
        MixedRunsError: two of them are of different runs.
    """
    told, problems = _usable(journals)
    _require_one_run(told)
    if not any(is_of_several_nodes(journal.records) for journal in told):
        return _of_one_node(told, problems)
    clocks = clocks_of([journal.records for journal in told])
    decided, contradictions = _decided(told, clocks)
    seen = [
        _in_job_time(record, clock, clock.job_s(record.mono_s))
        for journal, clock in zip(told, clocks.journals, strict=True)
        for record in journal.records
        if record.stamp is None
    ]
    records = sorted([*seen, *decided], key=_mono_s)
    records += unrecorded_starts(records)
    records += unrecorded_ends(records)
    at_hand = frozenset(journal.node for journal in told)
    steps = join(records, at_hand)
    rest = [record for record in _ended_once(_started_once(records), told) if not isinstance(record.event, StepClosed)]
    return Merged(
        records=_numbered(sorted([*rest, *steps.records], key=_mono_s), clocks),
        journals=told,
        clocks=clocks,
        absent=absent_nodes(records, at_hand),
        problems=(
            *problems,
            *contradictions,
            *missing_journals(records, at_hand, steps.lacks),
            *(told_nothing(lack) for lack in steps.lacks if lack.node in at_hand),
            *unread_decisions(decided),
            *placed_by_wall(j.node for j, by_wall in zip(told, clocks.by_wall, strict=True) if by_wall),
        ),
    )


def _usable(journals: Sequence[NodeJournal]) -> tuple[tuple[NodeJournal, ...], list[str]]:
    """Journals with records, each once, and what is wrong with any."""
    told: dict[tuple[str, float, float], NodeJournal] = {}
    problems: list[str] = []
    for journal in journals:
        prefix = f"{journal.node or journal.source}: " if len(journals) > 1 else ""
        problems += [f"{prefix}{problem}" for problem in journal.problems]
        if not journal.records:
            problems += [] if journal.problems else [f"{prefix}it holds no record"]
            continue
        key = (journal.node, journal.records[0].mono_s, journal.records[0].wall_s)
        twin = told.get(key)
        if twin is not None:
            problems.append(f"{prefix}{journal.source} and {twin.source} are the same journal; the longer one counts")
        if twin is None or len(twin.records) < len(journal.records):
            told[key] = journal
    return tuple(told.values()), problems


def _require_one_run(journals: Sequence[NodeJournal]) -> None:
    for journal in journals[1:]:
        mine, first = journal.records[0].run, journals[0].records[0].run
        if mine != first:
            raise MixedRunsError(
                f"{journal.source} is of run {mine}, {journals[0].source} of run {first}; give the journals of one run"
            )


def _of_one_node(told: Sequence[NodeJournal], problems: Sequence[str]) -> Merged:
    """A run without nodes has one journal."""
    if len(told) > 1:
        sources = ", ".join(journal.source for journal in told)
        raise MixedRunsError(f"{sources}: these runs have one node each; give one of them")
    records = told[0].records if told else ()
    return Merged(records=records, journals=tuple(told), clocks=None, absent=(), problems=tuple(problems))


def _mono_s(record: Record) -> float:
    return record.mono_s


# --- times and stamps -------------------------------------------------------------------------------------------


def _in_job_time(record: Record, clock: Clock, job_s: float) -> Record:
    event = record.event
    changes: dict[str, object] = {name: clock.job_s(getattr(event, name)) for name in _instants_in(type(event))}
    if isinstance(event, Account):
        changes["seconds"] = _scaled(event, clock)
    return _with_event(record, _changed(event, changes) if changes else event, job_s)


@functools.cache
def _instants_in(kind: type[Event]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name.endswith("_mono_s"))


def _scaled(account: Account, clock: Clock) -> dict[Category, float]:
    """The seconds as job time counts them: in a day two clocks drift apart by seconds."""
    all_s = sum(account.seconds.values())
    if all_s <= 0:
        return dict(account.seconds)
    scale = (clock.job_s(account.at_mono_s) - clock.job_s(account.at_mono_s - all_s)) / all_s
    return {category: seconds * scale for category, seconds in account.seconds.items()}


def _changed(event: AnyEvent, changes: dict[str, object]) -> AnyEvent:
    changed: AnyEvent = msgspec.structs.replace(event, **changes)
    return changed


def _with_event(record: Record, event: AnyEvent, mono_s: float) -> Record:
    return msgspec.structs.replace(record, event=event, mono_s=mono_s)


def _decided(journals: Sequence[NodeJournal], clocks: Clocks) -> tuple[list[Record], list[str]]:
    """Each stamped record once, at the instant of the decision; and where two journals disagree about one."""
    kept: dict[tuple[int, int], tuple[NodeJournal, Record]] = {}
    problems: list[str] = []
    for journal in journals:
        for record in journal.records:
            if record.stamp is None:
                continue
            key = (record.stamp.epoch, record.stamp.seq)
            witness, first = kept.setdefault(key, (journal, record))
            if first.event != record.event:
                problems.append(
                    f"decision {key[1]} of epoch {key[0]} is {type(first.event).__name__} in the journal of "
                    f"{witness.node} and {type(record.event).__name__} in that of {journal.node}; the first counts"
                )
    found = []
    for (epoch, _), (_, record) in sorted(kept.items(), key=lambda item: item[0]):
        if record.stamp is not None:
            clock = clocks.epochs[epoch]
            at_s = clock.job_s(record.stamp.at_mono_s)
            found.append(msgspec.structs.replace(_in_job_time(record, clock, at_s), node=record.stamp.node))
    return found, problems


def _numbered(records: Iterable[Record], clocks: Clocks) -> tuple[Record, ...]:
    """A stream has numbers and a wall clock of its own."""
    return tuple(
        msgspec.structs.replace(record, seq=seq, wall_s=record.mono_s + clocks.wall_s)
        for seq, record in enumerate(records)
    )


# --- what there is one of ---------------------------------------------------------------------------------------


def _started_once(records: Iterable[Record]) -> Iterator[Record]:
    """The job began when its first node did; its spares are those of all nodes."""
    records = tuple(records)
    spares = sum(r.event.spares for r in records if isinstance(r.event, RunStarted))
    first = True
    for record in records:
        if not isinstance(record.event, RunStarted):
            yield record
        elif first:
            first = False
            yield _with_event(record, _changed(record.event, {"spares": spares}), record.mono_s)


def _ended_once(records: Iterable[Record], journals: Sequence[NodeJournal]) -> Iterator[Record]:
    """The job ended when its newest coordinator said so, or else when all nodes that still belonged to it had ended."""
    records = tuple(records)
    end = _decided_end(records) or _common_end(records, journals)
    for record in records:
        if not isinstance(record.event, RunEnded) or record is end:
            yield record


def _decided_end(records: Sequence[Record]) -> Record | None:
    newest = max((record.stamp.epoch for record in records if record.stamp is not None), default=0)
    told = (r for r in records if isinstance(r.event, RunEnded) and r.stamp is not None and r.stamp.epoch == newest)
    return max(told, key=_mono_s, default=None)


def _common_end(records: Sequence[Record], journals: Sequence[NodeJournal]) -> Record | None:
    """The coordinator's node knows best why; a node that was given up may have ended for a reason of its own."""
    gone: set[str] = set()
    leader = ""
    for record in records:
        if isinstance(record.event, NodeGone):
            gone.add(record.event.node)
        elif isinstance(record.event, NodeAccepted):
            gone.discard(record.event.node)
        leader = record.stamp.node if record.stamp is not None else leader
    last = {journal.node: journal.records[-1].event for journal in journals}  # of its newest boot
    belonging = (last.keys() - gone) or last.keys()
    if not all(isinstance(last[node], RunEnded) for node in belonging):
        return None
    ends = (r for r in records if isinstance(r.event, RunEnded) and r.node in belonging)
    return max(ends, key=lambda record: (record.node == leader, record.mono_s), default=None)
