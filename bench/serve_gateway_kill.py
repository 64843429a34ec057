"""Two gateway processes, a real Redis, 24 streams in flight, SIGKILL of their gateway: what the clients end up with.

Every client reads from the first gateway. It is killed at a drawn moment after each client has had some tokens. The
clients ask the second gateway for the rest, with the id of the last event that they have. The engines are servers of
llama.cpp, one token at a time (n_ubatch=1), so that each text has exactly one right continuation; an answer is exact
when it is the undisturbed one, so nothing is lost, repeated or changed.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from _common import Bench, at_least, spelled
from _serve_client import Stream, ask_anywhere
from _serve_engines import REPLICA, STREAMS, TOKENS_BEFORE, Engines, body, undisturbed
from _serve_sides import Running, closeranks, free_port, wait_for_port

from closeranks.serve.demo.tiny_model import write_tiny_model

LIMIT_S = 90.0
LATEST_S = 0.5  # after every client has had its first tokens
KEEPS = ("checkpoint", "mirror")


class Round(NamedTuple):
    """One kill."""

    struck: int  # streams that were under way
    complete: int
    exact: int
    gap_s: float  # the longest between two pieces of any stream that was cut and completed
    partings: tuple[str, ...]  # where texts part from the undisturbed ones


def redis(folder: Path) -> Running:
    """A Redis that keeps nothing on disk.

    Raises:
        RuntimeError: it does not start.
    """
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    wait_for_port(port, process)
    return Running(process, port)


async def strike(gateways: list[Running], texts: list[str], after_s: float) -> Round:
    """Begin all streams at the first gateway, kill it, and let the clients go on with the second one."""
    streams = [Stream(times_s=[]) for _ in texts]
    ports = [gateway.port for gateway in gateways]
    tasks = [asyncio.create_task(ask_anywhere(ports, body(n), one, LIMIT_S)) for n, one in enumerate(streams)]
    while any(len(s.times_s) < TOKENS_BEFORE and not s.error for s in streams):  # noqa: ASYNC110 - what tasks fill in
        await asyncio.sleep(0.002)
    await asyncio.sleep(after_s)
    gateways[0].process.kill()
    await asyncio.gather(*tasks)
    struck = [stream for stream in streams if stream.cuts]
    return Round(
        struck=len(struck),
        complete=sum(stream.complete for stream in streams),
        exact=sum(stream.text == text for stream, text in zip(streams, texts, strict=True)),
        gap_s=max((stream.longest_gap_s for stream in struck if stream.complete), default=0.0),
        partings=tuple(parting(n, stream, texts[n]) for n, stream in enumerate(streams) if stream.text != texts[n]),
    )


def parting(number: int, stream: Stream, text: str) -> str:
    """Where a text is no longer the undisturbed one."""
    both = zip(stream.text, text, strict=False)
    at = next((at for at, (here, there) in enumerate(both) if here != there), min(len(stream.text), len(text)))
    said, expected = stream.text[at : at + 40], text[at : at + 40]
    return f"stream {number} parts after {at} of {len(text)} characters: {said!r} for {expected!r} {stream.error}"


def one(model: Path, keep: str, texts: list[str], after_s: float) -> Round:
    """A round with engines, a Redis and two gateways of its own."""
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    started = []
    engines = Engines(model, folder)
    try:
        store = redis(folder)
        started.append(store)
        more = f'[sessions]\nkeep = "{keep}"\nstore = "redis://127.0.0.1:{store.port}/0"\n'
        gateways = []
        for name in "ab":
            (folder / name).mkdir()
            gateways.append(closeranks(engines.ports, folder / name, REPLICA, more))
            started.append(gateways[-1])
        return asyncio.run(strike(gateways, texts, after_s))
    finally:
        for running in started:
            running.stop()
        engines.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run it."""
    bench = Bench("serve_gateway_kill", __doc__ or "")
    if shutil.which("redis-server") is None:
        bench.say("redis-server is not installed: apt install redis-server")
        return bench.finish([at_least(f"{keep}: fewest exact of {STREAMS}", None, STREAMS) for keep in KEEPS])
    rounds = 1 if bench.options.quick else 5
    draw = random.Random(bench.options.seed)
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    model = folder / "tiny.gguf"
    write_tiny_model(model)
    texts = undisturbed(model, folder)
    bench.say(f"{STREAMS} streams, {os.cpu_count()} cores; the gateway is killed up to {LATEST_S:g} s into them")
    bars = []
    for keep in KEEPS:
        found = []
        for _ in range(rounds):
            found.append(one(model, keep, texts, draw.uniform(0.0, LATEST_S)))
            result = found[-1]
            bench.say(
                f"  {keep}: {result.struck} streams cut, {result.complete}/{STREAMS} complete, "
                f"{result.exact} exact, longest pause {result.gap_s:.3f} s"
            )
            for line in result.partings:
                bench.say(f"    {line}")
        bench.say(f"{keep}: longest pause {spelled([round_.gap_s for round_ in found], 'ms', 1000)}")
        bars += [
            at_least(f"{keep}: fewest streams cut by the kill", min(one.struck for one in found), 1),
            at_least(f"{keep}: fewest complete of {STREAMS}", min(one.complete for one in found), STREAMS),
            at_least(f"{keep}: fewest exact of {STREAMS}", min(one.exact for one in found), STREAMS),
        ]
    shutil.rmtree(folder, ignore_errors=True)
    return bench.finish(bars)


if __name__ == "__main__":
    raise SystemExit(main())
