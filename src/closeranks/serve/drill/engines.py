"""Stand-ins for engines: a fixed text, token by token, in the dialect of a real engine; they break when told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
from enum import StrEnum
from typing import Any, Final

from closeranks.serve.drill.replica import Talk

WORDS: Final = (
    "I",
    " am",
    " sorry",
    ",",
    " but",
    " é",
    " 🌟",
    " the",
    " answer",
    " is",
    " four",
    "ty",
    "-",
    "two",
    ".",
    "\n",
)
PROMPT_TOKENS: Final = 7


class Break(StrEnum):
    """How a stream is broken off."""

    CUT = "cut"  # the connection is reset
    END = "end"  # a proper end of the transfer in the middle of the answer
    DONE = "done"  # an end mark in the middle of the answer
    CANCELLED = "cancelled"  # as engines say it that are stopped from outside
    ERROR = "error"  # an error frame, then an end mark
    JSON = "json"  # a chunk that is no JSON
    HALF = "half"  # half of an event, then a reset
    SILENCE = "silence"  # the process is frozen


def sse(value: object) -> bytes:
    """One event."""
    data = value if isinstance(value, str) else json.dumps(value)
    return f"data: {data}\n\n".encode()


class Engine:
    """A replica, as a script. ``breaks``: what happens after so many tokens of its first stream; ``always``: of all."""

    def __init__(
        self,
        kind: str = "openai",
        *,
        breaks: str | None = None,
        after: int = 0,
        words: tuple[str, ...] = WORDS,
        gap_s: float = 0.0,
        always: bool = False,
    ) -> None:
        self.kind, self.breaks, self.after, self.words, self.gap_s = kind, breaks, after, words, gap_s
        self.always = always
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        path, body = talk.head.split(b" ")[1].decode(), json.loads(talk.body or b"{}")
        self.asked.append((path, body))
        if path == "/apply-template":
            self.answer(talk, {"prompt": "<chat>"})
        elif path == "/tokenize":
            self.answer(talk, {"tokens": self.ids_of(body["content"])})
        elif path == "/completion":
            await self._native(talk, body)
        else:
            await self._openai(talk, path.endswith("/chat/completions"), body)

    @staticmethod
    def answer(talk: Talk, value: object) -> None:
        """A whole answer in JSON."""
        data = json.dumps(value).encode()
        talk.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))

    def ids_of(self, text: str) -> list[int]:
        """The tokens of a text that consists of our words."""
        ids = []
        while text:
            ids.append(next(number for number, word in enumerate(self.words) if text.startswith(word)))
            text = text.removeprefix(self.words[ids[-1]])
        return ids

    def _begin(self, chat: bool, body: dict[str, Any]) -> int:
        """How many tokens of the answer the request holds already."""
        if chat:
            last = body["messages"][-1]
            return len(self.ids_of(last["content"])) if last["role"] == "assistant" else 0
        prompt = body["prompt"]
        if isinstance(prompt, list):
            return len(prompt) - PROMPT_TOKENS
        return len(self.ids_of(prompt.removeprefix("<p>"))) if prompt.startswith("<p>") else 0

    async def _openai(self, talk: Talk, chat: bool, body: dict[str, Any]) -> None:
        begin, limit = self._begin(chat, body), body.get("max_tokens")
        common = {"id": f"{self.kind}-{id(talk)}", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        ids = list(range(begin, len(self.words)))[:limit]

        def chunk(text: str, finish: str | None = None, token: int | None = None) -> bytes:
            said: dict[str, Any] = {"delta": {"content": text} if text else {}} if chat else {"text": text}
            if token is not None and body.get("logprobs"):
                said["logprobs"] = self._logprobs(token)
            if token is not None and body.get("return_token_ids"):
                said["token_ids"] = [token]
            return sse({**common, "choices": [{"index": 0, **said, "finish_reason": finish}]})

        talk.stream()
        if chat:
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            more = {"prompt_token_ids": list(range(PROMPT_TOKENS))} if body.get("return_token_ids") else {}
            talk.chunk(sse({**common, "choices": [first], **more}))
        for number, token in enumerate(ids):
            if await self._broke(talk, number):
                return
            talk.chunk(chunk(self.words[token], token=token))
            await self._pause(talk)
        talk.chunk(chunk("", "length" if limit is not None and limit <= len(ids) else "stop"))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": PROMPT_TOKENS + begin, "completion_tokens": len(ids)}
            usage["total_tokens"] = sum(usage.values())
            talk.chunk(sse({**common, "choices": [], "usage": usage}))
        talk.chunk(sse("[DONE]"))
        talk.end()

    def _logprobs(self, token: int) -> dict[str, Any]:
        text = list(self.words[token].encode())
        return {"content": [{"id": token, "bytes": text, "top_logprobs": [{"id": token, "bytes": text}]}]}

    async def _native(self, talk: Talk, body: dict[str, Any]) -> None:
        begin = len(body["prompt"]) - 1
        ids = list(range(begin, len(self.words)))[: body.get("n_predict")]
        talk.stream()
        for number, token in enumerate(ids):
            if await self._broke(talk, number):
                return
            said = {"content": self.words[token], "tokens": [token], "stop": False, "tokens_predicted": number + 1}
            talk.chunk(sse(said))
            await self._pause(talk)
        ended = "limit" if body.get("n_predict") == len(ids) else "eos"
        last = {"content": "", "tokens": [], "stop": True, "stop_type": ended, "tokens_predicted": len(ids)}
        talk.chunk(sse({**last, "tokens_evaluated": PROMPT_TOKENS + begin}))
        talk.end()

    async def _pause(self, talk: Talk) -> None:
        await talk.writer.drain()
        await asyncio.sleep(self.gap_s)

    async def _broke(self, talk: Talk, number: int) -> bool:
        """Whether the stream is broken off here."""
        if self.breaks is None or number < self.after:
            return False
        breaks = self.breaks
        self.breaks = breaks if self.always else None
        match breaks:
            case Break.CUT:
                talk.cut()
            case Break.END:
                talk.end()
            case Break.DONE:
                talk.chunk(sse("[DONE]"))
                talk.end()
            case Break.CANCELLED:
                choice = {"index": 0, "delta": {}, "finish_reason": "cancelled"}
                talk.chunk(sse({"id": "x", "choices": [choice]}) + sse("[DONE]"))
                talk.end()
            case Break.ERROR:
                talk.chunk(sse({"error": {"message": "worker died"}}) + sse("[DONE]"))
                talk.end()
            case Break.JSON:
                talk.chunk(b'data: {"id": "x", "choices": [{"ind\n\n')
            case Break.HALF:
                talk.chunk(b'data: {"id": "x"')
                talk.cut()
            case Break.SILENCE:
                with contextlib.suppress(ConnectionError):
                    await talk.gone()
        return True


def events_of(body: bytes) -> list[Any]:
    """The JSON of every event; the last is "[DONE]"."""
    payloads = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    return [json.loads(payload) if payload != b"[DONE]" else "[DONE]" for payload in payloads]


def text_of(events: list[Any]) -> str:
    """What the client reads."""
    chunks = [choice for event in events if isinstance(event, dict) for choice in event.get("choices", ())]
    return "".join((chunk.get("delta") or chunk).get("content") or chunk.get("text") or "" for chunk in chunks)
