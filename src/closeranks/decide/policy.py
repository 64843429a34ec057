"""The recovery policy: what an operator decides about failures, as data that a file can change key by key.

A run and a simulation read the same keys and give them to the same controller. The built-in policy is ``Policy()``,
and ``answers.BUILT_IN`` for each fault. Every value remembers where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from closeranks import faults
from closeranks.decide import canary, quarantine
from closeranks.decide.answers import Answer, Answers, answer_to
from closeranks.decide.budgets import Limits
from closeranks.decide.state import Deadlines
from closeranks.events import Rung
from closeranks.toml_text import nearest, read_toml, tables_in

BUILT_IN_ORIGIN: Final = "built in"
_TRIES_MOST: Final = 100


class Amendment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is different from the built-in answer to a fault."""

    rungs: tuple[Rung, ...] | msgspec.UnsetType = msgspec.UNSET
    wait_s: float | msgspec.UnsetType = msgspec.UNSET
    back_to_verified: bool | msgspec.UnsetType = msgspec.UNSET
    against_node: bool | msgspec.UnsetType = msgspec.UNSET
    leave_node: bool | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        Answer(**self.given)  # refuses what no answer can be

    @property
    def given(self) -> dict[str, Any]:
        """What is set."""
        return {key: value for key, value in msgspec.structs.asdict(self).items() if value is not msgspec.UNSET}


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done about failures, how often, and how long anything may take."""

    answers: Mapping[str, Amendment] = {}  # by fault
    limits: Limits | None = None  # None: none were set
    deadlines: Deadlines = Deadlines()
    tries_per_rung: int = 2
    quarantine: quarantine.Rules = quarantine.Rules()
    canary: canary.Rules = canary.Rules()

    def __post_init__(self) -> None:
        if not 1 <= self.tries_per_rung <= _TRIES_MOST:
            raise ValueError(f"tries_per_rung: expected 1 to {_TRIES_MOST}, got {self.tries_per_rung}")
        for name in self.answers:
            if name not in faults.CATALOGUE:
                hint = nearest(name, list(faults.CATALOGUE))
                raise ValueError(f"answers: expected the name of a fault, got {name!r}; {hint}")

    @property
    def amended(self) -> Answers:
        """The answers that differ from the built-in ones, whole."""
        return {name: replace(answer_to({}, name), **given.given) for name, given in self.answers.items()}


class Sourced(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, and where its values come from."""

    policy: Policy = Policy()
    origins: Mapping[str, str] = {}  # by key, as in ``canary.steps``; those that are missing are built in


def read_policy(text: str, where: str) -> Sourced:
    """The policy of a TOML file: what it does not name is built in.

    Raises:
        TomlProblem: line, key, what was expected and what was found; the nearest known key where one is unknown.
    """
    policy = read_toml(text, Policy, where)
    return Sourced(policy=policy, origins=dict.fromkeys(_keys_given(tables_in(text, where)), where))


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
        answer = answer_to(policy.amended, fault)
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
