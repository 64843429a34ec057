"""The classic cascade on the real gateway: a cache node is lost, its database is flooded, every ranking waits for it.

A feature store of two cache nodes before a database, two ranking services that ask it, a gateway in front of them and
clients that do not wait for each other, all over real sockets. It is played twice. *Plain*: the services fail when the
store does not answer, and the gateway knows nothing of it. *Guarded*: they say in ``Server-Timing`` how long the store
took, the gateway has it as a ``[[dependency]]``, and whoever is told to do without it uses default features.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from closeranks.serve.drill.bounded import answer
from closeranks.serve.drill.replica import Replica, Talk
from closeranks.serve.fallbacks import WITHOUT
from closeranks.serve.gateway import Gateway
from closeranks.serve.http.head import lines_of, request_bytes
from closeranks.serve.http.pool import Pool
from closeranks.serve.http.target import Target
from closeranks.serve.policies.breaker import State
from closeranks.serve.policies.features import Assembled, Failed, Feature, Features, Need, Value
from closeranks.serve.policies.symptoms import recognise
from closeranks.serve.question import Answered, ask
from closeranks.serve.settings import parse

STORE: Final = "features"
TIMEOUT_S: Final = 0.75  # of a service's question to its store
RANK_S: Final = 0.02
_STEP_S: Final = 0.25
WAIT_S: Final = 30.0  # at most, until the breaker has opened, and until it has closed
_LINES: Final = lines_of([(b"host", b"drill"), (b"content-type", b"application/json")])
_BODY: Final = b'{"query":"?","documents":["a","b"]}'
_GUARD: Final = f"""
[[dependency]]
name = "{STORE}"
slow_s = 0.3
window_s = 2.0
breaker = {{ least = 10, share = 0.25, window_s = 2.0, open_s = 0.5, open_max_s = 1.0, lease_s = 2.0 }}
"""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How long what lasts, and how many requests come a second."""

    usual_s: float = 5.0
    lost_s: float = 10.0  # at least: a breaker that has not opened by then is waited for
    after_s: float = 5.0
    per_s: float = 100.0
    seed: int = 0


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What clients and services saw for a while."""

    requests: int
    features_p99_s: float  # of the questions to the store; 0: none was asked
    p99_s: float
    error_rate: float
    default_share: float  # of the answers: given with default features


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One play."""

    usual: Phase
    lost: Phase  # from one second after the node was lost
    after: Phase
    opened: bool  # the store's breaker, while the node was lost
    closed: bool  # after that, by itself
    symptoms: tuple[str, ...]  # what the readings would have told an operator

    @property
    def held(self) -> bool:
        """Whether it was default features instead of an outage, and full service again afterwards."""
        during = self.opened and self.lost.error_rate <= 0.01 and self.lost.default_share > 0.5  # noqa: PLR2004
        return during and self.closed and self.after.default_share < 0.1  # noqa: PLR2004


class Store:
    """A cache of two nodes before a database that is slow when it is flooded."""

    def __init__(self, plan: Plan) -> None:
        self._draw = random.Random(plan.seed)  # noqa: S311 - a seed that replays
        self._slower_s = 6.0 / plan.per_s  # half of the questions are more than the database can take
        self.node_lost = False
        self.in_database = 0

    async def __call__(self, talk: Talk) -> None:
        """Answer one question for features."""
        if self._draw.random() >= (0.5 if self.node_lost else 0.01):
            await asyncio.sleep(self._draw.uniform(0.008, 0.014))
        else:
            self.in_database += 1
            took_s = 0.02 + self._slower_s * self.in_database
            asyncio.get_running_loop().call_later(took_s, self._left)  # it works on, even if nobody waits any more
            await asyncio.sleep(took_s)
        answer(talk, 200, b"{}")

    def _left(self) -> None:
        self.in_database -= 1


class Ranker:
    """A ranking service."""

    def __init__(self, store: str, *, guarded: bool) -> None:
        self._pool = Pool(Target.of(store), connect_s=1.0)
        self._guarded = guarded
        self._features = Features([Feature(name=STORE, need=Need.IMPORTANT, default=0.0, staleness_s=60.0)])
        self.asked: list[tuple[float, float]] = []  # when, and how long it took

    async def __call__(self, talk: Talk) -> None:
        """Rank, with the features that are to be had."""
        if talk.head.startswith(b"GET"):
            answer(talk, 200, b"{}")
            return
        now_s = asyncio.get_running_loop().time()
        told = self._guarded and WITHOUT in talk.head
        fetched, timing = (Failed("told to do without"), b"") if told else await self._fetch(now_s)
        if isinstance(fetched, Failed) and not self._guarded:
            answer(talk, 500, b"{}")
            return
        ready = self._features.assemble(now_s, "user", {STORE: fetched})
        await asyncio.sleep(RANK_S)
        defaults = isinstance(ready, Assembled) and ready.degraded
        body = json.dumps({"results": [{"index": 0}, {"index": 1}], "defaults": defaults}).encode()
        extra = b"server-timing: %b\r\n" % timing if timing else b""
        talk.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (extra, len(body), body))

    async def _fetch(self, now_s: float) -> tuple[Value | Failed, bytes]:
        said = await ask(self._pool, request_bytes(b"GET", b"/features", _LINES, b""), TIMEOUT_S)
        took_s = asyncio.get_running_loop().time() - now_s
        self.asked.append((now_s, took_s))
        failed = not isinstance(said, Answered)
        timing = f"{STORE};dur={1000 * took_s:.1f}" + (';desc="failed"' if failed else "")
        return (Failed("timed out") if failed else Value(1.0, now_s)), timing.encode()

    def close(self) -> None:
        """Let go of the store."""
        self._pool.close()


