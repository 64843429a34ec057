"""What an accelerator tells of itself, judged: error counts by what they grew, settings by what they should be.

Values as NVML gives them; what a device does not tell is None and is never taken for good.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec


class Recovery(IntEnum):
    """The device's own word on what it needs, NVML field ``GPU_RECOVERY_ACTION``."""

    NONE = 0
    RESET = 1
    REBOOT = 2
    DRAIN_PEERS = 3
    DRAIN_AND_RESET = 4
    RESTART_IMEX = 5
    RESET_BUS = 6
    REBOOT_SYSTEM = 7


_ADVICE: Final = {
    Recovery.RESET: "a reset",
    Recovery.REBOOT: "a reboot of its machine",
    Recovery.DRAIN_PEERS: "that peer-to-peer traffic is drained",
    Recovery.DRAIN_AND_RESET: "that it is drained, then a reset",
    Recovery.RESTART_IMEX: "a restart of the IMEX domain",
    Recovery.RESET_BUS: "a reset of its bus",
    Recovery.REBOOT_SYSTEM: "a reboot of the whole system",
}

_IDLE: Final = 0x1  # a clocks-event reason: the device has nothing to do, and its link may be slow for that
# Clocks-event reasons that mean that the device is held back; the others are idleness and settings.
SLOWED: Final = {
    0x8: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one accelerator."""

    name: str
    recovery: int | None = None
    corrected: int | None = None  # memory errors since the driver was loaded
    uncorrected: int | None = None
    remapped: int | None = None  # rows replaced, for corrected and uncorrected errors together
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    clocks_reasons: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    replays: int | None = None  # of PCIe packets
    temperature_c: int | None = None
    call_s: float = 0.0  # that all these questions took


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """Something about a device that is not as it should be."""

    sign: str
    detail: str
    drain: bool  # it should get no new work


def recovery_of(value: int) -> tuple[str, bool]:
    """What the device asks for, and whether it is anything. A number that no version here knows asks for something."""
    try:
        action = Recovery(value)
    except ValueError:
        return f"recovery action {value}, which is not known here", True
    return ("nothing", False) if action is Recovery.NONE else (_ADVICE[action], True)


def slowed_by(reasons: int) -> tuple[str, ...]:
    """Why its clocks are held back; empty when they are not."""
    return tuple(name for bit, name in SLOWED.items() if reasons & bit)


def judge(now: Device, before: Device | None = None) -> tuple[Concern, ...]:
    """What one look shows, and what grew since the look before. Totals of an earlier life of the device say nothing."""
    found = [*_standing(now)]
    if before is not None:
        found += _grown(now, before)
    return tuple(found)


def _standing(now: Device) -> list[Concern]:
    found: list[Concern] = []

    def concern(sign: str, detail: str, *, drain: bool) -> None:
        found.append(Concern(sign=f"{now.name} {sign}", detail=detail, drain=drain))

    if now.recovery is not None and recovery_of(now.recovery)[1]:
        concern("recovery", f"the device asks for {recovery_of(now.recovery)[0]}", drain=True)
    if now.remap_failed:
        concern("row remap", "a row of its memory could not be replaced: the device has to be", drain=True)
    elif now.remap_pending:
        concern("row remap", "a row of its memory will be replaced at its next reset", drain=False)
    if now.pcie_width is not None and now.pcie_width_max is not None and now.pcie_width < now.pcie_width_max:
        concern("PCIe width", f"{now.pcie_width} lanes of {now.pcie_width_max} are in use", drain=False)
    busy = now.clocks_reasons is not None and not now.clocks_reasons & _IDLE
    generation, most = now.pcie_generation, now.pcie_generation_max
    if busy and generation is not None and most is not None and generation < most:
        concern("PCIe generation", f"the link runs at generation {generation} of {most} under load", drain=False)
    reasons = slowed_by(now.clocks_reasons or 0)
    if reasons:
        concern("clocks", f"held back by {', '.join(reasons)}", drain=False)
    return found


def _grown(now: Device, before: Device) -> list[Concern]:
    found = []
    for sign, what, field, drain in (
        ("uncorrected errors", "memory errors that could not be corrected", "uncorrected", True),
        ("remapped rows", "rows of its memory that were replaced", "remapped", False),
    ):
        grown = delta(getattr(before, field), getattr(now, field))
        if grown:
            found.append(Concern(sign=f"{now.name} {sign}", detail=f"{grown} new {what}", drain=drain))
    return found


def delta(before: int | None, now: int | None) -> int | None:
    """What a counter grew by; None where one value is missing. One that fell began anew with the device."""
    if before is None or now is None:
        return None
    return now - before if now >= before else now
