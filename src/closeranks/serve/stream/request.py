"""What a streamed request asks for, as far as its continuation depends on it. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from closeranks.serve.foreign import decode

_GUIDES: Final = (
    "grammar",
    "json_schema",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "regex",
    "ebnf",
)
_FREE_FORMS: Final = frozenset({"text", ""})


class StreamRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a stream of chat or text completions."""

    kind: Literal["chat", "text"]
    target: bytes
    body: dict[str, Any]
    raw: bytes  # the body as it came
    choices: int = 1
    greedy: bool = False
    seeded: bool = False
    guided: bool = False
    tools: bool = False
    logprobs: bool = False
    usage: bool = False
    max_tokens: int | None = None

    @property
    def repeatable(self) -> bool:
        """Whether an engine that is asked again gives the same answer, as long as its arithmetic is the same."""
        return self.greedy or self.seeded


def parse(target: bytes, raw: bytes) -> StreamRequest | None:
    """The request, if it asks for a stream of completions; anything else is None, bad JSON included."""
    if b"stream" not in raw and b"\\" not in raw:
        return None  # the word is not there, nor anything that could spell it
    path = target.partition(b"?")[0]
    if not path.endswith(b"/completions"):
        return None
    try:
        body = decode(raw)
    except msgspec.DecodeError:
        return None
    if not isinstance(body, dict) or body.get("stream") is not True:
        return None
    kind: Literal["chat", "text"] = "chat" if path.endswith(b"/chat/completions") else "text"
    format_ = body.get("response_format")
    form = format_.get("type", "") if isinstance(format_, dict) else ""
    options = body.get("stream_options")
    prompts = body.get("prompt")
    several = len(prompts) if isinstance(prompts, list) and prompts and isinstance(prompts[0], (str, list)) else 1
    max_tokens = body.get("max_completion_tokens", body.get("max_tokens"))
    return StreamRequest(
        kind=kind,
        target=target,
        body=body,
        raw=raw,
        choices=(_whole(body.get("n")) or 1) * several,
        greedy=body.get("temperature") == 0 or body.get("top_k") == 1,
        seeded=_whole(body.get("seed")) is not None and body.get("seed") != -1,
        guided=form not in _FREE_FORMS or any(body.get(guide) is not None for guide in _GUIDES),
        tools=bool(body.get("tools")),
        logprobs=bool(body.get("logprobs")),
        usage=bool(options.get("include_usage")) if isinstance(options, dict) else False,
        max_tokens=_whole(max_tokens),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
