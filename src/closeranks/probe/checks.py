"""The tests that a node passes before it takes work: short ones at every start, a burn-in when new or repaired."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from closeranks.checkpoint.peer_wire import Address
from closeranks.events import NodeChecked
from closeranks.probe import host, link, memory, nvml, processors, products, storage
from closeranks.probe.outcome import Failed, Outcome, Scarce, Unknown, told

_MIB: Final = 2**20


class Level(StrEnum):
    """How much is tried."""

    START = "start"  # a tenth of a second: what a supervisor does before it takes work
    QUICK = "quick"  # about a second
    BURN_IN = "burn-in"  # minutes


class _Sizes(NamedTuple):
    memory_bytes: int
    storage_bytes: int
    link_bytes: int
    digests: int  # of each processor
    products: tuple[int, ...]  # sizes of matrices


_SIZES: Final = {
    Level.START: _Sizes(8 * _MIB, _MIB, 2 * _MIB, 1, (64,)),
    Level.QUICK: _Sizes(32 * _MIB, 4 * _MIB, 16 * _MIB, 4, (256,) * 2),
    Level.BURN_IN: _Sizes(2048 * _MIB, 512 * _MIB, 1024 * _MIB, 2000, (1024,) * 8),
}


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried, where there is a choice."""

    folder: Path = Path()  # whose file system is written to
    peer: Address | None = None  # that serves; None: only the loopback link is tried
    token: str = ""  # shared with the peer
    accelerators: int | None = None  # that there should be; None: whatever there is
    devices: Mapping[str, products.Multiply] = {}  # by name: how an accelerator multiplies


Progress = Callable[[str, float], None]  # name of the check, share of it that is done


def run_checks(level: Level, subject: Subject, progress: Progress = lambda _name, _share: None) -> dict[str, Outcome]:
    """Do them one after the other. A check that breaks is unknown, and keeps none of the others from being done."""
    sizes = _SIZES[level]
    peer = subject.peer
    checks: Mapping[str, Callable[[Callable[[float], None]], Outcome]] = {
        "accelerators": lambda _: nvml.check_accelerators(subject.accelerators),
        "processors": lambda tell: processors.check_processors(sizes.digests, tell),
        "products": lambda tell: products.check_host_products(sizes.products, tell),
        "device products": lambda tell: products.check_device_products(subject.devices, sizes.products, tell),
        "memory": lambda tell: memory.check_memory(sizes.memory_bytes, tell),
        "memory pressure": lambda _: host.check_memory_pressure(),
        "room": lambda _: host.check_room(subject.folder),
        "storage": lambda tell: storage.check_storage(subject.folder, sizes.storage_bytes, tell),
        "link": lambda _: (
            link.check_loopback(sizes.link_bytes)
            if peer is None
            else link.check_link(peer, subject.token, sizes.link_bytes)
        ),
    }
    outcomes: dict[str, Outcome] = {}
    for name, check in checks.items():
        progress(name, 0.0)
        outcomes[name] = _tried(name, check, progress)
        progress(name, 1.0)
    return outcomes


class Checked(NamedTuple):
    """What the checks came to."""

    event: NodeChecked
    failed: str  # why this node must not take work; "" when nothing speaks against it
    scarce: bool  # that is only want of room or memory: it may be over later


def checked(level: Level, subject: Subject) -> Checked:
    """Do the checks, to be written down and acted upon."""
    began_s = time.monotonic()
    outcomes = run_checks(level, subject)
    event = NodeChecked(
        level=level.value,
        outcomes={name: told(outcome) for name, outcome in outcomes.items()},
        took_s=time.monotonic() - began_s,
    )
    failed = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Failed)}
    reasons = "; ".join(f"{name}: {outcome.reason}" for name, outcome in failed.items())
    scarce = bool(failed) and all(isinstance(outcome, Scarce) for outcome in failed.values())
    return Checked(event, reasons, scarce)


def _tried(name: str, check: Callable[[Callable[[float], None]], Outcome], progress: Progress) -> Outcome:
    try:
        return check(lambda share: progress(name, share))
    except Exception as error:
        return Unknown(f"the test broke: {type(error).__name__}: {error}")
