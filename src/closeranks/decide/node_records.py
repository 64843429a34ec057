"""What the history of nodes is made of: facts about machines, in wall-clock time, and the register that they give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from closeranks.decide import quarantine
from closeranks.decide.quarantine import By, Failure, Quarantine, Register

_Host = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Word = Annotated[str, msgspec.Meta(max_length=200)]
_Text = Annotated[str, msgspec.Meta(max_length=2000)]
_WallS = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Hours = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
FOR_GOOD_H = 1e6  # until somebody releases the node
_HOUR_S = 3600.0


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    host: _Host
    wall_s: _WallS


class Failed(_Line, frozen=True, tag=True):
    """A fault struck the node; several observers may write the same down."""

    run: _Word
    incident: int
    fault: _Word
    unit: _Word = ""


class Worked(_Line, frozen=True, tag=True):
    """The node held seats for so long."""

    hours: _Hours


class Passed(_Line, frozen=True, tag=True):
    """The node passed a test of its own."""


class KeptOut(_Line, frozen=True, tag=True):
    """The node is kept out from ``wall_s`` on."""

    hours: _Hours
    reason: _Text
    by: By


class Released(_Line, frozen=True, tag=True):
    """A person lets the node in again."""


Line = Failed | Worked | Passed | KeptOut | Released


def register_of(lines: Iterable[Line]) -> Register:
    """What these facts, whatever their order, say of the nodes; times stay those of the wall clock."""
    register = Register()
    seen: set[Line] = set()
    for line in sorted(lines, key=lambda line: line.wall_s):
        mark = msgspec.structs.replace(line, wall_s=0.0)
        if isinstance(line, Failed) and mark in seen:
            continue
        seen.add(mark)
        register = _told(quarantine.known(register, line.host), line)
    return register


def _told(register: Register, line: Line) -> Register:
    match line:
        case Failed():
            failure = Failure(fault=line.fault, unit=line.unit, at_s=line.wall_s)
            return quarantine.failed(register, line.host, failure)
        case Worked():
            return quarantine.worked(register, line.host, line.hours)
        case Passed():
            return quarantine.passed(register, line.host, line.wall_s)
        case KeptOut():
            until_s = line.wall_s + line.hours * _HOUR_S
            ban = Quarantine(since_s=line.wall_s, until_s=until_s, reason=line.reason, by=line.by)
            past = register.nodes[line.host].quarantine
            # Several observers write the same down, a moment apart.
            again = past is not None and past.reason == ban.reason and ban.since_s < past.until_s
            return register if again else quarantine.confined(register, line.host, ban)
        case Released():
            return quarantine.released(register, line.host)
