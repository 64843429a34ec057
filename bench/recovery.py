"""Kill one of 4 ranks: how long until all ranks complete a new step, under closeranks and under others.

The same training script (4.9 million parameters, DDP, AdamW) runs under each launcher, a random rank gets SIGKILL
from outside, and the same log tells when all ranks have completed one step after it. Others restart it from the
beginning, without reading a checkpoint, which is the fastest that they can be.

torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: without it, torch 2.13 did not come back at all (restarted
ranks read the addresses of the dead ones from the shared store, pytorch issues 135712 and 167288).
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from _common import Bar, Bench, at_least, at_most, control, interleaved, ratio_of_medians, spelled

from closeranks import journal
from closeranks.events import Phase, PhaseBegan, ProcessReady, Record, StepClosed
from closeranks.run.descendants import descendants, read_stat, read_table

SEATS = 4
STEPS_BEFORE = 6  # completed on all ranks before the kill; buckets have settled, caches are warm
START_LIMIT_S = 90.0
RECOVERY_LIMIT_S = 90.0
POLL_S = 0.02  # of files; all times that count are written into them by the ranks
WORKER = Path(__file__).with_name("_recovery_worker.py")
TORCHFT_LAUNCHER = Path(__file__).with_name("_torchft_launcher.py")
OTHERS = {"torchft": "torchft", "nvidia-resiliency-ext": "nvidia_resiliency_ext"}


class Line(NamedTuple):
    """A step that a rank completed."""

    step: int
    pid: int
    mono_s: float


class Side(NamedTuple):
    """A launcher. ``spares``: warmed processes to wait for before the kill."""

    command: Callable[[Path], list[str]]
    worker: str = "closeranks"
    spares: int = 0
    environment: tuple[tuple[str, str], ...] = ()


class Recovery(NamedTuple):
    """One kill. ``phases_s`` is empty where nothing tells them; "step" is the first new step's own time."""

    took_s: float
    steps_lost: int
    phases_s: dict[str, float]


def closeranks_side(spares: int) -> Side:
    """``closeranks run``."""

    def command(folder: Path) -> list[str]:
        launcher = [sys.executable, "-m", "closeranks", "run", "--nproc-per-node", str(SEATS)]
        return [*launcher, "--spares", str(spares), "--view", "text", "--run-dir", str(folder / "run")]

    return Side(command, spares=spares)


