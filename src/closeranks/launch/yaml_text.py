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
        yield json.dumps(value, ensure_ascii=True)


def _entry(key: str, inner: object, indent: str) -> Iterator[str]:
    if isinstance(inner, dict | list) and inner:
        yield key
        yield from (f"{indent}{line}" for line in _lines(inner))
    else:
        yield f"{key} {json.dumps(inner, ensure_ascii=True)}"


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS else json.dumps(key)
