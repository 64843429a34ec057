"""The record of a run in its register: who leads, and the newest membership."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from closeranks.authority.register import RegisterError


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the leader alone. ``(epoch, beat)`` changes with every write, so values are unique."""

    epoch: int = 0  # of leadership, 1.., grows by one with every takeover
    beat: int = 0  # writes of this leader
    node: str = ""
    boot: str = ""  # of the candidate process that leads
    host: str = ""  # where it listens
    port: int = 0
    probe_port: int = 0  # where the supervisor of the leading node answers probes
    term: int = 0  # the newest that was, or is about to be, announced
    members: tuple[int, ...] = ()  # process by seat
    nodes: tuple[str, ...] = ()  # node by seat
    boots: Mapping[str, str] = {}  # supervisor process by node: of those in ``nodes``
    incarnations: tuple[int, ...] = ()  # newest by seat
    procs_reserved: int = 1  # numbers below it are given out or belong to a leader: never give one twice
    incidents: int = 0  # incidents opened so far
    released: bool = False  # this leader has given the lead up
    ended: str = ""  # outcome, once the run is over; nobody takes over any more
    exit_code: int = 0
    reason: str = ""


def encode(record: Record) -> bytes:
    """As JSON: a person may look at it with the authority's own tools."""
    return msgspec.json.encode(record)


def decode(value: bytes) -> Record:
    """The record in a register; a new one if nothing was written yet.

    Raises:
        RegisterError: it is no record of this version.
    """
    try:
        return msgspec.json.decode(value, type=Record) if value else Record()
    except msgspec.MsgspecError as error:
        raise RegisterError(
            f"expected the record of a run of this version of closeranks, got something else: {error}; run one version"
            " on all nodes, and give each run a --run-id of its own"
        ) from error
