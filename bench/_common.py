"""The common form of all benches: interleaved sides, an A/A control, medians, spread, bounds, one JSON line."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

RESAMPLES = 2000
_NOT_RESOLVED = 3  # unknown, as of drills
Parser = argparse.ArgumentParser


class Bar(NamedTuple):
    """A promise with a number; ``value`` is None where it could not be measured, which never holds."""

    name: str
    value: float | None
    bar: float
    holds: bool
    resolved: bool = True  # False: it may hold or not, the measurement cannot tell; then it counts as not held


def at_most(name: str, value: float | None, bar: float) -> Bar:
    """A bar that holds from below."""
    return Bar(name, value, bar, value is not None and value <= bar)


def at_least(name: str, value: float | None, bar: float) -> Bar:
    """A bar that holds from above."""
    return Bar(name, value, bar, value is not None and value >= bar)


def surely_at_most(name: str, values: Sequence[float], bar: float) -> Bar:
    """A bar for the median of ``values``: it holds, or fails, only if the 95 % bounds of that lie on one side of it."""
    if not values:
        return Bar(name, None, bar, holds=False, resolved=False)
    low, high = median_bounds(values)
    return Bar(name, statistics.median(values), bar, holds=high <= bar, resolved=high <= bar or low > bar)


class Bench:
    """Prints for people, or with ``--json`` for programs only; ends with the bars."""

    def __init__(self, name: str, description: str, add_options: Callable[[Parser], None] | None = None) -> None:
        """``add_options`` gives the parser what this bench alone needs."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--quick", action="store_true", help="fewer repetitions, under a minute")
        parser.add_argument("--json", action="store_true", help="print the JSON line alone")
        parser.add_argument("--seed", type=int, default=0, help="of seats and orders drawn")
        if add_options is not None:
            add_options(parser)
        self.name = name
        self.options = parser.parse_args()

    def say(self, *words: object) -> None:
        """A line for people."""
        print(*words, file=sys.stderr if self.options.json else sys.stdout, flush=True)

    def finish(self, bars: Sequence[Bar]) -> int:
        """Print the bars, last the JSON line; the exit status: 0 all hold, 1 one fails, 3 one could not be told."""
        for bar in bars:
            value = "not measured" if bar.value is None else f"{bar.value:.4g}"
            word = "holds" if bar.holds else "FAILS" if bar.resolved else "NOT RESOLVED"
            self.say(f"{word}  {bar.name}: {value} (bar {bar.bar:g})")
        print(json.dumps({"bench": self.name, "bars": [bar._asdict() for bar in bars]}), flush=True)
        if bars and all(bar.holds for bar in bars):
            return 0
        return _NOT_RESOLVED if bars and all(bar.holds or not bar.resolved for bar in bars) else 1


def interleaved(sides: Mapping[str, Callable[[], Any]], rounds: int, seed: int) -> dict[str, list[Any]]:
    """Measure every side once a round, in an order drawn anew each round, so that drift hits all alike."""
    draw = random.Random(seed)
    results: dict[str, list[Any]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name in draw.sample(list(sides), len(sides)):
            results[name].append(sides[name]())
    return results


def spelled(values: Sequence[float], unit: str, scale: float = 1.0) -> str:
    """Median and range, e.g. ``0.57 s (0.55 to 0.61, n=5)``."""
    if not values:
        return "not measured"
    low, middle, high = (scale * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.4g} {unit} ({low:.4g} to {high:.4g}, n={len(values)})"


class Ratio(NamedTuple):
    """A ratio of medians with its 95 % bootstrap bounds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """For example ``9.12 (8.30 to 9.90)``."""
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def ratio_of_medians(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Ratio:
    """median(above) / median(below); both are resampled independently."""
    draw = random.Random(seed)
    ratios = sorted(
        statistics.median(draw.choices(above, k=len(above))) / statistics.median(draw.choices(below, k=len(below)))
        for _ in range(RESAMPLES)
    )
    cut = RESAMPLES // 40
    return Ratio(statistics.median(above) / statistics.median(below), ratios[cut], ratios[-cut - 1])


def median_bounds(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap bounds of the median."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = RESAMPLES // 40
    return medians[cut], medians[-cut - 1]


def control(values: Sequence[float]) -> Ratio:
    """The A/A control: one side against itself, its odd measurements over its even ones; 1 where nothing drifts."""
    return ratio_of_medians(values[1::2] or values, values[::2])
