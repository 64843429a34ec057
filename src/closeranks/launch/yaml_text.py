"""A value of JSON as YAML that a person can read and change. Text is quoted as in JSON: nothing is read as a number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = frozenset({"yes", "no", "on", "off", "true", "false", "null", "y", "n"})  # that YAML 1.1 reads as values


def yaml_text(value: dict[str, object]) -> str:
    """One document. Empty tables and lists stay as they are, in one line."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _entry(f"{_key(key)}:", inner, "  ")
    elif isinstance(value, list) and value:
        for inner in value:
            first, *rest = _lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _plain(value)


def _entry(key: str, inner: object, indent: str) -> Iterator[str]:
    if isinstance(inner, dict | list) and inner:
        yield key
        yield from (f"{indent}{line}" for line in _lines(inner))
    else:
        yield f"{key} {_plain(inner)}"


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS else _plain(key)


def _plain(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    # JSON writes what lies beyond 16 bits as two halves, which YAML does not put together.
    return f'"{"".join(_escaped(sign) for sign in value)}"'


def _escaped(sign: str) -> str:
    return json.dumps(sign)[1:-1] if ord(sign) < 2**16 else f"\\U{ord(sign):08x}"
