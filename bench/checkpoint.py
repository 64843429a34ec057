"""What a checkpoint costs: the pause, the durable save, the load, memory; beside floors and peers in the same rounds.

2 GB of float32 in 300 tensors (``--quick``: 200 MB). Floors: one copy of the tensors into warm memory; the same bytes
written by four threads past the page cache, with fsync; one read of the warm file into warm memory. A bar is the median
of the ratios to the floor of the same round. Saves of ours run in a process of their own, as in a run, and end with the
commit; digests are taken and, on loading, compared.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import _checkpoint_peers as peers
import numpy as np
import torch
from _common import Bar, Bench, at_most, spelled

from closeranks.checkpoint.arena import Arena, Meta
from closeranks.checkpoint.format import ShardIndex, ShardRef
from closeranks.checkpoint.image import Layout, Leaf, lay_out
from closeranks.checkpoint.reading import THREADS, Checks, Region, fetch, read_index
from closeranks.checkpoint.stores.directory import DirectoryStore

TENSORS = 300
PIECE_BYTES = 8 * 2**20
FAST, STRONG = {"blake3": False}, {}
FROZEN = 0.9  # of the tensors, in the incremental save
FLAT_SAVES = 50
FLAT_BYTES = 50_000_000
RANKS = 4
RANKS_LIMIT_S = 900.0
STEP_SIZE = 700  # of the matrices of the training loop: a step of some 10 ms


class Sizes(NamedTuple):
    """How much is measured."""

    state_bytes: int
    rounds: int
    saves_beside_loop: int


class Ours:
    """State, two arenas, and the process that writes them."""

    def __init__(self, state_bytes: int, folder: Path) -> None:
        size = state_bytes // TENSORS // 4
        self.tensors = {f"layers.{number}.weight": torch.randn(size) for number in range(TENSORS)}
        leaves = [Leaf(name, "F32", (size,), (0,), (size,)) for name in self.tensors]
        self.layout: Layout = lay_out(leaves)
        self.store = DirectoryStore(folder)
        self.arenas = [Arena.create(f"bench{number}") for number in range(2)]
        self._views = [self._view(arena) for arena in self.arenas]
        self.step = 0
        for number in range(2):
            self.take(number)
        command = [sys.executable, str(Path(__file__).with_name("_checkpoint_keeper.py")), str(folder)]
        fds = [arena.fd for arena in self.arenas]
        self.keeper = subprocess.Popen(
            [*command, *map(str, fds)], pass_fds=fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _view(self, arena: Arena) -> list[torch.Tensor]:
        image = arena.open_image(0, self.layout)
        parts = [image[part.at : part.at + part.length] for part in self.layout.slices]
        return [torch.frombuffer(part, dtype=torch.float32) for part in parts]

    def train(self, share: float = 1.0) -> None:
        """Change every chunk of some of the tensors."""
        for tensor in list(self.tensors.values())[: int(TENSORS * share)]:
            tensor[:: 2**18] += 1.0

    def take(self, number: int) -> float:
        """The pause: open an arena, copy the state into it, close it. Seconds."""
        self.step += 1
        began = time.perf_counter()
        arena = self.arenas[number]
        arena.open_image(self.step, self.layout)
        for view, tensor in zip(self._views[number], self.tensors.values(), strict=True):
            view.copy_(tensor)
        arena.finish(self.step, Meta(slices=self.layout.slices))
        return time.perf_counter() - began

    def ask(self, number: int, options: dict[str, Any]) -> None:
        """Begin to write an arena."""
        assert self.keeper.stdin is not None
        self.keeper.stdin.write(json.dumps({"arena": number, "options": options}) + "\n")
        self.keeper.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait until it is committed."""
        assert self.keeper.stdout is not None
        line = self.keeper.stdout.readline()
        if not line:
            raise RuntimeError("the writing process ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def save(self, number: int, options: dict[str, Any]) -> dict[str, Any]:
        """Write an arena; what the save says of itself."""
        self.ask(number, options)
        return self.answer()

    def index(self, answer: dict[str, Any]) -> ShardIndex:
        """What was committed last."""
        key, length, digest, image_bytes = answer["index"]
        return read_index(
            self.store, ShardRef(writer=0, object=key, length=length, blake3=digest, image_bytes=image_bytes)
        )

    def close(self) -> None:
        """End the writing process."""
        assert self.keeper.stdin is not None
        self.keeper.stdin.close()
        self.keeper.wait(60)


def copy_floor(tensors: Sequence[torch.Tensor], warm: Sequence[torch.Tensor]) -> float:
    """Seconds for one copy into warm memory."""
    began = time.perf_counter()
    for target, tensor in zip(warm, tensors, strict=True):
        target.copy_(tensor)
    return time.perf_counter() - began


def write_floor(image: memoryview, folder: Path) -> float:
    """Seconds for the same bytes past the page cache by four threads, with fsync and no digest."""
    share = len(image) // 4 // 4096 * 4096
    paths = [folder / f"floor{number}" for number in range(4)]

    def write(number: int) -> None:
        fd = os.open(paths[number], os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
        for at in range(number * share, (number + 1) * share, PIECE_BYTES):
            os.pwrite(fd, image[at : min(at + PIECE_BYTES, (number + 1) * share)], at - number * share)
        os.fsync(fd)
        os.close(fd)

    began = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    seconds = time.perf_counter() - began
    for path in paths:
        path.unlink()
    return seconds


def read_floor(path: Path, target: memoryview, threads: int) -> float:
    """Seconds for one read of a warm file into warm memory, nothing checked."""
    began = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    with ThreadPoolExecutor(threads) as pool:
        list(
            pool.map(lambda at: os.preadv(fd, [target[at : at + PIECE_BYTES]], at), range(0, len(target), PIECE_BYTES))
        )
    os.close(fd)
    return time.perf_counter() - began


def save_round(ours: Ours, warm: list[torch.Tensor], theirs: dict[str, peers.Save], folder: Path, seed: int) -> Any:
    """Every side once, in an order drawn anew; side -> (blocked, total) seconds."""
    image = ours.arenas[0].filled()
    assert image is not None
    measured: dict[str, tuple[float, float]] = {}

    def own(options: dict[str, Any], share: float = 1.0) -> tuple[float, float]:
        ours.train(share)
        blocked_s = ours.take(1)
        return blocked_s, float(ours.save(1, options)["save_s"])

    def peer(name: str) -> tuple[float, float]:
        path = folder / name.replace(" ", "_")
        result = theirs[name](path)
        peers.remove(path)
        return result

    sides: dict[str, Callable[[], tuple[float, float]]] = {
        "floor: copy": lambda: (copy_floor(list(ours.tensors.values()), warm), 0.0),
        "floor: write": lambda: (0.0, write_floor(image.image, folder)),
        "ours, xxh3": lambda: own(FAST),
        "ours, xxh3 + blake3": lambda: own(STRONG),
        "ours, 90 % unchanged": lambda: own(STRONG, 1 - FROZEN),
    } | {name: (lambda name=name: peer(name)) for name in theirs}
    for name in random.Random(seed).sample(sorted(sides), len(sides)):
        measured[name] = sides[name]()
    return measured


def load_sides(ours: Ours, index: ShardIndex) -> dict[str, Callable[[], float]]:
    """Reads of the newest generation, of a file that is in the page cache."""
    target = np.zeros(index.image_bytes, np.uint8)
    view = memoryview(target)
    path = Path(ours.store.url) / index.extents[0].object
    regions = [
        Region(n, (0,), part.shape, view[part.at : part.at + part.length]) for n, part in enumerate(index.slices)
    ]

    def verified(checks: Checks) -> float:
        began = time.perf_counter()
        fetch(ours.store, index, regions, checks=checks)
        return time.perf_counter() - began

    return {
        "floor: read, 1 thread": lambda: read_floor(path, view, 1),
        f"floor: read, {THREADS} threads": lambda: read_floor(path, view, THREADS),
        "ours, xxh3": lambda: verified(Checks.FAST),
        "ours, blake3": lambda: verified(Checks.STRONG),
        "ours, xxh3 + blake3": lambda: verified(Checks.ALL),
    }


def memory_bytes(pid: int | str) -> int:
    """Resident memory of a process without what it shares: arenas are counted by themselves."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(rows["RssAnon"].split()[0]) * 1024


def flat_memory(folder: Path) -> tuple[float, float]:
    """Growth of both processes from save 10 to save 50, in parts of the state; the arenas, in parts of two images."""
    ours = Ours(FLAT_BYTES, folder)
    seen = []
    for number in range(FLAT_SAVES):
        ours.train()
        ours.take(number % 2)
        ours.save(number % 2, STRONG)
        seen.append(memory_bytes("self") + memory_bytes(ours.keeper.pid))
    arenas = sum(os.fstat(arena.fd).st_blocks * 512 for arena in ours.arenas)
    ours.close()
    return (seen[-1] - seen[9]) / FLAT_BYTES, arenas / (2 * ours.layout.image_bytes)


def slowdown(ours: Ours, saves: int) -> tuple[list[float], list[float]]:
    """Step times of a loop of one thread with and without a save beside it, in alternating stretches."""
    a, b = torch.randn(STEP_SIZE, STEP_SIZE), torch.randn(STEP_SIZE, STEP_SIZE)
    quiet: list[float] = []
    beside: list[float] = []

    def steps(into: list[float], until: Callable[[], bool]) -> None:
        while not until():
            began = time.perf_counter()
            torch.mm(a, b)
            into.append(time.perf_counter() - began)

    with ThreadPoolExecutor(1) as pool:
        for number in range(saves):
            ours.train()
            ours.take(number % 2)
            saving = pool.submit(ours.save, number % 2, STRONG)
            steps(beside, saving.done)
            want = len(beside)
            steps(quiet, lambda want=want: len(quiet) >= want)
    return quiet, beside


def told_ranks(bench: Bench, folder: Path, sizes: Sizes) -> None:
    """The same state shared out among several ranks that save at once."""
    words = [str(folder), str(sizes.state_bytes), str(TENSORS), str(sizes.rounds + 1)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [*launcher, str(Path(__file__).with_name("_checkpoint_rank.py")), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=RANKS_LIMIT_S, check=False)
    rounds = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")][1:]
    if done.returncode != 0 or not rounds:
        bench.say(f"{RANKS} ranks: not measured, they ended with {done.returncode}: {done.stderr[-500:]}")
        return
    for name in rounds[0]:
        blocked, total = ([one[name][which] for one in rounds] for which in (0, 1))
        bench.say(f"{RANKS} ranks: {name:20} blocked {spelled(blocked, 's')}  total {spelled(total, 's')}")


def ratios(rounds: Sequence[dict[str, Any]], name: str, floor: str, which: int) -> list[float]:
    """A side over the floor, round by round; ``which``: 0 blocked, 1 total."""
    return [one[name][which] / one[floor][which] for one in rounds]


def told_saves(bench: Bench, rounds: Sequence[dict[str, Any]], state_bytes: int) -> list[Bar]:
    """Print all sides; the bars of saving."""
    for name in sorted(rounds[0]):
        blocked, total = ([one[name][which] for one in rounds] for which in (0, 1))
        words = [f"{name:24}"]
        if any(blocked):
            ratio = statistics.median(ratios(rounds, name, "floor: copy", 0))
            words.append(f"blocked {spelled(blocked, 's')} x{ratio:.2f}")
        if any(total):
            ratio = statistics.median(ratios(rounds, name, "floor: write", 1))
            speed = state_bytes / statistics.median(total) / 1e9
            words.append(f"total {spelled(total, 's')} x{ratio:.2f} {speed:.2f} GB/s")
        bench.say("  ".join(words))
    blocked = [
        ratio for name in ("ours, xxh3", "ours, xxh3 + blake3") for ratio in ratios(rounds, name, "floor: copy", 0)
    ]
    fast = ratios(rounds, "ours, xxh3", "floor: write", 1)
    strong = ratios(rounds, "ours, xxh3 + blake3", "floor: write", 1)
    return [
        at_most("blocked / one warm copy", statistics.median(blocked), 1.2),
        at_most("durable save with xxh3 / O_DIRECT floor", statistics.median(fast), 1.3),
        at_most("durable save with xxh3 and blake3 / O_DIRECT floor", statistics.median(strong), 1.6),
    ]


def told_loads(bench: Bench, rounds: Sequence[dict[str, float]]) -> list[Bar]:
    """Print all sides; the bar of loading, against the faster of the two raw reads."""
    floors = [min(seconds for name, seconds in one.items() if name.startswith("floor")) for one in rounds]
    found = {}
    for name in sorted(rounds[0]):
        found[name] = statistics.median(one[name] / floor for one, floor in zip(rounds, floors, strict=True))
        bench.say(f"{name:24}  {spelled([one[name] for one in rounds], 's')} x{found[name]:.2f}")
    return [at_most("verified warm load / raw read", found["ours, xxh3"], 1.3)]


def main() -> int:
    """Measure, print, judge."""
    bench = Bench("checkpoint", __doc__ or "")
    sizes = Sizes(200_000_000, 3, 5) if bench.options.quick else Sizes(2_000_000_000, 5, 5)
    torch.set_num_threads(1)
    peers.start_group()
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as name:
        folder = Path(name)
        ours = Ours(sizes.state_bytes, folder / "store")
        bars = measured(bench, ours, folder, sizes)
        ours.close()
        told_ranks(bench, folder / "ranks", sizes)
        growth, arenas = flat_memory(folder / "flat")
    bars.append(at_most(f"memory that {FLAT_SAVES} saves leave behind / state", growth, 0.1))
    bars.append(at_most("arenas / two images", arenas, 1.2))
    return bench.finish(bars)


def measured(bench: Bench, ours: Ours, folder: Path, sizes: Sizes) -> list[Bar]:
    """All but the memory."""
    seed = bench.options.seed
    warm = [torch.zeros_like(tensor) for tensor in ours.tensors.values()]
    theirs = peers.saves(ours.tensors)
    rounds = []
    for number in range(sizes.rounds + 1):
        rounds.append(save_round(ours, warm, theirs, folder, seed + number))
        bench.say(f"round {number} of {sizes.rounds} done")
    bars = told_saves(bench, rounds[1:], sizes.state_bytes)  # the first round warms what is used again
    ours.train()
    ours.take(0)
    packed = ours.save(0, {"codec": "zstd"})
    share = packed["written_bytes"] / (packed["written_bytes"] + packed["reused_bytes"])
    size = packed["written_bytes"] / sizes.state_bytes
    bench.say(f"zstd of random float32: {size:.2f} of the size in {packed['save_s']:.2f} s ({share:.0%} written)")
    ours.train()
    ours.take(0)
    sides = load_sides(ours, ours.index(ours.save(0, {"incremental": False}))) | peers.loads(ours.tensors, folder)
    draw = random.Random(seed)
    loads = [{one: sides[one]() for one in draw.sample(sorted(sides), len(sides))} for _ in range(sizes.rounds + 1)]
    bars += told_loads(bench, loads[1:])
    quiet, beside = slowdown(ours, sizes.saves_beside_loop)
    slower = statistics.median(beside) / statistics.median(quiet) - 1
    bench.say(f"training loop beside a save: {spelled(beside, 'ms', 1e3)}, alone: {spelled(quiet, 'ms', 1e3)}")
    return [*bars, at_most("training loop slower beside a save", slower, 0.05)]


if __name__ == "__main__":
    sys.exit(main())
