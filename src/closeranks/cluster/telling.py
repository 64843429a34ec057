"""What a coordinator tells all of its nodes: memos, notes and decisions, in one order, each encoded once for all.

A memo goes before whatever was decided on the state that it holds: whoever leads next must know of what it finds
carried out. It is that of the moment at which it is told, so what was decided since the last one takes one memo,
however much it was. Where nothing but notes waits for it, there are no more memos in a second than the network has room
for: a thousand nodes that fall silent one by one take a few words, and not a thousand memos to each of the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from closeranks.cluster.attendance import Attendee
from closeranks.events import AnyEvent, Stamp
from closeranks.frames import encode, packed
from closeranks.nodes import words

_NOTES_MAX: Final = 4096  # in one word: far below what a frame may hold
_MEMO_BYTES_A_SECOND: Final = 32 * 2**20  # to all nodes, of those memos that only notes wait for
_PAUSE_MAX_S: Final = 1.0


class Telling:
    """Speaks to all attendees that are connected."""

    def __init__(
        self,
        attendees: Mapping[str, Attendee],
        stamp: Callable[[int], Stamp],
        new_memo: Callable[[], words.Memo | None],
    ) -> None:
        """``stamp(seq)`` of an event now; ``new_memo()``: what the next leader will want, if it has changed."""
        self._attendees = attendees
        self._stamp = stamp
        self._new_memo = new_memo
        self._owes_memo = False
        self._memo_not_before_s = 0.0  # unless something is decided
        self._notes: list[AnyEvent] = []  # that are not told yet
        self._noted = 0  # events so far
        self._unheard: list[words.Notes] = []  # those that no node was there to write down

    def owe_memo(self) -> None:
        """Something was decided: before any of it is told, the memo is."""
        self._owes_memo = True

    def note(self, *events: AnyEvent) -> None:
        """Soon: when a job starts every node that comes is noted on all that are there, hundreds in a moment."""
        if events and not self._notes:
            wait_s = max(0.0, self._memo_not_before_s - time.monotonic()) if self._owes_memo else 0.0
            asyncio.get_running_loop().call_later(wait_s, self.tell)
        self._notes.extend(events)

    def tell(self, *several: words.FromCoordinator) -> None:
        """Now, behind the memo that is owed and behind what was noted before."""
        if not (several or self._notes or self._owes_memo):
            return
        notes = self._take_notes()
        there = [attendee for attendee in self._attendees.values() if attendee.connection is not None]
        if not there:
            self._unheard.extend(notes)
            return
        memo = self._new_memo() if self._owes_memo else None
        self._owes_memo = False
        told = (*notes, *several) if memo is None else (memo, *notes, *several)
        frames = packed(b"".join(map(encode, told)))
        if memo is not None:
            pause_s = len(frames) * len(there) / _MEMO_BYTES_A_SECOND
            self._memo_not_before_s = time.monotonic() + min(pause_s, _PAUSE_MAX_S)
        if frames:
            for attendee in there:
                attendee.send_frames(frames)

    def refresh_memo(self, now_s: float) -> None:
        """What changed without a decision; nobody is told anything that depends on it, so it may wait a little."""
        if now_s >= self._memo_not_before_s:
            self._owes_memo = True
            self.tell()

    def take_unheard(self) -> tuple[words.Notes, ...]:
        """What was noted while nobody was there, for the first that comes."""
        unheard, self._unheard = tuple(self._unheard), []
        return unheard

    def _take_notes(self) -> tuple[words.Notes, ...]:
        events, self._notes = tuple(self._notes), []
        return tuple(self._numbered(events[first : first + _NOTES_MAX]) for first in range(0, len(events), _NOTES_MAX))

    def _numbered(self, events: tuple[AnyEvent, ...]) -> words.Notes:
        seq, self._noted = self._noted, self._noted + len(events)
        return words.Notes(events=events, stamp=self._stamp(seq))
