"""A run that was over while the authority was out, and a spare node that had never met it and led it for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from closeranks.authority.memory import MemoryRegister
from closeranks.authority.record import Record, decode, encode
from closeranks.authority.register import Held, RegisterError
from closeranks.cluster import conclusion
from closeranks.decide.protocol import EndRun

END = EndRun(outcome="completed", exit_code=0, reason="every seat finished and left")
LED = Record(epoch=3, beat=17, node="n0", boot="ours", term=2, members=(1, 2), nodes=("n0", "n1"))


class Out(MemoryRegister):
    """Does not answer for some calls, and loses the reply of one that it has carried out."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    async def read(self) -> Held:
        self._count()
        return await super().read()

    async def write(self, value: bytes, expected: Held) -> Held:
        held = await super().write(value, expected)
        self._count()
        return held

    def _count(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise RegisterError("no answer")


def concluded(register: MemoryRegister, record: Record) -> tuple[bool, Record]:
    async def run() -> tuple[bool, Record]:
        await MemoryRegister.write(register, encode(record), await MemoryRegister.read(register))
        done = await asyncio.wait_for(conclusion.conclude(register, "ours", END), 30)
        return done, decode((await MemoryRegister.read(register)).value)

    return asyncio.run(run())


@pytest.mark.parametrize("calls", [0, 1, 2, 5])
def test_the_end_is_written_when_the_authority_answers_again(monkeypatch: Any, calls: int) -> None:
    monkeypatch.setattr(conclusion, "_RETRY_S", 0.0)
    done, record = concluded(Out(calls), LED)
    assert done
    assert record == replace(LED, beat=18, ended="completed", reason=END.reason)


def test_who_took_over_meanwhile_is_not_overwritten() -> None:
    theirs = replace(LED, epoch=4, beat=1, node="n1", boot="theirs")
    assert concluded(MemoryRegister(), theirs) == (False, theirs)


def test_an_end_that_came_through_after_all_is_left_as_it_is() -> None:
    over = replace(LED, ended="failed", exit_code=1, reason="said before")
    assert concluded(MemoryRegister(), over) == (True, over)
