"""Seconds that processes spent in named operations, as beats carry them: unread until somebody is slow.

Every beat has those of all seats of a node, of thousands in all, and one in many thousand beats is asked for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

import msgspec

_Totals = dict[int, dict[str, float]]  # by process and operation
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Totals).decode


def packed(totals_s: Mapping[int, Mapping[str, float]]) -> msgspec.Raw:
    """What a node sends: by process, what it spent in each operation so far."""
    return msgspec.Raw(_encode(totals_s))


class Sections(Mapping[int, Mapping[str, float]]):
    """What several nodes sent, by process. What cannot be read tells nothing."""

    def __init__(self, sent: Iterable[msgspec.Raw]) -> None:
        self._sent = tuple(sent)

    def __getitem__(self, proc: int) -> Mapping[str, float]:
        """Of one process."""
        return self._totals_s[proc]

    def __iter__(self) -> Iterator[int]:
        """The processes."""
        return iter(self._totals_s)

    def __len__(self) -> int:
        """How many processes."""
        return len(self._totals_s)

    @cached_property
    def _totals_s(self) -> _Totals:
        found: _Totals = {}
        for one in self._sent:
            try:
                found |= _decode(one)
            except msgspec.MsgspecError:  # of one node: the others' still tell
                continue
        return found
