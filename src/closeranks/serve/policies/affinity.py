"""Sessions keep their replica: a consistent hash in which no replica takes more than its bounded share. Pure.

The cache of a conversation lies where its last turn was answered. So the turns of a session go to the replica that
follows the session's hash on a ring; if that one is gone, failed or full, to the next on the ring. When a replica
leaves, only its own sessions move; when it returns, only they move back.

Source: Karger et al., "Consistent Hashing and Random Trees", 1997; Mirrokni, Thorup & Zadimoghaddam, "Consistent
Hashing with Bounded Loads", SODA 2018 (the bound: 1 + epsilon times the average).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final

_POINTS: Final = 64  # on the ring, of a replica of the mean capacity


class Ring:
    """The ring of all replicas, by their capacities; who may be asked now is the caller's to say."""

    def __init__(self, capacities: Mapping[str, float]) -> None:
        mean = sum(capacities.values()) / len(capacities) if capacities else 1.0
        points = []
        for name, capacity in capacities.items():
            count = max(1, round(_POINTS * capacity / mean))
            points += [(_hash(f"{name}/{number}".encode()), name) for number in range(count)]
        points.sort()
        self._hashes = [point for point, _ in points]
        self._names = [name for _, name in points]

    def walk(self, session: str) -> Iterator[str]:
        """The replicas, in the order in which this session would have them; some more than once."""
        start = bisect_right(self._hashes, _hash(session.encode()))
        yield from self._names[start:]
        yield from self._names[:start]


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest())


def cookie(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The value of a cookie; empty without it."""
    for key, value in headers:
        if key == b"cookie":
            for pair in value.split(b";"):
                known, _, content = pair.strip().partition(b"=")
                if known == name:
                    return content
    return b""


def digest(*parts: bytes) -> str:
    """A session's name from what it has in common in all its requests; parts never run into each other."""
    state = blake2b(digest_size=8)
    for part in parts:
        state.update(b"%d:" % len(part) + part)
    return state.hexdigest()
