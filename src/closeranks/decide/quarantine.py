"""Which nodes may hold seats: what is remembered of each across runs, and who is kept out, for how long.

Three rules suspect a node: one fault again on one of its units, many faults on the node, and more faults than the rest
of the fleet makes likely. A fault that strikes several units alike is the software's, and speaks against no node. Who
is suspected is kept out for a time, doubled with each return, and is then on probation. A breaker bounds how many
rules may take out; past it a person is asked. All times are of one clock, whichever.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from closeranks.decide.budgets import Intensity
from closeranks.decide.fitness import UNKNOWN_H

_DAY_S = 86_400.0
_FAILURES_KEPT = 64  # newest, of each node
_LEAST_FAILURES = 3  # two may always be chance


class By(StrEnum):
    """Who keeps a node out."""

    RULE = "rule"
    CHECK = "check"  # it failed a test of its own
    PERSON = "person"


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a node is kept out, for how long, and how many at most."""

    same_unit: Intensity = Intensity(most=2, period_s=_DAY_S)  # of one fault on one unit of a node
    any_fault: Intensity = Intensity(most=4, period_s=7 * _DAY_S)  # on one node
    elsewhere: int = 2  # other units with the same fault in the period of same_unit: it is the software's
    confidence: float = 0.99999  # that a node is worse than the fleet, all nodes taken together
    first_s: float = _DAY_S  # doubled with each further time ...
    most_s: float = 30 * _DAY_S  # ... up to here
    probation_s: float = _DAY_S  # after it; one more failure and the node is out again
    share_per_day: float = 0.1  # of the known nodes that rules may take out within a day, but one
    share_out: float = 0.25  # that rules may keep out at once, but one
    infant_h: float = 0.0  # of work that a new node passes before it may take longer work than it has done; 0: any may
    work_h: float = UNKNOWN_H  # that this run is expected to last


USUAL = Rules()


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault that speaks against the node it struck."""

    fault: str  # a ``faults.Fault.name``
    at_s: float
    unit: str = ""  # the device or seat of the node; "": the node as a whole


class Quarantine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node is kept out until then."""

    since_s: float
    until_s: float
    reason: str
    by: By = By.RULE


