"""What a drill proved: a pure judgement over what two runs left behind."""

from __future__ import annotations

import math
from collections import Counter
from enum import IntEnum

import msgspec

from closeranks.drill.fault import AT_EXACT_STEP, HARMLESS, Fault
from closeranks.drill.plan import Expect
from closeranks.events import FaultInjected, IncidentClosed, IncidentOpened, Record, RestorePlanned, StepClosed


class Outcome(IntEnum):
    """The value is the exit status. Unknown never counts as held."""

    HELD = 0
    BROKEN = 1
    UNKNOWN = 3  # 2 is the status of a wrong command line


class Final(msgspec.Struct, frozen=True):
    """State of a seat after its last step, as digests: ``digest`` of the replicated part, ``local`` of the rest."""

    step: int
    digest: str
    local: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a run left behind."""

    exit_code: int | None  # None: it did not end in time
    records: tuple[Record, ...]
    finals: dict[int, Final]  # by seat
    output: str = ""  # the end of what it printed


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome with its reasons; a held drill has none."""

    outcome: Outcome
    reasons: tuple[str, ...] = ()


def judge(expect: Expect, faults: tuple[Fault, ...], undisturbed: Evidence | None, drilled: Evidence) -> Verdict:
    """Hold the drilled run against the expectation and the undisturbed run.

    ``undisturbed`` may be None where no equality is expected. A drill of which no fault struck is unknown whatever
    else it shows. Where some struck and others did not, a broken expectation counts: it may be the reason.
    """
    missing = missed(faults, drilled.records)
    unknown = [f"never struck: {fault}" for fault in missing]
    broken = _ending(expect, drilled)
    for found in (
        _incidents(expect, faults, drilled),
        _equality(expect, undisturbed, drilled) if expect.equality == "bitwise" else ([], []),
    ):
        broken += found[0]
        unknown += found[1]
    nothing_struck = bool(faults) and len(missing) == len(faults)
    if broken and not nothing_struck:
        return Verdict(outcome=Outcome.BROKEN, reasons=(*broken, *unknown))
    if broken or unknown:
        return Verdict(outcome=Outcome.UNKNOWN, reasons=(*unknown, *broken))
    return Verdict(outcome=Outcome.HELD)


def worst(outcomes: list[Outcome]) -> Outcome:
    """The outcome of several drills: broken if any is, else unknown if any is (or there was none at all)."""
    for outcome in (Outcome.BROKEN, Outcome.UNKNOWN):
        if outcome in outcomes:
            return outcome
    return Outcome.HELD if outcomes else Outcome.UNKNOWN


def missed(faults: tuple[Fault, ...], records: tuple[Record, ...]) -> list[Fault]:
    """The planned faults without an announcement of their strike in the journal."""
    struck = Counter(
        _identity(r.event.fault, r.event.seat, r.event.moment, r.event.step)
        for r in records
        if isinstance(r.event, FaultInjected)
    )
    missing = []
    for fault in faults:
        identity = _identity(fault.kind, fault.seat, fault.moment, fault.step)
        if struck[identity] > 0:
            struck[identity] -= 1
        else:
            missing.append(fault)
    return missing


def losses_by_step(records: tuple[Record, ...]) -> dict[int, tuple[str, ...]]:
    """Losses of every closed step in exact form; of a repeated step the last one, which is what the run kept."""
    closed = [record.event for record in records if isinstance(record.event, StepClosed)]
    return {event.step: tuple(_exact(loss) for loss in event.losses) for event in closed}


_Findings = tuple[list[str], list[str]]  # broken, unknown


def _identity(kind: str, seat: int | None, moment: str, step: int) -> tuple[str, int | None, str, int | None]:
    return str(kind), seat, str(moment), step if moment in AT_EXACT_STEP else None


def _exact(loss: float | None) -> str:
    """Equal for equal bits; all NaN are one, since their payload is not the model's."""
    if loss is None:
        return "none"
    return "nan" if math.isnan(loss) else loss.hex()


def _ending(expect: Expect, drilled: Evidence) -> list[str]:
    if drilled.exit_code is None:
        return ["the drilled run did not end in time"]
    if drilled.exit_code != expect.exit_code:
        return [f"the drilled run ended with {drilled.exit_code}, expected {expect.exit_code}"]
    return []


