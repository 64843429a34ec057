"""Stragglers and the health of nodes: as lines of a log, and as a part of the report."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from closeranks.events import (
    AnyEvent,
    NetworkSlow,
    NodeChecked,
    NodeUnwell,
    NodeWell,
    ProcessExited,
    Record,
    StepClosed,
    StragglerEased,
    StragglerNamed,
)


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """Seats that kept the others waiting."""

    seats: tuple[int, ...]
    where: str
    cause: str
    slower: float
    from_step: int
    until_step: int | None  # None: to the end of the records
    reason: str


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What the report says of it."""

    stragglers: tuple[Straggler, ...] = ()
    unwell: dict[str, str] = {}  # by node and sign: what was seen, where it is not over
    checks: dict[str, str] = {}  # by node and check: what did not pass


def describe_health(event: AnyEvent) -> str:
    """One line; "" for an event that is not about this."""
    match event:
        case StragglerNamed():
            who = f"{event.where} {'keep' if event.scope == 'seats' else 'keeps'} the others waiting"
            return f"{who}: {event.slower:.0%} slower, {event.cause}: {event.reason}"
        case StragglerEased():
            return f"seats {', '.join(map(str, event.seats))} are as fast as the others again"
        case NetworkSlow():
            return f"collectives take {event.apart_s:.3g} s of a step, {event.usual_s:.3g} s before; no seat is slower"
        case NodeChecked():
            problems = _problems(event)
            told = "; ".join(f"{name} {outcome}" for name, outcome in problems.items()) or "nothing is wrong"
            return f"{event.level} checks of this node took {event.took_s:.2f} s: {told}"
        case NodeUnwell():
            return f"{event.sign}: {event.detail}{'; it should get no new work' if event.drain else ''}"
        case NodeWell():
            return f"{event.sign} is over"
    return ""


def health_of(records: Sequence[Record]) -> Health:
    """What the journal tells of stragglers and nodes."""
    found: list[Straggler] = []
    gone: set[int] = set()  # seats of the last of them whose processes ended: who was slow is not there any more
    newest = -1
    unwell: dict[str, str] = {}
    checks: dict[str, str] = {}
    for record in records:
        match record.event:
            case StragglerNamed() as event:
                _end(found, event.step, set(event.seats))
                found.append(_begun(event))
                gone.clear()
            case StragglerEased() as event:
                _end(found, event.step, set(event.seats))
            case ProcessExited(seat=int() as seat):
                gone.add(seat)
            case StepClosed(step=step):
                if found and gone.issuperset(found[-1].seats):  # others go on; at the end of a run nobody does
                    _end(found, newest, gone)
                newest = step
            case NodeUnwell() as event:
                unwell[f"{record.node} {event.sign}"] = event.detail
            case NodeWell() as event:
                unwell.pop(f"{record.node} {event.sign}", None)
            case NodeChecked() as event:
                checks |= {f"{record.node} {name}": outcome for name, outcome in _problems(event).items()}
    return Health(stragglers=tuple(found), unwell=unwell, checks=checks)


def print_health(console: Console, health: Health) -> None:
    """Write it for a person; nothing when there is nothing to say."""
    lines = [_straggler_text(one) for one in health.stragglers]
    lines += [f"{name}: {detail}" for name, detail in (health.unwell | health.checks).items()]
    if lines:
        console.print(Text("\nHealth", style="bold"))
    for line in lines:
        console.print(Text("".join(c if c.isprintable() else " " for c in line), style="yellow"))


def _begun(event: StragglerNamed) -> Straggler:
    return Straggler(
        seats=event.seats,
        where=event.where,
        cause=event.cause,
        slower=event.slower,
        from_step=event.step,
        until_step=None,
        reason=event.reason,
    )


def _end(found: list[Straggler], step: int, seats: set[int]) -> None:
    """The last of them is over, or has become another."""
    if found and found[-1].until_step is None and seats & set(found[-1].seats):
        found[-1] = msgspec.structs.replace(found[-1], until_step=step)


def _straggler_text(one: Straggler) -> str:
    until = "on" if one.until_step is None else f"to {one.until_step}"
    return f"{one.where}, from step {one.from_step} {until}: {one.slower:.0%} slower, {one.cause}: {one.reason}"


def _problems(event: NodeChecked) -> dict[str, str]:
    """Absent is no problem: a node without an accelerator has none that could be bad."""
    return {name: outcome for name, outcome in event.outcomes.items() if not outcome.startswith(("passed", "absent"))}
