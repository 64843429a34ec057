"""A rank that stops without ending: seen in time, the right one named, and nobody disturbed without a reason.

SIGSTOP, a call that keeps the interpreter lock, and a native call that does not return strike a random seat at
steps of about 100 ms, with default settings. From the strike to the decision at most 3 s may pass. The undisturbed
runs have steps that are 10 times slower now and then, a pause of 1 s that nobody announced and a labelled save of
5 s; none of them may see an incident.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from _common import Bench, at_most, control, spelled

from closeranks.drill.fault import Fault, Kind, Moment
from closeranks.drill.plan import RunSpec
from closeranks.drill.runner import Runner
from closeranks.drill.verdict import Evidence
from closeranks.events import Decided, FaultInjected, IncidentOpened

WORKER = str(Path(__file__).with_name("_freeze_worker.py"))
SEATS = 4
STRIKE_STEPS = (15, 35)
STEPS = 45
AT_ONCE = 3  # runs beside each other: the steps mostly sleep
MOMENTS = (Moment.FORWARD, Moment.BACKWARD, Moment.COLLECTIVE, Moment.APPLY, Moment.BETWEEN)


class Freeze(NamedTuple):
    """One strike. ``acted_s`` is None if nothing was decided."""

    fault: Fault
    acted_s: float | None
    named: tuple[int, ...]
    exit_code: int | None


def strikes(kind: Kind, count: int, seed: int) -> list[Fault]:
    """Seat, step and moment drawn."""
    draw = random.Random(f"{kind}/{seed}")
    return [
        Fault(kind=kind, seat=draw.randrange(SEATS), step=draw.randint(*STRIKE_STEPS), moment=draw.choice(MOMENTS))
        for _ in range(count)
    ]


def run(steps: int, faults: tuple[Fault, ...], words: tuple[str, ...] = ()) -> Evidence:
    """One run of the worker in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    spec = RunSpec(command=(WORKER, "--steps", str(steps), *words), seats=SEATS, spares=1, timeout_s=120)
    try:
        return Runner(folder).drilled(spec, faults)
    finally:
        shutil.rmtree(folder)


def freeze(fault: Fault) -> Freeze:
    """Strike and read from the journal what was done about it."""
    evidence = run(STEPS, (fault,))
    struck_s = [r.mono_s for r in evidence.records if isinstance(r.event, FaultInjected)]
    if not struck_s:
        raise RuntimeError(f"{fault} never struck; the end of the output:\n{evidence.output}")
    acted_s = [r.mono_s - struck_s[0] for r in evidence.records if isinstance(r.event, Decided)]
    opened = [r.event for r in evidence.records if isinstance(r.event, IncidentOpened)]
    named = opened[0].seats if opened else ()
    return Freeze(fault, acted_s[0] if acted_s else None, named, evidence.exit_code)


def jittered(seed: int, steps: int) -> int:
    """Incidents of an undisturbed run, 1 also for a run that did not complete."""
    evidence = run(steps, (), ("--jitter", str(seed)))
    opened = sum(isinstance(record.event, IncidentOpened) for record in evidence.records)
    return max(opened, int(evidence.exit_code != 0))


def main() -> int:
    """Measure, compare, judge."""
    bench = Bench("freeze", __doc__ or "")
    quick, seed = bench.options.quick, bench.options.seed
    each, calm_runs, calm_steps = (1, 2, 60) if quick else (6, 20, 120)
    faults = [fault for kind in (Kind.FREEZE, Kind.GIL, Kind.BLOCK) for fault in strikes(kind, each, seed)]
    random.Random(seed).shuffle(faults)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        frozen_later = [pool.submit(freeze, fault) for fault in faults]
        calm_later = [pool.submit(jittered, seed + number, calm_steps) for number in range(calm_runs)]
        frozen = [later.result() for later in frozen_later]
        disturbed = [later.result() for later in calm_later]
    for kind in (Kind.FREEZE, Kind.GIL, Kind.BLOCK):
        acted_s = [found.acted_s for found in frozen if found.fault.kind is kind and found.acted_s is not None]
        bench.say(f"{kind}: strike to decision {spelled(acted_s, 's')}" + (f", {control(acted_s)}" if each > 1 else ""))
    wrong = [found for found in frozen if found.named != (found.fault.seat,)]
    for found in wrong:
        bench.say(f"wrong seat: {found.fault}, named {found.named}")
    lost = [found for found in frozen if found.exit_code != 0]
    for found in lost:
        bench.say(f"not completed: {found.fault}, exit code {found.exit_code}")
    bench.say(f"undisturbed runs with an incident: {sum(map(bool, disturbed))} of {calm_runs}")
    slowest_s = max((found.acted_s for found in frozen if found.acted_s is not None), default=None)
    unseen = sum(found.acted_s is None for found in frozen)
    return bench.finish(
        [
            at_most("strike to decision, slowest, s", None if unseen else slowest_s, 3),
            at_most("strikes ascribed to another seat", len(wrong), 0),
            at_most("struck runs that did not complete", len(lost), 0),
            at_most("undisturbed runs that were disturbed", sum(map(bool, disturbed)), 0),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
