"""How often each detector tells of something where nothing is wrong.

    python bench/false_alarms.py [--quick] [--json]

Everything is drawn from a seed: what a healthy run looks like, with more noise than most have. Stragglers have a bench
of their own (``straggler.py``), and so have the limits of checked products (``abft.py``). Digests of replicas are
exact: equal state is never told apart. What each false alarm would cost is in brackets.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from _arrivals import DELAYS, judged
from _common import Bar, Bench, at_most

from closeranks.decide import canary, quarantine
from closeranks.detect import numerics, progress, telemetry
from closeranks.detect.accelerators import Device
from closeranks.events import CanaryFailed, CanaryPassed, NodeUnwell
from closeranks.signs import Doing, Reading

GIB = 2.0**30
FREEDOMS = (3, 5, 30)
NORM_STEPS = 10_000
SPREADS = (0.03, 0.1, 0.3)
POLL_S, TELEMETRY_S = 0.05, 10.0
SEATS = 4
DAY_S = 86_400.0
NODES, UNITS, EPISODE_DAYS = 64, 8, 30.0
FAILURES_PER_NODE_DAY = 419 / 54 / 2048  # unexpected interruptions of Llama 3's training: 54 days, 2,048 nodes
FAULTS = ("device fault", "device memory error", "process crashed", "process frozen", "network loss")


def student(draw: random.Random, freedom: int) -> float:
    """Student's t: normal over the root of a chi-squared share."""
    return draw.gauss(0, 1) / math.sqrt(draw.gammavariate(freedom / 2, 2 / freedom))


def outliers(freedom: int, steps: int, draw: random.Random) -> int:
    """Steps held because of their gradient norm."""
    window: tuple[float, ...] = ()
    held = 0
    for step in range(steps):
        norm = 3.0 / (1.0 + step / 1000) ** 0.5 * math.exp(0.12 * student(draw, freedom))
        held += numerics.robust_z(norm, window) > numerics.OUTLIER_Z
        window = numerics.remember(window, norm)
    return held


def signatures(spread: float, steps: int, draw: random.Random) -> int:
    """Signatures in a curve that falls as curves do, and whose loss scale grows and overflows as scales do."""
    curve, told, scale = numerics.Curve(), 0, 2.0**16
    for step in range(steps):
        loss = (2.0 + 8.0 * math.exp(-step / 3000)) * math.exp(spread * draw.gauss(0, 1))
        curve, seen = numerics.follow(curve, loss)
        told += seen is not None
        scale = scale / 2 if draw.random() < 1 / 2000 else scale * 2 if step % 2000 == 1999 else scale
        curve, seen = numerics.follow_scale(curve, scale)
        told += seen is not None
    return told


def recoveries(count: int, draw: random.Random) -> int:
    """Recoveries whose training is what it was, and that fail all the same."""
    failed = 0
    for _ in range(count):
        spread, at = draw.uniform(0.0, 0.3), draw.randrange(20, 400)
        losses = [2.0 + 3.0 * math.exp(-step / 300) + draw.gauss(0, spread) for step in range(at + 40)]
        watch = canary.Canary()
        for step in range(at):
            watch, _ = canary.stepped(
                watch, canary.Sample(step=step, duration_s=0.1, loss=losses[step]), canary.Rules()
            )
        first = max(0, at - draw.randrange(30))
        watch = canary.recovered(watch, canary.Watched(incident=1, replicas=4, before_step=at))
        verdict: CanaryPassed | CanaryFailed | None = None
        for step in range(first, at + 40):
            sample = canary.Sample(step=step, duration_s=0.1, loss=losses[step])
            watch, found = canary.stepped(watch, sample, canary.Rules())
            verdict = verdict or found
        failed += isinstance(verdict, CanaryFailed)
    return failed


def moves(draw: random.Random) -> Iterator[float]:
    """Times at which a thread moves: forward of about a second, and one in 200 takes up to eight times as long."""
    now_s = 100.0
    while True:
        now_s += 0.02
        yield now_s
        length_s = draw.lognormvariate(0.0, 0.2)
        now_s += length_s * (draw.uniform(3, 8) if draw.random() < 1 / 200 else 1.0)
        yield now_s


def silences(hours: float, draw: random.Random) -> int:
    """Processes that are asked for an answer, though they only work."""
    watch, suspected, now_s = progress.Watch(), 0, 100.0
    threads = [moves(random.Random(draw.random())) for _ in range(SEATS)]
    moved_s, count = [next(thread) for thread in threads], [0] * SEATS
    readings: dict[int, Reading] = {}
    while now_s < 100.0 + 3600 * hours:
        now_s += POLL_S
        for seat, thread in enumerate(threads):
            while moved_s[seat] <= now_s:
                doing, step = (Doing.BETWEEN, Doing.FORWARD)[count[seat] % 2], count[seat] // 2
                readings[seat] = reading(doing, step, moved_s[seat])
                count[seat] += 1
                moved_s[seat] = next(thread)
        watch, found = progress.observe(watch, dict(readings), round(now_s * 1e9))
        suspected += sum(isinstance(one, progress.Suspect) for one in found)
    return suspected


def reading(doing: Doing, step: int, moved_s: float) -> Reading:
    """A page of a thread that is in no collective."""
    return Reading(
        moved_ns=round(moved_s * 1e9),
        doing=doing,
        term=1,
        step=step,
        attempt=1,
        closed_step=step - 1,
        entered=0,
        returned=0,
        operation=0,
        operation_bytes=0,
        section_hash=0,
        own_ns=0,
        loss=1.0,
        grad_norm=1.0,
    )


