"""Fault storms: random short runs full of faults, and the shortest list of faults that still breaks one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from closeranks.decide.budgets import Intensity, Limits
from closeranks.decide.save_interval import EverySeconds, EverySteps
from closeranks.decide.state import Deadlines, Settings
from closeranks.simulate.book import Outcome
from closeranks.simulate.invariants import InvariantBroken
from closeranks.simulate.saves import Tier
from closeranks.simulate.setup import Setup
from closeranks.simulate.strikes import Kind, Scope, Strike
from closeranks.simulate.timing import Timing
from closeranks.simulate.world import World

_FAULTY_S: Final = 120.0  # faults strike within this time
_HORIZON_S: Final = 50_000.0  # a run that neither completes nor stops by then is stuck
_DEADLINES: Final = Deadlines(pause_s=30.0, ready_s=60.0, transfer_s=30.0, join_s=60.0)
_DEFECTS: Final = (AssertionError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
_FASTEST_S, _SLOWEST_S = 0.01, 3.0


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One random run."""

    seed: int
    setup: Setup
    strikes: tuple[Strike, ...]


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """An episode in which something happened that must never happen, with the shortest faults that do it."""

    seed: int
    problem: str
    strikes: tuple[Strike, ...]


def episode(seed: int) -> Episode:
    """The episode of a seed."""
    rng = random.Random(seed)  # noqa: S311 - a seed that replays, not a secret
    seats, spares = rng.randint(1, 6), rng.randint(0, 2)
    nodes = rng.choice([0, 0, seats, 40])
    until = rng.randint(20, 80)
    tiers: tuple[Tier, ...] = ()
    if _chance(rng, 0.8):
        store = Tier(write_s=rng.uniform(0, 5), read_s=rng.uniform(0, 2), every=rng.randint(1, 3))
        near = Tier(name="memory", survives=rng.choice([Scope.PROCESS, Scope.NODE]), write_s=rng.uniform(0, 1))
        tiers = (near, store) if store.every > 1 or _chance(rng, 0.5) else (store,)
    setup = Setup(
        settings=Settings(
            seats=seats, spares=spares, limits=_limits(rng), deadlines=_DEADLINES, tries_per_rung=rng.randint(1, 3)
        ),
        timing=_timing(rng),
        step_s=rng.uniform(0.2, 4),
        until=until,
        horizon_s=_HORIZON_S,
        replicated=_chance(rng, 0.6),
        tiers=tiers,
        every=rng.choice([EverySteps(steps=rng.randint(1, 9)), EverySeconds(seconds=rng.uniform(1, 30)), None]),
        pause_s=rng.choice([0.0, rng.uniform(0, 2)]),
        distrust_s=rng.uniform(0, 60),
        nodes=nodes,
        spare_nodes=rng.randint(0, 3) if nodes else 0,
        every_step=_chance(rng, 0.5),
    )
    strikes = sorted((_strike(rng, setup) for _ in range(rng.randint(1, 10))), key=lambda strike: strike.at_s)
    return Episode(seed=seed, setup=setup, strikes=tuple(strikes))


def _chance(rng: random.Random, share: float) -> bool:
    return rng.random() < share


def _delay_s(rng: random.Random) -> float:
    return rng.choice([0.0, rng.uniform(_FASTEST_S, _SLOWEST_S)])


def _limits(rng: random.Random) -> Limits:
    return Limits(
        start_restarts=rng.randint(0, 3),
        cold_restarts=rng.randint(0, 6),
        same_cause=Intensity(most=rng.randint(1, 6), period_s=600.0),
        incidents=Intensity(most=rng.randint(2, 20), period_s=3600.0),
    )


def _timing(rng: random.Random) -> Timing:
    drawn: dict[str, Any] = {name: _delay_s(rng) for name in Timing.__struct_fields__}
    notice_s = None if _chance(rng, 0.3) else drawn["detect_s"] * rng.uniform(0, 1.5)
    return Timing(**{**drawn, "notice_s": notice_s})


def _strike(rng: random.Random, setup: Setup) -> Strike:
    nodes = setup.nodes + setup.spare_nodes
    kind = rng.choice(list(Kind))
    first = rng.randrange(nodes) if nodes else 0
    count = rng.choice([2, 3, nodes]) if kind is Kind.DOMAIN else 1
    return Strike(
        at_s=rng.uniform(0, _FAULTY_S),
        kind=kind,
        seat=rng.randrange(setup.settings.seats),
        nodes=tuple(range(first, min(first + count, nodes))),
        lasts_s=rng.uniform(0, 90),
        factor=rng.uniform(1, 6),
        notice_s=rng.uniform(0, 5),
        step=rng.randrange(setup.until) if setup.until else 0,
    )


def play(setup: Setup, strikes: Sequence[Strike]) -> Outcome:
    """Run an episode to its end.

    Raises:
        AssertionError: an invariant is broken, or the run neither completed nor stopped by itself.
    """
    outcome = World(setup, strikes).run()
    if outcome.outcome == "stopped":
        raise InvariantBroken(f"neither progress nor an end within {outcome.wall_s:g} s; {outcome.steps} steps closed")
    if not outcome.reason:
        raise InvariantBroken("the run ended without a reason")
    return outcome


def problem_of(setup: Setup, strikes: Sequence[Strike]) -> str:
    """What breaks in an episode; empty when all holds."""
    try:
        play(setup, strikes)
    except InvariantBroken as error:
        return str(error)
    except _DEFECTS as error:
        return f"{type(error).__name__}: {error}"
    return ""


def storm(seed: int) -> Outcome | Broken:
    """The episode of a seed: how it ended, or what broke and by which faults."""
    drawn = episode(seed)
    try:
        return play(drawn.setup, drawn.strikes)
    except _DEFECTS:
        pass
    least = shrink(drawn.strikes, lambda strikes: bool(problem_of(drawn.setup, strikes)))
    return Broken(seed=seed, problem=problem_of(drawn.setup, least), strikes=tuple(least))


def shrink(strikes: Sequence[Strike], fails: Callable[[Sequence[Strike]], bool]) -> list[Strike]:
    """The shortest list that still fails and of which no single fault can be left out.

    Source: delta debugging (Zeller and Hildebrandt 2002), ddmin.
    """
    left, size = list(strikes), max(1, len(strikes) // 2)
    while left:
        for start in range(0, len(left), size):
            fewer = left[:start] + left[start + size :]
            if fails(fewer):
                left, size = fewer, min(size, max(1, len(fewer) // 2))
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return left
