"""What llama.cpp says in its answers of the tokens that it has found, computed and made. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from closeranks.serve.sessions.slots import Tokens

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Timings(msgspec.Struct):
    cache_n: _Count
    prompt_n: _Count
    predicted_n: _Count


class _Said(msgspec.Struct):
    timings: _Timings | None = None


_SAID: Final = msgspec.json.Decoder(_Said)


def tokens_of(timings: object) -> Tokens | None:
    """The counts in the ``timings`` of an answer or a chunk; None if they are not there."""
    try:
        found = msgspec.convert(timings, _Timings)
    except msgspec.ValidationError:
        return None
    return Tokens(found.cache_n, found.prompt_n, found.predicted_n)


def tokens_in(body: bytes) -> Tokens | None:
    """The first counts in a whole answer, or in the events of a stream, of which the last may not be complete."""
    for line in [body] if body.startswith(b"{") else body.splitlines():
        text = line.removeprefix(b"data: ")
        if not text.startswith(b"{"):
            continue
        try:
            said = _SAID.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if said.timings is not None:
            return Tokens(said.timings.cache_n, said.timings.prompt_n, said.timings.predicted_n)
    return None
