"""JSON that vouches for itself: one line of it, and one line with the BLAKE3 of the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from blake3 import blake3

from closeranks.checkpoint.format import FORMAT
from closeranks.checkpoint.problems import Damaged, StoreRefused

_Kind = TypeVar("_Kind")


class _Versioned(msgspec.Struct):
    format: int


def sealed(value: Any) -> bytes:
    """Both lines: the same for the same value."""
    line = msgspec.json.encode(value)
    return b"%b\n%b\n" % (line, _digest(line))


def first_line(data: bytes) -> bytes | None:
    """The JSON, if the second line is its digest."""
    line, _, rest = data.partition(b"\n")
    return line if rest == _digest(line) + b"\n" else None


def decoded(data: bytes, kind: type[_Kind], where: str, what: str, damaged: Callable[[str], Damaged]) -> _Kind:
    """The value, when it is whole and of a format that we know. ``damaged`` makes the error of a problem in words.

    Raises:
        StoreRefused: a newer version wrote it.
        Damaged: its digest is missing or another one, or it is not ``what`` was expected.
    """
    line = first_line(data)
    if line is None:
        raise damaged("the digest in line 2 is not that of line 1")
    try:
        version = msgspec.json.decode(line, type=_Versioned).format
        if version > FORMAT:
            raise StoreRefused(f"{where}: format {version}, expected at most {FORMAT}; use a newer closeranks")
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(f"expected {what}: {error}") from None


def _digest(line: bytes) -> bytes:
    return blake3(line).hexdigest().encode()
