"""The gateway: listeners in front, replicas behind, and what all requests share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import ssl
import time
import weakref
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from closeranks.events import AnyEvent, ReplicaQuarantined, ReplicaReadmitted
from closeranks.serve.asking import IDEMPOTENCY, Asker, BadPriority
from closeranks.serve.doubles import Doubles
from closeranks.serve.drilling import DrilledStreams, Drills
from closeranks.serve.entrance import Entrance
from closeranks.serve.exchange import Exchange
from closeranks.serve.fallbacks import Fallbacks
from closeranks.serve.http.head import Headers, Request, end_to_end, lines_of
from closeranks.serve.http.limits import Limits
from closeranks.serve.http.server import ClientConnection
from closeranks.serve.http.target import Target
from closeranks.serve.http.upstream import Pool
from closeranks.serve.policies.deadline import HEADERS, TIMEOUT, BadDeadline, Clock, passed_on
from closeranks.serve.quality import Quality
from closeranks.serve.relay import Relay
from closeranks.serve.sessions.keeper import Keeper
from closeranks.serve.sessions.opening import open_streams
from closeranks.serve.sessions.record import EventId, Head, owner_of
from closeranks.serve.sessions.settings import Kv
from closeranks.serve.sessions.snapshots import Snapshots
from closeranks.serve.sessions.store import StoreError
from closeranks.serve.settings import ReplicaSettings, Settings
from closeranks.serve.shared import LOOK_S, Shared
from closeranks.serve.story import Observer, Story
from closeranks.serve.stream.chunks import BadChunk
from closeranks.serve.stream.numbering import Numbering, after, last_of
from closeranks.serve.stream.pace import Gaps, Pace
from closeranks.serve.stream.relay import CompletionsRelay
from closeranks.serve.stream.request import parse
from closeranks.serve.traffic import Traffic
from closeranks.serve.wheel import Wheel
from closeranks.serve.words import NEVER_S, Ask

SWEEP_S = 0.5
_OWN: Final = frozenset({b"host", b"expect"})  # between two hops
_AT_START: Final = ("listen", "admin", "sessions", "access_log", "journal")
KEEP_S = 2.0  # that events on their way to the store get at the end


class Replica:
    """One replica: what is known of it, and the connections to it."""

    def __init__(self, settings: ReplicaSettings, connect_s: float, context: ssl.SSLContext | None) -> None:
        self.settings = settings
        target = Target.of(settings.url)
        self.prefix = target.prefix.encode()
        self.authority = target.authority
        self.line = b"x-closeranks-replica: %b\r\n" % settings.name.encode()  # of answers
        self.pool = Pool(target, connect_s=connect_s, context=context)
        self.heard_s = 0.0  # when it last sent anything to anybody


class UnknownReplicaError(LookupError):
    """No replica has that name."""


class Gateway:
    """One process of the gateway. Call ``start`` in its loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits: Limits = settings.limits
        self.connections: set[ClientConnection] = set()
        part = 1 / settings.listen.processes
        self._part = part
        self._random = Random()  # noqa: S311 - spreads pauses, keeps no secret
        self.traffic = Traffic(settings, self._random, part=part)
        self._asker = Asker(settings)
        self.fallbacks = self._fallbacks(settings)
        self.doubles = Doubles(self)
        self.quality = Quality(self)
        self.replicas = {replica.name: self._replica(replica, settings) for replica in settings.replica}
        self.invariant = all(replica.invariant for replica in settings.replica)
        self._gaps: dict[str, Gaps] = {}
        self.observers: tuple[Observer, ...] = ()
        self.note: Callable[[AnyEvent], None] = lambda _: None  # writes the journal, if one is kept
        self.drills = Drills(self)
        store = open_streams(settings.sessions)
        self._streams = None if store is None else DrilledStreams(store, self.drills)
        self._tasks: set[asyncio.Task[None]] = set()
        self._keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()
        self._loop = asyncio.get_running_loop()
        self.now_s: Callable[[], float] = self._loop.time
        self._wheel = Wheel(self._loop)
        self.at = self._wheel.at  # calls something at a moment
        self._numbers = itertools.count(1)
        self._name = secrets.token_hex(8).encode()  # no other process numbers requests under it
        keeps_kv = settings.sessions.kv is Kv.SNAPSHOT
        self.snapshots = Snapshots(self, self._name.decode()) if keeps_kv else None
        self._waiting: dict[int, Entrance] = {}
        self._open: set[Exchange] = set()
        self._idle = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self, *, reuse_port: bool = False) -> int:
        """Listen; the port."""
        listen = self.settings.listen
        context = None
        if listen.tls_cert:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(listen.tls_cert, listen.tls_key)
        self._server = await self._loop.create_server(
            lambda: ClientConnection(self), listen.host, listen.port, ssl=context, reuse_port=reuse_port, backlog=1024
        )
        self._sweep()
        return int(self._server.sockets[0].getsockname()[1])

    async def drain(self, within_s: float) -> None:
        """Take no new connection, let every request end, then close; what is not done in time is cut."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drain()
        if self._open:
            self._idle.clear()
        else:
            self._idle.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), within_s)
        await self.close()

    async def close(self) -> None:
        """Close everything at once."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        if self.snapshots is not None:
            await self.snapshots.close()
        for replica in self.replicas.values():
            replica.pool.close()
        for task in list(self._tasks):
            task.cancel()
        if self._streams is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*(keeper.settled() for keeper in self._keepers)), KEEP_S)
            await self._streams.close()
        self.quality.close()
        self.drills.end("the gateway ends")
        for observer in self.observers:
            observer.close()
        self._wheel.close()
        await asyncio.sleep(0)

    def share(self, shared: Shared) -> None:
        """Tell other processes of this gateway which breakers open, and hear it from them; until the loop ends."""
        shared.exchange(self.now_s(), self.traffic.fleet)
        self._loop.call_later(LOOK_S, self.share, shared)

    def _sweep(self) -> None:
        now_s = self.now_s()
        for connection in [one for one in self.connections if one.expires_s <= now_s]:
            connection.expire()
        for traffic in {self.traffic, *(exchange.traffic for exchange in self._open)}:  # old ones after a reload
            self._admit(traffic.tick(now_s))
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    # --- requests -----------------------------------------------------------------------------------------------------

    def begin(self, request: Request, client: ClientConnection) -> Exchange | None:
        """See Front."""
        try:
            ask = self._asker.ask(request, self.clock(), next(self._numbers))
        except (BadDeadline, BadPriority) as error:
            client.fail(400, str(error))
            return None
        exchange = Exchange(self, request, client, ask)
        self._open.add(exchange)
        seen = None
        if self._streams is not None:
            seen = EventId.parse((request.header(b"last-event-id") or b"").decode("latin-1"))
        if seen is None:
            exchange.begin()
        else:
            task = self._loop.create_task(self._go_on(exchange, client, request, seen))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return exchange

    def clock(self) -> Clock:
        """This moment on both clocks."""
        return Clock(self.now_s(), time.time())

    @property
    def keeps_streams(self) -> bool:
        """Whether there is a store that streams are kept in."""
        return self._streams is not None

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    def order(self, replica: str, order: str) -> None:
        """An operator's order: ``drain`` or ``eject`` takes a replica out (eject cuts what it does), ``readmit`` not.

        Raises:
            UnknownReplicaError: there is no such replica; nothing has changed.
        """
        if replica not in self.replicas:
            raise UnknownReplicaError(f"no replica {replica!r}; known: {', '.join(self.replicas)}")
        if order == "readmit":
            if replica in self.traffic.quarantine:
                self.note(ReplicaReadmitted(replica=replica, reason="readmitted by the operator"))
            self.traffic.readmit(replica)
            return
        self.traffic.fleet.take_out(replica, f"{order} by the operator")
        if order == "eject":
            self.abandon(replica, "ejected by the operator")

    def distrust(self, traffic: Traffic, replica: str, reason: str) -> None:
        """A vote was against this replica."""
        traffic.distrust(replica, reason)
        self.note(ReplicaQuarantined(replica=replica, reason=reason))

    def abandon(self, replica: str, reason: str, *, waiting_only: bool = False) -> None:
        """Whatever is asked of this replica is asked of others; ``waiting_only``: unless it has begun to answer."""
        for exchange in list(self._open):
            exchange.abandon(replica, reason, waiting_only=waiting_only)

    def reload(self, settings: Settings) -> str:
        """Use other settings from now on; requests that have begun end under the old ones.

        Returns:
            What was done. Where the gateway listens cannot be changed while it runs.
        """
        if not settings.drill.allow:
            self.drills.end("the file that was read again does not allow it")
        before = set(self.replicas)
        replicas = {}
        for replica in settings.replica:
            known = self.replicas.get(replica.name)
            same = known is not None and known.settings == replica
            replicas[replica.name] = known if known is not None and same else self._replica(replica, settings)
        moved = [section for section in _AT_START if getattr(settings, section) != getattr(self.settings, section)]
        same_cache = settings.cache == self.settings.cache
        self.settings, self.limits, self.replicas = settings, settings.limits, replicas
        traffic = Traffic(settings, self._random, part=self._part)
        traffic.inherit(self.traffic)
        self.traffic, self._asker = traffic, Asker(settings)
        remembered = self.fallbacks.cache
        self.fallbacks = self._fallbacks(settings)
        if same_cache:
            self.fallbacks.cache = remembered
        self.invariant = all(replica.invariant for replica in settings.replica)
        told = [f"{len(replicas)} replicas"]
        told += [f"{name} is new" for name in sorted(set(replicas) - before)]
        told += [f"{name} is out" for name in sorted(before - set(replicas))]
        told += [f"{', '.join(moved)}: from the next start on"] if moved else []
        return f"read again: {', '.join(told)}"

    def _fallbacks(self, settings: Settings) -> Fallbacks:
        levels = [level.settings for level in self.traffic.ladder.levels]
        return Fallbacks(levels, settings.cache, settings.redundancy.safe_answer)

    def _replica(self, replica: ReplicaSettings, settings: Settings) -> Replica:
        context = ssl.create_default_context() if replica.url.startswith("https") else None
        return Replica(replica, settings.timeouts.connect_s, context)

    def story_of(self, request: Request, ask: Ask) -> Story:
        """The beginning of what will be told of a request."""
        told = request.notes.get(Story)
        if told is None:
            texts = request.method, request.path, request.header(b"traceparent") or b""
            told = request.notes[Story] = tuple(text.decode("latin-1") for text in texts)
        method, path, trace = told
        return Story(
            number=ask.number,
            method=method,
            path=path,
            client=request.client,
            began_s=ask.arrived_s,
            wall_s=time.time(),
            tenant=ask.tenant,
            model=ask.model,
            stream=ask.stream,
            trace=trace,
            visits=[],
        )

    def wait(self, entrance: Entrance) -> None:
        """The request waits for its admission."""
        self._waiting[entrance.ask.number] = entrance

    def over(self, exchange: Exchange) -> None:
        """The exchange has ended; others may begin."""
        self._open.discard(exchange)
        if self.snapshots is not None:
            self.snapshots.done(exchange.ask)
        for observer in self.observers:
            observer.ended(exchange.story)
        if not self._open:
            self._idle.set()
        self._waiting.pop(exchange.ask.number, None)
        self._admit(exchange.traffic.done(self.now_s(), exchange.ask))

    def _admit(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                waiting.admitted()

    def keeper_for(
        self, request: Request, relay: CompletionsRelay, send: Callable[[bytes], None], lost: Callable[[], None]
    ) -> Keeper | None:
        """What keeps a new stream; None if streams are not kept."""
        if self._streams is None:
            return None
        head = Head(stream=secrets.token_hex(16), owner=_owner(request), target=request.target, body=request.body)
        keeper = Keeper(self.settings.sessions, self._streams, send, lost)
        keeper.begin(head)
        self._keepers.add(keeper)
        relay.number(Numbering(EventId(head.stream, 0, 0)))
        return keeper

    async def _go_on(self, exchange: Exchange, client: ClientConnection, request: Request, seen: EventId) -> None:
        """Answer with the rest of a kept stream."""
        streams = self._streams
        assert streams is not None
        try:
            claimed = await streams.claim(seen.stream)
        except StoreError as error:
            exchange.refuse(503, f"the stream cannot be looked up: {error}")
            return
        if claimed is None or claimed.head.owner != _owner(request):
            exchange.refuse(404, f"no stream {seen.stream} is kept for you; ask again without last-event-id")
            return
        first = Request(method=b"POST", target=claimed.head.target, headers=request.headers, body=claimed.head.body)
        relay = self.relay_for(first, exchange.ask)
        if not isinstance(relay, CompletionsRelay):
            exchange.refuse(404, "the kept request is no stream of completions")
            return
        try:
            relay.restore(claimed.entries)
        except (BadChunk, msgspec.DecodeError) as error:
            exchange.refuse(502, f"what was kept of the stream is damaged: {error}")
            return
        relay.number(Numbering(last_of(claimed.entries, seen.stream), seen))
        keeper = Keeper(self.settings.sessions, streams, client.send, exchange.taken_over)
        keeper.take_over(seen.stream, claimed.generation)
        self._keepers.add(keeper)
        exchange.go_on(first, relay, keeper, after(claimed.entries, seen))

    def relay_for(self, request: Request, ask: Ask) -> Relay | None:
        """What keeps the answer to this request whole; None: it is passed through."""
        if self.settings.streams.on_cut == "pass" or request.method != b"POST":
            return None
        wanted = parse(request.target, request.body)
        if wanted is None:
            return None
        pace = Pace(self.settings.stall, self._gaps.setdefault(ask.model, Gaps()))
        return CompletionsRelay(wanted, self.settings.streams, pace, invariant=self.invariant)

    def request_lines(self, request: Request, replica: Replica, ask: Ask) -> bytes:
        """The lines of the headers that a replica gets."""
        passed: _Passed | None = request.notes.get(_Passed)
        if passed is None:
            passed = request.notes[_Passed] = _Passed.of(request)
        if passed.deadlines or ask.deadline_s == NEVER_S:
            deadline = lines_of(passed_on(passed.deadlines, ask.deadline_s, self.clock()))
        else:
            deadline = b"%b: %d\r\n" % (TIMEOUT, max(1, int((ask.deadline_s - self.now_s()) * 1000)))
        key = b""
        if passed.wants_key:  # the same for all attempts at it
            key = b"%b: %b-%d\r\n" % (IDEMPOTENCY, self._name, ask.number)
        client = request.client.encode()
        return b"host: %b\r\n%b%b%bx-forwarded-for: %b\r\n" % (replica.authority, passed.lines, deadline, key, client)


class _Passed(msgspec.Struct, frozen=True):
    """What a replica gets of a client's head."""

    lines: bytes  # as they are
    deadlines: Headers  # to be said anew
    wants_key: bool  # it has no idempotency key, and could use one

    @staticmethod
    def of(request: Request) -> _Passed:
        kept = [header for header in end_to_end(request.headers) if header[0] not in _OWN]
        return _Passed(
            lines_of(header for header in kept if header[0] not in HEADERS),
            [header for header in kept if header[0] in HEADERS],
            request.method == b"POST" and request.header(IDEMPOTENCY) is None,
        )


def _owner(request: Request) -> str:
    return owner_of(request.header(b"authorization") or request.header(b"x-api-key") or b"")
