"""The recovery policy: what an operator decides about failures, as data that a file can change key by key.

A run and a simulation read the same keys and give them to the same controller. The built-in policy is ``Policy()``,
and ``answers.BUILT_IN`` for each fault. Every value remembers where it comes from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from closeranks import faults
from closeranks.decide import canary, quarantine
from closeranks.decide.answers import Answer, Answers, answer_to
from closeranks.decide.budgets import Limits
from closeranks.decide.state import Deadlines

BUILT_IN_ORIGIN: Final = "built in"
_TRIES_MOST: Final = 100


class PolicyProblem(ValueError):
    """The policy cannot be read; nothing was changed by it."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done about failures, how often, and how long anything may take."""

    answers: Answers = {}  # that differ from the built-in ones, by fault
    limits: Limits | None = None  # None: none were set
    deadlines: Deadlines = Deadlines()
    tries_per_rung: int = 2
    quarantine: quarantine.Rules = quarantine.Rules()
    canary: canary.Rules = canary.Rules()

    def __post_init__(self) -> None:
        if not 1 <= self.tries_per_rung <= _TRIES_MOST:
            raise ValueError(f"tries_per_rung: expected 1 to {_TRIES_MOST}, got {self.tries_per_rung}")


class Sourced(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, and where its values come from."""

    policy: Policy = Policy()
    origins: Mapping[str, str] = {}  # by key, as in ``canary.steps``; those that are missing are built in


def read_policy(text: str, where: str) -> Sourced:
    """The policy of a TOML file: what it does not name is built in.

    Raises:
        PolicyProblem: the key, what was expected, what was found, and the nearest known key where it is unknown.
    """
    raw = load(text, where)
    return Sourced(policy=convert(raw, Policy, where), origins=dict.fromkeys(_keys_given(raw), where))


def load(text: str, where: str) -> dict[str, Any]:
    """The file's values, with its answers filled up from the built-in ones.

    Raises:
        PolicyProblem: it is not TOML, or no fault has that name.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyProblem(f"{where}: expected TOML, got: {error}") from None
    given = raw.get("answers")
    if isinstance(given, dict):
        raw["answers"] = {name: _filled(name, answer, where) for name, answer in given.items()}
    return raw


def _filled(name: str, answer: object, where: str) -> object:
    if name not in faults.CATALOGUE:
        near = get_close_matches(name, faults.CATALOGUE, n=1, cutoff=0.0)[0]
        raise PolicyProblem(f"{where}: answers: expected the name of a fault, got {name!r}; did you mean {near!r}?")
    if not isinstance(answer, dict):
        return answer  # the conversion says what is wrong with it
    usual = msgspec.to_builtins(answer_to({}, name))
    return {**{key: value for key, value in usual.items() if value is not None}, **answer}


def convert(raw: dict[str, Any], kind: type[Any], where: str) -> Any:
    """The values as ``kind``, a policy or more than one.

    Raises:
        PolicyProblem: as ``read_policy`` does.
    """
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, ValueError) as error:
        problem = str(error)
        if "unknown field" not in problem:
            raise PolicyProblem(f"{where}: {problem}") from None
        unknown = problem.split("`")[1]
        near = get_close_matches(unknown, sorted(set(_fields(kind))), n=1, cutoff=0.0)[0]
        raise PolicyProblem(f"{where}: {problem}; did you mean {near!r}?") from None


def _fields(kind: type[Any]) -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        yield field.name
        for inner in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from _fields(inner)


def _keys_given(raw: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from _keys_given(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def shown(sourced: Sourced) -> str:
    """The whole policy as a TOML file that could be given back, each value with its origin."""
    policy = sourced.policy
    lines = [_line("tries_per_rung", policy.tries_per_rung, "", sourced.origins)]
    parts = {
        "limits": policy.limits or Limits(),
        "deadlines": policy.deadlines,
        "quarantine": policy.quarantine,
        "canary": policy.canary,
    }
    for name, part in parts.items():
        lines += _table(name, msgspec.to_builtins(part), sourced.origins)
    for fault in faults.CATALOGUE:
        answer = answer_to(policy.answers, fault)
        lines += _table(f'answers."{fault}"', _said(answer), sourced.origins, f"answers.{fault}")
    return "\n".join(lines) + "\n"


def _said(answer: Answer) -> dict[str, Any]:
    return {key: value for key, value in msgspec.to_builtins(answer).items() if value is not None}


def _table(name: str, values: Mapping[str, Any], origins: Mapping[str, str], key: str = "") -> list[str]:
    lines = ["", f"[{name}]"]
    return lines + [_line(field, value, f"{key or name}.", origins) for field, value in values.items()]


def _line(field: str, value: Any, before: str, origins: Mapping[str, str]) -> str:
    key = f"{before}{field}"
    inner = f"{key}."
    found = {origin for given, origin in origins.items() if given == key or given.startswith(inner)}
    return f"{field} = {_toml(value)}  # {', '.join(sorted(found)) or BUILT_IN_ORIGIN}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_toml(one)}' for key, one in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
