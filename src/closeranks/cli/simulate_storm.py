"""``closeranks simulate --storm``: random episodes until one breaks an invariant, or for as long as was asked."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator

import msgspec
import typer
from rich.console import Console

from closeranks.cli.simulate import BROKEN, INTERRUPTED
from closeranks.simulate.storm import Broken, storm

_SHOWN_S = 0.5


class Storms(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the episodes."""

    episodes: int
    first_seed: int
    outcomes: dict[str, int]
    rungs: dict[str, int]
    facts: int
    took_s: float
    broken: Broken | None = None


def storms(seed: int, count: int, *, as_json: bool) -> None:
    """Play episodes from this seed on; ``count`` 0: until an interrupt. The first one that breaks ends it."""
    console = Console(stderr=True)
    began_s, interrupted = time.monotonic(), False
    outcomes: Counter[str] = Counter()
    rungs: Counter[str] = Counter()
    facts, broken = 0, None
    shown_s = 0.0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as timeout(1) ends a night
    try:
        with console.status("storm") as status:
            for number in _seeds(seed, count):
                found = storm(number)
                if isinstance(found, Broken):
                    broken = found
                    break
                outcomes[found.outcome] += 1
                rungs.update(found.rungs)
                facts += found.facts
                if time.monotonic() - shown_s > _SHOWN_S:
                    shown_s = time.monotonic()
                    status.update(f"{outcomes.total():,} episodes, {facts:,} facts, seed {number}: nothing broken")
    except KeyboardInterrupt:
        interrupted = True
    told = Storms(
        episodes=outcomes.total() + (broken is not None),
        first_seed=seed,
        outcomes=dict(outcomes),
        rungs=dict(sorted(rungs.items())),
        facts=facts,
        took_s=time.monotonic() - began_s,
        broken=broken,
    )
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
    else:
        _show(Console(), told)
    if broken is not None:
        raise typer.Exit(BROKEN)
    if interrupted and count:
        raise typer.Exit(INTERRUPTED)


def _seeds(seed: int, count: int) -> Iterator[int]:
    return iter(range(seed, seed + count)) if count else itertools.count(seed)


def _show(console: Console, told: Storms) -> None:
    ended = ", ".join(f"{count} {outcome}" for outcome, count in told.outcomes.items())
    console.print(
        f"{told.episodes:,} episodes from seed {told.first_seed} in {told.took_s:.1f} s, {told.facts:,} facts: {ended}",
        highlight=False,
    )
    console.print(", ".join(f"{rung} {count:,}" for rung, count in told.rungs.items()), highlight=False)
    if told.broken is None:
        console.print("[green]no invariant broke[/]")
        return
    broken = told.broken
    console.print(f"[bold red]seed {broken.seed} broke an invariant[/]: {broken.problem}", highlight=False)
    console.print("the shortest list of faults that does it:")
    for strike in broken.strikes:
        nodes = f", nodes {list(strike.nodes)}" if strike.nodes else ""
        line = f"  {strike.at_s:9.3f} s  {strike.kind} of seat {strike.seat}{nodes}, lasts {strike.lasts_s:.3f} s"
        console.print(line, highlight=False, markup=False)
    console.print(f"replay: closeranks simulate --storm 1 --seed {broken.seed}", highlight=False, markup=False)
