"""Numbers of a stream's events, and which of them a client that came back has already seen. Pure."""

from __future__ import annotations

from closeranks.serve.sessions.record import Entry, EventId


class Numbering:
    """Labels events with their ids and keeps them for the store.

    ``client``: the last id that the client has, where that may be beyond what was kept; events are not shown again.
    """

    def __init__(self, last: EventId, client: EventId | None = None) -> None:
        self._last = last
        self._client = client if client is not None else last
        self._entries: list[Entry] = []

    @property
    def missing(self) -> int:
        """Characters that the client has and that are not kept: they are generated once more, and not shown."""
        return max(0, self._client.characters - self._last.characters)

    def label(self, raw: bytes, characters: int, ids: tuple[int, ...] = ()) -> bytes:
        """The event with its id; empty if the client has it."""
        count = self._last.events + 1
        self._last = EventId(self._last.stream, count, self._last.characters + characters)
        labelled = b"id: %b\n%b" % (str(self._last).encode(), raw)
        self._entries.append(Entry(labelled, ids))
        has_it = self._last.characters <= self._client.characters and (characters or count <= self._client.events)
        return b"" if has_it else labelled

    def taken(self) -> list[Entry]:
        """The entries since the last call."""
        entries, self._entries = self._entries, []
        return entries


def unlabelled(raw: bytes) -> tuple[EventId | None, bytes]:
    """The id of a kept event, and the event without it."""
    line, _, rest = raw.partition(b"\n")
    if not line.startswith(b"id: "):
        return None, raw
    return EventId.parse(line[4:].decode("latin-1")), rest


def after(entries: tuple[Entry, ...], client: EventId) -> bytes:
    """The kept events that the client does not have."""
    parts = [(unlabelled(entry.raw)[0], entry.raw) for entry in entries]
    return b"".join(raw for known, raw in parts if known is None or known.events > client.events)


def last_of(entries: tuple[Entry, ...], stream: str) -> EventId:
    """The id of the last kept event; before the first if there is none."""
    known = unlabelled(entries[-1].raw)[0] if entries else None
    return known if known is not None else EventId(stream, 0, 0)
