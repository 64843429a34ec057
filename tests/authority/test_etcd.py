"""etcd as it is met: members that die, replies that are lost, access that is checked."""

import asyncio
import base64
import contextlib
import time

import pytest
from tests.authority.etcd_stand import Members, needs_etcd
from tests.ports import free_ports

from closeranks.authority import etcd as module
from closeranks.authority.etcd import Cluster, EtcdRegister, parse
from closeranks.authority.opening import open_register
from closeranks.authority.register import NOTHING, RegisterError, RegisterRefused

pytestmark = pytest.mark.process


@contextlib.contextmanager
def members(folder, count=1):
    cluster = Members(folder, count)
    try:
        yield cluster
    finally:
        cluster.stop()


def asked(url, script, run="run"):
    async def whole():
        register = open_register(url, run)
        try:
            return await script(register)
        finally:
            await register.close()

    return asyncio.run(whole())


def test_a_url_names_members_and_who_asks():
    url = "etcd://root:p%40ss@10.0.0.1,[fe80::1]:23,h3:7/"
    places = ("http://10.0.0.1:2379", "http://[fe80::1]:23", "http://h3:7")
    assert parse(url) == Cluster(places, "root", "p@ss")


@pytest.mark.parametrize("places", ["", "h:port", "h:99999", "h1,,h2", "h:1/key", "h:1?x"])
def test_a_url_without_hosts_is_refused_with_an_example(places):
    with pytest.raises(RegisterRefused, match="write for example etcd://"):
        parse(f"etcd://root:secret@{places}")


@needs_etcd
def test_the_loss_of_the_leading_member_does_not_lose_the_register(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 20.0)
    with members(tmp_path, 3) as cluster:

        async def script(register):
            held = await register.write(b"before", NOTHING)
            leader = cluster.leader()
            register._at = leader  # the member to be lost is the one that is asked
            cluster.kill(leader)
            began_s = time.monotonic()
            while held.value != b"after":
                with contextlib.suppress(RegisterError):
                    held = await register.write(b"after", held)
                assert time.monotonic() - began_s < 20.0
            assert await register.read() == held

        asked(cluster.url, script)


@needs_etcd
def test_a_server_that_was_killed_and_comes_back_has_the_value(tmp_path, patient):
    with members(tmp_path) as cluster:

        async def script(register):
            held = await register.write(b"kept", NOTHING)
            cluster.kill(0)
            cluster.start(0)
            await asyncio.to_thread(cluster.wait)
            assert await register.read() == held
            assert (await register.write(b"newer", held)).value == b"newer"

        asked(cluster.url, script)


@contextlib.asynccontextmanager
async def served(handle):
    """The port of a server; it is left when all its connections are closed."""
    handlers = set()

    async def handle_and_close(reader, writer):
        handlers.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handle(reader, writer)
        await closed(writer)

    server = await asyncio.start_server(handle_and_close, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*handlers)


async def closed(writer):
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def forgetful(port):
    """A way to the server on which the first answer is lost, after the server has done what it was asked."""
    lost = []

    async def pass_on(reader, writer):
        there, thither = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                thither.write(head + await reader.readexactly(length))
                answer = await there.read(65536)
                if not lost:
                    lost.append(answer)
                    break
                writer.write(answer)
        finally:
            await closed(thither)

    async with served(pass_on) as way:
        yield way, lost


@needs_etcd
def test_a_write_whose_answer_was_lost_is_known_as_ours(etcd, patient):
    async def script():
        async with forgetful(etcd.ports[0]) as (port, lost):
            register = open_register(f"etcd://127.0.0.1:{port}", "lost-answer")
            try:
                held = await register.write(b"once", NOTHING)
                assert b'"succeeded":true' in lost[0]
                assert held == await register.read()
                assert held.value == b"once"
            finally:
                await register.close()

    asyncio.run(script())


def test_an_authority_that_is_not_there_is_reported_within_the_bound(monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 1.0)
    url = "etcd://" + ",".join(f"127.0.0.1:{port}" for port in free_ports(2))

    async def script(register):
        with pytest.raises(RegisterError, match=r"expected an answer within 1 s, got http://.*: All connection"):
            await register.read()

    asked(url, script)


def test_something_else_on_the_port_is_no_authority(monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 1.0)
    monkeypatch.setattr(module, "_ANSWER_BYTES_MAX", 1000)

    async def chatter(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000)
        await writer.drain()

    async def script():
        async with served(chatter) as port:
            register = EtcdRegister(Cluster((f"http://127.0.0.1:{port}",)), "run")
            with pytest.raises(RegisterError, match="more than 1,000 bytes"):
                await register.read()
            await register.close()

    asyncio.run(script())


@needs_etcd
def test_with_access_control_only_who_has_the_password_gets_in(tmp_path, patient):
    with members(tmp_path) as cluster:
        cluster.ask("auth/user/add", name="root", password="right")
        cluster.ask("auth/role/add", name="root")
        cluster.ask("auth/user/grant", user="root", role="root")
        cluster.ask("auth/enable")
        place = cluster.url.removeprefix("etcd://")

        async def let_in(register):
            held = await register.write(b"mine", NOTHING)
            register._token = "expired"  # as etcd's simple tokens do after five minutes
            assert await register.read() == held

        async def refused(register):
            with pytest.raises(RegisterError, match=r"check name and password|write etcd://USER:PASSWORD@"):
                await register.read()

        asked(f"etcd://root:right@{place}", let_in)
        asked(f"etcd://root:wrong@{place}", refused)
        asked(f"etcd://{place}", refused)


@needs_etcd
def test_the_key_tells_a_person_what_it_is(etcd, patient):
    async def script(register):
        await register.write(b"{}", NOTHING)

    asked(etcd.url, script, run="night-7")
    key = base64.b64encode(b"closeranks/night-7/leader").decode()
    assert etcd.ask("kv/range", key=key)["kvs"][0]["value"] == base64.b64encode(b"{}").decode()
