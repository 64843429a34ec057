"""The diagnosis: megabytes a second and memory on a stream of a gigabyte, and how well labelled logs are told apart.

    python bench/diagnose.py [--quick] [--json]

Three streams, each in a process of its own so that its largest memory is its own: a training log (progress of eight
ranks, a few lines of NCCL and of warnings, one error at the end), a log in which every line says "Error", and one
endless line; of the noisy one a tenth. Processor time of one core. Quick: a tenth of all bytes.

Labelled logs: GPUAlert's corpus (MIT), 225 logs of 15 classes, if CLOSERANKS_TEST_DATA or shared/data is there. Rules
were developed on two thirds of its sources; the other third is reported beside it.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from _common import Bench, at_least, at_most
from _corpus import logs_of, macro_f1, scored, split

from closeranks.diagnose.judge import judge
from closeranks.diagnose.lines import Gathering, Origin, Scanner
from closeranks.gather.rulebook import lexicon

PIECE_BYTES = 2**20
BAR_MB_PER_S, BAR_MIB, BAR_F1 = 50.0, 200.0, 0.99
ARCHIVE = "logs/labelled-logs.tar.xz"
STREAMS = ("training log", "noisy log", "endless line")


def training_piece() -> bytes:
    """About a mebibyte of what a healthy job prints."""
    draw, lines = random.Random(0), []
    for step in range(PIECE_BYTES // 140):
        lines.append(
            f"[rank{step % 8}]: 2026-11-29 10:{step // 60 % 60:02d}:{step % 60:02d},123 - train - INFO - step {step} | "
            f"loss = {4 * draw.random():.4f} | grad_norm {draw.random():.3f} | {draw.randint(10**4, 10**5)} tok/s\n"
        )
        if step % 50 == 0:
            lines.append(f"node{step % 4}:99:120 [2] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n")
        if step % 500 == 0:
            lines.append("WARNING:root:Connection to tracker failed, retrying (attempt 1)\n")
    return "".join(lines).encode()


def stream(name: str, size_bytes: int) -> Iterator[bytes]:
    """Pieces of the stream, ``size_bytes`` in all, and an error at its end."""
    piece = {
        "training log": training_piece(),
        "noisy log": b"2026-11-29 10:00:00,123 - client - WARNING - Error while calling the tracker, will be repeated\n"
        * 10**4,
        "endless line": b"x" * PIECE_BYTES,
    }[name]
    for _ in range(size_bytes // len(piece) + 1):
        yield piece
    yield b"\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def measure(name: str, size_bytes: int) -> None:
    """Print bytes, processor seconds, largest memory before and after, and the verdict, as one JSON line."""
    gathering = Gathering(lexicon())
    scanner = Scanner(gathering, Origin(file=name))
    pieces = stream(name, size_bytes)
    scanner.feed(next(pieces))  # tables and caches are there before the clock starts
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read_bytes, began_s = 0, time.process_time()
    for piece in pieces:
        scanner.feed(piece)
        read_bytes += len(piece)
    scanner.close()
    took_s = time.process_time() - began_s
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verdict = judge(gathering.evidence())
    print(json.dumps([read_bytes, took_s, before_kib / 1024, after_kib / 1024, verdict.fault, verdict.culprit.rank]))


def corpus(bench: Bench) -> tuple[float | None, float | None]:
    """Macro-F1 on the part that rules were developed on, and on the other."""
    for folder in [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]:
        if (folder / ARCHIVE).exists():
            with tarfile.open(folder / ARCHIVE) as archive:
                parts = split(logs_of(archive))
            values = tuple(macro_f1(scored(part)) for part in parts)
            for name, part, value in zip(("developed on", "held out"), parts, values, strict=True):
                bench.say(f"labelled logs, {name}: {len(part)} logs, macro-F1 {value:.4f}")
            return values[0], values[1]
    bench.say("labelled logs: not at hand")
    return None, None


def main() -> int:
    """All streams, then the labelled logs."""
    if sys.argv[1:2] == ["--stream"]:
        measure(sys.argv[2], int(sys.argv[3]))
        return 0
    bench = Bench("diagnose", __doc__)
    size_bytes = 2**30 // (10 if bench.options.quick else 1)
    bars = []
    for name in STREAMS:
        share = 10 if name == "noisy log" else 1
        command = [sys.executable, __file__, "--stream", name, str(size_bytes // share)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        read_bytes, took_s, before_mib, after_mib, fault, rank = json.loads(done.stdout)
        speed = read_bytes / 1e6 / took_s
        bench.say(
            f"{name}: {read_bytes / 1e6:.0f} MB at {speed:.0f} MB/s, memory {before_mib:.0f} -> {after_mib:.0f} MiB; "
            f"verdict {fault}, rank {rank}"
        )
        if name == "training log":
            bars.append(at_least("training log, MB/s on one core", speed, BAR_MB_PER_S))
        bars.append(at_most(f"{name}, largest memory in MiB", after_mib, BAR_MIB))
        bars.append(at_least(f"{name}, verdict right", float((fault, rank) == ("device out of memory", 3)), 1.0))
    developed, held_out = corpus(bench)
    bars.append(at_least("macro-F1, developed on", developed, BAR_F1))
    bars.append(at_least("macro-F1, held out", held_out, BAR_F1))
    return bench.finish(bars)


if __name__ == "__main__":
    sys.exit(main())
