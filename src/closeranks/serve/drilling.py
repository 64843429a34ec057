"""An operator's drill of his gateway: calls to one dependency are delayed, fail or find nobody; or a level is forced.

Nothing outside this process is touched: what is broken is the gateway's own call. Of a ``[[dependency]]``, which the
replicas ask themselves, the gateway breaks what it can see of it: a request that may ask it is held up for as long, or
told to do without it, and the report in the answer says what the drill has done. The gateway ends every drill by its
own clock, whatever has become of whoever ordered it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from closeranks.events import DrillBegan, DrillEnded
from closeranks.serve.drill_settings import SESSIONS, DrillOrder, Effect, check
from closeranks.serve.http.upstream import Cut
from closeranks.serve.policies.breaker import State
from closeranks.serve.policies.health import Grade
from closeranks.serve.policies.timing import FAILED, timings
from closeranks.serve.question import Answered, Unanswered
from closeranks.serve.sessions.record import Claimed, Entry, Head
from closeranks.serve.sessions.store import StoreError, StreamStore

if TYPE_CHECKING:
    from closeranks.serve.attempt import Attempt
    from closeranks.serve.gateway import Gateway
    from closeranks.serve.story import Story
    from closeranks.serve.wheel import Due

_ERROR: Final = 500
_STORE_GONE_S: Final = 2.0  # until a store that nobody answers for is given up, as with Redis


class ForbiddenError(Exception):
    """The file of the gateway does not allow drills."""


class BusyError(Exception):
    """Another drill goes on."""


class Drill(msgspec.Struct):
    """One drill, and what requests have met since it began."""

    order: DrillOrder
    began_s: float
    until_s: float
    struck: int = 0  # calls that it has delayed, or let fail
    requests: int = 0
    errors: int = 0
    degraded: int = 0
    ended: str = ""  # why; empty: it goes on
    level_before: int = 0  # of the ladder
    forced_before: int | None = None
    forced: int = 0


class Drills:
    """The drills of one gateway process, one at a time. See Observer, too: while one goes on it counts requests."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.drill: Drill | None = None  # that goes on
        self.last: Drill | None = None
        self._end: Due | None = None
        self.struck: dict[tuple[str, str], int] = {}  # ever, by dependency and effect

    # --- orders -----------------------------------------------------------------------------------------------------

    def begin(self, order: DrillOrder) -> None:
        """Carry the order out.

        Raises:
            ForbiddenError: the file does not say ``allow = true`` in ``[drill]``; nothing has changed.
            BusyError: another drill goes on, unchanged.
            BadOrder: it names nothing that there is, or lasts too long; nothing has changed.
        """
        gateway, settings = self._gateway, self._gateway.settings.drill
        if not settings.allow:
            raise ForbiddenError("drills are not allowed here: set allow = true in [drill] of the gateway's file")
        if self.drill is not None:
            raise BusyError(f"a drill goes on: {self.drill.order.what}; end it first")
        ladder, now_s = gateway.traffic.ladder, gateway.now_s()
        levels = [level.settings for level in ladder.levels]
        tiers = {name for level in levels[1:] for name in (level.name, level.tier) if name}
        check(order, settings, self._dependencies(), tiers)
        drill = self.drill = self.last = Drill(order, now_s, now_s + order.for_s)
        drill.level_before, drill.forced_before = ladder.level, ladder.forced
        gateway.note(DrillBegan(what=order.what, for_s=order.for_s))
        self._end = gateway.at(drill.until_s, lambda: self.end("its time is over"))
        gateway.observers += (self,)
        if order.tier:
            drill.forced = next(n for n, level in enumerate(levels) if n and order.tier in (level.name, level.tier))
            ladder.force(now_s, drill.forced)
        elif order.effect is Effect.KILL and order.dependency in gateway.replicas:
            gateway.abandon(order.dependency, "killed by a drill")

    def end(self, reason: str) -> None:
        """Everything is as it was before; without a drill it does nothing."""
        drill, gateway = self.drill, self._gateway
        if drill is None:
            return
        self.drill, drill.ended = None, reason
        if self._end is not None:
            self._end.cancel()
        gateway.observers = tuple(one for one in gateway.observers if one is not self)
        if drill.order.tier and gateway.traffic.ladder.forced == drill.forced:
            gateway.traffic.ladder.force(gateway.now_s(), drill.forced_before)
        gateway.note(
            DrillEnded(
                what=drill.order.what,
                reason=reason,
                struck=drill.struck,
                requests=drill.requests,
                errors=drill.errors,
                degraded=drill.degraded,
            )
        )

    def _dependencies(self) -> set[str]:
        gateway = self._gateway
        named = [*gateway.traffic.dependencies.by_name, *gateway.replicas]
        twice = {name for name in named if named.count(name) > 1}
        return ({*named} | ({SESSIONS} if gateway.streams.keeps else set())) - twice

    # --- what is seen of it -----------------------------------------------------------------------------------------

    def ended(self, story: Story) -> None:
        """See Observer."""
        drill = self.drill
        if drill is not None and story.began_s >= drill.began_s:
            drill.requests += 1
            drill.errors += bool(story.status >= _ERROR or story.error)
            drill.degraded += bool(story.level or story.without)

    def close(self) -> None:
        """See Observer."""
        self.end("the gateway ends")

    def state(self) -> dict[str, Any] | None:
        """The drill that goes on or was the last one; None: there was none."""
        drill = self.last
        if drill is None:
            return None
        now_s = self._gateway.now_s()
        return {
            "what": drill.order.what,
            "active": not drill.ended,
            "ended": drill.ended,
            "left_s": 0.0 if drill.ended else max(0.0, drill.until_s - now_s),
            "struck": drill.struck,
            "requests": drill.requests,
            "errors": drill.errors,
            "degraded": drill.degraded,
            "back": self._is_back(drill),
        }

    def _is_back(self, drill: Drill) -> bool:
        """Whether what the drill has broken is trusted again, and the service as full as before."""
        gateway, name = self._gateway, drill.order.dependency
        traffic = gateway.traffic
        if drill.order.tier:
            return bool(drill.ended) and traffic.ladder.level <= drill.level_before
        dependency, member = traffic.dependencies.by_name.get(name), traffic.fleet.members.get(name)
        if dependency is not None:
            return dependency.breaker.state is State.CLOSED
        if member is not None:
            well = member.judge.grade(gateway.now_s()) is Grade.UP
            return well and member.breaker.state is State.CLOSED
        return bool(drill.ended)

    # --- what it does -----------------------------------------------------------------------------------------------

    def _strikes(self, name: str) -> Drill | None:
        drill = self.drill
        if drill is None or drill.order.dependency != name:
            return None
        drill.struck += 1
        key = name, str(drill.order.effect)
        self.struck[key] = self.struck.get(key, 0) + 1
        return drill

    def without(self, attempt: Attempt, without: tuple[str, ...]) -> tuple[str, ...]:
        """What the replica is told to do without besides: a dependency that a drill has taken away."""
        drill = self.drill
        if (
            drill is None
            or attempt.preparing
            or drill.order.dependency not in self._gateway.traffic.dependencies.by_name
        ):
            return ()
        name, order = drill.order.dependency, drill.order
        if name in without or self._strikes(name) is None:
            return ()
        slow_s = self._gateway.traffic.dependencies.by_name[name].settings.slow_s
        if order.effect is Effect.DELAY:
            attempt.drilled = name, order.delay_s, False
            return ()
        attempt.drilled = name, (slow_s if order.effect is Effect.KILL else 0.0), True
        return (name,)

    def send(self, attempt: Attempt, send: Callable[[], None]) -> None:
        """Let the attempt go out, unless or not before the drill lets it."""
        drill, wait_s = self._strikes(attempt.replica.settings.name), attempt.drilled[1]
        if drill is not None and drill.order.effect is not Effect.DELAY:
            asyncio.get_running_loop().call_soon(self._refuse, attempt, drill.order.effect)
            return
        if drill is not None:
            wait_s += drill.order.delay_s
        if not wait_s:
            send()
            return

        def later() -> None:
            if attempt.exchange is not None:
                send()

        self._gateway.at(self._gateway.now_s() + wait_s, later)

    @staticmethod
    def _refuse(attempt: Attempt, effect: Effect) -> None:
        if effect is Effect.KILL:
            attempt.on_cut(Cut.REFUSED, "killed by a drill")
            return
        attempt.on_head(_ERROR, [(b"content-type", b"text/plain")])
        attempt.on_data(b"failed by a drill")
        attempt.on_end()

    @staticmethod
    def report(attempt: Attempt, report: bytes) -> bytes:
        """What is to be believed of the dependencies: the replica's report, and what the drill has done to one."""
        name, took_s, failed = attempt.drilled
        if not name:
            return report
        known = timings(report).get(name)
        duration_ms = 1000 * (took_s + (0.0 if known is None else known.took_s))
        return b"%b, %b;dur=%.3f%b" % (
            report,
            name.encode(),
            duration_ms,
            b";desc=" + FAILED.encode() if failed else b"",
        )

    async def question(self, replica: str) -> Answered | Unanswered | None:
        """What a check of a replica meets in its place; None: the replica itself."""
        drill = self._strikes(replica)
        if drill is None:
            return None
        if drill.order.effect is Effect.KILL:
            return Unanswered(Cut.REFUSED, "killed by a drill")
        if drill.order.effect is Effect.FAIL:
            return Answered(_ERROR, b"failed by a drill")
        within_s = self._gateway.settings.health.timeout_s
        await asyncio.sleep(min(drill.order.delay_s, within_s))
        return Unanswered(Cut.SILENT, "delayed by a drill") if drill.order.delay_s >= within_s else None

    async def store(self) -> None:
        """What a call to the store of sessions meets before it.

        Raises:
            StoreError: the drill wants it to fail.
        """
        drill = self._strikes(SESSIONS)
        if drill is None:
            return
        if drill.order.effect is not Effect.FAIL:
            await asyncio.sleep(drill.order.delay_s or _STORE_GONE_S)
        if drill.order.effect is not Effect.DELAY:
            raise StoreError("failed by a drill")


class DrilledStreams:
    """See StreamStore: a store that a drill may break."""

    def __init__(self, store: StreamStore, drills: Drills) -> None:
        self._store = store
        self._drills = drills

    async def begin(self, head: Head) -> int:
        """See StreamStore."""
        await self._drills.store()
        return await self._store.begin(head)

    async def append(self, stream: str, generation: int, entries: list[Entry]) -> bool:
        """See StreamStore."""
        await self._drills.store()
        return await self._store.append(stream, generation, entries)

    async def claim(self, stream: str) -> Claimed | None:
        """See StreamStore."""
        await self._drills.store()
        return await self._store.claim(stream)

    async def close(self) -> None:
        """See StreamStore."""
        await self._store.close()
