"""Logs as bytes, piece by piece -> evidence, in constant memory.

A log is data from a stranger: endless lines, binary, escape sequences, lines that look like our own verdict. Lines
are cut at a bound, text is cleaned before anybody sees it, and what is kept is bounded by its kinds, not its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from closeranks.diagnose import labels
from closeranks.diagnose.evidence import Evidence, Place, Source, Unit
from closeranks.diagnose.judge import judge
from closeranks.diagnose.lexicon import Lexicon
from closeranks.diagnose.verdict import Verdict

LINE_BYTES_MAX: Final = 2**14  # a line that goes on beyond is cut
_READ_BYTES: Final = 2**11  # of a line, around a hit: what is longer is data, and patterns take their time with it
_KEPT_BYTES: Final = 2**14  # of the lines before, for tracebacks and times
_KINDS_MAX: Final = 20_000  # pairs of rule and unit; a sane job has hundreds
_STAMP_LINES_MAX: Final = 60
# A line that no rule understood, and that came so often but for its digits, is noise: it is not read again. Digits
# that are zero stay apart from others, for a status of zero tells something else than any other.
_NOISE_LINES: Final = 200
_NOISE_KINDS_MAX: Final = 4096
_DIGITS: Final = bytes.maketrans(b"23456789", b"11111111")
_PROGRESS_LINES_MIN: Final = 2  # one may have been printed by another thread while the process fell
_PROGRESS: Final = re.compile(
    r"""\b(?:global_?step|step|iter(?:ation)?|epoch|batch)s?\b["']?\s*[=:#]?\s*\[?\d""", re.IGNORECASE
)
_NOT_A_NUMBER: Final = re.compile(r"\b(?:nan|inf)\b", re.IGNORECASE)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """A source of lines and what its place tells of all of them.

    ``year`` is that of stamps without one; ``ended_s``: when its process ended, for lines that have no time at all.
    """

    file: str
    rank: int | None = None
    node: str = ""
    kernel: bool = False
    year: int = 1970
    ended_s: float | None = None


class Cut(msgspec.Struct, kw_only=True):
    """What was not read as it stood."""

    long_lines: int = 0  # lines of which a part was left out
    kinds: int = 0  # sightings of kinds beyond the bound


