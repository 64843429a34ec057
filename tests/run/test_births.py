"""What becomes of seats when a process dies at the wrong moment."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from closeranks import messages
from closeranks.decide.protocol import BeginTerm, ProcEnded
from closeranks.messages import Seat, SupervisorMessage
from closeranks.run.birth import STDOUT, Place, open_channels
from closeranks.run.births import Births
from closeranks.run.processes import Started
from closeranks.run.store import StoreElsewhere
from supervisor_stand import Stand, until

pytestmark = pytest.mark.process


def births_of(stand: Stand) -> Births:
    births = Births(stand.context, stand.ears, stand.exits)
    births.open_store = lambda: StoreElsewhere("127.0.0.1", 1)
    return births


def sleeper() -> Started:
    child = subprocess.Popen(["sleep", "1000"])
    child.returncode = 0  # the supervisor waits for it
    return Started(child.pid, os.pidfd_open(child.pid), "spawn")


def term(number: int) -> BeginTerm:
    return BeginTerm(term=number, procs=(1, 2), incarnations=(number, number))


def test_a_member_that_died_while_its_term_was_announced_keeps_no_other_from_its_seat(tmp_path):
    """Its channels were closed with it: its seat was to be kept from numbers that named nothing, or another file."""

    async def begin() -> None:
        stand = Stand(tmp_path)
        _, _, theirs = stand.more()
        births = births_of(stand)
        births.begin_term(term(1))
        os.pwrite(stand.worker.channels.page, b"its last step", 0)
        os.kill(stand.child.pid, signal.SIGKILL)
        await until(lambda: stand.worker.ended)
        strangers = [os.memfd_create("stranger") for _ in range(12)]  # they get the numbers that became free
        for stranger in strangers:
            os.write(stranger, b"foreign")

        births.begin_term(term(2))

        seats = messages.Decoder(SupervisorMessage).feed(theirs.recv(2**16))
        assert [(seat.term, seat.seat) for seat in seats if isinstance(seat, Seat)] == [(1, 1), (2, 1)]
        assert stand.context.members == {0: 1, 1: 2}  # it is missed, not forgotten
        heir, fds = open_channels("heir")
        births._inherit(0, heir)
        assert os.pread(heir.page, 100, 0) == b"its last step"
        assert [os.pread(stranger, 100, 0) for stranger in strangers] == [b"foreign"] * 12
        heir.close()
        for fd in (*fds, *strangers):
            os.close(fd)
        births.close()
        await stand.end()

    asyncio.run(begin())


def test_a_process_whose_logs_the_disk_does_not_take_is_heard_all_the_same(tmp_path):
    """It had been started when its files were opened: the run ended over them, and nobody knew the process."""

    async def adopt() -> list[str]:
        stand = Stand(tmp_path)
        (tmp_path / "logs").write_bytes(b"")
        said: list[str] = []
        stand.screen.say = said.append
        channels, theirs = open_channels("test")
        births_of(stand)._adopt(Place(2, 1, 1, 2, 1, 0), channels, sleeper())
        os.write(theirs[STDOUT], b"hello\n")
        await until(lambda: len(said) == 3)
        for fd in theirs:
            os.close(fd)
        await stand.end()
        return said

    assert asyncio.run(adopt()) == [
        "closeranks: logs/p2.out: Not a directory; what it would hold is only shown",
        "closeranks: logs/p2.err: Not a directory; what it would hold is only shown",
        "[s1.1] hello",
    ]


def test_a_process_for_which_there_are_no_open_files_is_told_and_nothing_is_left_open(tmp_path):
    """It was a defect in the supervisor, and what had been opened so far stayed open."""

    async def bear(room: int) -> tuple[list[object], int]:
        stand = Stand(tmp_path / str(room))
        births = births_of(stand)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        gaps = [os.dup(0) for _ in range(max(open_files()) + 1 - len(open_files()))]
        before = open_files()
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + room, hard))
        try:
            await births._bring_up(Place(2, 1, 1, 2, 1, 0))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        births.close()
        left = open_files() - before
        for gap in gaps:
            os.close(gap)
        facts = list(stand.listener.facts)
        await stand.end()
        return facts, len(left)

    unborn = ProcEnded(proc=2, code=1, signal=None, crash=None, left_at_step=None)
    for room in range(22):  # 18 for the channels, two for what the seat keeps, and those that the start itself needs
        (tmp_path / str(room)).mkdir()
        assert asyncio.run(bear(room)) == ([unborn], 0), room


def open_files() -> set[int]:
    # The folder itself is open while it is read, and closed afterwards.
    return {int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.exists()}
