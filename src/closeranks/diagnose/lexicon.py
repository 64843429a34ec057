"""All that lines can tell: the rules and the code table behind one filter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from closeranks import faults
from closeranks.diagnose import codes
from closeranks.diagnose.codes import CodeTable
from closeranks.diagnose.evidence import Evidence, Place, Source, Standing, Unit
from closeranks.diagnose.labels import Said
from closeranks.diagnose.prefilter import ANCHOR_BYTES, Prefilter
from closeranks.diagnose.rules import Match, RuleBook

TEXT_CHARS_MAX = 300
_IS_CODE: Final = -1
_NUMBER_DIGITS_MAX: Final = 9  # no rank, code or sequence of a sane log has more
_SIGNAL_NUMBERS: Final = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGILL": 4,
    "SIGABRT": 6,
    "Aborted": 6,
    "SIGBUS": 7,
    "Bus error": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "Killed": 9,
    "SIGSEGV": 11,
    "Segmentation fault": 11,
    "SIGTERM": 15,
    "Terminated": 15,
}
_SIGKILL, _SIGABRT = 9, 6
_CRASHES: Final = frozenset({4, 7, 8, 11})
_SIGNALLED: Final = 128  # a shell adds it to the number of the signal
_FRAME: Final = re.compile(r'File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,7})')
_LIBRARIES: Final = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<string>")
_TRACEBACK: Final = "Traceback (most recent call last)"
# Python says so before tracebacks that end nothing: of a finalizer, of its logging, of what runs after the program.
_IGNORED: Final = re.compile(r"(?:Exception ignored |--- Logging error ---|Error in atexit\._run_exitfuncs)[^\n]*\n?$")
# A quotation of another text, an option in a help text, a warning of Python's: remarks, and no errors.
_REMARK: Final = re.compile(r"> |--[a-z]|\S+:\d+: \w*Warning: ")
_REPORT: Final = "VERDICT: "  # a report of ours in a job's output speaks of other lines, perhaps of another job
_REPORTED: Final = re.compile(r"(?:^|: )\S+:\d+(?: \[[^\]]{1,80}\])?: ")
_TRACED_BONUS: Final = 0.05  # a traceback shows that the words are the process's end and no remark


class Lexicon:
    """Understands lines. Immutable once made; one serves any number of scans."""

    def __init__(self, book: RuleBook, table: CodeTable) -> None:
        self.book = book
        self._table = table
        literals = {number: rule.literals for number, rule in enumerate(book.rules)} | {_IS_CODE: codes.LITERALS}
        self.prefilter = Prefilter(literal for many in literals.values() for literal in many)
        numbers: dict[bytes, set[int]] = {anchor: set() for anchor in self.prefilter.anchors}
        for number, many in literals.items():
            for literal in many:
                numbers[self.prefilter.anchors_in(literal)[0]].add(number)
        self._numbers = {anchor: frozenset(found) for anchor, found in numbers.items()}

    def candidates(self, data: bytes) -> list[tuple[int, frozenset[int]]]:
        """Places in the data, and the numbers of the rules that may apply to their line."""
        numbers = self._numbers
        return [
            (place, numbers[anchor])
            for place in self.prefilter.positions(data)
            if (anchor := data[place : place + ANCHOR_BYTES]) in numbers
        ]

    def understand(self, said: Said, before: str, numbers: Sequence[int]) -> Evidence | None:
        """What the line speaks for, without its place; ``numbers`` ascend. None: nothing."""
        if _REMARK.match(said.text) is not None or (_REPORT in before and _REPORTED.search(said.text) is not None):
            return None
        if numbers[0] == _IS_CODE:
            evidence = self._code(said)
            if evidence is not None:
                return evidence
            numbers = numbers[1:]
        match = self.book.match(said.text, before, numbers)
        return None if match is None else _by_rule(said, match, before)

    def _code(self, said: Said) -> Evidence | None:
        found = codes.sighting(said.text, self._table)
        if found is None:
            return None
        return Evidence(
            source=Source.KERNEL,
            rule=f"{found.family} {found.number}",
            text=said.text[:TEXT_CHARS_MAX],
            place=Place(file=""),
            standing=found.standing,
            fault=found.fault,
            weight=found.weight,
            unit=Unit(node=said.node, device=found.device),
            at_s=said.at_s,
            code=found.number,
            advice=found.action if found.obeyed or found.fault else "",
        )

    def burst_gap_s(self, evidence: Evidence) -> float:
        """The pause after which the same code is another burst."""
        code = self._table.find(evidence.code) if evidence.source is Source.KERNEL and evidence.code else None
        return codes.BURST_GAP_S if code is None else code.burst_gap_s


def _by_rule(said: Said, match: Match, before: str) -> Evidence:
    rule, told = match.rule, match.told
    fault, weight, code = rule.fault, rule.weight, _code_of(told)
    if rule.standing is Standing.ENDING and not fault:
        fault, weight = ending(code, weight)
    rank = _number(told.get("rank"))
    traced = rule.standing in (Standing.SPECIFIC, Standing.GENERAL) and _TRACEBACK in before
    return Evidence(
        source=rule.speaker,
        rule=rule.id,
        text=said.text[:TEXT_CHARS_MAX],
        place=Place(file=""),
        standing=rule.standing,
        fault=fault,
        weight=min(weight + _TRACED_BONUS, 0.97) if traced else weight,
        unit=Unit(
            rank=said.rank if rank is None else rank,
            node=told.get("node") or said.node,
            device=told.get("device", ""),
        ),
        at_s=said.at_s,
        sequence=_number(told.get("seq")),
        code=code,
        points=rule.points,
        mutual=rule.mutual,
        peer=told.get("peer", ""),
        where=told.get("where") or (_user_frame(before) if traced else ""),
        excludes=rule.excludes,
        ends=rule.over,
        went_on=traced and _ignored(before),
    )


def ending(code: int | None, weight: float) -> tuple[str, float]:
    """The fault that an exit code speaks for, and how much; 137 alone is a kill by anybody, not a lack of memory."""
    number = 0 if code is None else code - _SIGNALLED if code > _SIGNALLED else 0
    if number == _SIGKILL:
        return faults.KILLED.name, weight
    if number in _CRASHES:
        return faults.NATIVE_CRASH.name, weight + 0.2
    if number == _SIGABRT:
        return faults.NATIVE_CRASH.name, weight - 0.15  # victims abort too, when their communication breaks
    return "", 0.0


def _ignored(before: str) -> bool:
    """Whether Python said, before the traceback that ends here, that nothing follows from it."""
    return _IGNORED.search(before[: before.rfind(_TRACEBACK)]) is not None


def _code_of(told: Mapping[str, str]) -> int | None:
    signal = _SIGNAL_NUMBERS.get(told.get("signal", ""))
    if signal is not None:
        return _SIGNALLED + signal
    code = _number(told.get("code"))
    return _SIGNALLED - code if code is not None and code < 0 else code


def _number(text: str | None) -> int | None:
    return int(text) if text and len(text) <= _NUMBER_DIGITS_MAX else None


def _user_frame(before: str) -> str:
    """The innermost line of the user's own program in the traceback that ends here."""
    frames = _FRAME.findall(before[before.rfind(_TRACEBACK) :])
    own = [frame for frame in frames if not any(library in frame[0] for library in _LIBRARIES)] or frames[-1:]
    return f"{own[-1][0].rpartition('/')[2]}:{own[-1][1]}" if own else ""
