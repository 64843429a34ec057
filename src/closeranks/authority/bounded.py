"""Calls that may block, awaited for a bounded time only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from closeranks.authority.register import RegisterError

T = TypeVar("T")


async def in_thread(do: Callable[[], T], where: str, bound_s: float) -> T:
    """What ``do`` returns or raises, from a thread of its own.

    The thread is a daemon: a disk that never answers holds up neither the loop nor the end of the process.

    Raises:
        RegisterError: nothing came within the bound; ``do`` goes on, and what it does may still take effect.
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
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"register {where}", daemon=True).start()
    try:
        return await asyncio.wait_for(outcome, bound_s)
    except TimeoutError as error:
        raise RegisterError(
            f"{where}: expected an answer within {bound_s:g} s, got none; see what holds it up"
        ) from error
