"""What the log of a store says, as one value: a fold over its entries in the order of their numbers.

Theory of operation. An entry exists or not, whole, and never changes; the number it won is its place. So everyone who
has read the same entries knows the same history, and an entry can be judged by those before it alone:

- A claim is good when its term is the newest one plus one. Everything else is good only under the newest term. A
  writer that slept through a claim therefore finds its entry void, whoever wakes it and whenever.
- A commit is void when one of its bases is not alive at its place, so a generation that was given up is never built on.
- A retirement leaves alone what must stay: pinned generations, the newest, the newest that can be trusted, and the
  last verified one, for each group.

Void entries stay in the log and change nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from closeranks.checkpoint.format import Claim, Commit, Entry, Manifest, Pin, Retire, Unpin, Verified
from closeranks.checkpoint.image import index_key
from closeranks.checkpoint.keys import is_attempt, term_of


class Verification(enum.Enum):
    """What restore drills found about a generation, the newest finding."""

    UNKNOWN = "unknown"
    HELD = "held"
    BROKEN = "broken"


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint that was not retired."""

    number: int
    manifest: Manifest
    term: int
    wall_s: float  # of its commit, on the committer's clock
    pinned: tuple[str, ...] = ()  # a label for each pin; a pin may have the label ""
    verified: Verification = Verification.UNKNOWN
    verified_detail: str = ""

    @property
    def is_good(self) -> bool:
        """Nothing speaks against restoring it: taken without suspicion, and no drill found it broken."""
        return self.manifest.trusted and self.verified is not Verification.BROKEN


