"""Kill one of two nodes while a third waits: how long until all ranks complete a new step; and kill the coordinator.

Nodes are network namespaces on one bridge. The same training script (4.9 million parameters, DDP, AdamW, two ranks a
node) runs under each launcher in the same namespaces, and the same log tells when all ranks have completed one step
after the kill. The others restart it from the beginning, without reading a checkpoint, which is the fastest that they
can be. Of them the node that is killed is never the one with their store: their job dies with it.

"killed" means SIGKILL to every process of the node at one instant: its kernel closes the connections. "without power"
means that the link goes down first, so that nobody hears of it.

Every trial is told on standard error as it ends, every round is summed up, and so is what was measured when Ctrl-C or
SIGTERM ends the bench. With --into FILE rounds may be spread over several calls: what the file holds counts.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from _common import Bar, Bench, at_least, at_most, interleaved, ratio_of_medians, spelled
from _nodes_sides import NVRX_PYTHON, closeranks_side, ft_launcher_side, nvrx_python, torchrun_side
from _nodes_trials import Found, NotStarted, kill_coordinator, lose_node

from closeranks.drill.nodes.namespaces import why_not

ROUNDS = 5
OURS, AGAIN, COORDINATOR = "closeranks", "closeranks again", "coordinator's process killed"
QUICK = (OURS, "torchrun, third node waits", COORDINATOR)  # one round of them takes less than 3 minutes
Trial = Callable[[], Found | None]


class Measured:
    """What all trials have found so far, in this call and, with a file, in those before."""

    def __init__(self, into: Path | None) -> None:
        self.found: dict[str, list[Found | None]] = {}
        self._into = into
        if into is not None and into.exists():
            for line in into.read_text().splitlines():
                self._add(**json.loads(line))

    def told(self, trials: Mapping[str, Trial]) -> dict[str, Callable[[], None]]:
        """The trials, each of which says how it ends, and is kept."""
        return {name: lambda name=name, trial=trial: self._tell(name, trial) for name, trial in trials.items()}

    def values(self, name: str, what: str) -> list[float]:
        """What the trials of a name found, without those that found nothing."""
        return [found[what] for found in self.found.get(name, []) if found is not None and what in found]

    def never(self, name: str) -> int:
        """How many of its trials found nothing: the ranks did not come back in time."""
        return self.found.get(name, []).count(None)

    def _tell(self, name: str, trial: Trial) -> None:
        began_s = time.monotonic()
        sys.stderr.write(f"{time.strftime('%T')} {name} ...\n")
        try:
            found = trial()
        except NotStarted as problem:
            if name.startswith(OURS) or name == COORDINATOR:
                raise
            sys.stderr.write(f"{time.strftime('%T')} {name}: left out: {problem}\n")
            return
        self._add(name, found)
        if self._into is not None:
            with self._into.open("a") as into:
                into.write(json.dumps({"trial": name, "found": found}) + "\n")
        said = ", ".join(f"{what} {value:.3g}" for what, value in found.items()) if found else "never came back"
        sys.stderr.write(f"{time.strftime('%T')} {name}: {said} (the trial took {time.monotonic() - began_s:.0f} s)\n")

    def _add(self, trial: str, found: Found | None) -> None:
        self.found.setdefault(trial, []).append(found)


def trials_of(bench: Bench) -> dict[str, Trial]:
    """Ours, and the others as far as they are here."""
    sides = {
        OURS: closeranks_side(),
        AGAIN: closeranks_side(),
        "closeranks, the coordinator's node": closeranks_side(leader=True),
        "torchrun, third node waits": torchrun_side(late=False),
        "torchrun, third node started at the kill": torchrun_side(late=True),
        "torchrun as it comes, with its store shared, third node waits": torchrun_side(late=False, shared_store=True),
    }
    if nvrx_python() is None:
        bench.say(f"nvidia-resiliency-ext: not measured; name a Python that can import it in {NVRX_PYTHON}")
    else:
        sides["ft_launcher, third node waits"] = ft_launcher_side(late=False)
        sides["ft_launcher, third node started at the kill"] = ft_launcher_side(late=True)
    trials: dict[str, Trial] = {name: lambda side=side: lose_node(side) for name, side in sides.items()}
    trials["closeranks, without power"] = lambda: lose_node(closeranks_side(), power=True)
    trials[COORDINATOR] = kill_coordinator
    chosen = bench.options.only or (QUICK if bench.options.quick else trials)
    return {name: trial for name, trial in trials.items() if name in chosen}


def best_peer(measured: Measured) -> list[float]:
    """The times of the peer that came back fastest, among those that came back by themselves in every trial."""
    names = [name for name in measured.found if not name.startswith(OURS) and not measured.never(name)]
    times = [took_s for name in names if (took_s := measured.values(name, "took_s"))]
    return min(times, key=statistics.median, default=[])


def bars_of(measured: Measured) -> list[Bar]:
    """The promises of this bench."""
    fastest, ours = best_peer(measured), measured.values(OURS, "took_s")
    lost = [steps for name in measured.found if name.startswith(OURS) for steps in measured.values(name, "steps_lost")]
    longest = measured.values(COORDINATOR, "longest_over_median")
    return [
        at_least(
            "best peer's median over ours, a node killed while a spare one waits",
            ratio_of_medians(fastest, ours).value if fastest and ours else None,
            4,
        ),
        at_most("steps lost by closeranks", max(lost, default=None), 0),
        at_most(
            "longest step after the coordinator was killed, over the median step",
            None if measured.never(COORDINATOR) else max(longest, default=None),
            3,
        ),
    ]


def sum_up(bench: Bench, measured: Measured) -> None:
    """What has been measured so far."""
    for name in sorted(measured.found):
        if name != COORDINATOR:
            lost = sorted({int(steps) for steps in measured.values(name, "steps_lost")})
            took = spelled(measured.values(name, "took_s"), "s")
            bench.say(f"{name}: kill to new step {took}, steps lost {lost}, never came back {measured.never(name)}")
    ours, again, fastest = measured.values(OURS, "took_s"), measured.values(AGAIN, "took_s"), best_peer(measured)
    if ours and again:
        bench.say(f"control, closeranks over closeranks again: {ratio_of_medians(ours, again)}")
    if ours and fastest:
        bench.say(f"best peer over closeranks: {ratio_of_medians(fastest, ours)}")
    longest = spelled(measured.values(COORDINATOR, "longest_over_median"), "medians")
    bench.say(f"{COORDINATOR}: longest step {longest}, nobody took over {measured.never(COORDINATOR)}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Beside those of all benches."""
    parser.add_argument("--rounds", type=int, help=f"of all trials (default {ROUNDS}, with --quick 1)")
    parser.add_argument("--only", action="append", metavar="TRIAL", help="this trial, by its full name; repeatable")
    parser.add_argument("--into", type=Path, metavar="FILE", help="keep results there; what it holds counts")


def leave(_signum: int, _frame: object) -> NoReturn:
    """As with Ctrl-C: nodes are ended and what was measured is said."""
    raise KeyboardInterrupt


def main() -> int:
    """Measure, compare, judge."""
    bench = Bench("nodes", __doc__ or "", add_options)
    measured = Measured(bench.options.into)
    if problem := why_not():
        bench.say(f"network namespaces cannot be used here: {problem}")
        return bench.finish(bars_of(measured))
    signal.signal(signal.SIGTERM, leave)
    trials = measured.told(trials_of(bench))
    rounds = bench.options.rounds or (1 if bench.options.quick else ROUNDS)
    try:
        for number in range(rounds):
            bench.say(f"round {number + 1} of {rounds}: {len(trials)} trials")
            interleaved(trials, 1, bench.options.seed + number)
            sum_up(bench, measured)
    except KeyboardInterrupt:
        bench.say("interrupted; until then:")
        sum_up(bench, measured)
    return bench.finish(bars_of(measured))


if __name__ == "__main__":
    sys.exit(main())
