"""What a 4+2 erasure code costs beside a plain copy of the same memory.

Per round, in an order drawn anew: one copy of the input (the floor), encoding it with ISA-L where it is installed and
with NumPy alone, and computing two lost blocks again. Blocks are those that peers get; all memory is touched before.
Speeds are bytes of the input per second; the ratio is that of the medians, time over the copy's time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from _common import Bench, at_most, interleaved, ratio_of_medians, spelled

from closeranks.checkpoint import erasure
from closeranks.checkpoint.erasure import Bytes, Multiply, coding_matrix, recovery_matrix
from closeranks.checkpoint.fragments import BLOCK_BYTES
from closeranks.checkpoint.isal import kernel

DATA, PARITY = 4, 2
LOST = (1, 3)
STRIPES = 16  # of 8 MiB: more than the caches hold
RATIO_BAR = 1.5  # about as cheap as a copy: within what copies differ from each other on a shared machine


def timed(work: Callable[[], None]) -> Callable[[], float]:
    """Seconds of one call."""

    def measure() -> float:
        began_s = time.perf_counter()
        work()
        return time.perf_counter() - began_s

    return measure


def over_stripes(multiply: Multiply, matrix: Bytes, stripes: Sequence[Sequence[Bytes]], outputs: list[Bytes]) -> None:
    """As a save does it: the outputs of one stripe are sent before those of the next are computed."""
    for stripe in stripes:
        multiply(matrix, stripe, outputs)


def main() -> int:
    """Measure and print."""
    bench = Bench("erasure", __doc__ or "")
    draw = np.random.default_rng(bench.options.seed)
    count = 2 if bench.options.quick else STRIPES
    source = draw.integers(0, 256, (count, DATA, BLOCK_BYTES), np.uint8)
    target = np.ones_like(source)
    stripes = [list(stripe) for stripe in source]
    outputs = [np.ones(BLOCK_BYTES, np.uint8) for _ in range(PARITY)]
    encode = coding_matrix(DATA, PARITY)[DATA:]
    present = [number for number in range(DATA + PARITY) if number not in LOST]
    decode = recovery_matrix(DATA, PARITY, present, LOST)
    fast = kernel()
    sides = {
        "copy": timed(lambda: np.copyto(target, source)),
        f"encode {fast.name}": timed(lambda: over_stripes(fast.multiply, encode, stripes, outputs)),
        f"decode {fast.name}": timed(lambda: over_stripes(fast.multiply, decode, stripes, outputs)),
    }
    if fast.name != "numpy":
        sides["encode numpy"] = timed(lambda: over_stripes(erasure.multiply, encode, stripes, outputs))
    seconds = interleaved(sides, 5 if bench.options.quick else 15, bench.options.seed)
    input_bytes = source.nbytes
    bench.say(f"{DATA}+{PARITY}, {input_bytes / 2**20:.0f} MiB in blocks of {BLOCK_BYTES / 2**20:.0f} MiB")
    for name, values in seconds.items():
        speed = input_bytes / statistics.median(values) / 1e9
        ratio = ratio_of_medians(values, seconds["copy"])
        bench.say(f"{name:14} {speed:6.2f} GB/s  {spelled(values, 'ms', 1e3):34} {ratio} x copy")
    ratio = ratio_of_medians(seconds[f"encode {fast.name}"], seconds["copy"])
    bar = at_most("encode over copy", ratio.value if fast.name == "isa-l" else None, RATIO_BAR)
    return bench.finish([bar])


if __name__ == "__main__":
    raise SystemExit(main())
