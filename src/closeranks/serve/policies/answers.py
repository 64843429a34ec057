"""Answers that were given before, and answers that never change: the last levels of the ladder. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from closeranks.serve.policies.affinity import digest
from closeranks.serve.policies.bounds import within

_NOT_ASKED: Final = frozenset({"stream", "stream_options", "user", "metadata", "store", "safety_identifier"})


class CacheLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[cache]``: answers that are kept for a ladder's cached level."""

    bytes: int = 64 * 2**20
    answer_bytes: int = 256 * 1024  # a larger one is not kept

    def __post_init__(self) -> None:
        within(self, 0, 2**40, "bytes", "answer_bytes")


class Kept(msgspec.Struct, frozen=True):
    """An answer, and when it was given."""

    body: bytes
    at_s: float


class AnswerCache:
    """The latest answers, within a bound of bytes; the one that was longest not asked for leaves first."""

    def __init__(self, limits: CacheLimits) -> None:
        self._limits = limits
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self.size_bytes = 0

    def put(self, now_s: float, key: str, body: bytes) -> None:
        """Keep an answer."""
        if len(body) > min(self._limits.answer_bytes, self._limits.bytes):
            return
        old = self._kept.pop(key, None)
        self.size_bytes += len(body) - (len(old.body) if old else 0)
        self._kept[key] = Kept(body, now_s)
        while self.size_bytes > self._limits.bytes:
            _, first = self._kept.popitem(last=False)
            self.size_bytes -= len(first.body)

    def get(self, now_s: float, key: str, age_s: float) -> Kept | None:
        """The answer, if it is not older than ``age_s``."""
        kept = self._kept.get(key)
        if kept is None or now_s - kept.at_s > age_s:
            return None
        self._kept.move_to_end(key)
        return kept


def key_of(tenant: str, path: bytes, request: dict[str, Any]) -> str:
    """What two requests have in common that may get the same answer; never across tenants."""
    asked = {key: value for key, value in request.items() if key not in _NOT_ASKED}
    return digest(tenant.encode(), path, msgspec.json.encode(asked, order="sorted"))


def static(request: dict[str, Any], path: bytes, text: str, created_s: int) -> dict[str, Any]:
    """A whole answer that says ``text``, in the form that the caller expects."""
    model = request.get("model")
    base = {"id": "static", "created": created_s, "model": model if isinstance(model, str) else ""}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    if path.endswith(b"/chat/completions"):
        message = {"role": "assistant", "content": text}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
        return {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
    return {**base, "object": "text_completion", "choices": [choice], "usage": usage}


def as_events(answer: dict[str, Any], *, usage: bool = False) -> Iterator[bytes]:
    """A whole answer as the events of a stream: each choice in one piece, then the end mark."""
    chat = answer.get("object") == "chat.completion"
    base = {key: value for key, value in answer.items() if key not in ("choices", "usage")}
    if chat:
        base["object"] = "chat.completion.chunk"
    for choice in answer.get("choices", ()):
        if chat:
            kept = {key: value for key, value in choice.items() if key not in ("message", "finish_reason")}
            yield _event({**base, "choices": [{**kept, "delta": _delta(choice["message"]), "finish_reason": None}]})
            last = {"index": choice.get("index", 0), "delta": {}, "finish_reason": choice.get("finish_reason")}
            yield _event({**base, "choices": [last]})
        else:
            yield _event({**base, "choices": [choice]})
    if usage:
        yield _event({**base, "choices": [], "usage": answer.get("usage")})
    yield b"data: [DONE]\n\n"


def _delta(message: dict[str, Any]) -> dict[str, Any]:
    """A message as one fragment; in fragments tool calls have numbers."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]}


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
