"""The gateway: listeners in front, replicas behind, and what all requests share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import ssl
import time
from collections.abc import Callable
from random import Random
from typing import Final

from closeranks.events import AnyEvent, ReplicaQuarantined, ReplicaReadmitted
from closeranks.serve.asking import Asker, BadPriority
from closeranks.serve.doubles import Doubles
from closeranks.serve.drilling import Drills
from closeranks.serve.entrance import Entrance
from closeranks.serve.exchange import Exchange
from closeranks.serve.fallbacks import Fallbacks
from closeranks.serve.http.head import Request
from closeranks.serve.http.limits import Limits
from closeranks.serve.http.server import ClientConnection
from closeranks.serve.policies.deadline import BadDeadline, Clock
from closeranks.serve.quality import Quality
from closeranks.serve.replica import UnknownReplicaError, replicas_of
from closeranks.serve.sessions.settings import Kv
from closeranks.serve.sessions.snapshots import Snapshots
from closeranks.serve.settings import Settings
from closeranks.serve.shared import LOOK_S, Shared
from closeranks.serve.story import Observer, begun
from closeranks.serve.streams import Streams
from closeranks.serve.traffic import Traffic
from closeranks.serve.wheel import Wheel
from closeranks.serve.wording import Wording
from closeranks.serve.words import NEVER_S

SWEEP_S = 0.5
_AT_START: Final = ("listen", "admin", "sessions", "access_log", "journal")


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
        self.replicas = replicas_of(settings, {})
        self.drills = Drills(self)
        self.streams = Streams(settings, self.drills)
        self.observers: tuple[Observer, ...] = ()
        self.note: Callable[[AnyEvent], None] = lambda _: None  # writes the journal, if one is kept
        self._loop = asyncio.get_running_loop()
        self.now_s: Callable[[], float] = self._loop.time
        self._wheel = Wheel(self._loop)
        self.at = self._wheel.at  # calls something at a moment
        self._numbers = itertools.count(1)
        name = secrets.token_hex(8)
        self.wording = Wording(name.encode(), self.clock)
        self.snapshots = Snapshots(self, name) if settings.sessions.kv is Kv.SNAPSHOT else None
        self._waiting: dict[int, Entrance] = {}
        self._open: set[Exchange] = set()
        self._at_rest: asyncio.Event | None = None  # set when nothing is open, if somebody waits for that
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.next_look_s = NEVER_S  # at all exchanges: what is due before then needs a timer of its own

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
            self._at_rest = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._at_rest.wait(), within_s)
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
        await self.streams.close()
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
        self.next_look_s = now_s + SWEEP_S
        for exchange in tuple(self._open):
            exchange.look()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    # --- requests -----------------------------------------------------------------------------------------------------

    def begin(self, request: Request, client: ClientConnection) -> Exchange | None:
        """See Front."""
        clock = Clock(self.now_s(), time.time())
        try:
            ask = self._asker.ask(request, clock, next(self._numbers))
        except (BadDeadline, BadPriority) as error:
            client.fail(400, str(error))
            return None
        story = begun(request, ask, clock.epoch_s)
        exchange = Exchange(self, request, client, ask, story, traffic=self.traffic, _replicas=self.replicas)
        self._open.add(exchange)
        seen = self.streams.claims(request) if self.streams.keeps else None
        if seen is None:
            exchange.begin()
        else:
            self.streams.go_on(exchange, client, request, seen)
        return exchange

    def clock(self) -> Clock:
        """This moment on both clocks."""
        return Clock(self.now_s(), time.time())

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
        replicas = replicas_of(settings, self.replicas)
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
        self.streams.use(settings)
        told = [f"{len(replicas)} replicas"]
        told += [f"{name} is new" for name in sorted(set(replicas) - before)]
        told += [f"{name} is out" for name in sorted(before - set(replicas))]
        told += [f"{', '.join(moved)}: from the next start on"] if moved else []
        return f"read again: {', '.join(told)}"

    def _fallbacks(self, settings: Settings) -> Fallbacks:
        levels = [level.settings for level in self.traffic.ladder.levels]
        return Fallbacks(levels, settings.cache, settings.redundancy.safe_answer)

    def wait(self, entrance: Entrance) -> None:
        """The request waits for its admission."""
        self._waiting[entrance.ask.number] = entrance

    def over(self, exchange: Exchange, now_s: float) -> None:
        """The exchange has ended; others may begin."""
        self._open.discard(exchange)
        if self.snapshots is not None:
            self.snapshots.done(exchange.ask)
        for observer in self.observers:
            observer.ended(exchange.story)
        if self._waiting:
            self._waiting.pop(exchange.ask.number, None)
        following = exchange.traffic.done(now_s, exchange.ask)
        if following:
            self._admit(following)
        if self._at_rest is not None and not self._open:
            self._at_rest.set()

    def _admit(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                waiting.admitted()