class _Clients:
    """Ask for rankings, ``per_s`` of them a second, whether they are answered or not."""

    def __init__(self, port: int, plan: Plan) -> None:
        self._pool = Pool(Target.of(f"http://127.0.0.1:{port}"), connect_s=1.0)
        self._draw = random.Random(plan.seed + 1)  # noqa: S311 - a seed that replays
        self._per_s = plan.per_s
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen: list[tuple[float, float, bool, bool]] = []  # when, how long, failed, with defaults

    async def ask_for(self, seconds: float) -> None:
        """Send requests for so long."""
        due_s = self._loop.time()
        end_s = due_s + seconds
        while (due_s := due_s + self._draw.expovariate(self._per_s)) < end_s:
            await asyncio.sleep(due_s - self._loop.time())
            task = self._loop.create_task(self._ask())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait for the answers."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._pool.close()

    async def _ask(self) -> None:
        now_s = self._loop.time()
        said = await ask(self._pool, request_bytes(b"POST", b"/v1/rerank", _LINES, _BODY), 10.0)
        good = isinstance(said, Answered) and said.status == 200  # noqa: PLR2004
        defaults = isinstance(said, Answered) and b'"defaults": true' in said.body
        self.seen.append((now_s, self._loop.time() - now_s, not good, defaults))


async def play(plan: Plan, *, guarded: bool) -> Played:
    """Play it once."""
    loop, store = asyncio.get_running_loop(), Store(plan)
    store_replica = await Replica(store).start()
    rankers = [Ranker(f"http://127.0.0.1:{store_replica.port}", guarded=guarded) for _ in range(2)]
    services = [await Replica(ranker).start() for ranker in rankers]
    tables = "".join(
        f'[[replica]]\nname = "r{n}"\nurl = "http://127.0.0.1:{one.port}"\ncapacity = 64\n'
        for n, one in enumerate(services)
    )
    gateway = Gateway(parse(f"[listen]\nport = 0\n{_GUARD if guarded else ''}{tables}", "cascade.toml"))
    clients = _Clients(await gateway.start(), plan)
    breakers = [one.breaker for one in gateway.traffic.dependencies.by_name.values()]
    try:
        began_s = loop.time()
        await clients.ask_for(plan.usual_s)
        lost_s, store.node_lost = loop.time(), True
        await clients.ask_for(plan.lost_s)
        while breakers and not any(one.opened for one in breakers) and loop.time() < lost_s + WAIT_S:
            await clients.ask_for(_STEP_S)
        healed_s, store.node_lost = loop.time(), False
        opened = any(breaker.opened for breaker in breakers)
        while any(one.state is not State.CLOSED for one in breakers) and loop.time() < healed_s + WAIT_S:
            await clients.ask_for(_STEP_S)
        closed, well_s = all(one.state is State.CLOSED for one in breakers), loop.time()
        await clients.ask_for(plan.after_s)
        await clients.settle()
    finally:
        await gateway.close()
        for ranker in rankers:
            ranker.close()
        for replica in (*services, store_replica):
            await replica.stop()
    asked = [one for ranker in rankers for one in ranker.asked]
    usual = _phase(clients.seen, asked, began_s, lost_s)
    during = _phase(clients.seen, asked, min(lost_s + 1.0, lost_s + plan.lost_s / 2), healed_s)
    return Played(
        usual=usual,
        lost=during,
        after=_phase(clients.seen, asked, well_s, loop.time()),
        opened=opened,
        closed=closed,
        symptoms=tuple(symptom.name for symptom in recognise(_readings(during), _readings(usual))),
    )


def _phase(
    seen: Sequence[tuple[float, float, bool, bool]], asked: Sequence[tuple[float, float]], from_s: float, to_s: float
) -> Phase:
    mine = [one for one in seen if from_s <= one[0] < to_s]
    count = len(mine)
    return Phase(
        requests=count,
        features_p99_s=_p99([took_s for at_s, took_s in asked if from_s <= at_s < to_s]),
        p99_s=_p99([took_s for _, took_s, _, _ in mine]),
        error_rate=sum(failed for _, _, failed, _ in mine) / count if count else 0.0,
        default_share=sum(defaults for _, _, _, defaults in mine) / count if count else 0.0,
    )


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))] if values else 0.0


def _readings(phase: Phase) -> dict[str, float]:
    return {
        "dependency_s": phase.features_p99_s,
        "p99_s": phase.p99_s,
        "error_rate": phase.error_rate,
        "degraded_share": phase.default_share,
    }
