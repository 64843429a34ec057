"""A client's request in the words in which a replica gets it: its own headers, and what each hop says anew.

Whatever does not change from one request to the next under the same head is put together once for each replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from closeranks.serve.asking import IDEMPOTENCY
from closeranks.serve.http.head import WITH_BODY, Headers, Request, end_to_end, lines_of
from closeranks.serve.policies.deadline import HEADERS, TIMEOUT, Clock, passed_on
from closeranks.serve.replica import Replica
from closeranks.serve.words import NEVER_S, Ask

_OWN: Final = frozenset({b"host", b"expect"})  # between two hops
_POST: Final = b"POST"


class Words(NamedTuple):
    """What a replica is asked in the place of a request's own target and body."""

    target: bytes
    body: bytes


class _Passed(msgspec.Struct):
    """What a replica gets of a client's head."""

    lines: bytes  # as they are
    deadlines: Headers  # to be said anew
    wants_key: bool  # it has no idempotency key, and could use one
    openings: dict[Replica, bytes]  # the first line and those that stay the same, by the replica that gets them

    @staticmethod
    def of(request: Request) -> _Passed:
        kept = [header for header in end_to_end(request.headers) if header[0] not in _OWN]
        return _Passed(
            lines_of(header for header in kept if header[0] not in HEADERS),
            [header for header in kept if header[0] in HEADERS],
            request.method == _POST and request.header(IDEMPOTENCY) is None,
            {},
        )


class Wording:
    """Words the requests of one gateway process; no other process numbers requests under its ``name``."""

    def __init__(self, name: bytes, clock: Callable[[], Clock]) -> None:
        self._key = b"%b: %b-%%d\r\n" % (IDEMPOTENCY, name)
        self._clock = clock

    def spell(
        self,
        request: Request,
        replica: Replica,
        ask: Ask,
        now_s: float,
        words: Words | None = None,
        more: bytes = b"",
    ) -> bytes:
        """The whole request for this replica: its own target and body unless there are other ``words`` for it.

        ``more`` lines go into its head.
        """
        passed: _Passed | None = request.notes.get(_Passed)
        if passed is None:
            passed = request.notes[_Passed] = _Passed.of(request)
        body = request.body
        if words is None or words.target is request.target:
            opening = passed.openings.get(replica)
            if opening is None:
                opening = passed.openings[replica] = _opening(request, request.target, replica, passed)
        else:
            opening = _opening(request, words.target, replica, passed)
        if words is not None:
            body = words.body
        if passed.deadlines or ask.deadline_s == NEVER_S:
            more += lines_of(passed_on(passed.deadlines, ask.deadline_s, self._clock()))
        else:
            more += b"%b: %d\r\n" % (TIMEOUT, max(1, int((ask.deadline_s - now_s) * 1000)))
        if passed.wants_key:  # the same for all attempts at it
            more += self._key % ask.number
        if body or request.method in WITH_BODY:
            return b"%b%bcontent-length: %d\r\n\r\n%b" % (opening, more, len(body), body)
        return b"%b%b\r\n" % (opening, more)


def _opening(request: Request, target: bytes, replica: Replica, passed: _Passed) -> bytes:
    return b"%b %b%b HTTP/1.1\r\nhost: %b\r\n%bx-forwarded-for: %b\r\n" % (
        *(request.method, replica.prefix, target),
        *(replica.authority, passed.lines, request.client.encode()),
    )
