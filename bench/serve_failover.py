"""Two replicas, 24 streams in flight, one replica killed or frozen: which answers arrive whole, with which stalls.

The replicas are servers of llama.cpp with a small random model, one token at a time (n_ubatch=1), so that every text
has exactly one right continuation. All sides see the same requests; the replica is struck when every stream has
received some tokens. An answer counts as complete with a finish_reason and the end mark, and as exact when its text is
the undisturbed one. Dynamo, where ``ai-dynamo`` is installed, stands before workers of its own, whose tokens are
random: of its answers it can only be said whether they are complete.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from _common import Bench, at_least, at_most, interleaved, spelled
from _serve_client import Stream, ask
from _serve_dynamo import MODEL, Mockers, installed
from _serve_engines import REPLICA, STREAMS, TOKENS_BEFORE, Engines, body, undisturbed
from _serve_sides import Running, closeranks, envoy, haproxy, nginx

from closeranks.serve.demo.tiny_model import write_tiny_model

LIMIT_S = 20.0
SIDES = {"closeranks": closeranks, "nginx": nginx, "HAProxy": haproxy, "Envoy": envoy}


class Round(NamedTuple):
    """One strike."""

    complete: int
    exact: int
    gap_s: float  # the longest between two pieces of any stream that completed


async def strike(engines: Engines | Mockers, gateway: Running, how: signal.Signals, texts: list[str]) -> Round:
    """Begin all streams, strike the first replica, and see what arrives."""
    streams = [Stream(times_s=[]) for _ in texts]
    bodies = [{"model": MODEL, **body(number)} for number in range(len(texts))]
    tasks = [asyncio.create_task(ask(gateway.port, b, s, LIMIT_S)) for b, s in zip(bodies, streams, strict=True)]
    while any(len(s.times_s) < TOKENS_BEFORE and not s.error for s in streams):  # noqa: ASYNC110 - what tasks fill in
        await asyncio.sleep(0.002)
    os.kill(engines.processes[0].pid, how)
    struck_s = time.monotonic()
    await asyncio.gather(*tasks)
    complete = [stream for stream in streams if stream.complete]
    exact = sum(stream.text == text for stream, text in zip(streams, texts, strict=True))
    gaps_s = [
        later - earlier
        for stream in complete
        for earlier, later in zip(stream.times_s, stream.times_s[1:], strict=False)
        if later >= struck_s
    ]
    return Round(len(complete), exact, max(gaps_s, default=0.0))


def measured(bench: Bench, model: Path, how: signal.Signals, rounds: int, texts: list[str]) -> dict[str, list[Round]]:
    """Rounds of every side that is installed."""

    def dynamo() -> Round | None:
        if not installed(bench.options.dynamo):
            return None
        with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as folder:
            mockers = Mockers(bench.options.dynamo, Path(folder))
            try:
                result = asyncio.run(strike(mockers, mockers.frontend, how, [""] * STREAMS))
            finally:
                mockers.stop()
        bench.say(f"  {how.name} Dynamo: {result.complete}/{STREAMS} complete, gap {result.gap_s:.3f} s")
        return result

    def one(name: str) -> Round | None:
        with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as folder:
            engines = Engines(model, Path(folder))
            arguments = (REPLICA,) if name == "closeranks" else ()
            gateway = SIDES[name](engines.ports, Path(folder), *arguments)
            try:
                if gateway is None:
                    return None
                result = asyncio.run(strike(engines, gateway, how, texts))
            finally:
                if gateway is not None:
                    gateway.stop()
                engines.stop()
        bench.say(
            f"  {how.name} {name}: {result.complete}/{STREAMS} complete, {result.exact} exact, gap {result.gap_s:.3f} s"
        )
        return result

    sides = {name: (lambda name=name: one(name)) for name in SIDES} | {"Dynamo": dynamo}
    results = interleaved(sides, rounds, bench.options.seed)
    return {name: [r for r in found if r is not None] for name, found in results.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where Dynamo is."""
    parser.add_argument("--dynamo", metavar="PYTHON", default=sys.executable, help="an interpreter with ai-dynamo")


def main() -> int:
    """Run it."""
    bench = Bench("serve_failover", __doc__ or "", add_options)
    rounds = 1 if bench.options.quick else 5
    bars = []
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as place:
        folder = Path(place)
        model = folder / "tiny.gguf"
        write_tiny_model(model)
        texts = undisturbed(model, folder)
        for how, gap_bar_s in ((signal.SIGKILL, 0.15), (signal.SIGSTOP, 2.5 * 0.3)):
            for name, found in measured(bench, model, how, rounds, texts).items():
                if not found:
                    bench.say(f"{how.name} {name}: not installed")
                    continue
                complete = [one.complete for one in found]
                exact = "not known" if name == "Dynamo" else spelled([one.exact for one in found], "streams")
                bench.say(
                    f"{how.name} {name}: complete {spelled(complete, 'streams')}, exact {exact}, longest gap of those "
                    f"that completed {spelled([one.gap_s for one in found], 'ms', 1000)}"
                )
                if name == "closeranks":
                    bars += [
                        at_least(f"{how.name}: fewest complete of {STREAMS}", min(complete), STREAMS),
                        at_least(f"{how.name}: fewest exact of {STREAMS}", min(one.exact for one in found), STREAMS),
                        at_most(f"{how.name}: longest gap, s", statistics.median(o.gap_s for o in found), gap_bar_s),
                    ]
    return bench.finish(bars)


if __name__ == "__main__":
    raise SystemExit(main())
