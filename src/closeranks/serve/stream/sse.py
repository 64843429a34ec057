"""Server-sent events: bytes in, whole events out. Pure.

Source: WHATWG HTML Living Standard, 9.2.6 "Interpreting an event stream".
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

EVENT_BYTES_MAX: Final = 4 * 2**20

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")


class Event(NamedTuple):
    """One event as it was written, and its data lines joined; ``data`` is None for comments and the like."""

    raw: bytes
    data: bytes | None


class TooLong(ValueError):
    """An event is longer than ``EVENT_BYTES_MAX``: whoever sends that is not understood any more."""


class Splitter:
    """Collects bytes until they are events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now.

        Raises:
            TooLong: the event that is being collected is; nothing more can be fed.
        """
        buffer = self._rest + data if self._rest else data
        events: list[Event] = []
        begin = 0
        while (end := _END.search(buffer, begin)) is not None:
            # "\n\r\n" may be the beginning of nothing more; a lone "\r" at the end may be half of "\r\n".
            events.append(_event(buffer[begin : end.end()]))
            begin = end.end()
        self._rest = buffer[begin:]
        if len(self._rest) > EVENT_BYTES_MAX:
            raise TooLong(f"expected events of at most {EVENT_BYTES_MAX} bytes, got {len(self._rest)} without an end")
        return events

    @property
    def pending(self) -> bool:
        """Whether a part of an event is there."""
        return bool(self._rest.strip())


def _event(raw: bytes) -> Event:
    if raw.startswith(b"data: ") and raw.count(b"\n") == 2 and b"\r" not in raw:  # noqa: PLR2004 - what nearly all are
        return Event(raw, raw[6:-2])
    lines = [line for line in re.split(rb"\r\n|\n|\r", raw) if line.startswith(b"data:")]
    if not lines:
        return Event(raw, None)
    return Event(raw, b"\n".join(line[5:].removeprefix(b" ") for line in lines))


def data_event(data: bytes) -> bytes:
    """One event with one line of data."""
    return b"data: " + data + b"\n\n"
