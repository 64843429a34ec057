"""Which generations are worth their space: a small policy, and what it means for a history."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final

import msgspec

from closeranks.checkpoint.history import Generation, History

_HOUR_S: Final = 3600.0
_DAY_S: Final = 24 * _HOUR_S
_LIMIT: Final = 10**9


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to keep besides what is always kept: pinned generations, the newest, and the last verified.

    Only good generations count: one that was taken under suspicion, or that a drill found broken, must not push out
    one that can be restored.
    """

    last: int = 3  # this many of the newest
    every_steps: int | None = None  # the first of every such range of steps, for ever
    hourly: int = 0  # the newest of each of so many hours
    daily: int = 0  # the newest of each of so many days (UTC)

    def __post_init__(self) -> None:
        least = {"last": 1, "every_steps": 1, "hourly": 0, "daily": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= _LIMIT:
                raise ValueError(f"retention: expected {name} from {low} to {_LIMIT}, got {value}")

    @classmethod
    def parse(cls, text: str) -> Policy:
        """A policy from text such as ``last=3,hourly=24,daily=7,every=1000``; what is not named has its default.

        Raises:
            ValueError: a key that does not exist (the nearest one is named), or no whole number, or one twice.
        """
        values: dict[str, int] = {}
        for part in filter(None, (one.strip() for one in text.split(","))):
            key, equals, number = (one.strip() for one in part.partition("="))
            if key not in _FIELDS:
                raise ValueError(f"retention {text!r}: unknown key {key!r}{_nearest(key)}")
            if not equals or not (number.isascii() and number.isdigit()):
                raise ValueError(f"retention {text!r}: expected {key}=NUMBER, got {part!r}")
            if _FIELDS[key] in values:
                raise ValueError(f"retention {text!r}: {key} is given twice")
            values[_FIELDS[key]] = int(number[: len(str(_LIMIT)) + 1])
        return cls(**values)

    def __str__(self) -> str:
        given = {key: getattr(self, field) for key, field in _FIELDS.items()}
        return ",".join(f"{key}={value}" for key, value in given.items() if value)


_FIELDS: Final[Mapping[str, str]] = {"last": "last", "every": "every_steps", "hourly": "hourly", "daily": "daily"}


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy means now."""

    keep: Mapping[int, str]  # generation -> the reason in words, ascending
    retire: tuple[int, ...]  # ascending


def choose(history: History, policy: Policy, now_wall_s: float) -> Retention:
    """Which generations to keep and why, each group of state for itself.

    ``now_wall_s`` bounds the times of commits: a clock that ran ahead must not fill the hours and days that count.
    """
    reasons = history.shielded()
    for group in {g.manifest.group for g in history.generations.values()}:
        for number, why in _of_group([g for g in history.generations.values() if g.manifest.group == group], policy):
            reasons.setdefault(number, why)
        for number, why in _by_time(history, group, policy, now_wall_s):
            reasons.setdefault(number, why)
    return Retention(
        keep=dict(sorted(reasons.items())), retire=tuple(n for n in sorted(history.generations) if n not in reasons)
    )


def _of_group(generations: list[Generation], policy: Policy) -> Iterable[tuple[int, str]]:
    good = [g for g in generations if g.is_good]
    for generation in good[-policy.last :]:
        yield generation.number, f"one of the last {policy.last}"
    # Newer than all that is good: they may turn out to be all there is of the time since.
    newest_good = good[-1].number if good else 0
    for generation in generations:
        if generation.number > newest_good:
            yield generation.number, "nothing newer can be trusted"
    if policy.every_steps is not None:
        every = policy.every_steps
        first = _first_of_each(_timeline(good), lambda g: g.manifest.step // every)
        for generation in first:
            yield generation.number, f"the first of steps {_range(generation, every)}"


def _by_time(history: History, group: str, policy: Policy, now_wall_s: float) -> Iterable[tuple[int, str]]:
    newest_first = [g for g in history.newest_first(group) if g.is_good]
    for count, length_s, name in ((policy.hourly, _HOUR_S, "hour"), (policy.daily, _DAY_S, "day")):
        seen: set[int] = set()
        for generation in newest_first:
            bucket = int(min(generation.wall_s, now_wall_s) // length_s)
            if bucket not in seen and len(seen) < count:
                seen.add(bucket)
                yield generation.number, f"the newest of its {name}, one of {count}"


def _timeline(generations: list[Generation]) -> list[Generation]:
    """Without those whose step was reached again later: after a roll back they lead nowhere."""
    kept: list[Generation] = []
    for generation in generations:
        while kept and kept[-1].manifest.step >= generation.manifest.step:
            kept.pop()
        kept.append(generation)
    return kept


def _first_of_each(generations: list[Generation], bucket: Callable[[Generation], Hashable]) -> list[Generation]:
    first: dict[Hashable, Generation] = {}
    for generation in generations:
        first.setdefault(bucket(generation), generation)
    return list(first.values())


def _range(generation: Generation, every: int) -> str:
    begin = generation.manifest.step // every * every
    return f"{begin} to {begin + every - 1}"


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, _FIELDS, 1, 0.5)
    return f", did you mean {near[0]!r}?" if near else f"; known are {', '.join(_FIELDS)}"