def node_signs(days: float, draw: random.Random) -> int:
    """Signs told of a node whose temperature, memory, disk and corrected errors vary, but lead nowhere."""
    watch, told, corrected = telemetry.Watch(), 0, 0
    for number in range(int(days * 86400 / TELEMETRY_S)):
        at_s = number * TELEMETRY_S
        corrected += draw.random() < 1 / 360  # ten an hour
        daily = math.sin(2 * math.pi * at_s / 86400)
        sample = telemetry.Sample(
            at_s=at_s,
            host={
                telemetry.STALLED: draw.uniform(0, 0.05),
                telemetry.AVAILABLE: draw.gauss(64, 3) * GIB,
                telemetry.FREE: (500 - at_s % 1800 / 1800 * 100) * GIB,  # checkpoints come, and old ones go
                telemetry.OFFSET: 1e9 + draw.gauss(0, 0.01),
            },
            devices=(
                Device(
                    name="gpu0",
                    recovery=0,
                    corrected=corrected,
                    uncorrected=0,
                    temperature_c=round(72 + 4 * daily + draw.gauss(0, 2)),
                ),
            ),
        )
        watch, news = telemetry.observe(watch, sample)
        told += sum(isinstance(event, NodeUnwell) for event in news)
    return told


def wrong_quarantines(episodes: int, rate: float, draw: random.Random) -> int:
    """Nodes kept out of fleets in which no node is worse than another.

    Faults come by chance alone, and once in ten days a fault of the software strikes a few units within an hour.
    """
    wrong = 0
    for _ in range(episodes):
        register = quarantine.Register()
        for number in range(NODES):
            register = quarantine.worked(register, f"n{number}", 24 * EPISODE_DAYS)
        for at_s, node, unit, fault in sorted(faults_of(rate, draw)):
            register = quarantine.failed(register, node, quarantine.Failure(fault=fault, at_s=at_s, unit=unit))
            verdict = quarantine.judge(register, node, at_s)
            if isinstance(verdict, quarantine.Suspect):
                register, answer = quarantine.keep_out(register, node, verdict.reason, at_s)
                wrong += isinstance(answer, quarantine.Quarantine)
    return wrong


def faults_of(rate: float, draw: random.Random) -> Iterator[tuple[float, str, str, str]]:
    """Time, node, unit and fault of all that happens in an episode; ``rate`` is that of one node in a day."""

    def unit() -> tuple[str, str]:
        return f"n{draw.randrange(NODES)}", f"slot {draw.randrange(UNITS)}"

    at_s = draw.expovariate(rate * NODES / DAY_S)
    while at_s < EPISODE_DAYS * DAY_S:
        yield at_s, *unit(), draw.choice(FAULTS)
        at_s += draw.expovariate(rate * NODES / DAY_S)
    at_s = draw.expovariate(0.1 / DAY_S)
    while at_s < EPISODE_DAYS * DAY_S:
        for _ in range(draw.randint(3, 12)):
            yield at_s + draw.uniform(0, 3600), *unit(), "process crashed"
        at_s += draw.expovariate(0.1 / DAY_S)


def main() -> int:
    """Run it."""
    bench = Bench("false_alarms", __doc__ or "")
    quick, draw = bench.options.quick, random.Random(bench.options.seed)
    bars: list[Bar] = []

    def row(name: str, alarms: int, of: str, most: float, cost: str) -> None:
        bench.say(f"{name:44} {alarms:4} in {of} ({cost})")
        bars.append(at_most(f"{name}, in {of}", alarms, most))

    hours = 4.0 if quick else 24.0
    for shape, delay in DELAYS.items():
        told = round(judged(delay, hours, bench.options.seed).suspicions_per_hour * hours)
        row(f"heartbeat, {shape}", told, f"{hours:g} h of a node", 8 * hours, "a question on another way")
    of_hours = 0.5 if quick else 4.0
    told = silences(of_hours, draw)
    row("progress, steps up to eight times as long", told, f"{of_hours:g} h of {SEATS} seats", of_hours, "a question")
    for freedom in FREEDOMS:
        told = outliers(freedom, NORM_STEPS, draw)
        row(f"gradient norm, t noise of {freedom}", told, f"{NORM_STEPS} steps", 30, "a repeated step")
    steps = 10_000 if quick else 100_000
    for spread in SPREADS:
        told = signatures(spread, steps, draw)
        row(f"training curve, {spread:.0%} noise", told, f"{steps} steps", steps / 10_000, "told, or a roll back")
    count = 300 if quick else 3000
    row("canary", recoveries(count, draw), f"{count} recoveries that worked", count / 1000, "a roll back")
    days = 0.5 if quick else 7.0
    row("telemetry", node_signs(days, draw), f"{days:g} days of a node", days, "told, or no new work")
    episodes = 100 if quick else 1000
    for times, most in ((1, 0), (10, episodes / 100)):
        told = wrong_quarantines(episodes, times * FAILURES_PER_NODE_DAY, draw)
        of = f"{episodes} months of {NODES} nodes"
        row(f"quarantine, {times} times the failures of Llama 3's run", told, of, most, "a node is not used for a day")
    return bench.finish(bars)


if __name__ == "__main__":
    raise SystemExit(main())