def torchrun_side() -> Side:
    """``torchrun`` as it is able to recover."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(SEATS)]
    rendezvous = ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--max-restarts", "3"]
    unshared = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    return Side(lambda _: [*launcher, *rendezvous], "plain", environment=(unshared, ("OMP_NUM_THREADS", "1")))


def ft_launcher_side() -> Side:
    """The launcher of nvidia-resiliency-ext with its defaults."""
    launcher = ["ft_launcher", "--nproc-per-node", str(SEATS), "--nnodes", "1", "--max-restarts", "3"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    return Side(lambda _: [*launcher, *rendezvous], "plain", environment=(("OMP_NUM_THREADS", "1"),))


def torchft_side() -> Side:
    """What torchft does by default: a lighthouse, and each rank a replica under a torchrun of its own."""
    return Side(lambda _: [sys.executable, str(TORCHFT_LAUNCHER), str(SEATS)], "torchft")


OTHER_SIDES = {"torchft": torchft_side, "nvidia_resiliency_ext": ft_launcher_side}


def read_logs(folder: Path) -> list[list[Line]]:
    """What each rank has completed, a list for each; a line that is being written is left for the next time."""
    logs = []
    for rank in range(SEATS):
        path = folder / f"rank{rank}"
        lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        logs.append([Line(int(step), int(pid), float(mono_s)) for step, pid, mono_s in map(str.split, lines)])
    return logs


def first_new_step(logs: list[list[Line]], killed: Line) -> tuple[int, float] | None:
    """The first step that all ranks completed after the kill, and when the last of them did; None: not yet.

    ``killed.mono_s`` is the time of the kill. What the victim's own process wrote does not count.
    """
    after = [
        {line.step: line.mono_s for line in reversed(log) if line.mono_s > killed.mono_s and line.pid != killed.pid}
        for log in logs
    ]
    common = set.intersection(*(set(times) for times in after))
    ends = [(max(times[step] for times in after), step) for step in common]
    return (min(ends)[1], min(ends)[0]) if ends else None


def steps_lost(logs: list[list[Line]], killed: Line, new_step: int) -> int:
    """How many steps that all ranks had completed before the kill were made again."""
    done = min(max(line.step for line in log if line.mono_s <= killed.mono_s) for log in logs)
    return max(0, done + 1 - new_step)


def phases_of(records: tuple[Record, ...], killed_s: float) -> dict[str, float]:
    """Seconds by phase since the kill; the last one ends where the first new step begins."""
    began = [r.event for r in records if isinstance(r.event, PhaseBegan) and r.event.at_mono_s >= killed_s]
    steps = [r.event for r in records if isinstance(r.event, StepClosed) and r.event.began_mono_s >= killed_s]
    # A step that was in flight may close later, but was opened before the kill.
    if not began or not steps:
        return {}
    opened_s = min(step.began_mono_s for step in steps)
    marks = [(str(Phase.SEE), killed_s)]
    marks += [(str(event.phase), event.at_mono_s) for event in began if event.phase is not Phase.SEE]
    marks.append(("step", max(opened_s, marks[-1][1])))
    ends = [mono_s for _, mono_s in marks[1:]] + [min(step.closed_mono_s for step in steps)]
    spent: dict[str, float] = {}
    for (phase, since_s), until_s in zip(marks, ends, strict=True):
        spent[phase] = spent.get(phase, 0.0) + until_s - since_s
    return spent


def measure(side: Side, draw: random.Random) -> Recovery | None:
    """Start, kill, wait, end; None if the ranks did not come back in time."""
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    command = [*side.command(folder), str(WORKER), side.worker, str(folder)]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | dict(side.environment))
    try:
        wait_for(lambda: is_warm(folder, side) or process.poll() is not None, START_LIMIT_S)
        if process.poll() is not None or not is_warm(folder, side):
            raise RuntimeError(f"the run did not start; the end of its output:\n{tail(folder / 'output')}")
        recovery = kill_one(folder, draw.randrange(SEATS))
    finally:
        end(process)
    if recovery is not None:
        shutil.rmtree(folder)  # else the output is there to be read
    return recovery


def is_warm(folder: Path, side: Side) -> bool:
    """All ranks train and the spares wait."""
    if any(len(log) < STEPS_BEFORE for log in read_logs(folder)):
        return False
    if not side.spares:
        return True
    ready = {r.event.proc for r in records_of(folder) if isinstance(r.event, ProcessReady)}
    return len(ready) >= SEATS + side.spares


def kill_one(folder: Path, victim: int) -> Recovery | None:
    """SIGKILL the process that writes the log of the rank."""
    last = read_logs(folder)[victim][-1]
    killed = last._replace(mono_s=time.monotonic())
    os.kill(killed.pid, signal.SIGKILL)
    wait_for(lambda: first_new_step(read_logs(folder), killed) is not None, RECOVERY_LIMIT_S)
    logs = read_logs(folder)
    found = first_new_step(logs, killed)
    if found is None:
        return None
    wait_for(lambda: not records_of(folder) or bool(phases_of(records_of(folder), killed.mono_s)), 2.0)
    phases_s = phases_of(records_of(folder), killed.mono_s)
    return Recovery(found[1] - killed.mono_s, steps_lost(logs, killed, found[0]), phases_s)


def records_of(folder: Path) -> tuple[Record, ...]:
    """The journal, empty where the side has none."""
    path = folder / "run" / journal.JOURNAL_NAME
    return journal.read(path).records if path.exists() else ()


def wait_for(condition: Callable[[], bool], limit_s: float) -> None:
    """Return when it is true, or at the limit."""
    deadline_s = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher and everything that it started: not every launcher does so itself."""
    started = descendants(process.pid, read_table())
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stat in started:
        now = read_stat(stat.pid)
        if now is not None and now.start_ticks == stat.start_ticks:
            os.kill(stat.pid, signal.SIGKILL)


