"""Has the KV caches of sessions saved and restored: what the plan of slots says, done at llama.cpp's servers.

Nothing of it is in the way of an answer. Saves follow answers; a restore is waited for a bounded time; and whatever
fails is counted, and means that the engine computes a session's earlier turns again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from closeranks.serve.http.head import Request, lines_of, request_bytes
from closeranks.serve.http.upstream import Cut
from closeranks.serve.question import Answered, Unanswered, ask
from closeranks.serve.relay import Exactness
from closeranks.serve.sessions.slots import Place, Save, SlotPlan, Snapshot, Tokens, Turn, used
from closeranks.serve.sessions.timings import tokens_in, tokens_of
from closeranks.serve.settings import Engine
from closeranks.serve.stream.relay import CompletionsRelay
from closeranks.serve.wording import Words
from closeranks.serve.words import Ask, Outcome

if TYPE_CHECKING:
    from closeranks.serve.attempt import Attempt
    from closeranks.serve.gateway import Gateway
    from closeranks.serve.replica import Replica

T = TypeVar("T")

PREFIX: Final = "closeranks-"
ASK_AGAIN_S: Final = 30.0  # a server that does not say how many slots it has
LEFT_S: Final = 86_400.0  # files that nobody has touched for so long were left by a gateway that died
END_S: Final = 0.5  # that saves under way get when the gateway ends
_OWN_KEYS: Final = (b'"id_slot"', b'"lora"')  # whoever says these looks after slots itself, or changes what is in them
_EVIDENCE_BYTES_MAX: Final = 65_536
_OK: Final = 200
_CANNOT: Final = frozenset({404, 405, 501})
_LOST: Final = frozenset({Outcome.BROKEN, Outcome.UNREACHED})


class _Props(msgspec.Struct):
    total_slots: int


class _SaveDone(msgspec.Struct):
    n_saved: int
    n_written: int


class _RestoreDone(msgspec.Struct):
    n_restored: int


class _Stay(msgspec.Struct):
    """One request at one server."""

    turn: Turn
    place: Place
    restored: Snapshot | None = None
    tokens: Tokens | None = None  # what the engine has said of them


class Snapshots:
    """The snapshots of one gateway process."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self._gateway = gateway
        sessions = gateway.settings.sessions
        self._settings, self._keep_s = sessions.snapshots, sessions.keep_s
        self._folder = Path(self._settings.folder) if self._settings.folder else None
        self._prefix = f"{PREFIX}{name}"
        self.plan = SlotPlan(self._settings, self._prefix)
        self._servers: dict[str, Replica] = {}
        self._asked_s: dict[str, float] = {}
        self._stays: dict[tuple[str, int], _Stay] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: dict[tuple[str, str], int] = {}  # of saves and restores, by how they ended
        self.moved: dict[str, int] = {}  # answers of sessions that were elsewhere before, by their exactness
        if self._folder is not None:
            self._spawn(asyncio.to_thread(_sweep, self._folder, f"{PREFIX}*.kv", LEFT_S))
        for replica in gateway.replicas.values():
            if replica.settings.engine is Engine.LLAMA_CPP:
                self._spawn(self._learn(replica))
        self._due = gateway.at(gateway.now_s() + self._keep_s / 4, self._tick)
        self._ends = False

    # --- before the answer ------------------------------------------------------------------------------------------

    def bring(
        self, replica: Replica, request: Request, ask: Ask, then: Callable[[], None]
    ) -> asyncio.Task[None] | None:
        """Give the request its slot; if its session has a snapshot, restore that first, and call ``then``.

        Returns:
            What is waited for; None: nothing, ``then`` will not be called.
        """
        url = replica.settings.url
        if not _concerns(replica, request) or (url, ask.number) in self._stays:
            return None
        turn = Turn(ask.number, ask.session, f"{replica.settings.tier}/{ask.model}")
        self._servers[url] = replica
        if self.plan.wants(url, turn):
            return self._spawn(self._bring(replica, turn, then))
        if self.plan.knows(url):
            self._claim(url, turn)
        elif self._gateway.now_s() >= self._asked_s.get(url, 0.0):
            self._spawn(self._learn(replica))
        return None

    async def _bring(self, replica: Replica, turn: Turn, then: Callable[[], None]) -> None:
        url = replica.settings.url
        try:
            async with asyncio.timeout(self._settings.restore_s):
                if not self.plan.knows(url):
                    await self._learn(replica)
                stay = self._claim(url, turn)
                if stay is not None and stay.place.restore is not None:
                    await self._restore(replica, stay, stay.place.restore)
        except TimeoutError:
            self._count("restore", "timeout")
        then()

    def _claim(self, url: str, turn: Turn) -> _Stay | None:
        place = self.plan.claim(self._gateway.now_s(), url, turn)
        if place is None:
            return None
        stay = self._stays[url, turn.number] = _Stay(turn, place)
        return stay

    async def _learn(self, replica: Replica) -> None:
        url = replica.settings.url
        self._asked_s[url] = self._gateway.now_s() + ASK_AGAIN_S
        within_s = max(self._settings.restore_s, self._settings.save_s)
        said = await self._ask(replica, b"GET", b"/props", b"", within_s)
        props = _read(said, _Props)
        if props is not None and 0 < props.total_slots <= 4096 and not self.plan.knows(url):  # noqa: PLR2004 - sane
            self.plan.learned(url, props.total_slots)
            self._asked_s.pop(url, None)

    async def _restore(self, replica: Replica, stay: _Stay, snapshot: Snapshot) -> None:
        said = await self._act(replica, stay.place.slot, b"restore", snapshot.file, self._settings.restore_s)
        done = _read(said, _RestoreDone)
        if done is not None and done.n_restored > 0:
            stay.restored = snapshot
            return
        self._count("restore", _how(said))
        if isinstance(said, Answered) and said.status not in _CANNOT:
            self.plan.useless(snapshot)
            self._remove()

    def worded(self, replica: Replica, ask: Ask, relay: object, wording: Words) -> Words:
        """The request with its slot."""
        stay, (target, body) = self._stays.get((replica.settings.url, ask.number)), wording
        rest = body.lstrip()[1:].lstrip()
        if stay is None or rest[:1] != b'"':
            return wording
        more = b""
        if stay.restored is not None:
            more = b'"timings_per_token":true,'  # whether the engine uses it is said with the first token
            if isinstance(relay, CompletionsRelay):
                relay.respell()
        return Words(target, b'{"id_slot":%d,"cache_prompt":true,%b%b' % (stay.place.slot, more, rest))

    # --- during the answer ------------------------------------------------------------------------------------------

    def awaits(self, attempt: Attempt, ask: Ask) -> bool:
        """Whether the head of this answer has to wait until the engine has said what it used."""
        stay = self._stays.get((attempt.replica.settings.url, ask.number))
        if stay is None or stay.restored is None or stay.tokens is not None:
            return False
        stay.tokens = tokens_in(b"".join(attempt.held))
        return stay.tokens is None and attempt.body < _EVIDENCE_BYTES_MAX

    def line(self, replica: Replica, ask: Ask) -> bytes:
        """The header that says how exactly a session goes on that was elsewhere before; empty: it was not."""
        stay = self._stays.get((replica.settings.url, ask.number))
        if stay is None:
            return b""
        if stay.restored is not None and stay.tokens is not None and used(stay.restored, stay.tokens):
            exactness = Exactness.RESTORED
        elif stay.place.moved:
            exactness = (
                Exactness.INVARIANT if self._gateway.streams.invariant and ask.comparable else Exactness.BEST_EFFORT
            )
        else:
            return b""
        self.moved[exactness] = self.moved.get(exactness, 0) + 1
        return b"x-closeranks-session: %b\r\n" % exactness.encode()

    # --- after the answer -------------------------------------------------------------------------------------------

    def ended(self, attempt: Attempt, ask: Ask, outcome: Outcome, relay: object) -> None:
        """The attempt is over."""
        url = attempt.replica.settings.url
        stay = self._stays.get((url, ask.number))
        if stay is not None and not attempt.preparing:
            tokens = None
            if outcome is Outcome.OK:
                if isinstance(relay, CompletionsRelay):
                    tokens = tokens_of(relay.timings)
                else:
                    tokens = tokens_in(b"".join(attempt.held))
                self._judge(stay, tokens)
            else:
                del self._stays[url, ask.number]  # a further attempt there needs a slot anew
            self.plan.ended(url, stay.turn, tokens)
        if outcome in _LOST:
            self.plan.lost(url)
        self._save_due()

    def _judge(self, stay: _Stay, tokens: Tokens | None) -> None:
        if stay.tokens is None:
            stay.tokens = tokens
        if stay.restored is not None and stay.tokens is not None:
            self._count("restore", "used" if used(stay.restored, stay.tokens) else "not used")

    def done(self, ask: Ask) -> None:
        """The request is over, however it ended."""
        for url in self._servers:
            stay = self._stays.pop((url, ask.number), None)
            if stay is not None:
                self.plan.ended(url, stay.turn, None)

    def _save_due(self) -> None:
        if self._ends:  # the engine would write a file that nobody removes any more
            return
        for save in self.plan.due(self._gateway.now_s()):
            self._spawn(self._save(save))

    async def _save(self, save: Save) -> None:
        began_s = self._gateway.now_s()
        said = await self._act(self._servers[save.url], save.slot, b"save", save.file, self._settings.save_s)
        now_s, done = self._gateway.now_s(), _read(said, _SaveDone)
        if done is None:
            never = isinstance(said, Answered) and said.status in _CANNOT
            self.plan.failed(now_s, save, never=never, late=isinstance(said, Unanswered))
            self._count("save", _how(said))
        else:
            kept = self.plan.saved(now_s, save, done.n_saved, done.n_written, now_s - began_s)
            self._count("save", "ok" if kept else "stale")
        self._remove()
        self._save_due()

    # --- files ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_s = self._gateway.now_s()
        self.plan.expire(now_s - self._keep_s)
        self._remove()
        self._due = self._gateway.at(now_s + self._keep_s / 4, self._tick)

    def _remove(self) -> None:
        files, self.plan.removable = self.plan.removable, []
        if files and self._folder is not None:
            self._spawn(asyncio.to_thread(_unlink, [self._folder / file for file in files]))

    async def close(self) -> None:
        """Every session has ended."""
        self._due.cancel()
        self._ends = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)
        for task in self._tasks:
            task.cancel()
        if self._folder is not None:
            await asyncio.to_thread(_sweep, self._folder, f"{self._prefix}-*.kv", 0.0)

    # --- questions --------------------------------------------------------------------------------------------------

    async def _act(
        self, replica: Replica, slot: int, action: bytes, file: str, within_s: float
    ) -> Answered | Unanswered:
        path, body = b"/slots/%d?action=%b" % (slot, action), msgspec.json.encode({"filename": file})
        return await self._ask(replica, b"POST", path, body, within_s)

    async def _ask(
        self, replica: Replica, method: bytes, path: bytes, body: bytes, within_s: float
    ) -> Answered | Unanswered:
        lines = lines_of([(b"host", replica.authority), (b"content-type", b"application/json")])
        data = request_bytes(method, replica.prefix + path, lines, body)
        said = await ask(replica.pool, data, within_s)
        if isinstance(said, Unanswered) and said.cut is Cut.STALE:  # llama.cpp closes after a stream
            said = await ask(replica.pool, data, within_s)
        return said

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _count(self, action: str, how: str) -> None:
        self.counts[action, how] = self.counts.get((action, how), 0) + 1


def _concerns(replica: Replica, request: Request) -> bool:
    completions = request.method == b"POST" and request.path.endswith(b"/completions")
    return completions and replica.settings.engine is Engine.LLAMA_CPP and not any(k in request.body for k in _OWN_KEYS)


def _read(said: Answered | Unanswered, kind: type[T]) -> T | None:
    """A good answer; None if it is none."""
    if isinstance(said, Unanswered) or said.status != _OK:
        return None
    try:
        return msgspec.json.decode(said.body, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _how(said: Answered | Unanswered) -> str:
    """In what way it was no good answer."""
    if isinstance(said, Unanswered):
        return "timeout" if said.cut is Cut.SILENT else "unreached"
    return "not supported" if said.status in _CANNOT else "failed"


def _unlink(paths: list[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _sweep(folder: Path, files: str, least_s: float) -> None:
    """Remove such files of this age."""
    with contextlib.suppress(OSError):
        _unlink([path for path in folder.glob(files) if path.stat().st_mtime <= time.time() - least_s])