class Gathering:
    """Collects what scans of many sources understood: equal sightings of one unit become one with a count."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self.cut = Cut()
        self._found: dict[tuple[object, ...], Evidence] = {}
        self._latest: dict[tuple[object, ...], Evidence] = {}
        self._last_s: dict[tuple[object, ...], float] = {}

    def add(self, evidence: Evidence, clock_s: float | None = None) -> None:
        """Count a sighting. ``clock_s`` is any clock of its source: a pause in it begins another burst."""
        key = (evidence.source, evidence.rule, evidence.fault, evidence.unit, evidence.code)
        known = self._found.get(key)
        if known is None:
            if len(self._found) >= _KINDS_MAX:
                self.cut.kinds += 1
                return
            self._found[key] = evidence
        else:
            last_s = self._last_s.get(key)
            gap_s = self.lexicon.burst_gap_s(evidence)
            again = clock_s is not None and last_s is not None and clock_s - last_s > gap_s
            past = known.went_on or known.over  # what was handled or passed once may be the end another time
            first = evidence if past else known
            self._found[key] = replace(first, count=known.count + 1, bursts=known.bursts + again)
        self._latest[key] = evidence
        for ended in evidence.ends:
            self._over(ended, evidence)
        if clock_s is not None:
            self._last_s[key] = clock_s

    def _over(self, rule: str, end: Evidence) -> None:
        """What the rule saw of the same peer or unit has passed."""
        for key, known in self._found.items():
            same = known.unit == end.unit and known.peer in ("", end.peer) and known.place.file == end.place.file
            if known.rule == rule and same and not known.over:
                self._found[key] = replace(known, over=True, over_s=end.at_s)

    def knows(self, evidence: Evidence) -> bool:
        """Whether another sighting would only be counted."""
        return (evidence.source, evidence.rule, evidence.fault, evidence.unit, evidence.code) in self._found

    def handled(self, file: str, lines: frozenset[int]) -> None:
        """What stands in these lines of the file did not end its process: it went on working.

        Of equal sightings the newest decides; if that one was not handled, it takes the place of the first.
        """
        for key, latest in self._latest.items():
            first = self._found[key]
            if latest.place.file != file or first.place.file != file or first.place.line not in lines:
                continue
            if latest.place.line in lines:
                self._found[key] = replace(first, went_on=True)
            else:
                self._found[key] = replace(latest, count=first.count, bursts=first.bursts)

    def evidence(self) -> tuple[Evidence, ...]:
        """Everything, in the order in which it was first seen."""
        return tuple(self._found.values())


class Scanner:
    """Reads one source. ``feed`` it in pieces of any size, then ``close`` it."""

    def __init__(self, gathering: Gathering, origin: Origin, number: int = 0) -> None:
        self._gathering = gathering
        self._lexicon = gathering.lexicon
        self._origin = origin
        self._number = number << 40  # sources in the order of their numbers, lines within them
        self._rest: list[bytes] = []  # the line that is not complete yet
        self._rest_bytes = 0
        self._cutting = False  # inside of a line that is too long
        self._tail = b""  # the newest complete lines
        self._line = 1  # number of the first line after the tail
        self._seen: dict[int, int | None] = {}  # line of a sighting -> its rank, as its label tells
        self._stamps = True  # until many lines had none
        self._noise: dict[bytes, int] = {}  # lines that nothing was understood of -> how often they came

    def feed(self, data: bytes) -> None:
        """Read the next piece."""
        # Progress bars end their lines with a carriage return, for hours; an error may follow on the same line.
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end:
            self._hold(data)
            return
        complete = b"".join((*self._rest, data[:end]))
        if self._cutting:  # what was left out, and the end of its line
            ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
            complete, self._cutting = complete[min(ends) :], False
        self._rest, self._rest_bytes = [], 0
        self._read(complete)
        self._hold(data[end:])

    def close(self) -> None:
        """Read the last line, and see whether the process went on after what was found."""
        if self._rest:
            self._read(b"".join(self._rest))
            self._rest = []
        if self._seen:
            self._gathering.handled(self._origin.file, self._went_on())

    def _hold(self, data: bytes) -> None:
        if self._cutting or not data:
            return
        self._rest.append(data)
        self._rest_bytes += len(data)
        if self._rest_bytes >= LINE_BYTES_MAX:
            self._gathering.cut.long_lines += 1
            self._read(b"".join(self._rest))
            self._rest, self._rest_bytes, self._cutting = [], 0, True

    def _read(self, data: bytes) -> None:
        """Read whole lines."""
        for start, end, line, numbers in self._lines(data):
            raw = data[start:end]
            kind = raw.translate(_DIGITS)
            often = self._noise.get(kind, 0)
            if often >= _NOISE_LINES:
                continue
            if not self._understood(raw, data[max(0, start - _KEPT_BYTES) : start], line, numbers):
                if len(self._noise) >= _NOISE_KINDS_MAX:
                    self._noise.clear()
                self._noise[kind] = often + 1
        self._tail = (self._tail + data)[-_KEPT_BYTES:] if len(data) < _KEPT_BYTES else data[-_KEPT_BYTES:]

    def _lines(self, data: bytes) -> Iterator[tuple[int, int, int, frozenset[int]]]:
        """The lines in which a rule may find something: start, end, number, and the rules; counts all lines."""
        counted, start, end = 0, 0, -1  # no line yet
        rules: frozenset[int] = frozenset()
        for place, numbers in self._lexicon.candidates(data):
            if place < end:
                rules |= numbers
                continue
            if end >= 0:
                yield start, end, self._line, rules
            start, end, rules = _line_start(data, place), _line_end(data, place), numbers
            self._line += data.count(b"\n", counted, place)
            counted = place
        if end >= 0:
            yield start, end, self._line, rules
        self._line += data.count(b"\n", counted)

    def _understood(self, raw: bytes, above: bytes, line: int, numbers: frozenset[int]) -> bool:
        """Take in what the line tells; ``above`` is what stands before it in its piece."""
        said = labels.read(labels.plain(raw), self._origin.year)
        missing = _KEPT_BYTES - len(above)
        before = (self._tail[-missing:] + above if missing else above).decode("utf-8", "replace")
        evidence = self._lexicon.understand(said, before, sorted(numbers))
        if evidence is None:
            return False
        evidence = self._placed(evidence, line)
        self._seen.setdefault(line, said.rank)
        if len(self._seen) > _KINDS_MAX:
            self._seen.pop(next(iter(self._seen)))
        if evidence.at_s is None and not self._gathering.knows(evidence):
            above_s = self._stamp_before(before)
            evidence = replace(evidence, at_s=above_s or self._origin.ended_s, dated=above_s is None)
        self._gathering.add(evidence, said.uptime_s if evidence.at_s is None else evidence.at_s)
        return True

    def _placed(self, evidence: Evidence, line: int) -> Evidence:
        origin, unit = self._origin, evidence.unit
        source = Source.KERNEL if origin.kernel and evidence.source is Source.LOG else evidence.source
        unit = Unit(
            rank=origin.rank if unit.rank is None else unit.rank, node=unit.node or origin.node, device=unit.device
        )
        place = Place(file=origin.file, line=line)
        return replace(evidence, source=source, unit=unit, place=place, order=self._number + line)

    def _stamp_before(self, before: str) -> float | None:
        """The time of the nearest line above that has one: a traceback has none itself."""
        if not self._stamps:
            return None
        for line in before.splitlines()[: -_STAMP_LINES_MAX - 1 : -1]:
            at_s = labels.stamp_of(line, self._origin.year)
            if at_s is not None:
                return at_s
        self._stamps = before.count("\n") < _STAMP_LINES_MAX
        return None

    def _went_on(self) -> frozenset[int]:
        """Lines of sightings after which their process made progress."""
        tail = self._tail.decode("utf-8", "replace").split("\n")
        first = self._line - len(tail) + 1
        progress: list[tuple[int, int | None]] = []
        for number, line in enumerate(tail, first):
            if _PROGRESS.search(line) and not _NOT_A_NUMBER.search(line):
                progress.append((number, labels.read(labels.plain(line.encode()), self._origin.year).rank))
        return frozenset(
            line
            for line, rank in self._seen.items()
            if sum(at > line and of == rank for at, of in progress) >= _PROGRESS_LINES_MIN
        )


def _line_start(data: bytes, place: int) -> int:
    nearest = max(0, place - _READ_BYTES // 2)
    before = max(data.rfind(b"\n", nearest, place), data.rfind(b"\r", nearest, place))
    return nearest if before < 0 else before + 1


def _line_end(data: bytes, place: int) -> int:
    furthest = place + _READ_BYTES // 2
    feed, back = data.find(b"\n", place, furthest), data.find(b"\r", place, furthest)
    ends = (feed, back) if back >= 0 else (feed,)
    return min((end for end in ends if end >= 0), default=min(furthest, len(data)))


def judge_pieces(pieces: Iterable[bytes], lexicon: Lexicon, origin: Origin) -> Verdict:
    """The verdict on one log by itself."""
    gathering = Gathering(lexicon)
    scanner = Scanner(gathering, origin)
    for piece in pieces:
        scanner.feed(piece)
    scanner.close()
    return judge(gathering.evidence())
