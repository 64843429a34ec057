"""What keeps streams whole: the relay of each, and the keeper of its record where a stream outlives its connection."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from closeranks.serve.drilling import DrilledStreams, Drills
from closeranks.serve.http.head import Request
from closeranks.serve.sessions.keeper import Keeper
from closeranks.serve.sessions.opening import open_streams
from closeranks.serve.sessions.record import EventId, Head, owner_of
from closeranks.serve.sessions.store import StoreError, StreamStore
from closeranks.serve.settings import Settings
from closeranks.serve.stream.chunks import BadChunk
from closeranks.serve.stream.numbering import Numbering, after, last_of
from closeranks.serve.stream.pace import Gaps, Pace
from closeranks.serve.stream.relay import CompletionsRelay
from closeranks.serve.stream.request import parse
from closeranks.serve.words import Ask

if TYPE_CHECKING:
    from closeranks.serve.exchange import Exchange
    from closeranks.serve.http.server import ClientConnection

KEEP_S: Final = 2.0  # that events on their way to the store get at the end


class Streams:
    """The streams of one gateway. ``use`` other settings at any time; where records are kept is settled once."""

    def __init__(self, settings: Settings, drills: Drills) -> None:
        self._gaps: dict[str, Gaps] = {}
        self._sessions = settings.sessions
        store = open_streams(settings.sessions)
        self._store: StreamStore | None = None if store is None else DrilledStreams(store, drills)
        self.keeps = self._store is not None
        self._keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """New streams are kept whole under these settings."""
        self._settings = settings
        self.invariant = all(replica.invariant for replica in settings.replica)
        self.resumes = settings.streams.on_cut != "pass"

    def relay_for(self, request: Request, ask: Ask) -> CompletionsRelay | None:
        """What keeps the answer to this request whole; None: it is passed through."""
        if request.method != b"POST":
            return None
        wanted = parse(request.target, request.body)
        if wanted is None:
            return None
        pace = Pace(self._settings.stall, self._gaps.setdefault(ask.model, Gaps()))
        return CompletionsRelay(wanted, self._settings.streams, pace, invariant=self.invariant)

    def keeper_for(
        self, request: Request, relay: CompletionsRelay, send: Callable[[bytes], None], lost: Callable[[], None]
    ) -> Keeper | None:
        """What keeps a new stream; None if streams are not kept."""
        if self._store is None:
            return None
        head = Head(stream=secrets.token_hex(16), owner=_owner(request), target=request.target, body=request.body)
        keeper = Keeper(self._sessions, self._store, send, lost)
        keeper.begin(head)
        self._keepers.add(keeper)
        relay.number(Numbering(EventId(head.stream, 0, 0)))
        return keeper

    def claims(self, request: Request) -> EventId | None:
        """The last event that the client has seen of a kept stream, if it asks for the rest of one."""
        if self._store is None:
            return None
        return EventId.parse((request.header(b"last-event-id") or b"").decode("latin-1"))

    def go_on(self, exchange: Exchange, client: ClientConnection, request: Request, seen: EventId) -> None:
        """Answer with the rest of a kept stream, once it is looked up."""
        assert self._store is not None
        task = asyncio.get_running_loop().create_task(self._go_on(self._store, exchange, client, request, seen))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_on(
        self, store: StreamStore, exchange: Exchange, client: ClientConnection, request: Request, seen: EventId
    ) -> None:
        try:
            claimed = await store.claim(seen.stream)
        except StoreError as error:
            exchange.refuse(503, f"the stream cannot be looked up: {error}")
            return
        if claimed is None or claimed.head.owner != _owner(request):
            exchange.refuse(404, f"no stream {seen.stream} is kept for you; ask again without last-event-id")
            return
        first = Request(method=b"POST", target=claimed.head.target, headers=request.headers, body=claimed.head.body)
        relay = self.relay_for(first, exchange.ask) if self.resumes else None
        if relay is None:
            exchange.refuse(404, "the kept request is no stream of completions")
            return
        try:
            relay.restore(claimed.entries)
        except (BadChunk, msgspec.DecodeError) as error:
            exchange.refuse(502, f"what was kept of the stream is damaged: {error}")
            return
        relay.number(Numbering(last_of(claimed.entries, seen.stream), seen))
        keeper = Keeper(self._sessions, store, client.send, exchange.taken_over)
        keeper.take_over(seen.stream, claimed.generation)
        self._keepers.add(keeper)
        exchange.go_on(first, relay, keeper, after(claimed.entries, seen))

    async def close(self) -> None:
        """What is on its way to the store gets a moment more."""
        for task in list(self._tasks):
            task.cancel()
        if self._store is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*(keeper.settled() for keeper in self._keepers)), KEEP_S)
            await self._store.close()


def _owner(request: Request) -> str:
    return owner_of(request.header(b"authorization") or request.header(b"x-api-key") or b"")
