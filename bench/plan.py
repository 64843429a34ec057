"""``closeranks plan`` answers at once: cold starts of the whole command, beside those of Python and of numpy.

    python bench/plan.py [--quick] [--json]

Twenty new processes a side (quick: seven), interleaved: the command of docs/plan.md, the same with its formulas, its
help, ``python -c pass`` and ``python -c "import numpy"``. Wall time and processor time (user and system) of each;
bytecode is compiled beforehand, as an installation has it, and files are in the page cache.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from _common import Bench, at_most, interleaved, spelled

SOURCE = Path(__file__).parent.parent / "src"
COMMAND = ["plan", "--gpus", "10000", "--gpu-mtbf-h", "50000", "--params", "175e9", "--store-gbps", "100"]
SIDES = {
    "closeranks plan": ["-m", "closeranks", *COMMAND],
    "closeranks plan --explain": ["-m", "closeranks", *COMMAND, "--explain"],
    "closeranks plan --help": ["-m", "closeranks", "plan", "--help"],
    "python -c pass": ["-c", "pass"],
    "python -c 'import numpy'": ["-c", "import numpy"],
}


class Start(NamedTuple):
    """One cold start, in seconds."""

    wall_s: float
    processor_s: float


def processor_s() -> float:
    """Processor time of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def starter(arguments: list[str], environment: Mapping[str, str]) -> Callable[[], Start]:
    """Starts a new interpreter with these arguments and waits for its end."""

    def start() -> Start:
        spent_s, began_s = processor_s(), time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
        return Start(time.perf_counter() - began_s, processor_s() - spent_s)

    return start


def main() -> int:
    """Measure and judge."""
    bench = Bench("plan", __doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        sides = {name: starter(arguments, environment) for name, arguments in SIDES.items()}
        for start in sides.values():
            start()  # compiles
        found = interleaved(sides, 7 if bench.options.quick else 20, bench.options.seed)
    for name, starts in found.items():
        wall = spelled([start.wall_s for start in starts], "s")
        bench.say(f"{name}: {wall}, processor {spelled([start.processor_s for start in starts], 's')}")
    median_s = statistics.median(start.wall_s for start in found["closeranks plan"])
    return bench.finish([at_most("closeranks plan, cold, s", median_s, 0.3)])


if __name__ == "__main__":
    sys.exit(main())
