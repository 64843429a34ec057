"""What a request gets on a level of the ladder: a smaller question, or an answer without a replica. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from closeranks.serve.foreign import decode, decoded_object
from closeranks.serve.http.head import Headers, Request
from closeranks.serve.policies.answers import AnswerCache, CacheLimits, as_events, key_of, static
from closeranks.serve.policies.deadline import Clock
from closeranks.serve.policies.ladder import LevelSettings
from closeranks.serve.policies.rewrite import rewrite
from closeranks.serve.words import Ask

DEGRADED: Final = b"x-closeranks-degraded"
WITHOUT: Final = b"x-closeranks-without"
"""Tells a replica which of the services that it depends on it is not to ask."""
LADDER_PATHS: Final = (b"/completions", b"/rerank")
"""What the ladder is for; anything else, such as embeddings, has no smaller form and is served in full or not."""


class LocalAnswer(msgspec.Struct, frozen=True):
    """A whole answer that needed no replica."""

    headers: Headers
    body: bytes


class Fallbacks:
    """The levels of one gateway, and the answers that it keeps for them."""

    def __init__(self, levels: Sequence[LevelSettings], limits: CacheLimits, safe_answer: str = "") -> None:
        self._safe_answer = safe_answer
        self._levels = tuple(levels)
        self.cache = AnswerCache(limits)  # outlives these levels when they are read again
        self._keeps = any(level.kind == "cached" for level in levels)

    def smaller(self, request: Request, level: LevelSettings) -> Request:
        """The request as it is asked on this level; what is no JSON object is asked as it is."""
        body = decoded_object(request.body)
        if body is None:
            return request
        return msgspec.structs.replace(request, body=msgspec.json.encode(rewrite(body, level)))

    def local(self, clock: Clock, ask: Ask, request: Request, level: int) -> LocalAnswer | None:
        """The answer of this level or of the next one that has any; None: there is none."""
        found = (self.at(clock, ask, request, number) for number in range(level, len(self._levels)))
        return next((answer for answer in found if answer is not None), None)

    def at(self, clock: Clock, ask: Ask, request: Request, level: int) -> LocalAnswer | None:
        """The answer of exactly this level; None: it has none, or its replicas have."""
        settings, body = self._levels[level], decoded_object(request.body)
        if body is None or not request.path.endswith(b"/completions"):
            return None
        headers: Headers = [(DEGRADED, settings.name.encode())]
        if settings.kind == "static" and settings.answer:
            return _spelled(static(body, request.path, settings.answer, int(clock.epoch_s)), headers, body)
        if settings.kind != "cached":
            return None
        kept = self.cache.get(clock.now_s, key_of(ask.tenant, request.path, body), settings.age_s)
        if kept is None:
            return None
        headers.append((b"age", b"%d" % max(0, int(clock.now_s - kept.at_s))))
        return _spelled(decode(kept.body), headers, body)

    def safe(self, clock: Clock, request: Request) -> LocalAnswer | None:
        """What is served when replicas differ and no two agree; None if nothing is declared."""
        body = decoded_object(request.body)
        if body is None or not self._safe_answer:
            return None
        answer = static(body, request.path, self._safe_answer, int(clock.epoch_s))
        return _spelled(answer, [(DEGRADED, b"safe-answer")], body)

    @property
    def remembers(self) -> bool:
        """Whether there is an answer for a cached level."""
        return self.cache.size_bytes > 0

    def keep(self, now_s: float, ask: Ask, request: Request, answer: bytes) -> None:
        """Remember a full answer for a cached level, if there is one and the answer is whole."""
        if not self._keeps or ask.stream:
            return
        body, found = decoded_object(request.body), decoded_object(answer)
        if body is not None and found is not None and isinstance(found.get("choices"), list):
            self.cache.put(now_s, key_of(ask.tenant, request.path, body), answer)


def _spelled(answer: dict[str, Any], headers: Headers, body: dict[str, Any]) -> LocalAnswer:
    """The answer in the form that the request wants: as a whole, or as a stream of events."""
    if body.get("stream") is not True:
        return LocalAnswer([(b"content-type", b"application/json"), *headers], msgspec.json.encode(answer))
    options = body.get("stream_options")
    usage = bool(options.get("include_usage")) if isinstance(options, dict) else False
    return LocalAnswer([(b"content-type", b"text/event-stream"), *headers], b"".join(as_events(answer, usage=usage)))
