"""A candidate and its supervisor's end of the socket: what it says, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.nodes.stand import KEYS

from closeranks.authority import outage, sqlite
from closeranks.authority.record import Record, decode, encode
from closeranks.authority.register import Register
from closeranks.authority.sqlite import SqliteRegister
from closeranks.cluster import aside, candidate_link
from closeranks.cluster.candidate import Candidate
from closeranks.cluster.candidate_link import CandidateLink, Ends
from closeranks.cluster.coordinator import Coordinator
from closeranks.cluster.identity import Identity
from closeranks.decide.protocol import EndRun
from closeranks.nodes.link import Connection
from closeranks.run.links import Link
from closeranks.run.options import RunOptions

WITHIN_S = 30.0
RUN = "r1"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A disk that takes seconds to sync is no reason to fail: the bound of the register is not what is tested."""
    monkeypatch.setattr(sqlite, "ANSWER_S", 20.0)
    monkeypatch.setattr(sqlite, "_BUSY_S", 10.0)


class Stand:
    """A candidate in this process, of node n0, and everything that it said."""

    def __init__(self, authority: str, **options: Any) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        identity = Identity(RUN, "n0", 0, "boot", "127.0.0.1", "host", {}, KEYS)
        self.said: list[Any] = []
        self.heard = asyncio.Event()
        self._sockets = ours, theirs
        self._link = Link(ours, self._hear, lambda _reason: None, aside.FromCandidate)
        self.candidate = Candidate(identity, RunOptions(target="x", nnodes=2, authority=authority, **options), theirs)
        self.work = asyncio.create_task(self.candidate.run())

    def _hear(self, word: Any) -> None:
        self.said.append(word)
        self.heard.set()

    def begin(self, broken: int = 0) -> None:
        self._link.send(aside.Begin(supervisor="boot", before=broken, broken=broken, probe_port=1))

    def end(self) -> None:
        self._link.send(aside.Ending())

    async def until(self, kind: type[Any], text: str = "") -> Any:
        """The first word of this kind with this text in it."""
        while True:
            self.heard.clear()
            for word in self.said:
                if isinstance(word, kind) and text in str(word):
                    return word
            await self.heard.wait()

    async def close(self) -> None:
        self.work.cancel()
        await asyncio.wait([self.work])
        self.candidate._link.close()  # else it would take the end of this socket for the end of its supervisor
        self._link.close()
        for end in self._sockets:
            end.close()


