"""A coordinator without processes or sockets: nodes are lines into it, on which a test says what they say."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from closeranks.authority.record import Record
from closeranks.frames import Decoder
from closeranks.nodes import words
from closeranks.nodes.link import End, Ended
from closeranks.run.options import RunOptions

NODES = 200


class Line:
    """A connection in name only. Its end is told from the loop, as that of a real one is."""

    def __init__(self) -> None:
        self.ears = None
        self.end = None
        self.told = []
        self._decoder = Decoder(words.FromCoordinator)

    def send(self, word) -> None:
        self.told.append(word)

    def send_frames(self, frames: bytes) -> None:
        self.told += self._decoder.feed(frames)

    def abort(self, reason: str) -> None:
        self.end = End(Ended.CUT, reason)
        asyncio.get_running_loop().call_soon(self.ears.on_closed, self.end)


def introduced(node: str) -> words.Introduction:
    return words.Introduction(
        run="r", node=node, boot="b", slots=2, host="127.0.0.1", probe_port=1, domains={}, hostname=node
    )


def scene(tmp_path, **changes):
    tenure = SimpleNamespace(
        record=Record(procs_reserved=1_000_000), nodes_in_doubt=(), predecessor_s=0.0, epoch=1, admits=True
    )
    options = RunOptions(target="train.py", seats=2 * NODES, nnodes=NODES, run_dir=str(tmp_path), **changes)
    return tenure, SimpleNamespace(node="n0", run="r", keys=None), options


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