_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All that the entries up to number ``last`` say."""

    last: int = 0  # number of the newest entry, 0 when there is none
    term: int = 0  # the newest claimed one, 0 when there is none
    owner: str = ""  # who claimed it
    generations: Mapping[int, Generation] = _NOTHING  # those alive, by number, ascending
    retired: Mapping[int, int] = _NOTHING  # generation -> the entry that retired it
    void: Mapping[int, str] = _NOTHING  # entry -> why it counts for nothing
    attempts: Mapping[str, int] = _NOTHING  # every attempt that was committed -> its generation, alive or not

    def newest_first(self, group: str = "") -> list[Generation]:
        """The generations of a group in the order in which to try them."""
        return [g for g in list(self.generations.values())[::-1] if g.manifest.group == group]

    def newest(self, *, group: str = "", trusted: bool = True) -> Generation | None:
        """The generation committed last in its group; with ``trusted`` the last one that nothing speaks against."""
        return next((g for g in self.newest_first(group) if g.is_good or not trusted), None)

    def last_verified(self, group: str = "") -> Generation | None:
        """The newest generation of a group that can be trusted and that a restore drill read in full."""
        return next((g for g in self.newest_first(group) if g.is_good and g.verified is Verification.HELD), None)

    def shielded(self) -> dict[int, str]:
        """Generations that no retirement can take now, each with the reason in words."""
        reasons: dict[int, str] = {}
        for group in {g.manifest.group for g in self.generations.values()}:
            for generation, why in (
                (self.newest(group=group, trusted=False), "the newest"),
                (self.newest(group=group), "the newest that can be trusted"),
                (self.last_verified(group), "the last verified"),
            ):
                if generation is not None:
                    reasons.setdefault(generation.number, why)
        pinned = (g for g in self.generations.values() if g.pinned)
        return reasons | {g.number: f"pinned{_labels(g.pinned)}" for g in pinned}


EMPTY: Final = History()


def fold(history: History, entry: Entry) -> History:
    """The history with one more entry.

    Raises:
        ValueError: the entry is not the next one.
    """
    return fold_all(history, (entry,))


def fold_all(history: History, entries: Iterable[Entry]) -> History:
    """The history with more entries, in one copy: a log of n entries costs n, however it grew.

    Raises:
        ValueError: an entry is not the next one.
    """
    tally = _Tally(history)
    for entry in entries:
        tally.take(entry)
    return tally.history()


def manifest_problem(manifest: Manifest, term: int) -> str:
    """Why no commit under this term can publish the manifest; "" when it can."""
    if not is_attempt(manifest.attempt):
        return f"{manifest.attempt!r} is not the name of an attempt"
    if term_of(manifest.attempt) != term:
        return f"attempt {manifest.attempt} belongs to term {term_of(manifest.attempt)}, the commit to term {term}"
    expected = [(writer, index_key(manifest.attempt, writer)) for writer in range(len(manifest.shards))]
    if not manifest.shards or manifest.world != len(manifest.shards):
        return f"attempt {manifest.attempt} has {len(manifest.shards)} shards for {manifest.world} writers"
    if [(shard.writer, shard.object) for shard in manifest.shards] != expected:
        return f"attempt {manifest.attempt} does not name the shard of every writer once and in order"
    return ""


def _labels(pinned: tuple[str, ...]) -> str:
    named = [label for label in pinned if label]
    return f" as {', '.join(named)}" if named else ""


class _Tally:
    """A history under construction: owns its dictionaries, so that many entries cost one copy."""

    def __init__(self, history: History) -> None:
        self._begin = history
        self._last, self._term, self._owner = history.last, history.term, history.owner
        self._generations = dict(history.generations)
        self._retired, self._void = dict(history.retired), dict(history.void)
        self._attempts = dict(history.attempts)

    def history(self) -> History:
        if self._last == self._begin.last:
            return self._begin
        return History(
            last=self._last,
            term=self._term,
            owner=self._owner,
            generations=MappingProxyType(self._generations),
            retired=MappingProxyType(self._retired),
            void=MappingProxyType(self._void),
            attempts=MappingProxyType(self._attempts),
        )

    def take(self, entry: Entry) -> None:
        if entry.number != self._last + 1:
            raise ValueError(f"expected entry {self._last + 1}, got entry {entry.number}")
        self._last = entry.number
        reason = self._stale(entry) or self._apply(entry)
        if reason:
            self._void[entry.number] = reason

    def _stale(self, entry: Entry) -> str:
        if isinstance(entry.act, Claim):
            expected = self._term + 1
            return "" if entry.term == expected else f"claims term {entry.term}, expected term {expected}"
        if self._term == 0:
            return "no term was claimed yet"
        if entry.term != self._term:
            return f"it is of term {entry.term}, but {self._owner} had claimed term {self._term}"
        return ""

    def _apply(self, entry: Entry) -> str:
        match entry.act:
            case Claim(owner=owner):
                self._term, self._owner = entry.term, owner
                return ""
            case Commit(manifest=manifest):
                return self._commit(entry, manifest)
            case Retire(generations=generations):
                return self._retire(entry.number, generations)
            case Pin(generation=number, label=label):
                return self._change(number, lambda g: {"pinned": (*g.pinned, label)})
            case Unpin(generation=number):
                return self._change(number, lambda g: {"pinned": ()} if g.pinned else {})
            case Verified(generation=number, held=held, detail=detail):
                found = Verification.HELD if held else Verification.BROKEN
                return self._change(number, lambda _: {"verified": found, "verified_detail": detail})

    def _commit(self, entry: Entry, manifest: Manifest) -> str:
        problem = manifest_problem(manifest, entry.term)
        if problem:
            return problem
        if manifest.attempt in self._attempts:
            return f"attempt {manifest.attempt} is generation {self._attempts[manifest.attempt]} already"
        lost = [base for base in manifest.bases if base not in self._generations]
        if lost:
            return f"generation {lost[0]}, which it builds on, {self._fate(lost[0])}"
        self._attempts[manifest.attempt] = entry.number
        self._generations[entry.number] = Generation(
            number=entry.number, manifest=manifest, term=entry.term, wall_s=entry.wall_s
        )
        return ""

    def _retire(self, number: int, generations: tuple[int, ...]) -> str:
        shielded = History(generations=self._generations).shielded()
        going = [one for one in dict.fromkeys(generations) if one in self._generations and one not in shielded]
        for one in going:
            del self._generations[one]
            self._retired[one] = number
        if going or not generations:  # an empty one is good: it occupies its number, see sweep.py
            return ""
        return "; ".join(f"generation {one} {shielded.get(one) or self._fate(one)}" for one in generations)

    def _change(self, number: int, change: Any) -> str:
        if number not in self._generations:
            return f"generation {number} {self._fate(number)}"
        changes = change(self._generations[number])
        if not changes:
            return f"generation {number} is not pinned"
        self._generations[number] = msgspec.structs.replace(self._generations[number], **changes)
        return ""

    def _fate(self, number: int) -> str:
        return f"was retired by entry {self._retired[number]}" if number in self._retired else "does not exist"