def play(authority: str, script: Callable[[Stand], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        stand = Stand(authority, **options)
        try:
            async with asyncio.timeout(WITHIN_S):
                await script(stand)
        finally:
            await stand.close()

    asyncio.run(run())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "leaders.db"


async def held(register: Register) -> Record:
    return decode((await register.read()).value)


async def hold(register: Register, value: bytes) -> None:
    await register.write(value, await register.read())


# --- the end of a run -------------------------------------------------------------------------------------------


def test_a_candidate_that_knows_of_the_end_of_the_run_waits_for_its_supervisor(file: Path) -> None:
    """It ended at once, and the supervisor started another and another, until it had ended itself."""

    async def script(stand: Stand) -> None:
        over = Record(epoch=3, beat=1, node="n1", boot="theirs.0", ended="completed", reason="done")
        await hold(SqliteRegister(file, RUN), encode(over))
        stand.begin()
        assert (await stand.until(aside.RunOver)).reason == "done"
        done, _ = await asyncio.wait([stand.work], timeout=0.5)
        assert not done
        stand.end()
        await stand.work

    play(f"sqlite:{file}", script)


def test_a_candidate_that_led_to_the_end_tells_its_own_supervisor_too(file: Path, monkeypatch) -> None:
    """A supervisor that was frozen meanwhile heard of it from nobody, and never ended."""

    async def run(coordinator: Coordinator) -> None:
        coordinator._ending = EndRun(outcome="completed", exit_code=0, reason="done")

    monkeypatch.setattr(Coordinator, "run", run)

    async def script(stand: Stand) -> None:
        stand.begin()
        assert (await stand.until(aside.RunOver)).reason == "done"
        stand.end()
        await stand.work

    play(f"sqlite:{file}", script)


# --- a defect ---------------------------------------------------------------------------------------------------


@pytest.fixture
def defective(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(_coordinator: Coordinator) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr(Coordinator, "_look", look)


@pytest.mark.usefixtures("defective")
def test_a_candidate_whose_coordinator_has_a_defect_says_so_and_ends_for_the_next_to_lead(file: Path) -> None:
    """It renewed its lead for ever, and decided nothing any more."""

    async def script(stand: Stand) -> None:
        stand.begin()
        await stand.until(aside.LeaderSeen)
        with pytest.raises(ExceptionGroup) as caught:
            await stand.work
        assert caught.group_contains(RuntimeError, match="odd")
        await stand.until(aside.Aloud, "defect in the coordinator: RuntimeError: odd")
        await stand.until(aside.Broken, "RuntimeError: odd")
        assert not (await held(SqliteRegister(file, RUN))).ended

    play(f"sqlite:{file}", script)


@pytest.mark.parametrize(("by", "ends"), [(Connection, True), (asyncio.Protocol, False)], ids=["a node", "a stranger"])
def test_a_defect_shown_by_a_word_of_a_node_ends_the_candidate_and_one_by_a_stranger_does_not(
    file: Path, by: type, ends: bool
) -> None:
    """The link was cut, the node called anew with the same word, and the leader renewed its lead."""

    async def script(stand: Stand) -> None:
        stand.begin()
        await stand.until(aside.LeaderSeen)
        what = {"message": "a Heard was not taken", "exception": KeyError("odd"), "protocol": by.__new__(by)}
        asyncio.get_running_loop().call_exception_handler(what)
        if ends:
            with pytest.raises(KeyError, match="odd"):
                await stand.work
            await stand.until(aside.Broken, "KeyError: 'odd'")
        else:
            await asyncio.wait([stand.work], timeout=0.3)
            assert not stand.work.done()

    play(f"sqlite:{file}", script)


@pytest.mark.usefixtures("defective")
def test_after_a_few_coordinators_with_a_defect_the_run_ends_with_that_reason(file: Path) -> None:
    async def script(stand: Stand) -> None:
        stand.begin(broken=2)
        with pytest.raises(ExceptionGroup):
            await stand.work
        record = await held(SqliteRegister(file, RUN))
        assert (record.ended, record.exit_code) == ("failed", 1)
        assert "RuntimeError: odd (test_candidate.py:" in record.reason
        assert record.reason.endswith("; 3 coordinators in a row ended like that")

    play(f"sqlite:{file}", script)


# --- an authority that does not answer --------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "TOLD_AFTER_S", 0.0)


@pytest.mark.usefixtures("impatient")
def test_an_authority_that_does_not_answer_is_named_and_its_return_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "not-there"

    async def script(stand: Stand) -> None:
        stand.begin()
        named = await stand.until(aside.Aloud, "no usable answer from the authority")
        assert f"sqlite:{folder}/leaders.db" in named.line and "No such file" in named.line
        assert "No such" in (await stand.until(aside.Unanswered)).problem
        folder.mkdir()
        await stand.until(aside.Aloud, "answers again")
        await stand.until(aside.Unanswered, "problem=''")
        await stand.until(aside.LeaderSeen)
        assert sum("no usable answer" in str(word) for word in stand.said) == 1

    play(f"sqlite:{folder}/leaders.db", script)


@pytest.mark.usefixtures("impatient")
def test_a_password_is_not_told() -> None:
    async def script(stand: Stand) -> None:
        stand.begin()
        named = await stand.until(aside.Aloud, "no usable answer from the authority")
        assert "127.0.0.1:1" in named.line and "secret" not in named.line

    play("etcd://root:secret@127.0.0.1:1", script)


@pytest.mark.usefixtures("impatient")
def test_a_record_of_another_version_is_named_and_left_alone(file: Path) -> None:
    """Each candidate of each node ended with it, silently, and the next one was started at once."""

    async def script(stand: Stand) -> None:
        register = SqliteRegister(file, RUN)
        await hold(register, b'{"x":1}')
        stand.begin()
        named = await stand.until(aside.Aloud, "unknown field `x`")
        assert "one version on all nodes" in named.line
        assert not stand.work.done()
        assert (await register.read()).value == b'{"x":1}'
        await hold(register, encode(Record()))
        await stand.until(aside.LeaderSeen)

    play(f"sqlite:{file}", script)


def test_what_ends_a_candidate_unexpectedly_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(_register: SqliteRegister) -> Any:
        raise ZeroDivisionError("nobody thought of that")

    monkeypatch.setattr(SqliteRegister, "read", read)

    async def script(stand: Stand) -> None:
        stand.begin()
        with contextlib.suppress(ZeroDivisionError):
            await stand.work
        await stand.until(aside.Aloud, "ZeroDivisionError: nobody thought of that")

    play(f"sqlite:{file}", script)


def test_a_short_outage_is_nobodys_business_and_a_long_one_is_told_once() -> None:
    seen = outage.Outage()
    seen.failed("no route", begun_s=100.0)
    assert not seen.changed(104.9)
    seen.answered()
    seen.failed("no route", begun_s=110.0)
    seen.failed("refused", begun_s=114.0)
    assert [seen.changed(now_s) for now_s in (114.9, 115.0, 116.0)] == [False, True, False]
    assert seen.problem == "refused"
    seen.answered()
    assert [seen.changed(now_s) for now_s in (117.0, 118.0)] == [True, False]
    seen.failed("no route", begun_s=119.0)
    assert [seen.changed(now_s) for now_s in (120.0, 124.0)] == [False, True]


# --- one after the other ----------------------------------------------------------------------------------------


def test_the_next_candidate_begins_at_once_unless_they_end_again_and_again() -> None:
    ends, pauses_s = Ends(), []
    for now_s in range(8):
        ends.ended(float(now_s), broken=now_s % 2 == 0)
        pauses_s.append(ends.pause_s(float(now_s)))
    assert pauses_s == [0.0, 0.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert ends.broken(7.0) == 4
    assert (ends.broken(70.0), ends.pause_s(70.0)) == (0, 0.0)


class Puppet:
    """Stands for a candidate process."""

    pid = 1

    def __init__(self, _folder: Path, on_aside: Callable[[Any], None], on_ended: Callable[[Any], None]) -> None:
        self.say, self.vanish = on_aside, lambda: on_ended(self)
        self.told: list[Any] = []

    def send(self, word: Any) -> None:
        self.told.append(word)

    def end(self) -> None:
        """It has ended already."""


@pytest.fixture
def puppets(monkeypatch: pytest.MonkeyPatch) -> list[Puppet]:
    made: list[Puppet] = []

    def make(*arguments: Any) -> Puppet:
        made.append(Puppet(*arguments))
        return made[-1]

    monkeypatch.setattr(candidate_link, "_Process", make)
    return made


def linked(puppets: list[Puppet], *, replaced: bool) -> tuple[CandidateLink, list[Any]]:
    said: list[Any] = []
    context: Any = SimpleNamespace(folder=Path(), candidate_pids=frozenset())
    link = CandidateLink(context, "boot", said.append)
    link.replace = replaced
    link.start()
    assert len(puppets) == 1 + replaced
    return link, said


def test_a_candidate_hears_how_many_before_it_broke(puppets: list[Puppet]) -> None:
    link, said = linked(puppets, replaced=True)
    puppets[0].say(aside.Broken(reason="defect"))
    puppets[0].vanish()
    assert link.problem == "this node's candidate for the lead ended: defect"
    first, second = (puppet.told[0] for puppet in puppets[:2])
    assert second == replace(first, before=1, broken=1)
    puppets[1].vanish()
    assert puppets[2].told[0] == replace(first, before=2, broken=1)
    puppets[2].say(aside.Unanswered(problem="no route"))
    assert link.problem == "the authority does not answer: no route"
    puppets[2].say(aside.Unanswered(problem=""))
    assert not link.problem
    assert said == []


def test_without_a_successor_the_loss_of_the_coordinator_tells_its_defect(puppets: list[Puppet]) -> None:
    link, _ = linked(puppets, replaced=False)
    lost: list[str] = []
    link.on_lost = lost.append
    puppets[0].say(aside.Broken(reason="defect"))
    puppets[0].vanish()
    assert (lost, len(puppets)) == (["defect"], 1)


def test_where_no_further_process_can_be_had_the_next_candidate_is_started_later(
    puppets: list[Puppet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of a process that only waits, this node's part of the run ended."""
    make, full = candidate_link._Process, True

    def scarce(*arguments: Any) -> Any:
        if full:
            raise OSError(11, "Resource temporarily unavailable")
        return make(*arguments)

    async def go_on() -> list[str]:
        nonlocal full
        link, _ = linked(puppets, replaced=True)
        told: list[str] = []
        link._context.say = told.append
        monkeypatch.setattr(candidate_link, "_Process", scarce)
        puppets[0].vanish()  # the other takes its place; none waits now
        await asyncio.sleep(0.05)
        puppets[1].vanish()
        await asyncio.sleep(0.05)
        assert len(puppets) == 2
        full = False
        async with asyncio.timeout(20):
            while len(puppets) < 4:  # noqa: ASYNC110 - timers bring it about
                await asyncio.sleep(0.005)
        assert isinstance(puppets[2].told[0], aside.Begin)
        assert puppets[3].told == []
        return told

    monkeypatch.setattr(candidate_link, "_AGAIN_S", 0.01)
    (told,) = asyncio.run(go_on())
    assert "cannot be started: [Errno 11]" in told