class Past(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is remembered of a node."""

    failures: tuple[Failure, ...] = ()  # newest, ascending by time
    hours: float = 0.0  # of work
    passed_s: float | None = None  # newest check that it passed
    quarantine: Quarantine | None = None  # the newest, also when it is over
    times: int = 0  # that it was kept out by rules or checks


class Register(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All nodes that are known, by name."""

    nodes: Mapping[str, Past] = {}


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """The node may hold seats. On probation it is better given short work, or seats that others can take over."""

    on_probation: bool = False


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The node is kept out: for certain by a person or a check, by a rule only while others have room."""

    reason: str
    until_s: float
    by: By


class Clear(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing speaks against the node."""


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """The node itself is the likely cause."""

    reason: str


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """What struck the node strikes others alike: it is not the node."""

    reason: str


class AskPerson(msgspec.Struct, frozen=True, kw_only=True):
    """The breaker is open: the node is not kept out, and somebody should look at the rules or at the cluster."""

    reason: str


# --- what happens to a node -------------------------------------------------------------------------------------


def known(register: Register, node: str) -> Register:
    """The node exists: the fleet that others are compared with is larger by one."""
    return register if node in register.nodes else _with(register, node, Past())


def failed(register: Register, node: str, failure: Failure) -> Register:
    """A fault struck the node."""
    past = _past(register, node)
    failures = tuple(sorted((*past.failures, failure), key=lambda f: f.at_s))[-_FAILURES_KEPT:]
    return _with(register, node, replace(past, failures=failures))


def worked(register: Register, node: str, hours: float) -> Register:
    """The node held seats for so long."""
    past = _past(register, node)
    return _with(register, node, replace(past, hours=past.hours + max(0.0, hours)))


def passed(register: Register, node: str, now_s: float) -> Register:
    """The node passed a test of its own: what a rule or check had against it is over, and its probation begins."""
    past = replace(_past(register, node), passed_s=now_s)
    ban = past.quarantine
    if ban is not None and ban.by is not By.PERSON and now_s < ban.until_s:
        past = replace(past, quarantine=replace(ban, until_s=now_s))
    return _with(register, node, past)


def released(register: Register, node: str) -> Register:
    """A person has seen to the node: its past no longer counts against it, its hours stay."""
    return _with(register, node, replace(_past(register, node), failures=(), quarantine=None, times=0))


def confined(register: Register, node: str, quarantine: Quarantine) -> Register:
    """The node is kept out, whatever the breaker would say: a person wants it, or it is read back from a history."""
    past = _past(register, node)
    times = past.times + (quarantine.by is not By.PERSON)
    return _with(register, node, replace(past, quarantine=quarantine, times=times))


def moved(register: Register, later_s: float) -> Register:
    """The same, with its times on another clock."""
    return Register(nodes={name: _moved(past, later_s) for name, past in register.nodes.items()})


def _moved(past: Past, later_s: float) -> Past:
    ban = past.quarantine
    if ban is not None:
        ban = replace(ban, since_s=ban.since_s + later_s, until_s=ban.until_s + later_s)
    return replace(
        past,
        failures=tuple(replace(failure, at_s=failure.at_s + later_s) for failure in past.failures),
        passed_s=None if past.passed_s is None else past.passed_s + later_s,
        quarantine=ban,
    )


def _past(register: Register, node: str) -> Past:
    return register.nodes.get(node, Past())


def _with(register: Register, node: str, past: Past) -> Register:
    return Register(nodes={**register.nodes, node: past})


# --- what follows from it ---------------------------------------------------------------------------------------


def admit(register: Register, node: str, now_s: float, rules: Rules = USUAL) -> Admitted | Refused:
    """Whether the node may take seats or spares now. A node that nobody knows may."""
    ban = _past(register, node).quarantine
    if ban is None:
        return Admitted()
    if now_s < ban.until_s:
        return Refused(reason=f"{node} is kept out ({ban.by}): {ban.reason}", until_s=ban.until_s, by=ban.by)
    return Admitted(on_probation=_on_probation(ban, now_s, rules))


def _on_probation(ban: Quarantine | None, now_s: float, rules: Rules) -> bool:
    return ban is not None and ban.by is not By.PERSON and ban.until_s <= now_s < ban.until_s + rules.probation_s


def judge(register: Register, node: str, now_s: float, rules: Rules = USUAL) -> Clear | Suspect | Software:
    """What the failures of the node say about it."""
    past = _past(register, node)
    if not past.failures:
        return Clear()
    newest = past.failures[-1]
    others = _units_with(register, newest.fault, now_s - rules.same_unit.period_s) - {(node, newest.unit)}
    if len(others) >= rules.elsewhere:
        struck = ", ".join(sorted({f"{name} {unit}".strip() for name, unit in others})[:4])
        return Software(reason=f"{newest.fault!r} struck {len(others)} other units within a day too ({struck})")
    if _on_probation(past.quarantine, newest.at_s, rules):
        return Suspect(reason=f"{newest.fault!r} while on probation")
    own = [f for f in past.failures if not _is_epidemic(register, f, node, rules)]
    reason = _again(own, newest, now_s, rules) or _often(own, now_s, rules) or _lemon(register, node, own, rules)
    return Suspect(reason=reason) if reason else Clear()


def keep_out(
    register: Register, node: str, reason: str, now_s: float, rules: Rules = USUAL, by: By = By.RULE
) -> tuple[Register, Quarantine | AskPerson]:
    """Keep a suspected node out, if the breaker allows it."""
    if objection := _breaker(register, node, now_s, rules):
        return register, AskPerson(reason=f"{node} would be kept out ({reason}), but {objection}")
    times = _past(register, node).times
    length_s = min(rules.most_s, rules.first_s * 2.0 ** min(times, 60))
    ban = Quarantine(since_s=now_s, until_s=now_s + length_s, reason=reason, by=by)
    return confined(register, node, ban), ban


def _breaker(register: Register, node: str, now_s: float, rules: Rules) -> str:
    """Why no further node may be kept out; empty when one may."""
    fleet = len(register.nodes)
    bans = [p.quarantine for name, p in register.nodes.items() if p.quarantine is not None and name != node]
    ruled = [ban for ban in bans if ban.by is not By.PERSON]
    today = sum(now_s - ban.since_s < _DAY_S for ban in ruled)
    out = sum(now_s < ban.until_s for ban in ruled)
    if fleet < 2:  # noqa: PLR2004 - the only node is never taken away
        return "it is the only node that is known"
    if today >= max(1, int(rules.share_per_day * fleet)):
        return f"{today} of {fleet} nodes were taken out within a day already: look at the rules, or at what they share"
    if out >= max(1, int(rules.share_out * fleet)):
        return f"{out} of {fleet} nodes are kept out already: look at the rules, or at what they share"
    return ""


def _units_with(register: Register, fault: str, since_s: float) -> set[tuple[str, str]]:
    return {
        (name, failure.unit)
        for name, past in register.nodes.items()
        for failure in past.failures
        if failure.fault == fault and failure.at_s > since_s
    }


def _is_epidemic(register: Register, failure: Failure, node: str, rules: Rules) -> bool:
    period_s = rules.same_unit.period_s
    struck = {
        (name, other.unit)
        for name, past in register.nodes.items()
        for other in past.failures
        if other.fault == failure.fault and abs(other.at_s - failure.at_s) < period_s
    }
    return len(struck - {(node, failure.unit)}) >= rules.elsewhere


def _again(own: list[Failure], newest: Failure, now_s: float, rules: Rules) -> str:
    limit = rules.same_unit
    same = [f for f in own if (f.fault, f.unit) == (newest.fault, newest.unit) and now_s - f.at_s < limit.period_s]
    if len(same) <= limit.most:
        return ""
    where = f" on {newest.unit}" if newest.unit else ""
    return f"{newest.fault!r}{where} {len(same)} times within {limit.period_s / 3600:g} h"


def _often(own: list[Failure], now_s: float, rules: Rules) -> str:
    limit = rules.any_fault
    recent = [f for f in own if now_s - f.at_s < limit.period_s]
    return f"{len(recent)} failures within {limit.period_s / 3600:g} h" if len(recent) > limit.most else ""


def _lemon(register: Register, node: str, own: list[Failure], rules: Rules) -> str:
    """Whether so many failures in its hours are too unlikely at the rate of all other nodes, one failure added.

    Source: the tail of the Poisson law, divided by the number of nodes that are looked at (C. E. Bonferroni, 1936);
    ``plan.fit`` names lemons of a trace by the same test.
    """
    from closeranks.plan.special import poisson_tail  # numpy: only where failures have come together

    others = [past for name, past in register.nodes.items() if name != node]
    hours = sum(past.hours for past in others)
    if len(own) < _LEAST_FAILURES or not hours:
        return ""
    expected = (sum(len(past.failures) for past in others) + 1) / hours * max(1.0, _past(register, node).hours)
    if float(poisson_tail(float(len(own) - 1), expected)) >= (1 - rules.confidence) / len(register.nodes):
        return ""
    return f"{len(own)} failures, where the other {len(others)} nodes make {expected:.2g} likely in its hours of work"
