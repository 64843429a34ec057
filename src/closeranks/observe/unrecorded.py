"""Starts and ends of processes that no journal at hand tells, but that others' records imply. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Final

import msgspec

from closeranks.events import NodeGone, ProcessExited, ProcessSeated, ProcessStarted, Record, TermBegan

UNRECORDED: Final = "unrecorded"  # how such a process began


def unrecorded_starts(records: Sequence[Record]) -> list[Record]:
    """Members of a term whose start no journal at hand tells; they existed by then."""
    known = {record.event.proc for record in records if isinstance(record.event, ProcessStarted)}
    found: list[Record] = []
    for record in records:
        if not isinstance(record.event, TermBegan):
            continue
        nodes = dict(enumerate(record.event.nodes))
        for seat, proc in enumerate(record.event.members):
            if proc not in known:
                known.add(proc)
                event = ProcessStarted(proc=proc, pid=0, how=UNRECORDED, seat=seat)
                found.append(msgspec.structs.replace(record, event=event, node=nodes.get(seat, ""), stamp=None))
    return found


def unrecorded_ends(records: Sequence[Record]) -> list[Record]:
    """Processes of a node that was declared gone ended by then, whether or not anybody could write it down."""
    ended = {record.event.proc for record in records if isinstance(record.event, ProcessExited)}
    started = [(r, r.event) for r in records if isinstance(r.event, ProcessStarted)]
    seats = {record.event.proc: record.event.seat for record in records if isinstance(record.event, ProcessSeated)}
    found: list[Record] = []
    for record in records:
        if not isinstance(record.event, NodeGone):
            continue
        for start, process in started:
            if start.node == record.event.node and start.mono_s <= record.mono_s and process.proc not in ended:
                ended.add(process.proc)
                seat = seats.get(process.proc, process.seat)
                event = ProcessExited(proc=process.proc, seat=seat, signal=signal.SIGKILL)
                found.append(msgspec.structs.replace(record, event=event, node=start.node, stamp=None))
    return found
