"""Chunks of streamed answers as engines write them, read into what they add. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol

import msgspec

_STOPS: Final = {"limit": "length"}  # what llama.cpp's own endpoint calls the end


class BadChunk(ValueError):
    """The engine sent something that is no chunk, or an error in place of one."""


class Delta(msgspec.Struct):
    """What one chunk adds to one choice."""

    choice: int = 0
    role: str = ""
    text: str = ""
    ids: tuple[int, ...] = ()  # of the text's tokens, if they are all known
    reasoning: str = ""
    tools: list[dict[str, Any]] = []
    finish: str = ""
    logprobs: Any = None


class Addition(msgspec.Struct):
    """What one chunk adds to an answer."""

    deltas: list[Delta] = []
    usage: dict[str, Any] | None = None
    common: dict[str, Any] = {}


class Reader(Protocol):
    """Reads the chunks of one replica's stream."""

    def read(self, chunk: dict[str, Any]) -> Addition:
        """What the chunk adds.

        Raises:
            BadChunk: it is no chunk.
        """


class OpenAiReader:
    """Chunks of ``/v1/chat/completions`` and ``/v1/completions``."""

    def __init__(self, kind: Literal["chat", "text"], replayed_tokens: int = 0) -> None:
        self._kind = kind
        self._replayed = replayed_tokens
        self.prompt_ids: list[int] = []

    def read(self, chunk: dict[str, Any]) -> Addition:
        """See Reader."""
        if chunk.get("error") is not None:
            raise BadChunk(f"the engine reports an error: {_brief(chunk['error'])}")
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            raise BadChunk(f"expected a chunk with choices, got {_brief(chunk)}")
        if isinstance(prompt := chunk.get("prompt_token_ids"), list):
            self.prompt_ids = prompt
        common = {key: value for key, value in chunk.items() if key not in _NOT_COMMON}
        return Addition(
            deltas=[self._delta(choice) for choice in choices],
            usage=whole_usage(chunk.get("usage"), self._replayed),
            common=common,
        )

    def _delta(self, choice: Any) -> Delta:
        if not isinstance(choice, dict):
            raise BadChunk(f"expected choices that are objects, got {_brief(choice)}")
        index, finish = choice.get("index") or 0, choice.get("finish_reason") or ""
        logprobs = choice.get("logprobs")
        ids = choice.get("token_ids")
        if isinstance(prompt := choice.get("prompt_token_ids"), list):
            self.prompt_ids = prompt
        if self._kind == "text":
            text = choice.get("text") or ""
            return Delta(index, text=text, ids=_ids(text, ids, logprobs), finish=finish, logprobs=logprobs)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            raise BadChunk(f"expected a choice with a delta, got {_brief(choice)}")
        text = delta.get("content") or ""
        if not isinstance(text, str):
            raise BadChunk(f"expected content that is text, got {_brief(text)}")
        return Delta(
            index,
            role=delta.get("role") or "",
            text=text,
            ids=_ids(text, ids, logprobs),
            reasoning=delta.get("reasoning_content") or delta.get("reasoning") or "",
            tools=delta.get("tool_calls") or [],
            finish=finish,
            logprobs=logprobs,
        )


_NOT_COMMON: Final = frozenset({"choices", "usage", "timings", "prompt_token_ids", "error"})


class NativeReader:
    """Chunks of llama.cpp's ``/completion``, which continues a prompt of token ids."""

    def __init__(self, replayed_tokens: int) -> None:
        self._replayed = replayed_tokens
        self._predicted = 0

    def read(self, chunk: dict[str, Any]) -> Addition:
        """See Reader."""
        if chunk.get("error") is not None:
            raise BadChunk(f"the engine reports an error: {_brief(chunk['error'])}")
        text, tokens = chunk.get("content"), chunk.get("tokens") or []
        if not isinstance(text, str):
            raise BadChunk(f"expected a chunk with content, got {_brief(chunk)}")
        predicted = chunk.get("tokens_predicted", 0)
        # Bytes of a character that was not complete, or what could have become a stop word, are held back: then the
        # text belongs to more tokens than this chunk names.
        certain = len(tokens) == predicted - self._predicted and text.isascii()
        self._predicted = predicted
        if not chunk.get("stop"):
            return Addition([Delta(text=text, ids=tuple(tokens) if certain else ())])
        finish = _STOPS.get(chunk.get("stop_type", ""), "stop")
        counts = {"prompt_tokens": chunk.get("tokens_evaluated", 0), "completion_tokens": predicted}
        return Addition([Delta(text=text, finish=finish)], usage=whole_usage(counts, self._replayed))


def whole_usage(usage: Any, replayed_tokens: int) -> dict[str, Any] | None:
    """Counts of the whole answer, when its last part was asked for with ``replayed_tokens`` as part of the prompt."""
    if not isinstance(usage, dict):
        return None
    if not replayed_tokens:
        return usage
    prompt = int(usage.get("prompt_tokens") or 0) - replayed_tokens
    completion = int(usage.get("completion_tokens") or 0) + replayed_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _ids(text: str, ids: Any, logprobs: Any) -> tuple[int, ...]:
    """The ids of exactly the tokens of this text, where that is certain."""
    if isinstance(ids, list):
        return tuple(ids)
    # llama.cpp names one token a chunk, with the bytes of the whole text even if earlier tokens were held back. Only
    # the list of the likeliest tokens has the token's own bytes.
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not (isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict)):
        return ()
    token = content[0]
    own = [other.get("bytes") for other in token.get("top_logprobs") or () if other.get("id") == token.get("id")]
    if "id" in token and own and own[0] == list(text.encode()):
        return (token["id"],)
    return ()


def _brief(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}..."  # noqa: PLR2004 - a line of a log
