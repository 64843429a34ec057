"""Kill one of two nodes while a third waits: how long until all ranks complete a new step; and kill the coordinator.

Nodes are network namespaces on one bridge. The same training script (4.9 million parameters, DDP, AdamW, two ranks a
node) runs under each launcher in the same namespaces, and the same log tells when all ranks have completed one step
after the kill. The others restart it from the beginning, without reading a checkpoint, which is the fastest that they
can be. Of them the node that is killed is never the one with their store: their job dies with it.

"killed" means SIGKILL to every process of the node at one instant: its kernel closes the connections. "without power"
means that the link goes down first, so that nobody hears of it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from _common import Bar, Bench, at_least, at_most, interleaved, ratio_of_medians, spelled
from _nodes_sides import (
    NODES,
    NVRX_PYTHON,
    SEATED,
    SPARE,
    Place,
    Side,
    closeranks_side,
    events_of,
    ft_launcher_side,
    leading_node,
    nvrx_python,
    torchrun_side,
)
from recovery import STEPS_BEFORE, Line, first_new_step, read_logs, steps_lost, tail, wait_for

from closeranks.drill.nodes.namespaces import NamespaceStand, why_not
from closeranks.drill.nodes.strikes import coordinator_on
from closeranks.events import CoordinatorFollowed

STEPS_AFTER = 12  # completed on all ranks after the new coordinator has taken over
START_LIMIT_S = 300.0
RECOVERY_LIMIT_S = 90.0
NOBODY = 0  # no process: what the victims wrote was taken out before


class Recovery(NamedTuple):
    """One loss of a node."""

    took_s: float
    steps_lost: int


def measure(side: Side, *, power: bool) -> Recovery | None:
    """Start, lose a node, wait, end; None if the ranks did not come back in time."""
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    with NamespaceStand(NODES) as stand:
        place = Place(stand, folder)
        begin(side, place)
        recovery = lose_node(side, place, power=power)
    if recovery is not None:
        shutil.rmtree(folder)  # else the output is there to be read
    return recovery


def begin(side: Side, place: Place) -> None:
    """Return once all ranks train and the spare node waits."""
    side.start_seated(place)
    steps = STEPS_BEFORE
    wait_until(lambda: all(len(log) >= steps for log in read_logs(place.folder)), place)
    if not side.late:
        side.start(place, SPARE)  # not before: with others any two nodes that are there begin
        wait_until(lambda: side.spare_waits(place), place)
        steps += len(read_logs(place.folder)[0])  # a few more: the start of the spare node took time from the steps
        wait_until(lambda: all(len(log) >= steps for log in read_logs(place.folder)), place)


def wait_until(condition: Callable[[], bool], place: Place) -> None:
    """Wait while the nodes live.

    Raises:
        RuntimeError: not in time, or a node ended; with the ends of all outputs.
    """
    wait_for(lambda: condition() or not all(map(place.stand.pids, SEATED)), START_LIMIT_S)
    if not condition():
        logs = "\n".join(f"{path.name}:\n{tail(path)}" for path in sorted(place.folder.glob("*.log")))
        raise RuntimeError(f"the run did not start; the ends of its outputs:\n{logs}")


def lose_node(side: Side, place: Place, *, power: bool) -> Recovery | None:
    """Kill the victim; a launcher without a waiting node gets its replacement at once."""
    victim = side.victim(place)
    victims = frozenset(place.stand.pids(victim))
    killed = Line(step=0, pid=NOBODY, mono_s=time.monotonic())
    if power:
        place.stand.power_off(victim)
    else:
        place.stand.kill(victim)
    if side.late:
        side.start(place, SPARE)

    def found() -> tuple[int, float] | None:
        return first_new_step(without(read_logs(place.folder), victims, killed.mono_s), killed)

    wait_for(lambda: found() is not None, RECOVERY_LIMIT_S)
    first = found()
    if first is None:
        return None
    logs = without(read_logs(place.folder), victims, killed.mono_s)
    return Recovery(first[1] - killed.mono_s, steps_lost(logs, killed, first[0]))


def kill_coordinator() -> float | None:
    """The longest step from the kill on, over the median step before it; None if nobody took over."""
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    with NamespaceStand(NODES) as stand:
        place = Place(stand, folder)
        begin(closeranks_side(), place)
        killed_s = time.monotonic()
        for pid in coordinator_on(stand, leading_node(place)):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: epochs(place) > 1, RECOVERY_LIMIT_S)
        until = max(line.step for log in read_logs(folder) for line in log) + STEPS_AFTER
        wait_for(lambda: all(log[-1].step >= until for log in read_logs(folder)), RECOVERY_LIMIT_S)
        took_over, logs = epochs(place) > 1, read_logs(folder)
    if not took_over:
        return None
    shutil.rmtree(folder)
    return longest_over_median(step_times(logs), killed_s)


def epochs(place: Place) -> int:
    """How many coordinators the first node has followed."""
    return sum(isinstance(event, CoordinatorFollowed) for event in events_of(place, SEATED[0]))


def step_times(logs: list[list[Line]]) -> list[float]:
    """When all ranks had completed each step."""
    ends = [{line.step: line.mono_s for line in log} for log in logs]
    common = sorted(set.intersection(*(set(times) for times in ends)))
    return [max(times[step] for times in ends) for step in common]


def longest_over_median(ends_s: list[float], killed_s: float) -> float:
    """Of steps that ended after the kill the longest, over the median of those before it."""
    spans = list(itertools.pairwise(ends_s))
    usual_s = statistics.median(end_s - begin_s for begin_s, end_s in spans if end_s <= killed_s)
    return max(end_s - begin_s for begin_s, end_s in spans if end_s > killed_s) / usual_s


def without(logs: list[list[Line]], pids: frozenset[int], since_s: float) -> list[list[Line]]:
    """The logs without what the processes wrote after that time."""
    return [[line for line in log if line.pid not in pids or line.mono_s <= since_s] for log in logs]


def best(peers: dict[str, list[Recovery]]) -> list[float]:
    """The times of the peer that came back fastest, among those that came back by themselves in every round."""
    most = max(map(len, peers.values()), default=0)
    times = [[recovery.took_s for recovery in found] for found in peers.values() if found and len(found) == most]
    return min(times, key=statistics.median, default=[])


Results = dict[str, list[Recovery]]


def bars_of(results: Results, peers: Results, longest: list[float | None]) -> list[Bar]:
    """The promises of this bench."""
    fastest, times = best(peers), [recovery.took_s for recovery in results.get("closeranks", [])]
    lost = [one.steps_lost for name, found in results.items() if name.startswith("closeranks") for one in found]
    ratio = ratio_of_medians(fastest, times).value if fastest and times else None
    known = [value for value in longest if value is not None]
    return [
        at_least("best peer's median over ours, a node killed while a spare one waits", ratio, 4),
        at_most("steps lost by closeranks", max(lost, default=None), 0),
        at_most(
            "longest step after the coordinator was killed, over the median step",
            max(known) if len(known) == len(longest) else None,
            3,
        ),
    ]


def sides_of(bench: Bench) -> dict[str, Side]:
    """Ours, and the others as far as they are here."""
    sides = {"closeranks": closeranks_side(), "closeranks again": closeranks_side()}
    sides["torchrun, third node waits"] = torchrun_side(late=False)
    sides["torchrun, third node started at the kill"] = torchrun_side(late=True)
    if nvrx_python() is None:
        bench.say(f"nvidia-resiliency-ext: not measured; name a Python that can import it in {NVRX_PYTHON}")
    else:
        sides["ft_launcher, third node waits"] = ft_launcher_side(late=False)
        sides["ft_launcher, third node started at the kill"] = ft_launcher_side(late=True)
    return sides


def main() -> int:
    """Measure, compare, judge."""
    bench = Bench("nodes", __doc__ or "")
    if problem := why_not():
        bench.say(f"network namespaces cannot be used here: {problem}")
        return bench.finish(bars_of({}, {}, [None]))
    rounds = 1 if bench.options.quick else 5
    sides = sides_of(bench)
    trials = {name: lambda side=side: measure(side, power=False) for name, side in sides.items()}
    trials["closeranks, the coordinator's node"] = lambda: measure(closeranks_side(leader=True), power=False)
    trials["closeranks, without power"] = lambda: measure(closeranks_side(), power=True)
    if not bench.options.quick:
        name = "torchrun with the store shared, as is its default, third node waits"
        trials[name] = lambda: measure(torchrun_side(late=False, shared_store=True), power=False)
    measured = interleaved(trials | {"coordinator": kill_coordinator}, rounds, bench.options.seed)
    longest = measured.pop("coordinator")
    results = {name: [recovery for recovery in all_of if recovery] for name, all_of in measured.items()}
    for name, recoveries in results.items():
        lost = sorted({recovery.steps_lost for recovery in recoveries})
        never = len(measured[name]) - len(recoveries)
        took_s = [recovery.took_s for recovery in recoveries]
        bench.say(f"{name}: kill to new step {spelled(took_s, 's')}, steps lost {lost}, never came back {never}")
    again = [recovery.took_s for recovery in results["closeranks again"]]
    ours = [recovery.took_s for recovery in results["closeranks"]]
    if ours and again:
        bench.say(f"control, closeranks over closeranks again: {ratio_of_medians(ours, again)}")
    bench.say(f"coordinator killed, longest step over the median: {[value and round(value, 2) for value in longest]}")
    peers = {name: found for name, found in results.items() if name in sides and not name.startswith("closeranks")}
    return bench.finish(bars_of(results, peers, longest))


if __name__ == "__main__":
    sys.exit(main())
