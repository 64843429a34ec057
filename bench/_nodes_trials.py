"""What bench/nodes.py measures: the loss of a node, and the loss of the coordinator's process."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _nodes_sides import NODES, SEATED, SPARE, Place, Side, closeranks_side, events_of, leading_node
from recovery import STEPS_BEFORE, Line, first_new_step, read_logs, steps_lost, tail, wait_for

from closeranks.drill.nodes.namespaces import NamespaceStand
from closeranks.drill.nodes.strikes import coordinator_on
from closeranks.events import CoordinatorFollowed

STEPS_AFTER = 12  # completed on all ranks after the new coordinator has taken over
START_LIMIT_S = 300.0
RECOVERY_LIMIT_S = 120.0
NOBODY = 0  # no process: what the victims wrote was taken out before
Found = dict[str, float]  # what one trial found, by name


class NotStarted(Exception):
    """The ranks of a side did not train before anything was done to them; with the ends of all outputs."""


def lose_node(side: Side, *, power: bool = False) -> Found | None:
    """Start, lose a node, wait, end; None if the ranks did not come back in time."""
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    with NamespaceStand(NODES) as stand:
        place = Place(stand, folder)
        begin(side, place)
        found = strike(side, place, power=power)
    if found is not None:
        shutil.rmtree(folder)  # else the output is there to be read
    return found


def kill_coordinator() -> Found | None:
    """The longest step from the kill on, over the median step before it; None if nobody took over."""
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    with NamespaceStand(NODES) as stand:
        place = Place(stand, folder)
        calm_s = begin(closeranks_side(), place)
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
    return {"longest_over_median": longest_over_median(step_times(logs), calm_s, killed_s)}


def begin(side: Side, place: Place) -> float:
    """Return once all ranks train and the spare node waits; since when it did."""
    side.start_seated(place)
    if not side.late:
        wait_until(lambda: side.spare_may_come(place), place)
        side.start(place, SPARE)
        wait_until(lambda: side.spare_waits(place), place)
    calm_s = time.monotonic()
    steps = STEPS_BEFORE + len(read_logs(place.folder)[0])  # the start of the spare node took time from those before
    wait_until(lambda: all(len(log) >= steps for log in read_logs(place.folder)), place)
    return calm_s


def wait_until(condition: Callable[[], bool], place: Place) -> None:
    """Wait while the nodes live.

    Raises:
        NotStarted: not in time, or a node ended.
    """
    wait_for(lambda: condition() or not all(map(place.stand.pids, SEATED)), START_LIMIT_S)
    if not condition():
        logs = "\n".join(f"{path.name}:\n{tail(path)}" for path in sorted(place.folder.glob("*.log")))
        raise NotStarted(f"the run did not start; the ends of its outputs:\n{logs}")


def strike(side: Side, place: Place, *, power: bool) -> Found | None:
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
    return {"took_s": first[1] - killed.mono_s, "steps_lost": steps_lost(logs, killed, first[0])}


def epochs(place: Place) -> int:
    """How many coordinators the first node has followed."""
    return sum(isinstance(event, CoordinatorFollowed) for event in events_of(place, SEATED[0]))


def step_times(logs: list[list[Line]]) -> list[float]:
    """When all ranks had completed each step."""
    ends = [{line.step: line.mono_s for line in log} for log in logs]
    common = sorted(set.intersection(*(set(times) for times in ends)))
    return [max(times[step] for times in ends) for step in common]


def longest_over_median(ends_s: list[float], calm_s: float, killed_s: float) -> float:
    """Of steps that ended after the kill the longest, over the median of those in the calm before it."""
    spans = [(end_s, end_s - begin_s) for begin_s, end_s in itertools.pairwise(ends_s) if begin_s > calm_s]
    usual_s = statistics.median(took_s for end_s, took_s in spans if end_s <= killed_s)
    return max(took_s for end_s, took_s in spans if end_s > killed_s) / usual_s


def without(logs: list[list[Line]], pids: frozenset[int], since_s: float) -> list[list[Line]]:
    """The logs without what the processes wrote after that time."""
    return [[line for line in log if line.pid not in pids or line.mono_s <= since_s] for log in logs]