def tail(path: Path) -> str:
    """The last lines of a file."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-15:])


def tell_phases(bench: Bench, name: str, recoveries: list[Recovery]) -> None:
    """The median of each phase, and the largest, with the first new step and without."""
    told = [recovery.phases_s for recovery in recoveries if recovery.phases_s]
    if not told:
        bench.say(f"{name}: no phases in the journal")
        return
    names = list(dict.fromkeys(phase for phases_s in told for phase in phases_s))
    medians_s = {phase: statistics.median(phases_s.get(phase, 0.0) for phases_s in told) for phase in names}
    bench.say(f"{name}, by phase: " + ", ".join(f"{phase} {1000 * s:.0f} ms" for phase, s in medians_s.items()))
    without = {phase: s for phase, s in medians_s.items() if phase != "step"}
    for kind, some in (("with the first new step", medians_s), ("without it", without)):
        largest = max(some, key=lambda phase: some[phase])
        total_s = sum(some.values())
        bench.say(f"  {kind}: {total_s:.3f} s, largest: {largest} ({100 * some[largest] / total_s:.0f} %)")


def bars_of(results: dict[str, list[Recovery]]) -> list[Bar]:
    """The promises of this bench."""
    times = {name: [recovery.took_s for recovery in recoveries] for name, recoveries in results.items()}

    def ratio(name: str) -> float | None:
        return ratio_of_medians(times["torchrun"], times[name]).value if times[name] and times["torchrun"] else None

    ours = results["spare"] + results["spare again"] + results["fork"]
    lost = max((recovery.steps_lost for recovery in ours), default=None)
    return [
        at_least("torchrun's median over ours with a warm spare", ratio("spare"), 8),
        at_least("torchrun's median over ours with a forked replacement", ratio("fork"), 4),
        at_most("steps lost by closeranks", lost, 0),
    ]


def main() -> int:
    """Measure, compare, judge."""
    bench = Bench("recovery", __doc__ or "")
    draw = random.Random(bench.options.seed)
    sides = {"spare": closeranks_side(1), "spare again": closeranks_side(1), "fork": closeranks_side(0)}
    sides["torchrun"] = torchrun_side()
    for name, module in OTHERS.items():
        if importlib.util.find_spec(module) is None:
            bench.say(f"{name} is not installed: not measured")
        else:
            sides[name] = OTHER_SIDES[module]()
    rounds = 1 if bench.options.quick else 5
    measured = interleaved({name: lambda side=side: measure(side, draw) for name, side in sides.items()}, rounds, 0)
    results = {name: [recovery for recovery in all_of if recovery] for name, all_of in measured.items()}
    bench.say("torchrun ran with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; without it torch 2.13 did not come back at all")
    for name, recoveries in results.items():
        took_s = [recovery.took_s for recovery in recoveries]
        lost = sorted({recovery.steps_lost for recovery in recoveries})
        never = len(measured[name]) - len(recoveries)
        bench.say(f"{name}: kill to new step {spelled(took_s, 's')}, steps lost {lost}, never came back {never}")
    compare(bench, results)
    for name in ("spare", "fork"):
        tell_phases(bench, name, results[name])
    return bench.finish(bars_of(results))


def compare(bench: Bench, results: dict[str, list[Recovery]]) -> None:
    """Ratios with bounds, and the control."""
    times = {name: [recovery.took_s for recovery in recoveries] for name, recoveries in results.items()}
    if times["spare"] and times["spare again"]:
        bench.say(f"control, spare over spare again: {ratio_of_medians(times['spare'], times['spare again'])}")
        if len(times["torchrun"]) > 1:
            bench.say(f"control, torchrun over itself: {control(times['torchrun'])}")
    for name in ("spare", "fork"):
        if times[name] and times["torchrun"]:
            bench.say(f"torchrun over {name}: {ratio_of_medians(times['torchrun'], times[name])}")


if __name__ == "__main__":
    sys.exit(main())
