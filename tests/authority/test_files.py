"""Registers in files and stores: what is particular to them."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from tests.checkpoint.hooked_store import HookedStore

from closeranks.authority import numbered
from closeranks.authority.bounded import UNFINISHED, Bounded
from closeranks.authority.numbered import NumberedRegister
from closeranks.authority.register import NOTHING, Held, RegisterError
from closeranks.authority.sqlite import SqliteRegister
from closeranks.checkpoint.problems import StoreProblem
from closeranks.checkpoint.stores import retry
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.stores.opening import open_store
from closeranks.decide.retry_budget import Backoff


def test_a_sqlite_register_is_its_owners_alone(tmp_path):
    path, mask = tmp_path / "leaders.db", os.umask(0)
    try:
        asyncio.run(SqliteRegister(path, "run").write(b"x", NOTHING))
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o600


def test_runs_share_a_sqlite_file_and_not_a_value(tmp_path):
    async def script():
        one, other = (SqliteRegister(tmp_path / "leaders.db", run) for run in ("one", "other"))
        await one.write(b"x", NOTHING)
        assert await other.read() == NOTHING

    asyncio.run(script())


def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("groceries, and then some more of them: " * 100)
    before = path.read_bytes()
    with pytest.raises(RegisterError, match=r"notes.txt: expected a register of leaders, got file is not a database"):
        asyncio.run(SqliteRegister(path, "run").write(b"x", NOTHING))
    assert path.read_bytes() == before


def test_a_call_that_hangs_is_given_up_and_may_still_take_effect():
    release, done = threading.Event(), threading.Event()

    def hang():
        release.wait(20.0)
        done.set()

    async def script():
        with pytest.raises(RegisterError, match=r"disk: expected an answer within 0.05 s"):
            await Bounded("disk").call(hang, 0.05)

    asyncio.run(script())
    assert not done.is_set()
    release.set()
    assert done.wait(20.0)


def test_a_disk_that_hangs_is_not_asked_by_more_and_more_threads():
    release, begun = threading.Event(), []

    def hang():
        begun.append(threading.current_thread())
        release.wait(20.0)

    async def script():
        disk = Bounded("disk")
        for _ in range(50):
            with pytest.raises(RegisterError, match=r"disk: (expected an answer within|4 calls hang already)"):
                await disk.call(hang, 0.01)
        assert len(begun) == UNFINISHED
        release.set()
        for thread in begun:
            thread.join(20.0)
        assert await disk.call(lambda: "answers again", 20.0) == "answers again"

    asyncio.run(script())


def test_a_process_that_can_begin_no_thread_has_no_answer(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    async def script():
        disk = Bounded("disk")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(2 * UNFINISHED):
                with pytest.raises(RegisterError, match="disk: can't start new thread"):
                    await disk.call(lambda: None, 20.0)
        assert await disk.call(lambda: "answers again", 20.0) == "answers again"

    asyncio.run(script())


BEGIN_ELSEWHERE = """
import sqlite3, sys
sqlite3.connect(sys.argv[1], timeout=0.0, isolation_level=None).execute("BEGIN IMMEDIATE")
"""


@pytest.mark.process
def test_a_look_at_a_sqlite_file_leaves_the_lock_of_a_write_in_flight_alone(tmp_path):
    """Each call opened and closed the file beside SQLite, and with that dropped all locks of its process on it."""
    path, held, release = tmp_path / "leaders.db", threading.Event(), threading.Event()
    sqlite3.connect(path).close()

    def write():
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            held.set()
            release.wait(60.0)

    async def look():
        with pytest.raises(RegisterError, match="database is locked"):
            await SqliteRegister(path, "run").read()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert held.wait(20.0)
        asyncio.run(look())
        script = [sys.executable, "-c", BEGIN_ELSEWHERE, str(path)]
        elsewhere = subprocess.run(script, capture_output=True, text=True, timeout=60.0, check=False)
        assert "database is locked" in elsewhere.stderr
    finally:
        release.set()
        writer.join(20.0)


def filled(store, count):
    async def script():
        register, held = NumberedRegister(store, "run"), NOTHING
        for number in range(count):
            held = await register.write(str(number).encode(), held)
        return held

    return asyncio.run(script())


def keys(store):
    return [row.key for row in store.list("")]


def test_old_numbers_are_deleted_and_nothing_else_is(monkeypatch):
    monkeypatch.setattr(numbered, "KEPT", 3)
    store = MemoryStore()
    store.create("log/1", b"")
    store.create("lead/run-2/0000000000000001", b"")
    filled(store, 10)
    ours = [f"lead/run/{number:016d}" for number in (8, 9, 10)]
    assert sorted(keys(store)) == sorted(["log/1", "lead/run-2/0000000000000001", *ours])


def test_what_a_killed_writer_left_behind_is_deleted_by_the_next(monkeypatch):
    store = MemoryStore()
    filled(store, 9)
    monkeypatch.setattr(numbered, "KEPT", 3)

    async def script():
        register = NumberedRegister(store, "run")
        return await register.write(b"new", await register.read())

    assert asyncio.run(script()) == Held(b"new", "10")
    assert keys(store) == [f"lead/run/{number:016d}" for number in (8, 9, 10)]


def test_a_create_whose_answer_was_lost_is_known_as_ours(monkeypatch):
    monkeypatch.setattr(retry, "BACKOFF", Backoff(first_s=0.001))
    store = HookedStore(MemoryStore())
    answers = iter([StoreProblem("the line went dead", transient=True, doubtful=True)])

    def lose(method, _key):
        if method == "create" and (problem := next(answers, None)):
            raise problem

    store.after = lose

    async def script():
        register = NumberedRegister(store, "run")
        held = await register.write(b"once", NOTHING)
        assert held == await register.read() == Held(b"once", "1")

    asyncio.run(script())


def test_a_writer_overtaken_right_after_its_create_knows_that_it_wrote():
    inner = MemoryStore()
    store = HookedStore(inner)

    def overtake(method, key):
        if method == "create":
            inner.create("lead/run/0000000000000002", b"next")

    store.after = overtake

    async def script():
        register = NumberedRegister(store, "run")
        assert await register.write(b"first", NOTHING) == Held(b"first", "1")
        assert await register.read() == Held(b"next", "2")

    asyncio.run(script())


def test_an_entry_that_the_listing_does_not_show_yet_is_found():
    inner = MemoryStore()
    filled(inner, 3)

    class Stale(HookedStore):
        def list(self, prefix, after=""):
            return iter(list(super().list(prefix, after))[:2])

    assert asyncio.run(NumberedRegister(Stale(inner), "run").read()) == Held(b"2", "3")


def test_a_run_with_a_name_that_is_no_key_has_a_place_of_its_own():
    store = MemoryStore()
    asyncio.run(NumberedRegister(store, "Night Run/7").write(b"x", NOTHING))
    assert [len(key) for key in keys(store)] == [len("lead/") + 64 + 1 + 16]


def test_a_store_that_is_not_there_is_not_made_here(tmp_path):
    with pytest.raises(RegisterError, match="see that the file system is mounted"):
        asyncio.run(NumberedRegister(open_store(str(tmp_path / "unmounted")), "run").read())
    assert not (tmp_path / "unmounted").exists()
