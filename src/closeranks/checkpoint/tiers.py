"""The homes of a checkpoint beside the node's own memory, as a value: how often, how many, how fast. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from closeranks.toml_text import TomlProblem, nearest, tables_in

DURABLE = "durable"  # the tier with the log; it is always there, whether the file names it or not
MEMORY = "memory"  # the arenas themselves: no tier of the file, every save is there
TOKEN_VARIABLE = "CLOSERANKS_PEER_TOKEN"  # noqa: S105 -- the name of a variable: what peers ask for
CODECS = ("", "zstd")
_KEEP_MIN = 2  # while writers pass from one step to the next, only the older one is complete
_FRAGMENTS_MAX = 128  # so that coefficients of any code fit GF(256) with room to spare


class TiersError(ValueError):
    """The tiers cannot be used as they are written: where, expected, got."""


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One home. Without an interval every save goes to it; with both, whichever is over first counts."""

    name: str
    kind: Literal["peers", "disk", "durable"]
    targets: tuple[str, ...] = ()  # peers: "host:port" of each; disk: one folder; durable: none, the run has its store
    data: int = 1  # peers: an object is cut into this many fragments ...
    parity: int = 1  # ... and this many are added, so that as many peers may be lost; 1 and 1: one copy more
    every_steps: int | None = None
    every_s: float | None = None
    keep: int = _KEEP_MIN  # newest saves of each writer, and one more while it is written; durable: see the retention
    codec: str = ""
    bytes_per_s: float | None = None  # of each writer
    stagger_s: float = 0.0  # writers begin spread over this time

    def __post_init__(self) -> None:
        problem = _problem_of(self)
        if problem:
            raise TiersError(f"tier {self.name!r}: {problem}")


def _problem_of(tier: Tier) -> str:
    checks = (
        (tier.name not in ("", MEMORY), "expected another name"),
        (tier.every_steps is None or tier.every_steps > 0, f"every_steps: expected from 1, got {tier.every_steps}"),
        (tier.every_s is None or tier.every_s > 0, f"every_s: expected more than 0, got {tier.every_s}"),
        (tier.keep >= _KEEP_MIN, f"keep: expected from {_KEEP_MIN}, got {tier.keep}; the newest may be incomplete"),
        (tier.codec in CODECS, f'codec: expected "" or "zstd", got {tier.codec!r}'),
        (tier.bytes_per_s is None or tier.bytes_per_s > 0, f"bytes_per_s: expected over 0, got {tier.bytes_per_s}"),
        (tier.stagger_s >= 0, f"stagger_s: expected from 0, got {tier.stagger_s}"),
        *_TARGET_CHECKS[tier.kind](tier),
    )
    return next((problem for holds, problem in checks if not holds), "")


def _checks_of_peers(tier: Tier) -> tuple[tuple[bool, str], ...]:
    needed = tier.data + tier.parity
    return (
        (tier.data >= 1, f"data: expected from 1, got {tier.data}"),
        (tier.parity >= 0, f"parity: expected from 0, got {tier.parity}"),
        (needed <= _FRAGMENTS_MAX, f"data + parity: expected at most {_FRAGMENTS_MAX}, got {needed}"),
        (len(set(tier.targets)) == len(tier.targets), "targets: a peer is named twice"),
        (
            len(tier.targets) >= needed,
            f"targets: expected from {needed} peers, one a fragment, got {len(tier.targets)}",
        ),
    )


def _checks_of_disk(tier: Tier) -> tuple[tuple[bool, str], ...]:
    return ((len(tier.targets) == 1, f"targets: expected one folder, got {len(tier.targets)}"),)


def _checks_of_durable(tier: Tier) -> tuple[tuple[bool, str], ...]:
    return ((not tier.targets, "targets: expected none: the run's --store is where it writes"),)


_TARGET_CHECKS = {"peers": _checks_of_peers, "disk": _checks_of_disk, "durable": _checks_of_durable}


