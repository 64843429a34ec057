"""Work that may never return, in threads that nobody waits for: a driver or a disk that hangs must not hang the run."""

from __future__ import annotations

import asyncio
import errno
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def beside(work: Callable[[], T], name: str, within_s: float) -> T:
    """What ``work`` returns or raises, from a thread of its own.

    Raises:
        OSError: there can be no further thread.
        TimeoutError: it has not returned; the thread is left to itself, and ends with the process at the latest.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def tell(come: Callable[[], None]) -> None:
        if not result.done():
            come()

    def run() -> None:
        try:
            come = functools.partial(result.set_result, work())
        except Exception as error:
            come = functools.partial(result.set_exception, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, come)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    async with asyncio.timeout(within_s):
        return await result
