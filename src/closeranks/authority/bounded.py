"""Calls that may block, awaited for a bounded time only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from closeranks.authority.register import RegisterError

UNFINISHED: Final = 4
"""Calls of one register that may hang at a time: a disk that answers again finds no crowd of them."""

T = TypeVar("T")


class Bounded:
    """The calls of one register, each in a thread of its own.

    The threads are daemons: a disk that never answers holds up neither the loop nor the end of the process.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._free = threading.Semaphore(UNFINISHED)

    async def call(self, do: Callable[[], T], bound_s: float) -> T:
        """What ``do`` returns or raises.

        Raises:
            RegisterError: nothing came within the bound; ``do`` goes on, and what it does may still take effect. Or it
                was not begun, because too many earlier ones hang.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if outcome.done():  # given up
                return
            if error is None:
                outcome.set_result(result)  # type: ignore[arg-type]  # without an error it is do's own result
            else:
                outcome.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = do()
            except Exception as problem:  # handed to whoever awaits it
                error = problem
            self._free.release()
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        self._begin(work)
        try:
            return await asyncio.wait_for(outcome, bound_s)
        except TimeoutError as error:
            raise RegisterError(
                f"{self._where}: expected an answer within {bound_s:g} s, got none; see what holds it up"
            ) from error

    def _begin(self, work: Callable[[], None]) -> None:
        if not self._free.acquire(blocking=False):
            raise RegisterError(f"{self._where}: {UNFINISHED} calls hang already; see what holds them up")
        try:
            threading.Thread(target=work, name=f"register {self._where}", daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            raise RegisterError(f"{self._where}: {error}: no call can be begun; see what else runs here") from error
