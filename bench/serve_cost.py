"""What the gateway costs: processor time for each request and each streamed event, beside nginx in the same run.

One replica in nginx answers at once; another streams events as fast as they are taken. wrk and a raw client drive each
gateway alone, one after the other in an order drawn anew each round. Processor time is that of the gateway's processes.

The floor is what a proxy in Python costs that does nothing at all (``_bare_proxy.py``). A client over a kept connection
repeats its head, and closeranks makes use of that; ``new heads`` is what it costs where no head is like another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from _common import Bench, at_least, at_most, interleaved, ratio_of_medians, spelled
from _serve_sides import Running, bare, closeranks, free_port, nginx, wait_for_port

CONNECTIONS = 32
STREAMS = 32
EVENTS = 400
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
BODY = json.dumps({"messages": [{"role": "user", "content": "?"}], "temperature": 0, "max_tokens": 8})
FLOOR, PASSED, WHOLE, NEW, TWO = "bare proxy", "pass-through", "everything", "new heads", "two processes"
SIDES = ("nginx", FLOOR, PASSED, WHOLE, NEW, TWO)
UNARY_ONLY = (FLOOR, NEW, TWO)
UNTOUCHED = '[streams]\non_cut = "pass"\n'
NUMBERED = """
local number = 0
request = function()
  number = number + 1
  wrk.headers["x-request-id"] = number
  return wrk.format()
