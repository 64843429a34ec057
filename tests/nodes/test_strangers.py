"""A stranger on the port gets nothing and disturbs nothing."""

import asyncio
import resource
import socket
import sys
from types import SimpleNamespace

import pytest
from tests.nodes.stand import ANYWHERE, KEYS, QUICK, Leader, Node, leave, met, raw, rest, soon, until

from closeranks.decide.retry_budget import Backoff
from closeranks.nodes import serving
from closeranks.nodes.handshake import LINK, Keys, prove_as_caller
from closeranks.nodes.probes import Finding, Supervisor, answer_probes, probe
from closeranks.nodes.proving import Proving

HELLO = LINK + bytes(32)


def test_who_says_nothing_hears_nothing_and_is_sent_away(monkeypatch):
    async def talk():
        async with met() as (leader, node):
            monkeypatch.setattr(serving, "PROVE_S", 0.1)  # the node has proved itself
            reader, writer = await raw(leader.listener.address)
            assert await rest(reader) == b""
            await until(lambda: leader.listener.guests == 0)
            assert leader.listener.strangers == 1
            await leave(writer)
            await node.beats(1)

    asyncio.run(talk())


def test_half_a_handshake_and_silence_gives_random_bytes_and_the_door(monkeypatch):
    async def talk():
        async with met() as (leader, node):
            monkeypatch.setattr(serving, "PROVE_S", 0.1)  # the node has proved itself
            reader, writer = await raw(leader.listener.address)
            writer.write(HELLO)
            assert len(await rest(reader)) == 32
            await until(lambda: leader.listener.guests == 0)
            await leave(writer)
            await node.beats(1)
            assert len(leader.connections) == 1

    asyncio.run(talk())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: training\r\nUser-Agent: a scanner\r\n\r\n",
        b"\xff" * 40,
        b"\x7f\xff\xff\xff" + bytes(2**20),
        bytes(range(256)) * 4096,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    ],
    ids=["http", "ones", "a huge length", "a megabyte", "tls"],
)
def test_garbage_is_answered_by_nothing(sent):
    async def talk():
        async with met() as (leader, node):
            reader, writer = await raw(leader.listener.address)
            writer.write(sent)
            assert await rest(reader) == b""
            await until(lambda: leader.listener.guests == 0)
            await leave(writer)
            await node.beats(1)
            assert len(leader.connections) == 1

    asyncio.run(talk())


def test_a_wrong_token_gets_random_bytes_alone_and_says_so_on_its_own_side():
    async def talk():
        async with met() as (leader, node):
            stranger = Node(keys=Keys("a token of another run"))
            stranger.caller.retarget(leader.listener.address, 1)
            missed = await soon(stranger.missed)
            assert "it does not take this run's token" in missed.reason
            stranger.caller.close("done")
            await node.beats(1)
            assert len(leader.connections) == 1

    asyncio.run(talk())


def test_a_handshake_that_was_overheard_cannot_be_replayed():
    async def talk():
        async with met() as (leader, node):
            overheard = bytearray()
            reader, writer = await raw(leader.listener.address)
            proof = prove_as_caller(KEYS.token, LINK)
            step = next(proof)
            overheard += step.send
            writer.write(step.send)
            step = proof.send(await reader.readexactly(32))
            overheard += step.send
            writer.write(step.send)
            await reader.readexactly(32)
            await soon(leader.met)
            again, writer_again = await raw(leader.listener.address)
            writer_again.write(overheard)
            assert len(await rest(again)) == 32
            assert len(leader.connections) == 2
            await leave(writer)
            await leave(writer_again)
            await node.beats(1)

    asyncio.run(talk())


