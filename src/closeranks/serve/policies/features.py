"""Features of a ranking service when their store is slow, late or gone. Pure; needs no gateway.

```python
features = Features(
    [
        Feature(name="price", need=Need.CRITICAL, staleness_s=60),
        Feature(name="embedding", need=Need.IMPORTANT, default=[0.0] * 64, staleness_s=3600),
        Feature(name="clicks", need=Need.USEFUL, staleness_s=300),
        Feature(name="weather", need=Need.OPTIONAL, staleness_s=900),
    ]
)
match features.assemble(now_s, user_id, fetched):
    case Assembled() as ready: rank(ready.values)
    case Blocked() as blocked: refuse(blocked.reason)
```

What is fetched carries its age. A value that is older than its feature's budget for staleness is as good as missing;
what replaces it depends on the need: a critical one blocks, an important one has its default, a useful one its last
known value if that is fresh enough, an optional one is left out. A pre-processing that fails blocks: a model that is
fed with half-made features answers with confidence, and wrongly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from closeranks.serve.policies.window import Tally

SHARE_WINDOW_S = 300.0


class Need(StrEnum):
    """How much depends on a feature."""

    CRITICAL = "critical"  # without it, no answer
    IMPORTANT = "important"  # without it, its default
    USEFUL = "useful"  # without it, its last known value
    OPTIONAL = "optional"  # without it, nothing


class Used(StrEnum):
    """Where a value came from."""

    FETCHED = "fetched"
    DEFAULT = "default"
    CACHED = "cached"
    LEFT_OUT = "left out"


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """One feature. ``default`` is for an important one, and has to be given."""

    name: str
    need: Need
    staleness_s: float
    default: Any = msgspec.UNSET

    def __post_init__(self) -> None:
        if (self.need is Need.IMPORTANT) != (self.default is not msgspec.UNSET):
            raise ValueError(f"{self.name}: a default is for important features, and each of them needs one")
        if not self.staleness_s > 0:
            raise ValueError(f"{self.name}: staleness_s: expected more than 0, got {self.staleness_s}")


class Value(msgspec.Struct, frozen=True):
    """A value, and when it was true (not when it was read)."""

    value: Any
    at_s: float


class Failed(msgspec.Struct, frozen=True):
    """The feature could not be had."""

    reason: str


class Assembled(msgspec.Struct, frozen=True):
    """What the model gets, where each part came from, and how old it is (None: a default has no age)."""

    values: Any  # the features by name, or what pre-processing has made of them
    used: Mapping[str, Used]
    ages_s: Mapping[str, float | None]

    @property
    def degraded(self) -> bool:
        """Whether anything but fresh values was used."""
        return any(used is not Used.FETCHED for used in self.used.values())


class Blocked(msgspec.Struct, frozen=True):
    """There is no answer without this."""

    feature: str
    reason: str


class Features:
    """The features of one model, and the last known values of the useful ones."""

    def __init__(self, features: Sequence[Feature], *, remembered: int = 100_000) -> None:
        self._features = tuple(features)
        self._remembered = remembered
        self._last: OrderedDict[tuple[str, str], Value] = OrderedDict()
        self._all = Tally(SHARE_WINDOW_S)
        self._less = Tally(SHARE_WINDOW_S)

    def assemble(
        self,
        now_s: float,
        entity: str,
        fetched: Mapping[str, Value | Failed],
        prepare: Callable[[dict[str, Any]], Any] | None = None,
    ) -> Assembled | Blocked:
        """The features of ``entity``, as good as they are to be had; what is absent from ``fetched`` has failed."""
        self._all.add(now_s)
        values: dict[str, Any] = {}
        used: dict[str, Used] = {}
        ages_s: dict[str, float | None] = {}
        for feature in self._features:
            got = fetched.get(feature.name, Failed("it was not fetched"))
            complaint = _complaint(feature, got, now_s)
            if complaint and feature.need is Need.CRITICAL:
                return self._blocked(now_s, Blocked(feature.name, f"{feature.name} is critical: {complaint}"))
            how, value = self._replacement(now_s, entity, feature) if complaint else (Used.FETCHED, got)
            used[feature.name] = how
            if isinstance(value, Value):
                values[feature.name], ages_s[feature.name] = value.value, max(0.0, now_s - value.at_s)
                if how is Used.FETCHED and feature.need is Need.USEFUL:
                    self._remember(entity, feature.name, value)
            elif how is Used.DEFAULT:
                values[feature.name], ages_s[feature.name] = feature.default, None
        prepared: Any = values
        if prepare is not None:
            try:
                prepared = prepare(values)
            except Exception as error:  # whatever it is: half-made features must not reach the model
                reason = f"pre-processing failed: {type(error).__name__}: {error}"
                return self._blocked(now_s, Blocked("", reason))
        assembled = Assembled(prepared, used, ages_s)
        if assembled.degraded:
            self._less.add(now_s)
        return assembled

    def degraded_share(self, now_s: float) -> float:
        """The share of the latest requests for which something was replaced, left out or missing."""
        every = self._all.total(now_s)
        return self._less.total(now_s) / every if every else 0.0

    def _replacement(self, now_s: float, entity: str, feature: Feature) -> tuple[Used, Value | None]:
        if feature.need is Need.IMPORTANT:
            return Used.DEFAULT, None
        last = self._last.get((entity, feature.name)) if feature.need is Need.USEFUL else None
        if last is not None and now_s - last.at_s <= feature.staleness_s:
            return Used.CACHED, last
        return Used.LEFT_OUT, None

    def _remember(self, entity: str, name: str, value: Value) -> None:
        self._last[entity, name] = value
        self._last.move_to_end((entity, name))
        if len(self._last) > self._remembered:
            self._last.popitem(last=False)

    def _blocked(self, now_s: float, blocked: Blocked) -> Blocked:
        self._less.add(now_s)
        return blocked


def _complaint(feature: Feature, got: Value | Failed, now_s: float) -> str:
    if isinstance(got, Failed):
        return got.reason
    age_s = now_s - got.at_s
    if not age_s <= feature.staleness_s:  # an age that is no number is no age
        return f"it is {age_s:.0f} s old, and may be {feature.staleness_s:g} s"
    return ""
