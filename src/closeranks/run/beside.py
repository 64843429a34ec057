"""Work that may never return, in threads that nobody waits for: a driver or a disk that hangs must not hang the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def beside(work: Callable[[], T], name: str, within_s: float) -> T:
    """What ``work`` returns or raises, from a thread of its own.

    Raises:
        TimeoutError: it has not returned; the thread is left to itself, and ends with the process at the latest.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: Exception | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type] - the value of work, which may be None

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    async with asyncio.timeout(within_s):
        return await result
