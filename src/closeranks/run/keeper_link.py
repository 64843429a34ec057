"""The keeper of this node: started, listened to from the supervisor's loop, and replaced when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from closeranks.checkpoint.keeper_client import KeeperClient, KeeperLost, start_keeper
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_messages import FromKeeper, Opened, Publish, Refused
from closeranks.run.context import Context

_OPEN_S: Final = 120.0  # until the store has answered
_RESTARTS_MAX: Final = 5  # without a commit between them
_HURRIED_S: Final = 2.0
_LOOK_S: Final = 0.25
_SOON_S: Final = 1.0  # a last save that takes longer is told of


class KeeperLink:
    """At most one keeper at a time. ``on_report`` hears what it says, Opened of each one included."""

    def __init__(self, context: Context, config: KeeperConfig, on_report: Callable[[FromKeeper], None]) -> None:
        self._context = context
        self._config = config
        self._on_report = on_report
        self._client: KeeperClient | None = None
        self._restarts = 0
        self._store_term = 0
        self._changing = asyncio.Lock()
        self._asked = 0  # how often it was opened and dropped
        self.may_reopen: Callable[[], bool] = lambda: True  # whether a lost keeper may be replaced already
        self.closed = ""  # why there can be no keeper any more
        self.on_change: Callable[[], None] = lambda: None  # a keeper is there again, or there will be none

    @property
    def ready(self) -> bool:
        """Whether a keeper is there to take saves."""
        return self._client is not None

    @property
    def store_term(self) -> int:
        """The term under which the newest keeper writes to the store."""
        return self._store_term

    async def open(self, *, lead: bool = True) -> str:
        """Start a keeper and wait until the store answers; the problem, "" when there is none.

        The keeper of a lead claims the store: those of older leads can commit nothing any more.
        """
        self._asked += 1
        async with self._changing:
            self._config = replace(self._config, lead=lead)
            problem = await self._open()
            self.closed, self._restarts = "", 0
            return problem

    async def _open(self) -> str:
        try:
            client = start_keeper(self._config)
            self._context.keeper_pid = client.pid
            report = await asyncio.to_thread(client.wait_for, lambda r: isinstance(r, Opened | Refused), _OPEN_S)
        except (OSError, KeeperLost, TimeoutError) as error:
            return f"store {self._config.store}: {error}"
        if isinstance(report, Refused):
            client.close(_HURRIED_S)
            return report.problem
        if isinstance(report, Opened):
            self._store_term = report.term
        self._client = client
        asyncio.get_running_loop().add_reader(client.fileno(), self.read)
        self._on_report(report)
        return ""

    async def drop(self) -> None:
        """End the keeper at once, if there is one; what it was writing is reported as lost."""
        self._asked += 1
        async with self._changing:
            client, self._client = self._client, None
            if client is None:
                return
            asyncio.get_running_loop().remove_reader(client.fileno())
            for report in await asyncio.to_thread(client.close, 0.0):
                self._on_report(report)

    def publish(self, message: Publish, fds: Sequence[int]) -> None:
        """Have a save written. A keeper that is lost meanwhile reports the save as lost."""
        if self._client is None:
            raise AssertionError("there is no keeper to take a save")
        with contextlib.suppress(KeeperLost):  # heard by the reader, and the save with it
            self._client.send(message, fds)

    def read(self) -> None:
        """Hear what has arrived; to be called now and then even if nothing has, so that a frozen one is noticed."""
        client = self._client
        if client is None:
            return
        try:
            reports = client.receive()
        except KeeperLost as lost:
            self._lost(client, str(lost))
            return
        for report in reports:
            self._on_report(report)

    def committed(self) -> None:
        """It works: earlier losses are forgotten."""
        self._restarts = 0

    async def finish(self, patience_s: float) -> None:
        """Let what is being written end, and the keeper with it."""
        client, self._client = self._client, None
        if client is None:
            return
        asyncio.get_running_loop().remove_reader(client.fileno())
        closing = asyncio.ensure_future(asyncio.to_thread(client.close, patience_s))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(closing), _SOON_S)
        if not closing.done():
            self._context.say("closeranks: the last save is being written")
        for report in await closing:
            self._on_report(report)

    def _lost(self, client: KeeperClient, problem: str) -> None:
        """The arenas are the run's, so no image is lost with a keeper: start another one."""
        asyncio.get_running_loop().remove_reader(client.fileno())
        client.close(0.0)
        self._client = None
        self._restarts += 1
        self._context.say(f"closeranks: {problem}")
        if self._restarts > _RESTARTS_MAX:
            self.closed = f"{_RESTARTS_MAX} keepers were lost without a commit, the last one: {problem}"
            self.on_change()
        else:
            self._context.spawn(self._reopen())

    async def _reopen(self) -> None:
        asked = self._asked
        while not self.may_reopen():  # noqa: ASYNC110 - it is nobody's to set an event
            await asyncio.sleep(_LOOK_S)
        async with self._changing:
            if self._asked != asked:  # somebody else had it replaced
                return
            self.closed = await self._open()
        self.on_change()
