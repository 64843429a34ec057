"""What is compared and tried before the first step, so that a run fails early, with a sentence, or not for this."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# Differences in these make seats compute different things; others (a driver's patch level) are only told.
_FATAL = frozenset({"python", "script", "torch"})
_SHARED_MEMORY_PROBE_BYTES = 2**20
_FREE_BYTES_LOW = 2**30


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    text: str
    fatal: bool


def compare(facts: Mapping[int, Mapping[str, str]]) -> tuple[Finding, ...]:
    """What differs among the seats. ``facts[seat]`` is what the seat's process said of itself."""
    names = sorted({name for of_seat in facts.values() for name in of_seat})
    return tuple(finding for name in names if (finding := _compare_one(name, facts)) is not None)


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, ...]:
    """What makes these two compute different things, by name."""
    return tuple(name for name in sorted(_FATAL) if ours.get(name) != theirs.get(name))


def _compare_one(name: str, facts: Mapping[int, Mapping[str, str]]) -> Finding | None:
    seats_by_value: dict[str, list[int]] = {}
    for seat in sorted(facts):
        seats_by_value.setdefault(facts[seat].get(name, "unknown"), []).append(seat)
    if len(seats_by_value) == 1:
        return None
    parts = [f"{value} on {_seats(seats)}" for value, seats in seats_by_value.items()]
    return Finding(f"{name} differs: {', '.join(parts)}", name in _FATAL)


def _seats(seats: list[int]) -> str:
    return f"seat {seats[0]}" if len(seats) == 1 else f"seats {', '.join(map(str, seats))}"


def probe_shared_memory() -> tuple[Finding, ...]:
    """Whether pages can be shared with workers at all."""
    try:
        fd = os.memfd_create("closeranks-probe")
        try:
            os.posix_fallocate(fd, 0, _SHARED_MEMORY_PROBE_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        return (Finding(f"shared memory cannot be had: {error.strerror}; is a memory limit reached?", fatal=True),)
    return ()


def probe_folder(folder: Path) -> tuple[Finding, ...]:
    """Whether the run folder can be written and has room."""
    try:
        probe = folder / ".probe"
        probe.write_bytes(b"x")
        probe.unlink()
        status = os.statvfs(folder)
    except OSError as error:
        return (Finding(f"run folder {folder} cannot be written: {error.strerror}", fatal=True),)
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes < _FREE_BYTES_LOW:
        return (Finding(f"run folder {folder} has {free_bytes / 2**20:.0f} MiB left", fatal=False),)
    return ()


def probe_devices(seats: int, devices: int) -> tuple[Finding, ...]:
    """Whether every LOCAL_RANK finds an accelerator of its own; ``devices`` is 0 on a machine without any."""
    if devices == 0 or seats <= devices:
        return ()
    return (
        Finding(f"{seats} seats share {devices} accelerators: LOCAL_RANK {devices} has none of its own", fatal=False),
    )
