"""The lead, sought and held through a register that hangs, or whose answer nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from closeranks.authority.memory import MemoryRegister
from closeranks.authority.record import Record, encode
from closeranks.authority.register import Held
from closeranks.cluster.tenure import Seat, Tenure
from closeranks.decide.leadership import Around, Candidacy, Choice, Follow, Lead
from closeranks.nodes.words import Address

WITHIN_S = 15.0
SEAT = Seat("n0", Address(host="h", port=1), 2)


class Hanging(MemoryRegister):
    """Holds up writes while it is told to; they never take place."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.asked = asyncio.Event()

    async def write(self, value: bytes, expected: Held) -> Held:
        if self.hangs:
            self.asked.set()
            await asyncio.Event().wait()
        return await super().write(value, expected)


class Stand:
    """A tenure at work, and what it decided."""

    def __init__(self) -> None:
        self.register = Hanging()
        self.choices: list[Choice] = []
        self.changed = asyncio.Event()
        self.retired = False
        self.tenure = Tenure(self.register, Candidacy(boot="ours", rank=0), SEAT, self._around, self._hear)

    def _around(self, now_s: float) -> Around:
        return Around(now_s=now_s, led=False, retired=self.retired)

    def _hear(self, choice: Choice) -> None:
        self.choices.append(choice)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def newest(self, kind: type[Choice]) -> None:
        await self.until(lambda: bool(self.choices) and isinstance(self.choices[-1], kind))


def play(script: Callable[[Stand], Awaitable[None]]) -> None:
    async def run() -> None:
        stand = Stand()
        seeking = asyncio.create_task(stand.tenure.run())
        async with asyncio.timeout(WITHIN_S):
            await script(stand)
        seeking.cancel()

    asyncio.run(run())


async def cancelled_put(stand: Stand) -> None:
    """The lead is won, and a write of the leader's own is cancelled while the register does not answer."""
    await stand.newest(Lead)
    stand.register.hangs = True
    put = asyncio.create_task(stand.tenure.put(term=1))
    await stand.register.asked.wait()
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    stand.register.hangs = False


def test_a_leader_whose_write_was_cancelled_follows_whoever_took_its_place():
    """It waited for the answer to that write for ever: it could neither follow nor bid again."""

    async def script(stand: Stand) -> None:
        await cancelled_put(stand)
        theirs = Record(epoch=2, beat=1, node="n1", boot="theirs")
        await stand.register.write(encode(theirs), await stand.register.read())
        await stand.newest(Follow)
        assert stand.tenure.record == theirs

    play(script)


def test_a_leader_whose_write_was_cancelled_leads_on_and_writes_again():
    async def script(stand: Stand) -> None:
        await cancelled_put(stand)
        await stand.tenure.put(term=2)
        assert (stand.tenure.record.term, stand.tenure.epoch) == (2, 1)

    play(script)


def test_a_leader_whose_write_was_cancelled_gives_the_lead_up():
    async def script(stand: Stand) -> None:
        await cancelled_put(stand)
        stand.retired = True
        await stand.tenure.release()
        assert stand.tenure.record.released

    play(script)
