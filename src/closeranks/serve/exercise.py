"""Keeps the levels of the ladder warm: each is used on a schedule, and shown as unverified until that went well."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

import msgspec

from closeranks.serve.http.head import Headers, lines_of, request_bytes
from closeranks.serve.policies.fleet import Question
from closeranks.serve.policies.ladder import LevelSettings
from closeranks.serve.policies.rewrite import rewrite
from closeranks.serve.question import Answered, ask
from closeranks.serve.wheel import Due
from closeranks.serve.words import Placed

if TYPE_CHECKING:
    from closeranks.serve.gateway import Gateway

TICK_S: Final = 1.0
_OK: Final = 200


class Exerciser:
    """Exercises the ladder of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._running: dict[int, asyncio.Task[None]] = {}
        self._handle: Due | None = None

    def start(self) -> None:
        """Begin, and go on until ``close``."""
        self.tick()
        self._handle = self._gateway.at(self._gateway.now_s() + TICK_S, self.start)

    def close(self) -> None:
        """Cancel what is going on."""
        if self._handle is not None:
            self._handle.cancel()
        for task in self._running.values():
            task.cancel()

    def tick(self) -> None:
        """Begin what is due; no level twice at once."""
        gateway = self._gateway
        if len(gateway.traffic.ladder.levels) == 1:
            return
        for level in gateway.traffic.ladder.due(gateway.now_s()):
            if level not in self._running and gateway.traffic.probe_allowed(gateway.now_s()):
                task = asyncio.get_running_loop().create_task(self._exercise(level))
                self._running[level] = task
                task.add_done_callback(functools.partial(self._ended, level))

    def _ended(self, level: int, task: asyncio.Task[None]) -> None:
        del task
        self._running.pop(level, None)

    async def _exercise(self, level: int) -> None:
        gateway = self._gateway
        ladder, began_s = gateway.traffic.ladder, gateway.now_s()
        settings = ladder.levels[level].settings
        if settings.kind == "model":
            met = await self._asked(settings)
        else:
            met = settings.kind == "static" or gateway.fallbacks.remembers
        now_s = gateway.now_s()
        ladder.exercised(now_s, level, now_s - began_s if met else None)

    async def _asked(self, settings: LevelSettings) -> bool:
        """Whether a replica of the level's tier has answered a small request as this level would ask it."""
        gateway = self._gateway
        placed = gateway.traffic.fleet.place(gateway.now_s(), Question(tier=settings.tier, probes=False))
        if not isinstance(placed, Placed):
            return False
        replica, probe = gateway.replicas[placed.replica], gateway.settings.probe
        wanted: dict[str, Any] = {"prompt": probe.prompt, "max_tokens": probe.max_tokens, "temperature": 0}
        body = msgspec.json.encode(rewrite(wanted | ({"model": probe.model} if probe.model else {}), settings))
        headers: Headers = [(b"host", replica.authority), (b"content-type", b"application/json")]
        data = request_bytes(b"POST", replica.prefix + b"/v1/completions", lines_of(headers), body)
        answer = await ask(replica.pool, data, gateway.settings.timeouts.first_byte_s)
        return isinstance(answer, Answered) and answer.status == _OK
