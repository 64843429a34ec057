"""What every register promises, whatever keeps it."""

import asyncio
import json

import pytest

from closeranks.authority import numbered, sqlite
from closeranks.authority.register import NOTHING, VALUE_BYTES_MAX, Held, RegisterError

pytestmark = pytest.mark.process
WRITERS = 20


def test_before_the_first_write_there_is_nothing(used):
    async def script(register):
        assert await register.read() == NOTHING

    used(script, 1)


def test_what_one_wrote_another_reads(used):
    async def script(one, other):
        held = await one.write(b"first", NOTHING)
        assert held.value == b"first"
        assert await other.read() == held
        later = await other.write(b"second", held)
        assert await one.read() == later == Held(b"second", later.version)

    used(script, 2)


def test_a_value_stays_when_everybody_has_left(used):
    async def write(register):
        await register.write(b"kept", NOTHING)

    async def read(register):
        return (await register.read()).value

    used(write, 1)
    assert used(read, 1) == b"kept"


def test_who_is_late_gets_what_is_there_and_changes_nothing(used):
    async def script(one, other):
        held = await one.write(b"first", NOTHING)
        assert await other.write(b"also first", NOTHING) == held
        newer = await one.write(b"second", held)
        assert await other.write(b"instead of first", held) == newer
        assert await one.read() == newer

    used(script, 2)


def test_a_writer_that_slept_through_many_writes_gives_way(used, monkeypatch):
    monkeypatch.setattr(numbered, "KEPT", 3)

    async def script(one, other):
        early = held = await one.write(b"0", NOTHING)
        for number in range(1, 12):
            held = await one.write(str(number).encode(), held)
            assert held.value == str(number).encode()
        assert await other.write(b"late", early) == held
        assert await other.write(b"very late", NOTHING) == held
        assert await one.read() == held

    used(script, 2)


def test_no_version_comes_twice(used):
    async def script(register):
        held, versions = NOTHING, set()
        for number in range(6):
            held = await register.write(bytes([number % 2]), held)
            versions.add(held.version)
        assert len(versions) == 6

    used(script, 1)


def test_a_value_that_is_too_long_is_not_written(used):
    async def script(register):
        with pytest.raises(ValueError, match="at most 1,048,576 bytes, got 1,048,577"):
            await register.write(b"x" * (VALUE_BYTES_MAX + 1), NOTHING)
        assert await register.read() == NOTHING

    used(script, 1)


def test_the_longest_value_comes_back_whole(used):
    async def script(register):
        value = bytes(range(256)) * (VALUE_BYTES_MAX // 256)
        await register.write(value, NOTHING)
        assert (await register.read()).value == value

    used(script, 1)


async def add(register, name, seen):
    """Append a name to the list in the register, however often others come first."""
    held = seen
    while True:
        names = json.loads(held.value or b"[]")
        if name in names:  # written by us, although the answer did not say so
            return held
        value = json.dumps([*names, name]).encode()
        try:
            held = await register.write(value, held)
        except RegisterError:
            held = await register.read()
        if held.value == value:
            return held


def test_of_many_writers_at_once_none_loses_an_update_of_another(used, monkeypatch):
    monkeypatch.setattr(sqlite, "_BUSY_S", 15.0)  # twenty who wait for a slow disk

    async def script(*registers):
        await asyncio.gather(*(add(register, number, NOTHING) for number, register in enumerate(registers)))
        assert sorted(json.loads((await registers[0].read()).value)) == list(range(WRITERS))

    used(script, WRITERS)
