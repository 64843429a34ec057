"""Carries out the checks of replicas: is it there, is it ready, and does it still give the answer that it always gave.

What the findings mean is decided by ``policies.health``. A probe is a request of the gateway's own, with a number of
its own, run to its end and compared; that other requests have moved meanwhile proves nothing. Given up in time, it is
cancelled at the replica too, so that probes never pile up.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final

import msgspec

from closeranks.events import ReplicaReadmitted
from closeranks.serve.foreign import decode
from closeranks.serve.http.head import Headers, lines_of, request_bytes
from closeranks.serve.http.upstream import Cut
from closeranks.serve.policies.health import Check, Finding, Grade
from closeranks.serve.probe_settings import ProbeSettings
from closeranks.serve.question import Answered, Unanswered, ask
from closeranks.serve.settings import Engine
from closeranks.serve.wheel import Due

if TYPE_CHECKING:
    from closeranks.serve.gateway import Gateway
    from closeranks.serve.replica import Replica

TICK_S: Final = 0.25
_BAD: Final = 400
_NO_SUCH_PATH: Final = frozenset({404, 405, 501})
_PATHS: Final = {Engine.LLAMA_CPP: "/health", Engine.VLLM: "/health", Engine.SGLANG: "/health", Engine.TGI: "/health"}


class Prober:
    """The checks of all replicas of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: dict[tuple[str, ProbeSettings], str] = {}  # answers by tier, each to its question
        self._handle: Due | None = None

    def start(self) -> None:
        """Begin, and go on until ``close``."""
        self._tick()

    def close(self) -> None:
        """Cancel what is going on."""
        if self._handle is not None:
            self._handle.cancel()
        for task in self._tasks:
            task.cancel()

    @property
    def _settings(self) -> ProbeSettings:
        """They may be read again at any time."""
        return self._gateway.settings.probe

    def _tick(self) -> None:
        gateway = self._gateway
        now_s = gateway.now_s()
        checks = (Check.LIVENESS, Check.READINESS) + ((Check.KNOWN_ANSWER,) if self._settings.known_answer else ())
        for replica in gateway.replicas.values():
            judge = gateway.traffic.fleet.members[replica.settings.name].judge
            for check in judge.due(now_s, checks):
                if check is Check.KNOWN_ANSWER and not gateway.traffic.probe_allowed(now_s):
                    continue
                judge.began(now_s, check)
                task = asyncio.get_running_loop().create_task(self._check(replica, check))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._handle = gateway.at(now_s + TICK_S, self._tick)

    async def _check(self, replica: Replica, check: Check) -> None:
        match check:
            case Check.LIVENESS:
                finding, detail = await self._liveness(replica)
            case Check.READINESS:
                finding, detail = await self._readiness(replica)
            case Check.KNOWN_ANSWER:
                finding, detail = await self._known_answer(replica)
        gateway = self._gateway
        if replica.settings.name in gateway.replicas:  # it may have been taken out of the configuration meanwhile
            name, now_s = replica.settings.name, gateway.now_s()
            quarantine = gateway.traffic.quarantine
            quarantined = name in quarantine
            changed = gateway.traffic.checked(now_s, name, check, finding, detail)
            if quarantined and name not in quarantine:
                gateway.note(ReplicaReadmitted(replica=name, reason="its known answers were right again"))
            if changed and gateway.traffic.fleet.members[name].judge.grade(now_s) is Grade.DOWN:
                gateway.abandon(name, f"its checks fail: {detail or finding}", waiting_only=True)

    async def _liveness(self, replica: Replica) -> tuple[Finding, str]:
        """Whether anything is answered at all."""
        answer = await self._ask(replica, b"GET", self._ready_path(replica), b"")
        return _finding(answer, least_bad=None)

    async def _readiness(self, replica: Replica) -> tuple[Finding, str]:
        answer = await self._ask(replica, b"GET", self._ready_path(replica), b"")
        if isinstance(answer, Answered) and answer.status in _NO_SUCH_PATH:
            return Finding.PASS, ""  # it does not say whether it is ready
        return _finding(answer, least_bad=_BAD)

    async def _known_answer(self, replica: Replica) -> tuple[Finding, str]:
        settings = self._settings
        wanted = {"prompt": settings.prompt, "max_tokens": settings.max_tokens, "temperature": 0, "stream": False}
        body = msgspec.json.encode(wanted | ({"model": settings.model} if settings.model else {}))
        answer = await self._ask(replica, b"POST", "/v1/completions", body)
        finding, detail = _finding(answer, least_bad=_BAD)
        if finding is not Finding.PASS or not isinstance(answer, Answered):
            return finding, detail
        said = _text_of(answer.body)
        if said is None:
            return Finding.FAIL, "no completion came"
        expected = settings.expect or self._known.setdefault((replica.settings.tier, settings), said)
        if said != expected:
            return Finding.WRONG, f"expected {expected!r}, got {said!r}"
        return Finding.PASS, ""

    def _ready_path(self, replica: Replica) -> str:
        return self._settings.ready_path or _PATHS.get(replica.settings.engine, "/v1/models")

    async def _ask(self, replica: Replica, method: bytes, path: str, body: bytes) -> Answered | Unanswered:
        drilled = await self._gateway.drills.question(replica.settings.name)
        if drilled is not None:
            return drilled
        headers: Headers = [(b"host", replica.authority), (b"x-request-id", b"probe-%d" % next(self._numbers))]
        if body:
            headers.append((b"content-type", b"application/json"))
        data = request_bytes(method, replica.prefix + path.encode(), lines_of(headers), body)
        return await ask(replica.pool, data, self._gateway.settings.health.timeout_s)


def _finding(answer: Answered | Unanswered, *, least_bad: int | None) -> tuple[Finding, str]:
    if isinstance(answer, Unanswered):
        return (Finding.TIMEOUT if answer.cut is Cut.SILENT else Finding.FAIL), answer.detail
    if least_bad is not None and answer.status >= least_bad:
        return Finding.FAIL, f"status {answer.status}"
    return Finding.PASS, ""


def _text_of(body: bytes) -> str | None:
    """The text of a completion; None if there is none."""
    try:
        said = decode(body)
        text = said["choices"][0]["text"]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        return None
    return text if isinstance(text, str) else None
