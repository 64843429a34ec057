"""Two ends of links on loopback, and everything that they were told, in queues."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from typing import Any

from closeranks.decide.retry_budget import Backoff
from closeranks.nodes import words
from closeranks.nodes.calling import Caller, Hearer, Missed, Patience
from closeranks.nodes.handshake import LINK, Keys, Proof, prove_as_caller
from closeranks.nodes.link import Connection, Ears, End
from closeranks.nodes.serving import Listener, serve
from closeranks.nodes.words import Address

KEYS = Keys("correct horse battery staple")
ANYWHERE = Address(host="127.0.0.1", port=0)
SOON_S = 30.0  # nothing waits for it to pass
QUICK = Patience(connect_s=2.0, silence_s=30.0, backoff=Backoff(0.001, 0.01))


async def soon(queue: asyncio.Queue[Any]) -> Any:
    async with asyncio.timeout(SOON_S):
        return await queue.get()


async def until(condition) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110 - callbacks of the loop bring it about, and set no event
            await asyncio.sleep(0.001)


def beat(number: int) -> words.Beat:
    return words.Beat(number=number, sent_ns=number)


def granted(number: int) -> words.Granted:
    return words.Granted(number=number, lease_s=3.0)


_SUPERVISOR = """
import asyncio, sys
from closeranks.nodes.handshake import Keys
from closeranks.nodes.probes import Supervisor, answer_probes
from closeranks.nodes.words import Address

async def main():
    own = Supervisor(*sys.argv[2:])
    listener = await answer_probes(Address(host="127.0.0.1", port=0), Keys(sys.argv[1]), own)
    print(listener.address.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def supervisor_process(node: str, boot: str) -> tuple[asyncio.subprocess.Process, Address]:
    """A process that answers probes as this supervisor, and where."""
    words_of_it = ["-c", _SUPERVISOR, KEYS.token, node, boot]
    process = await asyncio.create_subprocess_exec(sys.executable, *words_of_it, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    return process, Address(host="127.0.0.1", port=int(await process.stdout.readline()))


class Leader:
    """Answers every beat with its grant."""

    def __init__(self) -> None:
        self.met: asyncio.Queue[Connection] = asyncio.Queue()
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.ended: asyncio.Queue[End] = asyncio.Queue()
        self.connections: list[Connection] = []
        self.listener: Listener

    async def open(self, address: Address = ANYWHERE, keys: Keys = KEYS) -> Address:
        self.listener = await serve(address, keys, words.FromNode, self._take)
        return self.listener.address

    def _take(self, connection: Connection) -> Ears:
        def hear(word: words.FromNode) -> None:
            self.heard.put_nowait(word)
            if isinstance(word, words.Beat):
                connection.send(granted(word.number))

        self.connections.append(connection)
        self.met.put_nowait(connection)
        return Ears(hear, self.ended.put_nowait)

    async def close(self) -> None:
        for connection in self.connections:
            connection.abort("the leader ends")
        await self.listener.close()


class Node:
    """Keeps a link, and says nothing of its own."""

    def __init__(self, patience: Patience = QUICK, keys: Keys = KEYS) -> None:
        self.up: asyncio.Queue[tuple[Connection, int]] = asyncio.Queue()
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.down: asyncio.Queue[End] = asyncio.Queue()
        self.missed: asyncio.Queue[Missed] = asyncio.Queue()
        self.caller = Caller(
            keys, words.FromCoordinator, Hearer(self._take, self.missed.put_nowait), random.Random(0), patience
        )

    def _take(self, connection: Connection, epoch: int) -> Ears:
        self.up.put_nowait((connection, epoch))
        return Ears(self.heard.put_nowait, self.down.put_nowait)

    async def beats(self, number: int) -> None:
        """One beat and its grant."""
        assert self.caller.connection is not None
        self.caller.connection.send(beat(number))
        assert await soon(self.heard) == granted(number)


@contextlib.asynccontextmanager
async def met(patience: Patience = QUICK, keys: Keys = KEYS):
    """A leader and a node with a link between them."""
    leader, node = Leader(), Node(patience, keys)
    address = await leader.open(keys=keys)
    node.caller.retarget(address, 1)
    await soon(node.up)
    await soon(leader.met)
    yield leader, node
    node.caller.close("the test is over")
    await leader.close()


async def raw(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has said nothing yet."""
    return await asyncio.open_connection(address.host, address.port)


async def follow(proof: Proof, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Drive a proof over streams."""
    step = next(proof)
    with contextlib.suppress(StopIteration):
        while True:
            writer.write(step.send)
            answer = await reader.readexactly(step.answer_bytes) if step.answer_bytes else b""
            step = proof.send(answer)


async def proven(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A peer that holds the token and then does what the test wants."""
    reader, writer = await raw(address)
    await follow(prove_as_caller(KEYS.token, LINK), reader, writer)
    return reader, writer


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Everything that still comes, up to the end however it is told."""
    got = bytearray()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(SOON_S):
            while piece := await reader.read(2**16):
                got += piece
    return bytes(got)


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
