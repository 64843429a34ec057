"""Recordings of collectives (torch's flight recorder) of several ranks -> who was missing, or did something else.

Per process group, the collectives of all members have the same numbers. A rank whose newest number is lower than the
others' did not enter what they wait for. Where all have a number, operation and sizes must agree. Buffers wrap: a
number older than a rank's oldest entry is no loss. With gloo ``state`` stays "scheduled" for ever, so that completion
is read from ``retired`` and from ``pg_status`` (measured with torch 2.13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from closeranks import faults
from closeranks.diagnose.evidence import Evidence, Place, Source, Standing, Unit

_ENTRIES_MAX: Final = 200_000
_MEMBERS_MAX: Final = 1_000_000
# All members of these pass tensors of one size; of the others, sizes may differ by rank.
_SAME_SIZES: Final = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "_allgather_base",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
)
_COMPLETED: Final = "completed"
_MISSING_WEIGHT: Final = 0.85
_DIFFERS_WEIGHT: Final = 0.92
_NO_RECORDING_WEIGHT: Final = 0.5
_NAMED_MAX: Final = 8


class RecordingError(Exception):
    """A file is no recording that can be read; the others still count."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One collective as one rank saw it."""

    sequence: int
    operation: str
    sizes: str
    completed: bool


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank recorded, by process group."""

    rank: int
    file: str
    entries: Mapping[str, Mapping[int, Entry]]
    newest: Mapping[str, int]  # the last number that the rank entered
    members: Mapping[str, tuple[int, ...]]  # empty where the recording does not tell


def parse(data: Mapping[str, Any], rank: int, file: str) -> Recording:
    """A recording from what its file holds, JSON and pickle alike; unknown fields do not matter.

    Raises:
        RecordingError: there is no list of entries, or an entry has no number.
    """
    listed = data.get("entries")
    if not isinstance(listed, list) or len(listed) > _ENTRIES_MAX:
        raise RecordingError(f"expected a list of up to {_ENTRIES_MAX} entries, got {type(listed).__name__}")
    entries: dict[str, dict[int, Entry]] = {}
    for item in listed:
        if not isinstance(item, Mapping):
            raise RecordingError(f"an entry is a {type(item).__name__}, no table")
        if item.get("is_p2p"):
            continue  # pairs have numbers of their own, which no group shares
        try:
            sequence = int(item.get("collective_seq_id", item.get("seq_id")))
        except (TypeError, ValueError) as error:
            raise RecordingError("an entry has no number (collective_seq_id)") from error
        entry = Entry(
            sequence=sequence,
            operation=_text(item.get("profiling_name")).rpartition(":")[2],
            sizes=_text(item.get("input_sizes")),
            completed=item.get("state") == _COMPLETED or bool(item.get("retired")),
        )
        entries.setdefault(_group(item), {})[sequence] = entry
    newest = {group: max(known) for group, known in entries.items()}
    for group, number in _enqueued(data).items():
        newest[group] = max(number, newest.get(group, 0))
    return Recording(rank=rank, file=file, entries=entries, newest=newest, members=_members(data))


def compare(recordings: Sequence[Recording]) -> tuple[Evidence, ...]:
    """Who was missing and who differed, for every process group; empty where nothing is amiss."""
    groups = sorted({group for recording in recordings for group in recording.newest})
    return tuple(found for group in groups for found in _compare_group(group, recordings))


def _compare_group(group: str, recordings: Sequence[Recording]) -> list[Evidence]:
    inside = {recording.rank: recording for recording in recordings if group in recording.newest}
    if not inside:
        return []
    members = sorted({rank for recording in inside.values() for rank in recording.members.get(group, ())} | set(inside))
    differing = _differing(group, inside)
    if differing:
        return differing
    newest = max(recording.newest[group] for recording in inside.values())
    behind = [rank for rank, recording in inside.items() if recording.newest[group] < newest]
    absent = [rank for rank in members if rank not in inside]
    waiting = any(not _is_completed(recording, group, newest) for recording in inside.values())
    found = [_missing(inside[rank], group, newest) for rank in sorted(behind)]
    if not behind and waiting and 0 < len(absent) < len(members):
        found += [_unrecorded(rank, group, newest) for rank in absent[:_NAMED_MAX]]
    return found


def _is_completed(recording: Recording, group: str, sequence: int) -> bool:
    entry = recording.entries.get(group, {}).get(sequence)
    return entry is None or entry.completed


def _differing(group: str, inside: Mapping[int, Recording]) -> list[Evidence]:
    """The ranks in the minority at the first number where all that still hold it do not agree."""
    numbers = sorted({number for recording in inside.values() for number in recording.entries.get(group, {})})
    for number in numbers:
        here = {
            rank: recording.entries[group][number]
            for rank, recording in inside.items()
            if number in recording.entries.get(group, {})
        }
        said = {rank: _described(entry) for rank, entry in here.items()}
        if len(set(said.values())) > 1:
            return _minority(group, number, said, inside)
    return []


def _described(entry: Entry) -> str:
    return f"{entry.operation} of {entry.sizes}" if entry.operation in _SAME_SIZES else entry.operation


def _minority(group: str, number: int, said: Mapping[int, str], inside: Mapping[int, Recording]) -> list[Evidence]:
    (usual, votes), *_ = Counter(said.values()).most_common()
    odd = [rank for rank, text in sorted(said.items()) if text != usual]
    decided = votes > len(said) / 2
    text = "; ".join(f"rank {rank} called {said[rank]}" for rank in odd[:_NAMED_MAX])
    told = f"group {group or '0'}, collective {number}: {text}; {votes} ranks called {usual}"
    return [
        Evidence(
            source=Source.RECORDER,
            rule="collectives-differ",
            text=told,
            place=Place(file=inside[rank].file),
            standing=Standing.SPECIFIC,
            fault=faults.MISMATCHED_COLLECTIVE.name,
            weight=_DIFFERS_WEIGHT,
            unit=Unit(rank=rank) if decided else Unit(),
            sequence=number,
            points=decided,
        )
        for rank in (odd if decided else odd[:1])
    ]


def _missing(recording: Recording, group: str, newest: int) -> Evidence:
    own = recording.newest[group]
    return Evidence(
        source=Source.RECORDER,
        rule="collective-missing",
        text=f"group {group or '0'}: rank {recording.rank} entered collective {own} last, others wait in {newest}",
        place=Place(file=recording.file),
        standing=Standing.SYMPTOM,
        fault=faults.COLLECTIVE_TIMEOUT.name,
        weight=_MISSING_WEIGHT,
        unit=Unit(rank=recording.rank),
        sequence=own,
        points=True,
    )


def _unrecorded(rank: int, group: str, newest: int) -> Evidence:
    return Evidence(
        source=Source.RECORDER,
        rule="recording-missing",
        text=f"group {group or '0'}: no recording of rank {rank}, while others wait in collective {newest}",
        place=Place(file="flight recorder"),
        standing=Standing.SYMPTOM,
        fault=faults.COLLECTIVE_TIMEOUT.name,
        weight=_NO_RECORDING_WEIGHT,
        unit=Unit(rank=rank),
        points=True,
    )


def _group(item: Mapping[str, Any]) -> str:
    named = item.get("process_group")
    return _text(named[0]) if isinstance(named, (list, tuple)) and named else _text(item.get("pg_id"))


def _enqueued(data: Mapping[str, Any]) -> dict[str, int]:
    """The newest number of each group by its status, which a wrapped buffer still has."""
    status = data.get("pg_status")
    found: dict[str, int] = {}
    for group, told in status.items() if isinstance(status, Mapping) else ():
        text = _text(told.get("last_enqueued_collective")) if isinstance(told, Mapping) else ""
        if text.isdecimal():
            found[_text(group)] = int(text)
    return found


def _members(data: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    config = data.get("pg_config")
    found: dict[str, tuple[int, ...]] = {}
    for group, told in config.items() if isinstance(config, Mapping) else ():
        text = _text(told.get("ranks")) if isinstance(told, Mapping) else ""
        ranks = [part.strip() for part in text.strip("[]").split(",")][:_MEMBERS_MAX]
        # gloo leaves the name of the default group empty here, and calls it "0" everywhere else.
        found[_text(group) or "0"] = tuple(int(part) for part in ranks if part.isdecimal())
    return found


def _text(value: object) -> str:
    return "" if value is None else str(value)[:200]