class Tiers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tiers of a run; the durable one is among them."""

    tiers: tuple[Tier, ...] = (Tier(name=DURABLE, kind="durable"),)

    def __post_init__(self) -> None:
        names = [tier.name for tier in self.tiers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TiersError(f"tier {twice[0]!r} is there twice; give each a name of its own")
        if [tier.name for tier in self.tiers if tier.kind == "durable"] != [DURABLE]:
            raise TiersError(f"expected one tier of kind durable with the name {DURABLE!r}, got {', '.join(names)}")

    @property
    def durable(self) -> Tier:
        """The tier with the log."""
        return next(tier for tier in self.tiers if tier.kind == "durable")

    @property
    def others(self) -> tuple[Tier, ...]:
        """All but the durable one, in the order of the file."""
        return tuple(tier for tier in self.tiers if tier.kind != "durable")


class Last(NamedTuple):
    """The newest save that a tier has taken."""

    step: int
    at_s: float


def due(tiers: Tiers, last: Mapping[str, Last], step: int, now_s: float) -> tuple[str, ...]:
    """Names of the tiers that the save of ``step`` should reach; ``last`` has no entry for one that has none yet.

    Intervals in steps count from step 0, not from the last save: nodes that missed different saves still agree.
    """
    return tuple(tier.name for tier in tiers.tiers if _is_due(tier, last.get(tier.name), step, now_s))


def _is_due(tier: Tier, last: Last | None, step: int, now_s: float) -> bool:
    if last is None or (tier.every_steps is None and tier.every_s is None):
        return True
    by_steps = tier.every_steps is not None and step // tier.every_steps > last.step // tier.every_steps
    return by_steps or (tier.every_s is not None and now_s - last.at_s >= tier.every_s)


def stagger_s(tier: Tier, writer: int, world: int) -> float:
    """When this writer begins after the save was published: all writers evenly over ``tier.stagger_s``."""
    return tier.stagger_s * writer / world


def parse(text: str, name: str) -> Tiers:
    """The tiers written in TOML as ``[[tier]]`` tables; ``name`` is the file to blame.

    ``code = "4+2"`` may stand for data and parity, ``copies = 2`` for two peers that have all bytes.

    Raises:
        TiersError: with file, table, key, what was expected and what was found.
    """
    try:
        tree = tables_in(text, name)
    except TomlProblem as error:
        raise TiersError(str(error)) from error
    _refuse_unknown(tree, ("tier",), name)
    tables = tree.get("tier", [])
    if not isinstance(tables, list):
        raise TiersError(f"{name}: expected [[tier]] tables, got [tier]; write it with two brackets")
    tiers = [_tier_of(table, f"{name}: tier {number}") for number, table in enumerate(tables, start=1)]
    if all(tier.kind != "durable" for tier in tiers):
        tiers.append(Tier(name=DURABLE, kind="durable"))
    try:
        return Tiers(tiers=tuple(tiers))
    except TiersError as error:
        raise TiersError(f"{name}: {error}") from error


_FIELDS = tuple(field.name for field in msgspec.structs.fields(Tier))
_SHORT = ("code", "copies")


def _tier_of(table: dict[str, Any], where: str) -> Tier:
    _refuse_unknown(table, (*_FIELDS, *_SHORT), where)
    fields = dict(table)
    kind = fields.get("kind", "")
    if "name" not in fields:
        fields["name"] = kind
    if "code" in fields:
        fields["data"], fields["parity"] = _code_of(fields.pop("code"), where)
    if "copies" in fields:
        copies = fields.pop("copies")
        if not isinstance(copies, int) or copies < 1:
            raise TiersError(f"{where}: copies: expected a whole number from 1, got {copies!r}")
        fields["data"], fields["parity"] = 1, copies - 1
    try:
        return msgspec.convert(fields, Tier)
    except (msgspec.ValidationError, TiersError) as error:
        raise TiersError(f"{where}: {error}") from error


def _code_of(code: object, where: str) -> tuple[int, int]:
    data, plus, parity = str(code).partition("+")
    if not (plus and data.isdecimal() and parity.isdecimal()):
        raise TiersError(f'{where}: code: expected "data+parity" such as "4+2", got {code!r}')
    return int(data), int(parity)


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise TiersError(f"{where}: unknown key {key!r}; {nearest(key, list(known))}")
