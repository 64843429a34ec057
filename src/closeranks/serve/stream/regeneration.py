"""An answer that is generated once more: what the client has seen is compared and left out, the rest goes on. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from closeranks.serve.stream.chunks import Addition, Delta
from closeranks.serve.stream.seen import Choice, Seen, ToolCall


class Diverged(ValueError):
    """The new answer is not the one that the client has seen a part of; nothing of it may be shown."""


class _Progress(msgspec.Struct):
    """How far the new answer has come in what was seen."""

    text: int = 0
    reasoning: int = 0
    tools: dict[int, ToolCall] = {}


class Regeneration:
    """Leaves out of a second run's chunks what the first has shown."""

    def __init__(self, seen: Seen) -> None:
        self._seen = {index: _copied(choice) for index, choice in seen.choices.items()}
        self._at = {index: _Progress(tools={}) for index in self._seen}

    def rest_of(self, addition: Addition) -> Addition:
        """The addition without what the client has.

        Raises:
            Diverged: it differs from what the client has.
        """
        return replace(addition, deltas=[self._rest(delta) for delta in addition.deltas])

    def _rest(self, delta: Delta) -> Delta:
        seen = self._seen.get(delta.choice)
        if seen is None:
            return delta
        at = self._at[delta.choice]
        text = _beyond(seen.text, at.text, delta.text)
        reasoning = _beyond(seen.reasoning, at.reasoning, delta.reasoning)
        at.text += len(delta.text)
        at.reasoning += len(delta.reasoning)
        ids = delta.ids if text == delta.text else ()
        tools = [rest for fragment in delta.tools if (rest := _tool_rest(seen, at, fragment)) is not None]
        short = at.text < len(seen.text) or at.reasoning < len(seen.reasoning)
        if delta.finish and (short or _tools_short(seen, at)):
            raise Diverged("generated anew, the answer ends before the point at which it was cut")
        finish = "" if seen.finish else delta.finish
        return replace(delta, text=text, ids=ids, reasoning=reasoning, tools=tools, finish=finish)


def _copied(choice: Choice) -> Choice:
    tools = {index: replace(call) for index, call in choice.tools.items()}
    return replace(choice, tools=tools, pieces=list(choice.pieces))


def _beyond(seen: str, at: int, new: str) -> str:
    """What of ``new``, which begins at position ``at``, lies beyond what was seen."""
    overlap = max(0, min(len(seen) - at, len(new)))
    if seen[at : at + overlap] != new[:overlap]:
        raise Diverged("generated anew, the answer differs from what the client has seen")
    return new[overlap:]


def _tool_rest(seen: Choice, at: _Progress, fragment: dict[str, Any]) -> dict[str, Any] | None:
    index = int(fragment.get("index") or 0)
    known = seen.tools.get(index)
    if known is None:
        return fragment
    so_far = at.tools.setdefault(index, ToolCall())
    function = fragment.get("function") or {}
    name, arguments = function.get("name") or "", function.get("arguments") or ""
    rest_name = _beyond(known.name, len(so_far.name), name)
    rest_arguments = _beyond(known.arguments, len(so_far.arguments), arguments)
    so_far.name += name
    so_far.arguments += arguments
    if not rest_name and not rest_arguments:
        return None
    rest = {"arguments": rest_arguments} | ({"name": rest_name} if rest_name else {})
    return {"index": index, "function": rest}  # the client knows its id and type


def _tools_short(seen: Choice, at: _Progress) -> bool:
    return any(
        len(at.tools.get(index, ToolCall()).arguments) < len(call.arguments) for index, call in seen.tools.items()
    )
