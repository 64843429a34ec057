"""Seeded rounds: streams through a real gateway, replicas that break them, gateways that die; what the clients read.

Everything is drawn from the seed: the engines' dialect, who breaks how and when, whether streams are kept and by which
of two gateways they are finished. A round holds if every client has read the whole text, once.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from closeranks.serve.drill.engines import WORDS, Break, Engine, events_of, text_of
from closeranks.serve.drill.replica import Replica
from closeranks.serve.gateway import Gateway
from closeranks.serve.sessions.settings import Keep
from closeranks.serve.settings import Settings, parse

STREAMS: Final = 4
LIMIT_S: Final = 30.0
_KINDS: Final = ("openai", "llama.cpp", "vllm", "sglang")
_TEXT: Final = "".join(WORDS)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed draws."""

    seed: int
    kind: str
    breaks: tuple[tuple[str, int], ...]  # of each replica: how, after how many tokens; "" never
    keep: Keep
    gateway_dies_after: int  # events that a client has read; 0: it lives


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How one round went."""

    plan: Plan
    lost: int = 0  # streams whose text is not whole
    repeated: int = 0  # streams that say something twice, or something else
    problem: str = ""

    @property
    def held(self) -> bool:
        """Whether nothing was lost and nothing repeated."""
        return not (self.lost or self.repeated or self.problem)


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    dice = random.Random(f"serve/{seed}")  # noqa: S311 - a seed that replays
    replicas = dice.choice((2, 3))
    whole = dice.randrange(replicas)  # one that never breaks
    breaks = tuple(
        ("", 0) if number == whole else (dice.choice(list(Break)), dice.randrange(len(WORDS)))
        for number in range(replicas)
    )
    keep = dice.choice((Keep.NOTHING, Keep.CHECKPOINT, Keep.MIRROR))
    dies_after = dice.randrange(1, len(WORDS)) if keep is not Keep.NOTHING and dice.random() < 0.5 else 0  # noqa: PLR2004
    kind = dice.choice(_KINDS)
    return Plan(seed=seed, kind=kind, breaks=breaks, keep=keep, gateway_dies_after=dies_after)


async def play_all(rounds: int, seed: int, told: Callable[[Result], None]) -> int:
    """Play so many rounds, one after the other; how many did not hold. Each is told as it ends."""
    broken = 0
    for number in range(seed, seed + rounds):
        with tempfile.TemporaryDirectory(prefix="closeranks-drill-") as folder:
            result = await play(draw(number), folder)
        broken += not result.held
        told(result)
    return broken


async def play(plan: Plan, folder: str) -> Result:
    """Carry the plan out; streams are kept in ``folder``."""
    engines = [
        Engine(plan.kind, breaks=how or None, after=after, gap_s=0.001, always=True) for how, after in plan.breaks
    ]
    replicas = [await Replica(engine).start() for engine in engines]
    settings = _settings(plan, replicas, folder)
    gateways = [Gateway(settings), Gateway(settings)]
    ports = [await gateway.start() for gateway in gateways]
    try:
        async with asyncio.timeout(LIMIT_S):
            texts = await asyncio.gather(*(_read(plan, gateways[0], ports) for _ in range(STREAMS)))
    except TimeoutError:
        return Result(plan=plan, problem=f"no end within {LIMIT_S:g} s")
    finally:
        for gateway in gateways:
            await gateway.close()
        for replica in replicas:
            await replica.stop()
    lost = sum(_TEXT.startswith(text) and text != _TEXT for text in texts)
    repeated = sum(not _TEXT.startswith(text) for text in texts)
    return Result(plan=plan, lost=lost, repeated=repeated)


def _settings(plan: Plan, replicas: list[Replica], folder: str) -> Settings:
    tables = [
        f'[[replica]]\nname = "r{number}"\nurl = "http://127.0.0.1:{replica.port}"\nengine = "{plan.kind}"\n'
        for number, replica in enumerate(replicas)
    ]
    stall = "[stall]\nunlearned_s = 0.5\n[timeouts]\nfirst_byte_s = 1.0\n"
    sessions = f'[sessions]\nkeep = "{plan.keep}"\nstore = "file:{folder}"\n'
    return parse(f"[listen]\nport = 0\n{stall}{sessions}{''.join(tables)}", "drill.toml")


async def _read(plan: Plan, gateway: Gateway, ports: list[int]) -> str:
    """What one client reads, from one gateway or from two."""
    seen, body = "", b""
    first = _events(ports[0], "")
    count = 0
    async for event_id, event in first:
        seen, body, count = event_id, body + event, count + 1
        if plan.gateway_dies_after and count == plan.gateway_dies_after:
            await gateway.close()
            break
    if plan.gateway_dies_after and b"[DONE]" not in body:
        async for _, event in _events(ports[1], seen):
            body += event
    return text_of(events_of(body))


async def _events(port: int, last_seen: str) -> AsyncIterator[tuple[str, bytes]]:
    """The events of a stream, each with its id; ends where the connection does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}], "stream": True, "temperature": 0}
    raw = json.dumps(request).encode()
    resume = f"last-event-id: {last_seen}\r\n" if last_seen else ""
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{resume}content-length: {len(raw)}\r\n\r\n".encode() + raw
    )
    rest = b""
    try:
        await reader.readuntil(b"\r\n\r\n")
        while size := int((await reader.readuntil(b"\r\n")).strip() or b"0", 16):
            rest += (await reader.readexactly(size + 2))[:-2]
            *events, rest = rest.split(b"\n\n")
            for event in events:
                line, _, data = event.partition(b"\n")
                named = line.startswith(b"id: ")
                yield (line[4:].decode() if named else ""), (data if named else event) + b"\n\n"
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.transport.abort()
