"""Rules: what a line has to look like, and which fault it then speaks for. Held as data, each with its own tests.

A rule has *literals*, one of which must stand in the line (so that gigabytes can be skimmed for a few bytes), and a
*pattern*, which must match. Named groups of the pattern fill in what the line tells: ``rank``, ``node``, ``device``,
``code``, ``signal``, ``seq``, ``peer``, ``where``. Of several rules that match one line, the one nearest to the cause
is taken, and the earlier one of equals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from closeranks.diagnose.evidence import Source, Standing
from closeranks.faults import UnknownFaultError, fault_named
from closeranks.toml_text import TomlProblem, read_toml

_GROUPS = frozenset({"rank", "node", "device", "code", "signal", "seq", "peer", "where"})
LITERAL_BYTES_MIN = 4  # fewer bytes would be found everywhere


class RulesError(Exception):
    """A rule file cannot be used: it says which rule, and what is wrong with it."""


class _RuleEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    literals: tuple[str, ...]
    pattern: str
    standing: str
    provenance: str
    yes: tuple[str, ...]
    no: tuple[str, ...] = ()
    fault: str = ""
    weight: float = 0.0
    speaker: Source = Source.LOG
    excludes: tuple[str, ...] = ()
    before: str = ""
    points: bool = False
    mutual: bool = False
    over: tuple[str, ...] = ()


class _RuleFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    about: str
    rule: tuple[_RuleEntry, ...]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule; ``yes`` and ``no`` are lines that it must and must not match.

    ``before``, if there is one, must match in the lines before, and its groups tell as well.
    """

    id: str
    literals: tuple[str, ...]
    pattern: re.Pattern[str]
    standing: Standing
    fault: str
    weight: float
    speaker: Source
    excludes: tuple[str, ...]
    before: re.Pattern[str] | None
    mutual: bool  # ranks disagree, and the speaker need not be the one who is wrong
    points: bool  # the rank that the line names is another one than the speaker: the one that was missing
    over: tuple[str, ...]  # rules of whose sightings the line says that they have passed
    provenance: str
    yes: tuple[str, ...]
    no: tuple[str, ...]

    def match(self, line: str, before: str = "") -> Mapping[str, str] | None:
        """What the line tells, by name; None: the rule does not apply."""
        for literal in self.literals:  # a plain loop: any() over a generator takes three times as long
            if literal in line:
                break
        else:
            return None
        found = self.pattern.search(line)
        if found is None:
            return None
        told = {name: text for name, text in found.groupdict().items() if text is not None}
        if self.before is None:
            return told
        earlier = self.before.search(before)
        return None if earlier is None else {**earlier.groupdict(""), **told}


class Match(msgspec.Struct, frozen=True):
    """A rule that understood a line."""

    rule: Rule
    told: Mapping[str, str]


class RuleBook(msgspec.Struct, frozen=True):
    """All rules, nearest to the cause first."""

    rules: tuple[Rule, ...]

    def match(self, line: str, before: str = "", among: Sequence[int] | None = None) -> Match | None:
        """The rule nearest to the cause that understands the line; ``among``: numbers of rules that can at all."""
        for number in range(len(self.rules)) if among is None else among:
            rule = self.rules[number]
            told = rule.match(line, before)
            if told is not None:
                return Match(rule, told)
        return None


def parse(files: Mapping[str, str]) -> RuleBook:
    """The rules of all files, by name and text.

    Raises:
        RulesError: a file is no TOML, a rule is not complete, or names a fault that the catalogue does not have.
    """
    rules: list[Rule] = []
    for name, text in files.items():
        try:
            entries = read_toml(text, _RuleFile, name).rule
        except TomlProblem as problem:
            raise RulesError(str(problem)) from None
        rules += [_rule(name, entry) for entry in entries]
    twice = _repeated([rule.id for rule in rules])
    if twice:
        raise RulesError(f"two rules are called {twice!r}; a name stands for one rule")
    foreign = sorted({name for rule in rules for name in rule.over} - {rule.id for rule in rules})
    if foreign:
        raise RulesError(f"over: names a rule that there is not: {', '.join(foreign)}")
    return RuleBook(tuple(sorted(rules, key=_precedence)))


def _precedence(rule: Rule) -> tuple[bool, Standing]:
    """In one line any rule that knows more than "an error" goes before those that do not, a victim's words as well."""
    return rule.standing is Standing.GENERAL, rule.standing


def _rule(file: str, entry: _RuleEntry) -> Rule:
    where = f"{file}: rule {entry.id!r}"
    try:
        pattern = re.compile(entry.pattern)
        before = re.compile(entry.before) if entry.before else None
        standing = Standing[entry.standing.upper()]
        for name in (entry.fault, *entry.excludes):
            if name:
                fault_named(name)
    except re.error as error:
        raise RulesError(f"{where}: pattern: {error}") from error
    except KeyError as error:
        known = ", ".join(member.name.lower() for member in Standing)
        raise RulesError(f"{where}: expected a standing of {known}; got {entry.standing!r}") from error
    except UnknownFaultError as error:
        raise RulesError(f"{where}: {error}") from error
    short = [literal for literal in entry.literals if len(literal.encode()) < LITERAL_BYTES_MIN]
    if short or not entry.literals:
        raise RulesError(f"{where}: literals need {LITERAL_BYTES_MIN} bytes or more; got {short or 'none'}")
    foreign = {*pattern.groupindex, *(before.groupindex if before is not None else ())} - _GROUPS
    if foreign:
        raise RulesError(f"{where}: groups are {', '.join(sorted(_GROUPS))}; got {', '.join(sorted(foreign))}")
    return Rule(
        id=entry.id,
        literals=entry.literals,
        pattern=pattern,
        standing=standing,
        fault=entry.fault,
        weight=entry.weight,
        speaker=entry.speaker,
        excludes=entry.excludes,
        before=before,
        points=entry.points,
        mutual=entry.mutual,
        over=entry.over,
        provenance=entry.provenance,
        yes=entry.yes,
        no=entry.no,
    )


def _repeated(names: Sequence[str]) -> str:
    return next((name for index, name in enumerate(names) if name in names[:index]), "")
