"""JSON that others wrote. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

_ROOM: Final = 100  # levels that whoever decoded a value may add, and still encode it
_SUSPICIOUS: Final = 200  # opening brackets, without which nothing is nested so deeply


def decode(data: bytes) -> Any:
    """The value, which can be encoded again.

    Raises:
        msgspec.DecodeError: it is no JSON, or nested so deeply that it would exhaust the stack.
    """
    try:
        if len(data) <= 2 * _SUSPICIOUS or data.count(b"[") + data.count(b"{") <= _SUSPICIOUS:
            return msgspec.json.decode(data)
        value = msgspec.json.decode(b"[" * _ROOM + data + b"]" * _ROOM)
        for _ in range(_ROOM):
            (value,) = value
    except (RecursionError, ValueError) as error:
        raise msgspec.DecodeError(str(error)) from None
    return value


def decoded_object(data: bytes) -> dict[str, Any] | None:
    """The object; None for anything else, bad JSON included."""
    try:
        value = decode(data)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None
