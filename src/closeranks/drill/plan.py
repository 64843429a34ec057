"""A drill plan: a command, the faults to strike it with, and what is expected of it. Pure."""

from __future__ import annotations

import random
import re
from typing import Literal

import msgspec

from closeranks.drill.fault import ANY_INCARNATION, FROM_A_TIMER, Fault, Kind, Lasting, Moment
from closeranks.toml_text import Misfit, TomlProblem, blame, read_toml

_HANG_S = 3600.0
_BITS_MAX = 8  # of the smallest element
_SAVE_EVERY = re.compile(r"|[1-9][0-9]*|[0-9]*\.?[0-9]+[smhd]", re.ASCII)
_FOR_S = {Kind.PAUSE: 1.0, Kind.SLOW: 0.2, Kind.SECTION: 4.0}
_RANDOM_KINDS = (
    Kind.KILL,
    Kind.FREEZE,
    Kind.EXCEPTION,
    Kind.GIL,
    Kind.BLOCK,
    Kind.EXIT0,
    Kind.EXIT_CODE,
    Kind.SEGFAULT,
)
_RANDOM_MOMENTS = (Moment.FORWARD, Moment.BACKWARD, Moment.COLLECTIVE, Moment.APPLY, Moment.BETWEEN)


class PlanError(ValueError):
    """The plan cannot be carried out as it is written; nothing was started."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class RunSpec(_Part, frozen=True):
    """``[run]``: what is drilled."""

    command: tuple[str, ...]  # a script and its arguments
    seats: int = 4
    spares: int = 1
    timeout_s: float = 120.0
    save_every: str = ""  # as --save-every takes it: the run gets a store of its own; "": without one
    options: tuple[str, ...] = ()  # further ones of closeranks run


class Expect(_Part, frozen=True):
    """``[expect]``: when the drill counts as held."""

    equality: Literal["bitwise", "none"] = "bitwise"
    exit_code: int = 0
    steps_lost_max: int = 0  # in the whole run
    recovery_s_max: float | None = None  # of each incident, to its first new step; None: any
    rpo_steps: int = 0  # how far one recovery may fall back


class FaultSpec(_Part, frozen=True):
    """``[[fault]]``: what strikes; ranges and "random" are drawn by the seed."""

    kind: Kind
    seat: int | Literal["random"]
    step: int | tuple[int, int] = 0  # both ends of a range included
    moment: Moment | None = None
    during: Literal["recovery of another"] | None = None
    incarnation: int | Literal["any"] = 1
    with_seats: tuple[int, ...] = ()  # struck at the same time
    after_ms: float = 0.0
    for_s: float | None = None
    lasting: Lasting = Lasting.TRANSIENT
    bits: int = 1  # that a flip flips, of one element


class Plan(_Part, frozen=True):
    """A whole plan file."""

    run: RunSpec
    expect: Expect = Expect()
    fault: tuple[FaultSpec, ...] = ()


def parse(text: str, name: str) -> Plan:
    """The plan written in ``text``; ``name`` is the file to blame.

    Raises:
        PlanError: with file, line, key, what was expected and what was found.
    """
    try:
        plan = read_toml(text, Plan, name)
        _check(plan)
    except TomlProblem as problem:
        raise PlanError(str(problem)) from None
    except Misfit as misfit:
        raise PlanError(str(blame(text, name, misfit))) from None
    return plan


def resolve(plan: Plan, seed: int) -> tuple[Fault, ...]:
    """The faults of the plan with everything drawn; the same seed gives the same faults."""
    faults: list[Fault] = []
    for number, spec in enumerate(plan.fault, start=1):
        # A generator of its own for each fault: editing one leaves what is drawn for the others alone.
        faults += _drawn(spec, plan.run.seats, number, random.Random(f"{seed}/{number}"))  # noqa: S311
    return tuple(faults)


def random_plan(seed: int, seats: int, steps: int, *, saves: bool = False) -> Plan:
    """One lethal fault with kind, seat, step and moment drawn, for a run of ``steps`` steps; the command is empty.

    ``saves``: of a run with a store, in which every second drill kills all seats at once.
    """
    draw = random.Random(f"plan/{seed}")  # noqa: S311
    spec = FaultSpec(
        kind=draw.choice(_RANDOM_KINDS),
        seat=draw.randrange(seats),
        step=draw.randrange(steps),
        moment=draw.choice(_RANDOM_MOMENTS),
    )
    if not saves:
        return Plan(run=RunSpec(command=(), seats=seats), fault=(spec,))
    if draw.random() < 0.5:  # noqa: PLR2004 - every second one
        others = tuple(seat for seat in range(seats) if seat != spec.seat)
        spec = msgspec.structs.replace(spec, kind=Kind.KILL, with_seats=others)
    return Plan(
        run=RunSpec(command=(), seats=seats), expect=Expect(steps_lost_max=steps, rpo_steps=steps), fault=(spec,)
    )


def _drawn(spec: FaultSpec, seats: int, number: int, draw: random.Random) -> list[Fault]:
    free = [seat for seat in range(seats) if seat not in spec.with_seats]
    seat, depth = draw.choice(free), draw.uniform(0.2, 0.8)
    low, high = spec.step if isinstance(spec.step, tuple) else (spec.step, spec.step)
    step = draw.randint(low, high)
    first = Fault(
        kind=spec.kind,
        seat=seat if spec.seat == "random" else spec.seat,
        step=step,
        moment=spec.moment or Moment.RECOVERING,
        incarnation=ANY_INCARNATION if spec.incarnation == "any" else spec.incarnation,
        after_ms=spec.after_ms,
        for_s=_FOR_S.get(spec.kind, _HANG_S) if spec.for_s is None else spec.for_s,
        depth=depth,
        volley=number if spec.with_seats else 0,
        lasting=spec.lasting,
        bits=spec.bits,
        draw=draw.randrange(2**32),
    )
    return [first, *(msgspec.structs.replace(first, seat=seat) for seat in spec.with_seats)]


# --- errors -----------------------------------------------------------------------------------------------------


def _check(plan: Plan) -> None:
    run, expect = plan.run, plan.expect
    if not run.command:
        raise Misfit(("run", "command"), 'expected a script and its arguments, as in ["train.py", "--steps", "40"]')
    if run.seats < 1:
        raise Misfit(("run", "seats"), f"expected at least 1, got {run.seats}")
    if run.spares < 0:
        raise Misfit(("run", "spares"), f"expected 0 or more, got {run.spares}")
    if not run.timeout_s > 0:
        raise Misfit(("run", "timeout_s"), f"expected more than 0, got {run.timeout_s}")
    if not _SAVE_EVERY.fullmatch(run.save_every):
        expected = 'steps ("5") or a time ("90s", "10m")'
        raise Misfit(("run", "save_every"), f"expected {expected}, got {run.save_every!r}")
    if expect.equality == "bitwise" and expect.exit_code != 0:
        raise Misfit(("expect", "exit_code"), 'a run that fails ends in no state to compare; set equality = "none"')
    for index, spec in enumerate(plan.fault):
        for key, problem in _problems(spec, run.seats):
            raise Misfit(("fault", index, key), problem)


def _problems(spec: FaultSpec, seats: int) -> list[tuple[str, str]]:
    struck = [spec.seat, *spec.with_seats] if spec.seat != "random" else list(spec.with_seats)
    low, high = spec.step if isinstance(spec.step, tuple) else (spec.step, spec.step)
    problems = [
        ("with_seats" if seat in spec.with_seats else "seat", f"expected a seat from 0 to {seats - 1}, got {seat}")
        for seat in struck
        if not 0 <= seat < seats
    ]
    if len(set(struck)) != len(struck) or len(spec.with_seats) >= seats:
        problems.append(("with_seats", f"expected other seats than {spec.seat}, each once, got {spec.with_seats}"))
    if not 0 <= low <= high:
        problems.append(("step", f"expected a step, or [first, last] with first <= last, got {spec.step}"))
    if spec.incarnation != "any" and spec.incarnation < 1:
        expected = 'expected 1 (the first process in the seat) or more, or "any"'
        problems.append(("incarnation", f"{expected}, got {spec.incarnation}"))
    if (spec.moment is None) == (spec.during is None):
        problems.append(("kind", 'expected exactly one of moment and during = "recovery of another"'))
    if spec.after_ms < 0 or (spec.after_ms > 0 and spec.kind not in FROM_A_TIMER):
        kinds = " and ".join(sorted(FROM_A_TIMER))
        problems.append(("after_ms", f"expected 0, or more for {kinds}; {spec.kind} strikes in the training thread"))
    if not 1 <= spec.bits <= _BITS_MAX:
        problems.append(("bits", f"expected 1 to {_BITS_MAX}, got {spec.bits}"))
    if spec.for_s is not None and not spec.for_s > 0:
        problems.append(("for_s", f"expected more than 0 seconds, got {spec.for_s}"))
    return problems
