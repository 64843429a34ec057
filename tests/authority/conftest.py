"""One etcd for all tests of a worker process, and a way to open registers of every kind."""

import asyncio
import contextlib
import itertools

import pytest
from tests.authority.etcd_stand import Members, needs_etcd

from closeranks.authority import etcd as etcd_register
from closeranks.authority import numbered, sqlite
from closeranks.authority.memory import MemoryRegister
from closeranks.authority.opening import open_register
from closeranks.checkpoint.stores.opening import open_store

RUNS = itertools.count()
KINDS = ["memory", "sqlite", "store", pytest.param("etcd", marks=needs_etcd)]


@pytest.fixture(scope="session")
def etcd(tmp_path_factory):
    members = Members(tmp_path_factory.mktemp("etcd"))
    yield members
    members.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine is no reason to fail where the bound is not what is tested."""
    for module in (sqlite, numbered, etcd_register):
        monkeypatch.setattr(module, "ANSWER_S", 30.0)
    monkeypatch.setattr(etcd_register, "_MEMBER_S", 10.0)


@pytest.fixture(params=KINDS)
def opened(request, tmp_path):
    """Opens the register of this test once more, as another process would."""
    run = f"run-{next(RUNS)}"
    match request.param:
        case "memory":
            shared = MemoryRegister()
            return lambda: shared
        case "sqlite":
            return lambda: open_register(f"sqlite:{tmp_path}/leaders.db", run)
        case "store":
            open_store(str(tmp_path / "store")).create("made", b"")
            return lambda: open_register("store", run, str(tmp_path / "store"))
    url = request.getfixturevalue("etcd").url
    return lambda: open_register(url, run)


@pytest.fixture
def used(opened):
    """Runs a script with as many registers as it has parameters, and closes them."""

    def run(script, count):
        async def whole():
            registers = [opened() for _ in range(count)]
            async with contextlib.AsyncExitStack() as stack:
                for register in registers:
                    stack.push_async_callback(register.close)
                return await script(*registers)

        return asyncio.run(whole())

    return run