def test_a_false_leader_is_not_believed_and_told_no_word():
    async def talk():
        heard = bytearray()

        async def pretend(reader, writer):
            writer.write(bytes(32))
            heard.extend(await reader.readexactly(40 + 32))
            writer.write(bytes(32))
            heard.extend(await rest(reader))
            writer.close()

        server = await asyncio.start_server(pretend, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        node = Node(QUICK._replace(backoff=Backoff(3600.0, 3600.0)))  # one attempt
        node.caller.retarget(serving.Address(host=host, port=port), 1)
        assert "another run or something else listens there" in (await soon(node.missed)).reason
        node.caller.close("done")
        assert node.up.empty()
        await until(lambda: len(heard) >= 72)
        assert len(heard) == 72
        server.close()
        await server.wait_closed()

    asyncio.run(talk())


def test_two_hundred_idle_strangers_disturb_neither_a_peer_nor_one_that_comes():
    async def talk():
        async with met() as (leader, node):
            strangers = [await raw(leader.listener.address) for _ in range(200)]
            for _, writer in strangers[::2]:
                writer.write(HELLO)
            await until(lambda: leader.listener.guests == 200)
            for number in range(100):
                await node.beats(number)
            newcomer = Node()
            newcomer.caller.retarget(leader.listener.address, 1)
            await soon(newcomer.up)
            await newcomer.beats(1)
            newcomer.caller.close("done")
            for _, writer in strangers:
                await leave(writer)
            await until(lambda: leader.listener.guests == 0)

    asyncio.run(talk())


def test_when_strangers_take_all_places_the_oldest_of_them_makes_room(monkeypatch):
    monkeypatch.setattr(serving, "GUESTS_MAX", 4)
    monkeypatch.setattr(serving, "HONEST_S", 0.05)

    async def talk():
        leader = Leader()
        address = await leader.open()
        strangers = [await raw(address) for _ in range(12)]
        node = Node()
        node.caller.retarget(address, 1)
        await soon(node.up)
        assert leader.listener.guests <= 4
        await node.beats(1)
        for _, writer in strangers:
            await leave(writer)
        node.caller.close("done")
        await leader.close()

    asyncio.run(talk())


OWN = Supervisor("n1", "b")
_SUPERVISOR_OF_FEW_DESCRIPTORS = """
import asyncio, os, resource, sys
from closeranks.nodes.handshake import Keys
from closeranks.nodes.probes import Supervisor, answer_probes
from closeranks.nodes.words import Address

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    listener = await answer_probes(Address(host="127.0.0.1", port=0), Keys(sys.argv[1]), Supervisor("n1", "b"))
    print(listener.address.port, flush=True)
    await asyncio.to_thread(sys.stdin.readline)  # all strangers have called
    while listener.guests == 0:
        await asyncio.sleep(0)
    print(len(os.listdir("/proc/self/fd")), flush=True)

asyncio.run(main())
"""


def test_strangers_cannot_use_up_the_descriptors_of_a_supervisor():
    """They took all of them, and the next look at the processes of the machine ended the supervisor and its ranks."""

    async def talk():
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _SUPERVISOR_OF_FEW_DESCRIPTORS, KEYS.token),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        address = serving.Address(host="127.0.0.1", port=int(await process.stdout.readline()))
        strangers = [await raw(address) for _ in range(100)]
        said, _ = await process.communicate(b"\n")
        for _, writer in strangers:
            await leave(writer)
        assert process.returncode == 0
        assert int(said) < 64

    asyncio.run(talk())


def test_a_supervisor_has_few_places_for_strangers_and_still_answers():
    async def talk():
        listener = await answer_probes(ANYWHERE, KEYS, OWN)
        strangers = [await raw(listener.address) for _ in range(100)]
        await until(lambda: listener.guests == 64)
        for _, writer in strangers[:80]:
            await leave(writer)
        assert (await probe(listener.address, KEYS, OWN, 5.0)).finding is Finding.ANSWERS
        for _, writer in strangers[80:]:
            await leave(writer)
        await listener.close()

    asyncio.run(talk())


@pytest.mark.parametrize(("soft", "places"), [(64, 8), (1024, 128), (2**20, 1024), (resource.RLIM_INFINITY, 1024)])
def test_a_leader_with_few_descriptors_keeps_most_of_them_for_its_nodes(monkeypatch, soft, places):
    limits = SimpleNamespace(getrlimit=lambda _: (soft, soft), RLIMIT_NOFILE=7, RLIM_INFINITY=resource.RLIM_INFINITY)
    monkeypatch.setattr(serving, "resource", limits)

    async def talk():
        leader = Leader()
        address = await leader.open()
        strangers = [await raw(address) for _ in range(min(places, 128) + 20)]
        await until(lambda: leader.listener.guests >= min(places, 128))
        assert leader.listener.guests <= places
        for _, writer in strangers:
            await leave(writer)
        await leader.close()

    asyncio.run(talk())


def test_honest_callers_beyond_the_places_wait_and_are_all_let_in(monkeypatch):
    monkeypatch.setattr(serving, "GUESTS_MAX", 3)

    async def talk():
        leader = Leader()
        address = await leader.open()
        nodes = [Node() for _ in range(20)]
        for node in nodes:
            node.caller.retarget(address, 1)
        for node in nodes:
            await soon(node.up)
            assert node.missed.empty()
            node.caller.close("done")
        assert leader.listener.strangers == 0
        await leader.close()

    asyncio.run(talk())


def test_a_stranger_is_read_no_further_than_the_proof_goes():
    async def talk():
        proving = Proving(prove_as_caller(KEYS.token, LINK), lambda _transport: None)
        listening = socket.create_server(("127.0.0.1", 0))
        address = listening.getsockname()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: proving, *address)
        assert len(proving.get_buffer(2**20)) == 32
        proving.buffer_updated(5)
        assert len(proving.get_buffer(2**20)) == 27
        proving.give_up()
        listening.close()
        await until(lambda: transport.get_extra_info("socket").fileno() < 0)

    asyncio.run(talk())


def test_closing_sends_guests_away_and_keeps_peers():
    async def talk():
        async with met() as (leader, node):
            reader, writer = await raw(leader.listener.address)
            await until(lambda: leader.listener.guests == 1)
            await leader.listener.close()
            assert await rest(reader) == b""
            await leave(writer)
            await node.beats(1)

    asyncio.run(talk())
