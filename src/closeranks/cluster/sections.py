"""Seconds that processes spent in named operations, as beats carry them: unread until somebody is slow.

Every beat has those of all seats of a node, of thousands in all, and one in many thousand beats is asked for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

import msgspec

from closeranks.signs import Spent

_ByProcess = dict[int, Spent]
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_ByProcess).decode


def packed(spent: Mapping[int, Spent]) -> msgspec.Raw:
    """What a node sends, by process."""
    return msgspec.Raw(_encode(spent))


class Sections(Mapping[int, Spent]):
    """What several nodes sent, by process. What cannot be read tells nothing."""

    def __init__(self, sent: Iterable[msgspec.Raw]) -> None:
        self._sent = tuple(sent)

    def __getitem__(self, proc: int) -> Spent:
        """Of one process."""
        return self._spent[proc]

    def __iter__(self) -> Iterator[int]:
        """The processes."""
        return iter(self._spent)

    def __len__(self) -> int:
        """How many processes."""
        return len(self._spent)

    @cached_property
    def _spent(self) -> _ByProcess:
        found: _ByProcess = {}
        for one in self._sent:
            try:
                found |= _decode(one)
            except msgspec.MsgspecError:  # of one node: the others' still tell
                continue
        return found
