"""Lists of hosts as Slurm writes them: ``gpu[001-003,7],login``. No clock, no file, no ``scontrol``."""

from __future__ import annotations

import itertools
import math
import re

_HOSTS_MAX = 65_536  # a list may say more than any machine room holds
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class HostlistProblem(ValueError):
    """The text is no list of hosts; says where it stops being one."""


def expand(text: str) -> tuple[str, ...]:
    """The hosts of a list, in its order; a range keeps its leading zeros.

    Raises:
        HostlistProblem: it cannot be read, or names more hosts than any cluster has.
    """
    hosts: list[str] = []
    for item in _items(text):
        choices = [_numbers(inside, text) if inside else [plain] for inside, plain in _pieces(item, text)]
        count = len(hosts) + math.prod(map(len, choices))
        if count > _HOSTS_MAX:
            raise HostlistProblem(f"host list {text[:80]!r}: expected at most {_HOSTS_MAX} hosts, got {count}")
        hosts += ["".join(parts) for parts in itertools.product(*choices)]
    return tuple(hosts)


def _items(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    items = re.split(r",(?![^\[]*\])", text.strip())
    if not all(items):
        raise HostlistProblem(f"host list {text[:80]!r}: expected host,host or host[1-3], got an empty name")
    return items


def _pieces(item: str, text: str) -> list[tuple[str, str]]:
    pieces = _PIECE.findall(item)
    if "".join(f"[{inside}]" if inside else plain for inside, plain in pieces) != item:
        raise HostlistProblem(f"host list {text[:80]!r}: unbalanced or empty brackets in {item[:80]!r}")
    return pieces


def _numbers(inside: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise HostlistProblem(f"host list {text[:80]!r}: expected a number or a range, got {part[:40]!r}")
        first, last = match[1], match[2] or match[1]
        span = range(int(first), int(last) + 1)
        if not 0 < len(span) <= _HOSTS_MAX:
            raise HostlistProblem(f"host list {text[:80]!r}: expected a rising range of hosts, got {part[:40]!r}")
        numbers += [f"{number:0{len(first)}d}" for number in span]
    return numbers
