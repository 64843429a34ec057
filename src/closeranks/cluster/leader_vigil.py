"""The node that leads, watched by those that would take its place: the kernel tells of its end at once.

With a supervisor ends its candidate, and all that it ran. Whoever saw it end need not wait until a lease has run out,
and knows what became of the seats there although nobody is left who could be asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from closeranks.authority.record import Record
from closeranks.cluster.identity import Identity
from closeranks.nodes.handshake import NotProved
from closeranks.nodes.link import End, Ended
from closeranks.nodes.probes import Judgement, Life, Supervisor, judge, keep_vigil, probe
from closeranks.nodes.words import Address

_WITHIN_S: Final = 1.0
_LOOKS, _LOOK_S = 20, 0.1
_AGAIN_S: Final = 1.0  # after nobody answered, or the connection broke; twice as long each time, up to ...
_AGAIN_MOST_S: Final = 30.0


class Gone(NamedTuple):
    """A supervisor that led, and has certainly ended."""

    supervisor: Supervisor
    candidate: str  # its boot, as the record has it
    reason: str  # how that is known


class LeaderVigil:
    """Watches over one leader at a time; ``on_gone`` is called when it has ended."""

    def __init__(self, identity: Identity, on_gone: Callable[[], None]) -> None:
        self._gone: Gone | None = None  # the last that was seen to end
        self.begun = asyncio.Event()  # its end would be told
        self._identity = identity
        self._on_gone = on_gone
        self._watched = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def watches(self) -> bool:
        """Whether somebody is watched over."""
        return self._task is not None

    def saw_end(self, candidate: str) -> Gone | None:
        """Whether this candidate, by its boot, was seen to end with its supervisor. Of a later one it says nothing."""
        return self._gone if self._gone is not None and self._gone.candidate == candidate else None

    def follow(self, record: Record) -> None:
        """Watch over whoever leads by this record. The own node needs no watching."""
        if record.boot == self._watched:
            return
        self.close()
        self._watched = record.boot
        if record.probe_port and record.node != self._identity.node:
            self._task = asyncio.create_task(self._watch(record))

    def close(self) -> None:
        """Watch no longer."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self, record: Record) -> None:
        address = Address(host=record.host, port=record.probe_port)
        supervisor = Supervisor(record.node, record.boot.rpartition(".")[0])
        again_s = _AGAIN_S
        while True:
            if await self._hung_up(address):
                judgement = await self._look_for(supervisor, address)
                if judgement.life is Life.GONE:
                    self._gone = Gone(supervisor, record.boot, judgement.reason)
                    self._on_gone()
                    return
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, _AGAIN_MOST_S)

    async def _look_for(self, supervisor: Supervisor, address: Address) -> Judgement:
        """What became of a supervisor that hung up. One that is just ending may still take a call and drop it."""
        judgement = Judgement(Life.UNKNOWN, "")
        for _ in range(_LOOKS):
            found = await probe(address, self._identity.keys, supervisor, _WITHIN_S)
            judgement = judge([found], hung_up=True)
            if judgement.life is not Life.UNKNOWN:
                break
            await asyncio.sleep(_LOOK_S)
        return judgement

    async def _hung_up(self, address: Address) -> bool:
        """Wait for the end of a connection to it: whether it was ended in order, as by the end of a process."""
        ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()

        def hear(end: End) -> None:
            if not ended.done():
                ended.set_result(end)

        try:
            vigil = await keep_vigil(address, self._identity.keys, hear, _WITHIN_S)
        except (OSError, NotProved):
            return False
        self.begun.set()
        try:
            return (await ended).how is Ended.HUNG_UP
        finally:
            self.begun.clear()
            vigil.abort("watched no longer")