end
"""


class Cost(NamedTuple):
    """One measurement."""

    request_us: float  # of one core
    requests_per_s: float
    event_us: float
    events_per_s: float
    p50_ms: float  # with one connection


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def pids_of(running: Running) -> list[int]:
    """The process and its children: nginx works in one."""
    path = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
    return [running.process.pid, *map(int, path.read_text().split())]


def replica(folder: Path) -> Running:
    """Answers a completion at once."""
    port = free_port()
    path = folder / "replica.conf"
    answer = json.dumps({"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}]})
    path.write_text(
        f"daemon off; worker_processes 1; pid {folder}/replica.pid; error_log {folder}/replica.err;"
        f"events {{ worker_connections 4096; }} http {{ access_log off; client_body_temp_path {folder}/rb;"
        f" proxy_temp_path {folder}/rp; fastcgi_temp_path {folder}/rf; uwsgi_temp_path {folder}/ru;"
        f" scgi_temp_path {folder}/rs; server {{ listen 127.0.0.1:{port}; keepalive_requests 100000000;"
        f" location / {{ default_type application/json; return 200 '{answer}'; }} }} }}"
    )
    process = subprocess.Popen([shutil.which("nginx") or "nginx", "-c", str(path)])
    wait_for_port(port, process)
    return Running(process, port)


async def stream_events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Streams EVENTS events, one write each."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for number in range(EVENTS):
                finish = '"stop"' if number == EVENTS - 1 else "null"
                chunk = (
                    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":'
                    f'[{{"index":0,"delta":{{"content":" word"}},"finish_reason":{finish}}}]}}\n\n'
                ).encode()
                writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await writer.drain()
                await asyncio.sleep(0)  # an event a packet, as engines send them
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def serve_streams(port: int) -> None:
    """A replica that streams, in a process of its own."""

    async def run() -> None:
        server = await asyncio.start_server(stream_events, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(run())


async def take_streams(port: int) -> None:
    """Read STREAMS streams at once to their ends."""

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = BODY.replace('"max_tokens": 8', '"stream": true').encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        tail = b""
        while b"\r\n0\r\n\r\n" not in tail:
            data = await reader.read(65536)
            if not data:
                raise RuntimeError("the stream was cut")
            tail = (tail + data)[-64:]
        writer.close()

    await asyncio.gather(*[one() for _ in range(STREAMS)])


def requests_of(
    port: int, connections: int, seconds: float, folder: Path, *, numbered: bool = False
) -> tuple[float, float]:
    """Requests a second, and the median time of one in milliseconds, as wrk sees them."""
    script = folder / "post.lua"
    said = f'wrk.method = "POST"\nwrk.body = [[{BODY}]]\nwrk.headers["content-type"] = "application/json"\n'
    script.write_text(said + (NUMBERED if numbered else ""))
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said:
        raise RuntimeError(said)
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1])  # type: ignore[index]
    value, unit = re.search(r"50%\s+([\d.]+)(us|ms|s)", said).groups()  # type: ignore[union-attr]
    return rate, float(value) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def cost_of(side: str, unary: int, streaming: int, seconds: float) -> Cost:
    """Start a gateway, load it, and end it."""
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))

    def begin(port: int) -> Running:
        if side == "nginx":
            found = nginx([port], folder)
            assert found is not None
            return found
        if side == FLOOR:
            return bare(port, folder)
        return closeranks([port], folder, more=UNTOUCHED if side == PASSED else "", processes=2 if side == TWO else 1)

    gateway = begin(unary)
    _, p50_ms = requests_of(gateway.port, 1, seconds / 2, folder)
    before_s = sum(map(cpu_s, pids_of(gateway)))
    began_s = time.monotonic()
    rate, _ = requests_of(gateway.port, CONNECTIONS, seconds, folder, numbered=side == NEW)
    took_s, used_s = time.monotonic() - began_s, sum(map(cpu_s, pids_of(gateway))) - before_s
    request_us = used_s / (rate * seconds) * 1e6
    gateway.stop()
    event_us = 0.0
    if side not in UNARY_ONLY:
        gateway = begin(streaming)
        asyncio.run(take_streams(gateway.port))
        before_s = sum(map(cpu_s, pids_of(gateway)))
        asyncio.run(take_streams(gateway.port))
        event_us = (sum(map(cpu_s, pids_of(gateway))) - before_s) / (STREAMS * EVENTS) * 1e6
        gateway.stop()
    shutil.rmtree(folder)
    per_core = rate * took_s / used_s if used_s else 0.0
    return Cost(request_us, per_core, event_us, 1e6 / event_us if event_us else 0.0, p50_ms)


def main() -> int:
    """Run it."""
    bench = Bench("serve_cost", __doc__ or "")
    if not (shutil.which("nginx") and shutil.which("wrk")):
        bench.say("needs nginx and wrk")
        return bench.finish([at_most("nginx and wrk are installed", None, 0)])
    import multiprocessing

    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    unary, streaming = replica(folder), free_port()
    streams = multiprocessing.Process(target=serve_streams, args=(streaming,), daemon=True)
    streams.start()
    seconds = 2.0 if bench.options.quick else 5.0
    measure = {side: (lambda side=side: cost_of(side, unary.port, streaming, seconds)) for side in SIDES}
    try:
        found = interleaved(measure, 2 if bench.options.quick else 5, bench.options.seed)
    finally:
        unary.stop()
        streams.terminate()
        shutil.rmtree(folder)
    for side, costs in found.items():
        events = "" if side in UNARY_ONLY else f"{spelled([c.event_us for c in costs], 'us an event')}, "
        bench.say(
            f"{side}: {spelled([c.request_us for c in costs], 'us a request')}, {events}"
            f"{spelled([c.requests_per_s for c in costs], 'requests/s and core')}, "
            f"{spelled([c.p50_ms for c in costs], 'ms p50 with one connection')}"
        )
    direct = found["nginx"]
    bars = []
    for side in UNARY_ONLY:
        ratio = ratio_of_medians([c.request_us for c in found[side]], [c.request_us for c in direct])
        bench.say(f"{side} over nginx, request_us: {ratio}")
    for side, bar in ((PASSED, 2.0), (WHOLE, 6.0)):
        for what in ("request_us", "event_us"):
            ratio = ratio_of_medians([getattr(c, what) for c in found[side]], [getattr(c, what) for c in direct])
            bench.say(f"{side} over nginx, {what}: {ratio}")
            bars.append(at_most(f"{side}: {what} over nginx", ratio.value, bar))
    whole = found[WHOLE]
    added_ms = statistics.median(c.p50_ms for c in whole) - statistics.median(c.p50_ms for c in direct)
    bars += [
        at_least("everything: requests/s and core", statistics.median(c.requests_per_s for c in whole), 5000),
        at_least("everything: events/s and core", statistics.median(c.events_per_s for c in whole), 10_000),
        at_most("everything: median added to nginx, ms", added_ms, 0.5),
    ]
    return bench.finish(bars)


if __name__ == "__main__":
    raise SystemExit(main())
