"""The coordinator's part of ``links.py``: everything that a heartbeat costs it, and nothing else.

Prints its port, then a line of JSON for each line that it reads: what it has used and seen so far.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from closeranks.detect.heartbeat import Bounds, Pulse, beat, first_pulse, look_at_all
from closeranks.nodes.handshake import Keys
from closeranks.nodes.link import Connection, Ears
from closeranks.nodes.serving import serve
from closeranks.nodes.words import Address, Beat, FromNode, Granted, Introduction, SeatSign

SURVEY_S = 0.1


class Coordinator:
    """Grants every beat, keeps the newest signs of every seat, and looks who is overdue."""

    def __init__(self, beat_s: float) -> None:
        self.pulses: dict[str, Pulse] = {}
        self.signs: dict[int, SeatSign] = {}
        self.beats = 0
        self.suspicions = 0
        self._beat_s = beat_s
        self._bounds = Bounds(floor_s=3 * beat_s, ceiling_s=6 * beat_s)

    def take(self, connection: Connection) -> Ears:
        """A node has come."""
        node = ""

        def hear(word: FromNode) -> None:
            nonlocal node
            match word:
                case Beat():
                    connection.send(Granted(number=word.number, lease_s=6 * self._beat_s))
                    self.pulses[node], _ = beat(self.pulses[node], time.monotonic())
                    for sign in word.signs:
                        self.signs[sign.seat] = sign
                    self.beats += 1
                case Introduction():
                    node = word.node
                    self.pulses[node] = first_pulse(node, self._bounds, time.monotonic())

        return Ears(hear, lambda _end: None)

    async def survey(self) -> None:
        """Look at all, again and again."""
        while True:
            await asyncio.sleep(SURVEY_S)
            survey = look_at_all(self.pulses, time.monotonic())
            self.pulses.update(survey.changed)
            self.suspicions += len(survey.suspicions)


async def main(beat_s: float) -> None:
    """Serve until the other end of standard input is closed."""
    coordinator = Coordinator(beat_s)
    listener = await serve(Address(host="127.0.0.1", port=0), Keys(os.environ["TOKEN"]), FromNode, coordinator.take)
    surveying = asyncio.ensure_future(coordinator.survey())
    print(listener.address.port, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        used = {"cpu_s": time.process_time(), "wall_s": time.monotonic(), "beats": coordinator.beats}
        seen = {"nodes": len(coordinator.pulses), "suspicions": coordinator.suspicions}
        print(json.dumps({**used, **seen}), flush=True)
    surveying.cancel()
    await listener.close()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
