"""A request of the OpenAI API, made smaller by a level of the ladder. Pure."""

from __future__ import annotations

from typing import Any, Final

from closeranks.serve.policies.ladder import LevelSettings

_TOOLS: Final = ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call")
_INSTRUCTIONS: Final = frozenset({"system", "developer"})
_TOKENS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_RESULTS: Final = ("n", "best_of", "top_n", "top_k_results", "num_results")


def rewrite(request: dict[str, Any], level: LevelSettings) -> dict[str, Any]:
    """What is asked instead; the request itself is left as it is."""
    smaller = dict(request)
    if level.model:
        smaller["model"] = level.model
    if level.drop_tools:
        for key in _TOOLS:
            smaller.pop(key, None)
    messages = smaller.get("messages")
    if isinstance(messages, list) and (level.messages or level.drop_tools):
        smaller["messages"] = _shortened(messages, level)
    if level.max_tokens:
        named = {key: smaller[key] for key in _TOKENS if isinstance(smaller.get(key), int)}
        for key, wanted in (named or {"max_tokens": level.max_tokens}).items():  # null is no limit
            smaller[key] = min(wanted, level.max_tokens)
    if level.results:
        for key in _RESULTS:
            if isinstance(smaller.get(key), int):
                smaller[key] = min(smaller[key], level.results)
    return smaller


def _shortened(messages: list[Any], level: LevelSettings) -> list[Any]:
    """The instructions, and the last messages; never a tool's result without the call that it answers."""
    if level.drop_tools:
        messages = [_without_calls(message) for message in messages if _role(message) not in ("tool", "function")]
        messages = [message for message in messages if message is not None]
    if not level.messages:
        return messages
    fixed = [message for message in messages if _role(message) in _INSTRUCTIONS]
    said = [message for message in messages if _role(message) not in _INSTRUCTIONS]
    last = said[-level.messages :]
    while last and _role(last[0]) in ("tool", "function"):
        last = last[1:]
    # What the last result answers has to be there, even if that is more than was wished for.
    return [*fixed, *(last or _with_their_call(said))]


def _with_their_call(said: list[Any]) -> list[Any]:
    start = len(said) - 1
    while start > 0 and _role(said[start]) in ("tool", "function"):
        start -= 1
    return said[max(start, 0) :]


def _without_calls(message: Any) -> Any:
    """The message without its tool calls; None if nothing else was in it."""
    if not isinstance(message, dict) or not (message.get("tool_calls") or message.get("function_call")):
        return message
    if not message.get("content"):
        return None
    return {key: value for key, value in message.items() if key not in ("tool_calls", "function_call")}


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None
