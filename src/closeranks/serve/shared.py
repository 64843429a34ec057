"""What the processes of one gateway tell each other: which replicas' breakers have opened. A page of shared memory.

A replica has one aligned 8-byte word, the time at which a breaker of it last opened, on the monotonic clock that all
processes of a machine share. A word is written and read whole, so there is nothing to lock. Two replicas share a word
with a probability of one in a thousand or so; then one is probed without need.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from typing import Final

from closeranks.serve.policies.breaker import State
from closeranks.serve.policies.fleet import Fleet

LOOK_S: Final = 0.1
FRESH_S: Final = 2.0  # an older opening is no news to a process that begins
_WORDS: Final = 2048
_BYTES: Final = 8 * _WORDS


def create() -> int:
    """A descriptor of a new page; it is close-on-exec."""
    descriptor = os.memfd_create("closeranks-serve", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _BYTES)
    return descriptor


class Shared:
    """One process's view of the page."""

    def __init__(self, descriptor: int) -> None:
        self._words = memoryview(mmap.mmap(descriptor, _BYTES)).cast("d")
        self._known: dict[str, float] = {}

    def exchange(self, now_s: float, fleet: Fleet) -> None:
        """Tell which breakers have opened here, and open those that have opened elsewhere."""
        for name, member in fleet.members.items():
            place = _place(name)
            opened_s = member.breaker.opened_s if member.breaker.state is State.OPEN else 0.0
            known_s, told_s = self._known.get(name, 0.0), self._words[place]
            if opened_s > known_s and opened_s > told_s:
                self._words[place] = self._known[name] = opened_s
            elif told_s > known_s:
                self._known[name] = told_s
                if member.breaker.state is State.CLOSED and now_s - told_s < FRESH_S:
                    member.breaker.trip(now_s, "it has opened in another process of this gateway")
                    self._known[name] = now_s  # this opening is an echo, and not to be told again


def _place(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") % _WORDS
