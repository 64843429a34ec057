"""A strict reader of manifests: what the tables of fields do not name is an error, as it is for a strict API server."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

TABLES: Mapping[str, Mapping[str, str]] = tomllib.loads(
    (Path(__file__).parent / "data" / "kubernetes_fields.toml").read_text()
)
_PLAIN = {"str": str, "int": int, "bool": bool}


def problems(value: object, kind: str, where: str = "") -> Iterator[str]:
    """Everything in ``value`` that ``kind`` does not allow, with its place."""
    if kind in TABLES:
        yield from _of_table(value, TABLES[kind], where)
    elif kind[0] in "[{":
        yield from _of_many(value, kind, where)
    elif kind in _PLAIN:
        if type(value) is not _PLAIN[kind]:
            yield f"{where}: expected {kind}, got {value!r}"
    elif value not in kind.removeprefix("=").split("|"):
        yield f"{where}: expected {kind}, got {value!r}"


def _of_many(value: object, kind: str, where: str) -> Iterator[str]:
    if not isinstance(value, list if kind[0] == "[" else dict):
        yield f"{where}: expected {kind}, got {value!r}"
        return
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield from problems(one, kind[1:-1], f"{where}[{key}]")


def _of_table(value: object, table: Mapping[str, str], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: expected a table, got {value!r}"
        return
    for key, inner in value.items():
        if key not in table:
            yield f"{where}.{key}: unknown field; known are {', '.join(table)}"
        else:
            yield from problems(inner, table[key].removesuffix("!"), f"{where}.{key}")
    yield from (f"{where}.{key}: is missing" for key, kind in table.items() if kind.endswith("!") and key not in value)
