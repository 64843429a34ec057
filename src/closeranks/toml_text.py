"""Configuration: TOML text in, one frozen value out; what does not fit is named with its line. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
Path = tuple[str | int, ...]


class TomlProblem(ValueError):
    """The text does not describe what it should; nothing was done with it.

    The message says where (file, line, key), what was expected, what was found and, if there is one, the way out.
    """


class Misfit(ValueError):
    """A check of one's own failed: raise it with the path of the value, and ``blame`` tells where that is."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem


def read_toml(text: str, kind: type[T], name: str) -> T:
    """The value of ``kind`` that the text describes; ``name`` is the file to blame.

    Tables are fields that are structs, ``[[tables]]`` are tuples of structs. Every key has to be a field.

    Raises:
        TomlProblem: no TOML, an unknown key (the nearest known one is named), a wrong type or a missing key.
    """
    return value_of(tables_in(text, name), kind, name, text)


def tables_in(text: str, name: str) -> dict[str, Any]:
    """The tables of the text as they stand, for merging with what else was given.

    Raises:
        TomlProblem: no TOML, with line and column.
    """
    import tomllib  # not where flags alone describe everything

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlProblem(f"{name}: not TOML: {error}") from None


def value_of(tree: dict[str, Any], kind: type[T], name: str, text: str = "") -> T:
    """The value of ``kind`` in these tables; lines are named of keys that the text has.

    Raises:
        TomlProblem: an unknown key (the nearest known one is named), a wrong type or a missing key.
    """
    for path, known in _unknown_keys(tree, kind, ()):
        what = "table" if isinstance(_at(tree, path), dict) else "key"
        raise blame(text, name, Misfit(path, f"unknown {what}; {nearest(str(path[-1]), known)}"))
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at ")
        path = tuple(int(part) if part.isdigit() else part for part in re.findall(r"\w+", where))
        problem = _nearest_choice(problem, kind, path) or _lower_first(problem)
        raise blame(text, name, Misfit(path, problem)) from None


def blame(text: str, name: str, misfit: Misfit) -> TomlProblem:
    """The error that names the line of the text which the misfit is about."""
    line = _line_of(text, misfit.path)
    place = f"{name} line {line}" if line else name
    return TomlProblem(f"{place}: {_spelled(misfit.path)}: {misfit.problem}")


def nearest(word: str, known: list[str]) -> str:
    """A hint for a word that is not known: the nearest one that is, or all of them."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(known)}"


def _unknown_keys(tree: dict[str, Any], kind: type[msgspec.Struct], path: Path) -> Iterator[tuple[Path, list[str]]]:
    hints = get_type_hints(kind)
    fields = {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}
    for key, value in tree.items():
        if key not in fields:
            yield (*path, key), list(fields)
            continue
        inner = _struct_in(fields[key])
        if inner is None:
            continue
        for place, entry in _entries(fields[key], value):
            if isinstance(entry, dict):
                yield from _unknown_keys(entry, inner, (*path, key, *place))


def _nearest_choice(problem: str, kind: type[msgspec.Struct], path: Path) -> str:
    """A value that is none of those of an enum; "" where that is not the problem."""
    wrong = re.fullmatch(r"Invalid enum value '(.*)'", problem)
    hint: Any = kind
    for part in path if wrong else ():
        inner = _struct_in(hint)
        if isinstance(part, str) and inner is not None:
            hint = get_type_hints(inner).get(part)
    choices = [str(choice.value) for choice in _enum_in(hint) or ()]
    named = next((part for part in reversed(path) if isinstance(part, str)), "value")
    return f'no such {named}: "{wrong[1]}"; {nearest(wrong[1], choices)}' if wrong and choices else ""


def _enum_in(hint: Any) -> type[Enum] | None:
    """The enum that a field holds, alone or beside None."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return next((inner for part in get_args(hint) if (inner := _enum_in(part)) is not None), None)


def _entries(hint: Any, value: Any) -> list[tuple[Path, Any]]:
    """The tables below a key, each with its place there: one, those of a list, or those of a mapping by their names."""
    if isinstance(value, list):
        return [((index,), entry) for index, entry in enumerate(value)]
    if isinstance(value, dict) and get_origin(hint) is Mapping:
        return [((name,), entry) for name, entry in value.items()]
    return [((), value)]


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The struct that a field holds, alone or in a tuple; of a union, none: msgspec judges that."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    found = [inner for part in get_args(hint) if (inner := _struct_in(part)) is not None]
    return found[0] if len(found) == 1 else None


def _at(tree: Any, path: Path) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _spelled(path: Path) -> str:
    """The path as a reader counts: the second ``[[replica]]`` is ``replica 2``."""
    spelled = ""
    for part in path:
        spelled += f" {part + 1}" if isinstance(part, int) else f".{part}"
    return spelled.removeprefix(".") or "the whole"


def _line_of(text: str, path: Path) -> int:
    """The line of the key, or else of its table; 0 where neither has a line of its own."""
    tables, key = [part for part in path[:-1] if isinstance(part, str)], str(path[-1]) if path else ""
    whole = [part for part in path if isinstance(part, str)]
    wanted = next((part for part in path if isinstance(part, int)), 0)
    seen: dict[str, int] = {}
    here: list[str] = []
    table_line = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r'\s*\[+\s*((?:[\w.-]|"[^"]*")+)\s*\]', line):
            here = header[1].replace('"', "").split(".")
            count = seen[header[1]] = seen.get(header[1], -1) + 1
            if here in (tables, whole) and count == wanted:
                table_line = number
        elif here == tables and seen.get(".".join(here), 0) == wanted and _sets(line, key):
            return number
    return table_line


def _sets(line: str, key: str) -> bool:
    return re.match(rf'\s*"?{re.escape(key)}"?\s*=', line) is not None
