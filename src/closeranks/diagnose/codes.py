"""Accelerator codes of the kernel log: what they mean, what the device itself asks for, and bursts instead of lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from closeranks.diagnose.evidence import Standing
from closeranks.faults import UnknownFaultError, fault_named
from closeranks.toml_text import TomlProblem, read_toml

LITERALS: Final = ("NVRM: Xid", "SXid", "fallen off the bus")
BURST_GAP_S: Final = 180.0  # lines of one code on one device nearer than this are one burst (NVSentinel)
RECOVERY_ACTION: Final = 154
_APP, _DERIVED = "app", "derived"
_CLASSES: Final = frozenset({_APP, "transient", "reset", "reboot", "hardware", "fabric", _DERIVED})
_XID: Final = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)\): (?P<code>\d{1,4})\b,? ?(?P<rest>.*)")
_SXID: Final = re.compile(r"SXid \((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)\): (?P<code>\d{1,6}), (?P<rest>.*)")
_ACTION: Final = re.compile(r"changed from \S+ \([^)]*\) to \S+ \((?P<action>[^)]{1,80})\)")
_FATAL_SXID: Final = re.compile(r"(?<!Non-)(?<!non-)\b[Ff]atal\b")


class CodesError(Exception):
    """The code table cannot be used; the message says where it is wrong."""


class Code(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"kind": "class"}):
    """Numbers of one meaning. ``conflicts``: other public tables that ask for something else."""

    numbers: tuple[int, ...]
    meaning: str
    kind: str
    action: str
    fault: str = ""
    conflicts: tuple[str, ...] = ()
    burst_gap_s: float = BURST_GAP_S

    @property
    def standing(self) -> Standing:
        """A program can cause an ``app`` code, so it is no word of the device against itself."""
        if not self.fault:
            return Standing.CONTEXT
        return Standing.GENERAL if self.kind == _APP else Standing.DEVICE


class CodeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All codes of one published catalogue."""

    about: str
    version: str
    provenance: str
    code: tuple[Code, ...]

    def find(self, number: int) -> Code | None:
        """What is known of the number."""
        return next((code for code in self.code if number in code.numbers), None)


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A code in a line."""

    family: str  # "Xid" or "SXid"
    number: int
    device: str
    standing: Standing
    fault: str
    weight: float
    action: str  # what to do: the device's own word where it names one
    burst_gap_s: float = BURST_GAP_S
    obeyed: bool = False  # the device itself names the action


def parse(text: str) -> CodeTable:
    """The table in a TOML text.

    Raises:
        CodesError: no TOML, an unknown class or fault, or a number that stands twice.
    """
    try:
        table = read_toml(text, CodeTable, "code table")
        for code in table.code:
            if code.fault:
                fault_named(code.fault)
    except TomlProblem as problem:
        raise CodesError(str(problem)) from None
    except UnknownFaultError as error:
        raise CodesError(f"code table: {error}") from error
    numbers = [number for code in table.code for number in code.numbers]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    foreign = sorted({code.kind for code in table.code} - _CLASSES)
    if twice or foreign:
        raise CodesError(f"code table: numbers that stand twice: {twice}; unknown classes: {foreign}")
    return table


def sighting(line: str, table: CodeTable) -> Sighting | None:
    """The code that the line reports; None: it reports none."""
    found = _XID.search(line)
    if found is not None:
        return _xid(found.groupdict(), table)
    found = _SXID.search(line)
    return None if found is None else _sxid(found.groupdict())


def _xid(told: Mapping[str, str], table: CodeTable) -> Sighting:
    number = int(told["code"])
    code = table.find(number)
    action = _ACTION.search(told["rest"]) if number == RECOVERY_ACTION else None
    if code is None:
        standing, fault, weight, advice, gap_s = (
            Standing.CONTEXT,
            "",
            0.0,
            "a code that the table does not know",
            BURST_GAP_S,
        )
    else:
        standing, fault, gap_s = code.standing, code.fault, code.burst_gap_s
        weight = {Standing.DEVICE: 0.95, Standing.GENERAL: 0.6}.get(standing, 0.0)
        others = f" (tables disagree: {'; '.join(code.conflicts)})" if code.conflicts else ""
        advice = f"Xid {number}, {code.meaning}: {code.action}{others}"
    if action is not None:
        advice = f"the device itself asks for: {action['action']}"
    return Sighting(
        family="Xid",
        number=number,
        device=told["device"],
        standing=standing,
        fault=fault,
        weight=weight,
        action=advice,
        burst_gap_s=gap_s,
        obeyed=action is not None,
    )


def _sxid(told: Mapping[str, str]) -> Sighting:
    """A switch says by itself whether its error is fatal."""
    fatal = _FATAL_SXID.search(told["rest"]) is not None
    return Sighting(
        family="SXid",
        number=int(told["code"]),
        device=told["device"],
        standing=Standing.DEVICE if fatal else Standing.CONTEXT,
        fault="device link error" if fatal else "",
        weight=0.93 if fatal else 0.0,
        action="reset accelerators and switches together" if fatal else "follow the link that the line names",
    )
