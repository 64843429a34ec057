"""What ``closeranks ckpt`` prints: for people as tables, for programs as JSON."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from closeranks.checkpoint.comparing import Difference, TensorChange
from closeranks.checkpoint.examining import Damage, Examined
from closeranks.checkpoint.format import ShardIndex
from closeranks.checkpoint.history import Generation, History, Verification
from closeranks.checkpoint.log_copies import LogDamage

_PIPE_WIDTH: Final = 160
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_ROWS: Final = 20
_VERIFIED: Final = {Verification.HELD: "held", Verification.BROKEN: "BROKEN", Verification.UNKNOWN: "not yet"}
_STYLE: Final = {Verification.HELD: "green", Verification.BROKEN: "bold red", Verification.UNKNOWN: ""}


def console() -> Console:
    """A file or a pipe has no width of its own: tables get enough to keep a row on a line."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPE_WIDTH if wide else None, highlight=False, markup=False)


def put_json(value: Any) -> None:
    """One object on standard output; infinities and NaN are null."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def say(message: str, style: str = "") -> None:
    """A line, never wrapped by us."""
    console().print(Text(plain(message), style=style), soft_wrap=True)


def plain(text: str) -> str:
    """A name from a store, safe for a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def size(count: int) -> str:
    """Bytes for people, in decimal units."""
    power = min(int(math.log10(max(count, 1)) // 3), len(_UNITS) - 1)
    return f"{count} B" if power == 0 else f"{count / 1000**power:.3g} {_UNITS[power]}"


def time_of(wall_s: float) -> str:
    """Universal time."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def image_bytes(generation: Generation) -> int:
    """Of all writers."""
    return sum(shard.image_bytes for shard in generation.manifest.shards)


def generation_json(generation: Generation, kept: Mapping[int, str]) -> dict[str, Any]:
    """One generation in every ``--json``."""
    manifest = generation.manifest
    return {
        "generation": generation.number,
        "step": manifest.step,
        "committed_wall_s": generation.wall_s,
        "image_bytes": image_bytes(generation),
        "world": manifest.world,
        "layout": manifest.layout,
        "group": manifest.group,
        "trusted": manifest.trusted,
        "verified": generation.verified.value,
        "verified_detail": generation.verified_detail,
        "pinned": list(generation.pinned),
        "bases": list(manifest.bases),
        "run": manifest.run,
        "attempt": manifest.attempt,
        "kept_because": kept.get(generation.number, ""),
    }


def list_generations(history: History) -> None:
    """The table of ``ls``, newest last, where the eye is."""
    table = _table("generation", "step", "committed", "size", "writers", "verified", "remarks")
    for generation in history.generations.values():
        manifest = generation.manifest
        table.add_row(
            str(generation.number),
            str(manifest.step),
            time_of(generation.wall_s),
            size(image_bytes(generation)),
            str(manifest.world),
            Text(_VERIFIED[generation.verified], style=_STYLE[generation.verified]),
            plain(remarks(generation)),
        )
    console().print(table)


def remarks(generation: Generation) -> str:
    """What is not usual about it."""
    manifest = generation.manifest
    found = []
    if generation.pinned:
        found.append("pinned: " + ", ".join(filter(None, generation.pinned)) if any(generation.pinned) else "pinned")
    if not manifest.trusted:
        found.append("not trusted: corruption was suspected")
    if manifest.group:
        found.append(f"only the part {manifest.group!r}")
    if manifest.bases:
        found.append(f"builds on {', '.join(map(str, manifest.bases))}")
    return "; ".join(found)


def tensors_of(indices: Mapping[int, ShardIndex]) -> list[dict[str, Any]]:
    """Every tensor with its type, shape, bytes and writers, by name."""
    found: dict[str, dict[str, Any]] = {}
    for writer, index in sorted(indices.items()):
        for part in index.slices:
            entry = found.setdefault(
                part.name,
                {
                    "name": part.name,
                    "dtype": part.dtype,
                    "shape": list(part.global_shape),
                    "stored_bytes": 0,
                    "writers": [],
                },
            )
            entry["stored_bytes"] += part.length
            entry["writers"] += [writer] if writer not in entry["writers"][-1:] else []
    return [found[name] for name in sorted(found)]


def show_generation(generation: Generation, indices: Mapping[int, ShardIndex], *, every_tensor: bool) -> None:
    """The page of ``show``."""
    manifest = generation.manifest
    rows = {
        "generation": str(generation.number),
        "step": str(manifest.step),
        "committed": time_of(generation.wall_s),
        "run": manifest.run or "unknown",
        "written by": f"{manifest.world} writers, {manifest.layout}",
        "image": size(image_bytes(generation)),
        "verified": f"{_VERIFIED[generation.verified]} {generation.verified_detail}".strip(),
        "remarks": remarks(generation) or "none",
        "data position": msgspec.json.encode(manifest.data_position).decode(),
        "attempt": manifest.attempt,
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()) or "unknown",
    }
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), plain(value))
    console().print(table)
    tensors = tensors_of(indices)
    if every_tensor:
        _show_tensors(tensors)
    else:
        _show_parts(tensors)


def _show_parts(tensors: Sequence[Mapping[str, Any]]) -> None:
    parts: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        part = tensor["name"].partition("/")[0]
        count, total = parts.get(part, (0, 0))
        parts[part] = (count + 1, total + tensor["stored_bytes"])
    table = _table("part", "tensors", "size")
    for part, (count, total) in parts.items():
        table.add_row(plain(part), f"{count:,}", size(total))
    console().print(table)
    say("every tensor: --tensors", style="dim")


def _show_tensors(tensors: Sequence[Mapping[str, Any]]) -> None:
    table = _table("tensor", "type", "shape", "size", "writers")
    for tensor in tensors:
        writers = tensor["writers"]
        named = f"{writers[0]}..{writers[-1]} ({len(writers)})" if len(writers) > 1 else str(writers[0])
        table.add_row(plain(tensor["name"]), tensor["dtype"], str(tensor["shape"]), size(tensor["stored_bytes"]), named)
    console().print(table)


def show_examined(found: Examined) -> None:
    """One generation of ``verify``."""
    name = f"generation {found.generation} (step {found.step}, {size(found.image_bytes)})"
    if not found.damage:
        say(f"{name}: all digests hold", style="green")
        return
    say(f"{name}: {_places(len(found.damage))}", style="bold red")
    for damage in found.damage:
        say(f"  {_where(damage)}")
        say(f"    {damage.problem.removeprefix(f'{damage.object}: ')}", style="dim")
        say(f"    holds {_some(damage.tensors)}")


def show_log_damage(found: Sequence[LogDamage]) -> None:
    """What ``verify`` found in the log."""
    if found:
        say(f"log: {_places(len(found))}", style="bold red")
    for damage in found:
        served = (
            f"is read from {damage.served_by}" if damage.served_by else "has no sound copy: only its summary is known"
        )
        say(f"  {damage.object}: entry {damage.entry} {served}")
        say(f"    {damage.problem}", style="dim")


def entries(numbers: Iterable[int]) -> str:
    """Entries of the log by their numbers."""
    return f"entry {_some([str(number) for number in sorted(numbers)])} of the log"


def _places(count: int) -> str:
    return f"DAMAGED in {count} place{'' if count == 1 else 's'}"


def _where(damage: Damage) -> str:
    if damage.begin is None or damage.length is None:
        return f"{damage.object}: cannot be used at all"
    return f"{damage.object}: bytes {damage.begin} to {damage.begin + damage.length} (writer {damage.writer})"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _ROWS} more" if len(names) > _ROWS else ""
    return ", ".join(names[:_ROWS]) + more if names else "no tensor"


def show_difference(found: Difference, *, everything: bool) -> None:
    """The page of ``diff``."""
    limit = None if everything else _ROWS
    if found.changed:
        table = _table("tensor", "differing", "of", "largest difference", "remarks")
        for change in found.changed[:limit]:
            table.add_row(plain(change.name), f"{change.differing:,}", f"{change.elements:,}", *_amount(change))
        console().print(table)
        _say_more(len(found.changed), limit)
    for title, names in (("only in the first", found.only_first), ("only in the second", found.only_second)):
        if names:
            say(f"{title}: {_some(names)}")
    for name, one, other in found.other_kind[:limit]:
        say(f"{name}: {one} became {other}")
    for path, one, other in found.values[:limit]:
        say(f"{path}: {one} became {other}")
    _say_more(len(found.values), limit)
    say(f"equal bit for bit: {_count(found.equal)}; different: {_count(len(found.changed))}", style="bold")


def _count(tensors: int) -> str:
    return f"{tensors:,} tensor{'' if tensors == 1 else 's'}"


def _say_more(count: int, limit: int | None) -> None:
    if limit is not None and count > limit:
        say(f"... and {count - limit:,} more (--all)", style="dim")


def _amount(change: TensorChange) -> tuple[str, str]:
    largest = "" if change.largest is None else f"{change.largest:.6g}"
    one, other = change.not_finite
    return largest, f"{one:,} and {other:,} not finite" if one or other else ""


def _table(*columns: str) -> Table:
    right = {"generation", "step", "size", "writers", "differing", "of", "largest difference", "tensors"}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table