def _incidents(expect: Expect, faults: tuple[Fault, ...], drilled: Evidence) -> _Findings:
    opened = [r.event for r in drilled.records if isinstance(r.event, IncidentOpened)]
    closed = [r.event for r in drilled.records if isinstance(r.event, IncidentClosed)]
    broken: list[str] = []
    unknown: list[str] = []
    harmful = [fault for fault in faults if fault.kind not in HARMLESS]
    if faults and all(fault.kind in HARMLESS for fault in faults):
        broken += [f"incident {event.incident} was opened without a fault: {event.summary}" for event in opened]
    elif harmful and not opened and len(missed(faults, drilled.records)) < len(faults):
        unknown.append("faults struck, but no incident was opened: nothing shows what recovered")
    lost = sum(event.steps_lost for event in closed)
    if lost > expect.steps_lost_max:
        broken.append(f"{lost} steps were lost, expected at most {expect.steps_lost_max}")
    for event in closed:
        if event.steps_lost > expect.rpo_steps:
            broken.append(f"incident {event.incident} fell back {event.steps_lost} steps, at most {expect.rpo_steps}")
    if expect.recovery_s_max is not None:
        late, unmeasured = _too_late(expect.recovery_s_max, opened, closed)
        broken += late
        unknown += unmeasured
    return broken, unknown


def _too_late(allowed_s: float, opened: list[IncidentOpened], closed: list[IncidentClosed]) -> _Findings:
    took_s = {event.incident: event.first_step_s for event in closed}
    late, unmeasured = [], []
    for incident in (event.incident for event in opened):
        first_step_s = took_s.get(incident)
        if first_step_s is None:
            unmeasured.append(f"incident {incident} has no recovery time")
        elif first_step_s > allowed_s:
            late.append(f"incident {incident} took {first_step_s:.2f} s to the first new step, allowed {allowed_s:g} s")
    return late, unmeasured


def _equality(expect: Expect, undisturbed: Evidence | None, drilled: Evidence) -> _Findings:
    if undisturbed is None or undisturbed.exit_code != 0 or not undisturbed.finals:
        how = "was not made" if undisturbed is None else f"ended with {undisturbed.exit_code}"
        return [], [f"nothing to compare with: the undisturbed run {how} and left {_count(undisturbed)} final states"]
    if drilled.exit_code != expect.exit_code:
        return [], []  # said already; it has no final state to compare
    return differences(undisturbed, drilled), []


def differences(undisturbed: Evidence, drilled: Evidence) -> list[str]:
    """How the end of the drilled run differs from that of the undisturbed one, and its losses on the way."""
    broken = []
    for seat, final in sorted(undisturbed.finals.items()):
        other = drilled.finals.get(seat)
        if other is None:
            broken.append(f"seat {seat} left no final state")
        elif other != final:
            parts = [name for name in ("step", "digest", "local") if getattr(other, name) != getattr(final, name)]
            seen = ", ".join(f"{name} {getattr(final, name)} became {getattr(other, name)}" for name in parts)
            broken.append(f"seat {seat} ended otherwise than undisturbed: {seen}")
    return broken + _different_losses(undisturbed, drilled)


def _taken_over(records: tuple[Record, ...]) -> dict[int, frozenset[int]]:
    """By step: seats whose occupant was lost after its part in the step; its loss may never have been reported."""
    plans = [record.event for record in records if isinstance(record.event, RestorePlanned)]
    return {plan.step: frozenset(plan.receivers) for plan in plans}


def _same(before: tuple[str, ...] | None, after: tuple[str, ...] | None, taken: frozenset[int]) -> bool:
    if before is None or after is None or len(before) != len(after):
        return before == after
    pairs = enumerate(zip(before, after, strict=True))
    return all(old == new or (new == "none" and seat in taken) for seat, (old, new) in pairs)


def _count(evidence: Evidence | None) -> int:
    return 0 if evidence is None else len(evidence.finals)


def _different_losses(undisturbed: Evidence, drilled: Evidence) -> list[str]:
    before, after = losses_by_step(undisturbed.records), losses_by_step(drilled.records)
    taken = _taken_over(drilled.records)
    different = [
        step
        for step in sorted(before.keys() | after.keys())
        if not _same(before.get(step), after.get(step), taken.get(step, frozenset()))
    ]
    if not different:
        return []
    first = different[0]
    return [f"losses differ in {len(different)} steps, first in {first}: {before.get(first)} became {after.get(first)}"]
