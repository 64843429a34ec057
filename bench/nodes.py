"""Kill one of two nodes while a third waits: how long until all ranks complete a new step; and kill the coordinator.

Nodes are network namespaces on one bridge. The same training script (4.9 million parameters, DDP, AdamW, two ranks a
node) runs under each launcher in the same namespaces, and the same log tells when all ranks have completed one step
after the kill. The others restart it from the beginning, without reading a checkpoint, which is the fastest that they
can be. Of them the node that is killed is never the one with their store: their job dies with it.

"killed" means SIGKILL to every process of the node at one instant: its kernel closes the connections. "without power"
means that the link goes down first, so that nobody hears of it.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from _common import Bar, Bench, at_least, at_most, control, interleaved, ratio_of_medians, spelled
from _nodes_sides import (
    NODES,
    NVRX_PYTHON,
    SEATED,
    SPARE,
    Place,
    Side,
    closeranks_side,
    ft_launcher_side,
    nvrx_python,
    torchrun_side,
)
from recovery import STEPS_BEFORE, Line, first_new_step, read_logs, steps_lost, tail, wait_for

from closeranks.drill.nodes.namespaces import NamespaceStand, why_not

VICTIM = SEATED[1]
START_LIMIT_S = 120.0
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
    victims = frozenset(place.stand.pids(VICTIM))
    killed = Line(step=0, pid=NOBODY, mono_s=time.monotonic())
    if power:
        place.stand.power_off(VICTIM)
    else:
        place.stand.kill(VICTIM)
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


def without(logs: list[list[Line]], pids: frozenset[int], since_s: float) -> list[list[Line]]:
    """The logs without what the processes wrote after that time."""
    return [[line for line in log if line.pid not in pids or line.mono_s <= since_s] for log in logs]
