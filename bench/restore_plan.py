"""Time to plan a restore: 1,000,000 slices over 1,024 ranks under 10 s, and no worse than linear.

    python bench/restore_plan.py [--quick] [--json]

Restores of 1,024 writers' slices, at 1x, 2x and 4x of the tensors: on the same layout, on 768 ranks that need other
boxes, of a 32 x 32 grid on one of 24 x 32, and of tensors of which each is on one rank alone. The best of three rounds.
Quick: a sixteenth of the slices.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator

from _common import Bench, at_most

from closeranks.checkpoint.format import Slice
from closeranks.checkpoint.restore_plan import Holding, Inventory, Need, Plan, Point, plan_restore

RANKS = 1024
TENSORS = 245  # at 1x; the million is 4x
ROUNDS = 3
BAR_S = 10.0
GROWTH = 6.0  # of time, from 1x to 4x: linear is 4
ROWS, COLUMNS = 98_304, 3_072

Box = tuple[tuple[int, int], tuple[int, int]]


def by_rows(parts: int) -> list[Box]:
    """Rows shared out."""
    return [((ROWS * k // parts, 0), (ROWS * (k + 1) // parts - ROWS * k // parts, COLUMNS)) for k in range(parts)]


def by_grid(rows: int, columns: int) -> list[Box]:
    """Both dimensions shared out."""
    high, wide = ROWS // rows, COLUMNS // columns
    return [((high * r, wide * c), (high, wide)) for r in range(rows) for c in range(columns)]


def of_rank(names: list[str], rank: int, own: bool) -> list[str]:
    """The tensors of a rank: those of all, or its own."""
    return [f"rank {rank}/{name}" for name in names] if own else names


def inventory_of(boxes: list[Box], names: list[str], *, own: bool) -> Inventory:
    """One point; a third of the writers are in memory, a third on a peer, the others in the store alone."""
    whole, holdings = (ROWS, COLUMNS), []
    for writer, (offsets, shape) in enumerate(boxes):
        slices = tuple(
            Slice(
                name=name,
                dtype="BF16",
                global_shape=whole,
                offsets=offsets,
                shape=shape,
                at=0,
                length=2 * math.prod(shape),
            )
            for name in of_rank(names, writer, own)
        )
        for tier, home in enumerate(("memory", "peer", "store")):
            if tier >= writer % 3:
                holdings.append(Holding(home=home, tier=tier, writer=writer, slices=slices))
    return Inventory(points=(Point(step=1, generation=1, world=len(boxes), holdings=tuple(holdings)),))


def needs_of(boxes: list[Box], names: list[str], *, own: bool) -> list[Need]:
    """Every reader's box of every tensor."""
    return [
        Need(reader=reader, name=name, dtype="BF16", global_shape=(ROWS, COLUMNS), offsets=offsets, shape=shape)
        for reader, (offsets, shape) in enumerate(boxes)
        for name in of_rank(names, reader, own)
    ]


OWN = "own tensors"
CASES: dict[str, tuple[Callable[[], list[Box]], Callable[[], list[Box]]]] = {
    "same layout": (lambda: by_rows(RANKS), lambda: by_rows(RANKS)),
    "1,024 to 768 ranks": (lambda: by_rows(RANKS), lambda: by_rows(768)),
    "32 x 32 to 24 x 32": (lambda: by_grid(32, 32), lambda: by_grid(24, 32)),
    OWN: (lambda: by_rows(1) * RANKS, lambda: by_rows(1) * RANKS),
}


def measured(case: str, tensors: int) -> Iterator[tuple[float, float, int, int, int]]:
    """Seconds by the clock, seconds of this process, slices, needs and reads of each round."""
    writers, readers = CASES[case]
    names = [f"model/layers.{k}.weight" for k in range(tensors)]
    own = case == OWN
    inventory, needs = inventory_of(writers(), names, own=own), needs_of(readers(), names, own=own)
    for _ in range(ROUNDS):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        plan = plan_restore(inventory, needs)
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        assert isinstance(plan, Plan)
        yield seconds, cpu_s, RANKS * tensors, len(needs), len(plan.fetches)


def main() -> int:
    """Measure and print."""
    bench = Bench("restore_plan", __doc__ or "")
    tensors = TENSORS // 16 if bench.options.quick else TENSORS
    bars = []
    for case in CASES:
        times_s, cpus_s = [], []
        for scale in (1, 2, 4):
            rounds = list(measured(case, scale * tensors))
            times_s.append(min(seconds for seconds, *_ in rounds))
            cpus_s.append(min(cpu_s for _, cpu_s, *_ in rounds))
            *_, slices, needs, reads = rounds[0]
            count = f"{slices:,} slices, {needs:,} needs, {reads:,} reads"
            bench.say(f"{case}, {scale}x: {count}: {times_s[-1]:.2f} s, of which {cpus_s[-1]:.2f} s computing")
        bars.append(at_most(f"{case}: seconds at 4x", times_s[2], BAR_S))
        bars.append(at_most(f"{case}: computing at 4x over 1x", cpus_s[2] / cpus_s[0], GROWTH))
    return bench.finish(bars)


if __name__ == "__main__":
    sys.exit(main())
