"""The nodes' part of ``links.py``: so many callers in one process, each with beats of its own.

Prints a line when all have their first grant, ends when standard input is closed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time

from closeranks.nodes.calling import Caller, Hearer, Missed
from closeranks.nodes.handshake import Keys
from closeranks.nodes.link import Connection, Ears, End
from closeranks.nodes.words import Address, Beat, FromCoordinator, Granted, Introduction, SeatSign
from closeranks.signs import Doing, Reading

SEATS = 8


class Node:
    """A supervisor as far as its links go."""

    def __init__(self, rank: int, beat_s: float, granted: asyncio.Semaphore) -> None:
        self.missed = 0
        self._rank = rank
        self._beat_s = beat_s
        self._granted = granted
        self._number = 0
        self._was_granted = False
        self._draw = random.Random(rank)
        keys = Keys(os.environ["TOKEN"])
        self.caller = Caller(keys, FromCoordinator, Hearer(self._up, self._miss), self._draw)

    def _up(self, connection: Connection, _epoch: int) -> Ears:
        me = Introduction(
            run="bench",
            node=f"n{self._rank}",
            boot=f"{self._rank:016x}",
            slots=SEATS,
            host="127.0.0.1",
            probe_port=40000,
            domains={"rack": f"r{self._rank // 16}"},
            hostname=f"node-{self._rank}",
        )
        connection.send(me)
        # Nodes start at any moment of the interval.
        asyncio.get_running_loop().call_later(self._draw.uniform(0, self._beat_s), self._beat, connection)
        return Ears(self._hear, self._down)

    def _beat(self, connection: Connection) -> None:
        if not connection.is_open:
            return
        self._number += 1
        now_ns = time.monotonic_ns()
        connection.send(Beat(number=self._number, sent_ns=now_ns, signs=self._signs(), open_step=self._number + 1))
        asyncio.get_running_loop().call_later(self._beat_s, self._beat, connection)

    def _signs(self) -> tuple[SeatSign, ...]:
        number = self._number
        reading = Reading(
            moved_ns=time.monotonic_ns() - 12_300_000,
            doing=Doing.FORWARD,
            term=4,
            step=number,
            attempt=number + 7,
            closed_step=number - 1,
            entered=40 * number,
            returned=40 * number,
            operation=5,
            operation_bytes=26_214_400,
            section_hash=0,
            own_ns=187_000_000,
            loss=2.7183,
            grad_norm=1.4142,
            rehearsed_ns=310_000_000,
        )
        first = SEATS * self._rank
        return tuple(
            SeatSign(proc=1000 + seat, seat=seat, asked=False, reading=reading) for seat in range(first, first + SEATS)
        )

    def _hear(self, word: Granted) -> None:
        if not self._was_granted:  # the first may have been lost with its connection
            self._was_granted = word.number > 0
            self._granted.release()

    def _down(self, _end: End) -> None:
        self.missed += 1

    def _miss(self, _missed: Missed) -> None:
        self.missed += 1


async def main(port: int, count: int, beat_s: float) -> None:
    """Call, beat, and end when told."""
    granted = asyncio.Semaphore(0)
    nodes = [Node(rank, beat_s, granted) for rank in range(count)]
    for node in nodes:
        node.caller.retarget(Address(host="127.0.0.1", port=port), 1)
    for _ in nodes:
        await granted.acquire()
    print(sum(node.missed for node in nodes), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for node in nodes:
        node.caller.close("done")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
