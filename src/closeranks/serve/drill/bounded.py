"""An engine of known capacity in a process of its own: so many slots, so long an answer, a short queue, then 503.

``python -m closeranks.serve.drill.bounded PORT [--slots N] [--service-s S] [--queue N]`` serves until it is ended.
``PUT /drill/failing`` with a body of ``yes`` or ``no`` makes it answer everything with 500, or well again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from closeranks.serve.drill.replica import Replica, Talk

ANSWER = b'{"object":"chat.completion","choices":[{"index":0,"message":{"content":"yes"},"finish_reason":"stop"}]}'


class Bounded:
    """The script of a replica whose capacity is ``slots / service_s`` requests a second, whatever is asked of it."""

    def __init__(self, slots: int, service_s: float, queue: int) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._service_s = service_s
        self._room = slots + queue
        self.inside = 0  # requests that are served or wait
        self.failing = False

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        if talk.head.startswith(b"PUT /drill/failing"):
            self.failing = talk.body == b"yes"
            answer(talk, 200, b"{}")
        elif talk.head.startswith(b"GET"):
            answer(talk, 200, b"{}")
        elif self.failing:
            answer(talk, 500, b"{}")
        elif self.inside >= self._room:
            answer(talk, 503, b"{}")
        else:
            self.inside += 1
            try:
                async with self._slots:
                    await asyncio.sleep(self._service_s)
            finally:
                self.inside -= 1
            answer(talk, 200, ANSWER)


def answer(talk: Talk, status: int, body: bytes) -> None:
    """A whole answer in JSON."""
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    talk.write(head % (status, len(body)) + body)


async def serve(options: argparse.Namespace) -> None:
    """Until the process is ended."""
    replica = await Replica(Bounded(options.slots, options.service_s, options.queue)).start(options.port)
    sys.stdout.write(f"http://127.0.0.1:{replica.port}\n")
    sys.stdout.flush()
    while True:
        await asyncio.sleep(1.0)
        replica.requests.clear()  # kept for whoever looks; here nobody does


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--service-s", type=float, default=0.2)
    parser.add_argument("--queue", type=int, default=24)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
