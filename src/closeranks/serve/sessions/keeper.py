"""Carries the events of one stream to its store, and says when the client may have them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from closeranks.serve.sessions.record import Entry, Head
from closeranks.serve.sessions.settings import Keep, SessionSettings
from closeranks.serve.sessions.store import StoreError, StreamStore


class Keeper:
    """One stream. ``send`` gets what may go to the client, in order; ``lost`` hears that somebody else has the stream.

    A store that fails does not stop the stream: from then on it is carried without being kept.
    """

    def __init__(
        self, settings: SessionSettings, store: StreamStore, send: Callable[[bytes], None], lost: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._store = store
        self._send = send
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self.stream = ""
        self._generation = 0
        self._head: Head | None = None
        self._entries: list[Entry] = []
        self._held: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._at_end: Callable[[], None] | None = None
        self.failed = ""

    def begin(self, head: Head) -> None:
        """A new stream."""
        self._head, self.stream = head, head.stream
        self._flush()  # at once: a stream whose beginning is not kept cannot be found by whoever has its first events

    def take_over(self, stream: str, generation: int) -> None:
        """A stream that was claimed."""
        self.stream, self._generation = stream, generation

    def add(self, data: bytes, entries: list[Entry]) -> None:
        """The next events, and what the client gets of them."""
        if self.failed:
            self._send(data)
            return
        self._entries += entries
        if self._settings.keep is Keep.MIRROR or self._head is not None:
            self._held.append(data)
            self._flush()
            return
        self._send(data)
        if len(self._entries) >= self._settings.batch_events:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._settings.batch_s, self._flush)

    def end(self, then: Callable[[], None]) -> None:
        """Call ``then`` once all is kept and sent."""
        self._at_end = then
        self._flush()

    async def settled(self) -> None:
        """Returns when nothing is on its way to the store."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def drop(self) -> None:
        """The client has left: keep what there is, send nothing more."""
        self._send = lambda _: None
        self._at_end = None
        self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and (self._entries or self._head is not None or self._at_end is not None):
            self._task = self._loop.create_task(self._keep())

    async def _keep(self) -> None:
        while (self._entries or self._head is not None) and not self.failed:
            held: list[bytes] = []
            try:
                if self._head is not None:
                    self._generation, self._head = await self._store.begin(self._head), None
                    if self._settings.keep is not Keep.MIRROR:
                        self._release()
                entries, self._entries = self._entries, []
                held, self._held = self._held, []
                kept = await self._store.append(self.stream, self._generation, entries) if entries else True
            except StoreError as error:
                self.failed, kept = str(error), True
            if not kept:
                self._task = None
                self._lost()
                return
            if held:
                self._send(b"".join(held))
        if self.failed:
            self._entries, self._head = [], None
            self._release()
        self._task = None
        if self._at_end is not None and not self._entries:
            then, self._at_end = self._at_end, None
            then()

    def _release(self) -> None:
        held, self._held = self._held, []
        if held:
            self._send(b"".join(held))
