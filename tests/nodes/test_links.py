import asyncio
import contextlib
import errno
import os
import random
import secrets
import socket
import sys
import zlib

import pytest
from tests.nodes.stand import KEYS, Leader, Node, beat, granted, leave, met, proven, rest, soon, until

from closeranks import frames
from closeranks.nodes import link, words
from closeranks.nodes.calling import Caller, Hearer
from closeranks.nodes.link import Connection, Ended
from closeranks.nodes.words import Address

LONG = secrets.token_hex(50_000)  # packing it helps little


def test_words_go_both_ways_in_order():
    async def talk():
        async with met() as (leader, node):
            for number in range(50):
                node.caller.connection.send(beat(number))
            assert [(await soon(leader.heard)).number for _ in range(50)] == list(range(50))
            assert [(await soon(node.heard)).number for _ in range(50)] == list(range(50))

    asyncio.run(talk())


def test_a_frame_arrives_however_it_is_cut():
    async def talk():
        leader = Leader()
        _, writer = await proven(await leader.open())
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frames.encode(beat(7)):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await soon(leader.heard) == beat(7)
        await leave(writer)
        await leader.close()

    asyncio.run(talk())


def test_a_word_right_behind_the_proof_is_not_lost():
    async def talk():
        leader, node = Leader(), Node()
        take = node._take

        def take_and_send(connection, epoch):
            connection.send(beat(1))
            return take(connection, epoch)

        node.caller._hearer = node.caller._hearer._replace(on_up=take_and_send)
        node.caller.retarget(await leader.open(), 1)
        assert await soon(node.heard) == granted(1)
        node.caller.close("done")
        await leader.close()

    asyncio.run(talk())


def test_a_connection_cut_in_the_middle_of_a_frame_gives_no_word_and_one_end():
    async def talk():
        leader = Leader()
        _, writer = await proven(await leader.open())
        writer.write(frames.encode(beat(7))[:-3])
        await leave(writer)
        end = await soon(leader.ended)
        assert end.how is Ended.HUNG_UP
        assert leader.heard.empty()
        assert leader.ended.empty()
        await leader.close()

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"\xff\xff\xff\xff", "frame of 4294967295 bytes announced"),
        (b"\x00\x00\x00\x04junk", "unreadable message"),
        (frames.encode(granted(1)), "unreadable message"),  # a word of the other direction
    ],
)
def test_what_is_no_word_breaks_the_connection_that_brought_it(sent, problem):
    async def talk():
        async with met() as (leader, node):
            reader, writer = await proven(leader.listener.address)
            writer.write(sent)
            end = await soon(leader.ended)
            assert end.how is Ended.BROKEN
            assert problem in end.detail
            assert await rest(reader) == b""
            await leave(writer)
            await node.beats(1)

    asyncio.run(talk())


def test_a_peer_that_never_reads_is_cut_and_costs_bounded_memory(monkeypatch):
    monkeypatch.setattr(link, "WAITING_BYTES_MAX", 2**20)

    async def talk():
        async with met() as (leader, node):
            _, writer = await proven(leader.listener.address)
            writer.transport.pause_reading()
            slow = await soon(leader.met)
            word = words.TurnedAway(reason=LONG, final=False)
            waiting_bytes = []
            while slow.is_open:
                slow.send(word)
                waiting_bytes.append(slow._transport.get_write_buffer_size())
                assert len(waiting_bytes) < 10_000
            end = await soon(leader.ended)
            assert end.how is Ended.SLOW
            assert max(waiting_bytes) <= 2**20 + len(frames.encode(word))
            slow.send(word)  # no more than nothing
            await node.beats(1)
            await leave(writer)

    asyncio.run(talk())


def test_a_word_that_fits_no_frame_is_refused_and_the_connection_goes_on():
    async def talk():
        async with met() as (_, node):
            with pytest.raises(frames.FrameError, match="at most"):
                node.caller.connection.send(words.Farewell(reason="x" * (frames.MAX_FRAME_BYTES + 1)))
            await node.beats(1)

    asyncio.run(talk())


def test_our_own_cut_is_seen_as_a_reset_and_never_as_the_end_of_a_process():
    async def talk():
        async with met() as (leader, node):
            (connection,) = leader.connections
            connection.abort("a test")
            connection.abort("again")
            assert (await soon(leader.ended)) == (Ended.CUT, "a test")
            assert (await soon(node.down)).how is Ended.RESET
            assert leader.ended.empty()

    asyncio.run(talk())


def test_nothing_is_heard_after_an_abort():
    async def talk():
        leader = Leader()
        _, writer = await proven(await leader.open())
        connection = await soon(leader.met)
        ears = connection._ears
        connection.hear(ears._replace(on_word=lambda word: (leader.heard.put_nowait(word), connection.abort("enough"))))
        writer.write(b"".join(frames.encode(beat(number)) for number in range(3)))
        assert (await soon(leader.ended)).how is Ended.CUT
        assert [leader.heard.get_nowait().number for _ in range(leader.heard.qsize())] == [0]
        await leave(writer)
        await leader.close()

    asyncio.run(talk())


def test_what_was_sent_before_an_orderly_close_arrives():
    async def talk():
        async with met() as (leader, node):
            connection = node.caller.connection
            for _ in range(20):
                connection.send(words.Farewell(reason=LONG))
            node.caller.close("it ends")
            assert (await soon(node.down)) == (Ended.CLOSED, "it ends")
            assert (await soon(leader.ended)).how is Ended.HUNG_UP
            assert leader.heard.qsize() == 20

    asyncio.run(talk())


def test_an_orderly_close_does_not_wait_for_a_peer_that_does_not_read(monkeypatch):
    monkeypatch.setattr(link, "_FLUSH_S", 0.05)

    async def talk():
        leader = Leader()
        _, writer = await proven(await leader.open())
        writer.transport.pause_reading()
        connection = await soon(leader.met)
        while not connection._transport.get_write_buffer_size():
            connection.send(words.TurnedAway(reason=LONG, final=False))
        connection.close("it ends")
        assert (await soon(leader.ended)).how is Ended.CLOSED
        await leave(writer)
        await leader.close()

    asyncio.run(talk())


_PEER = """
import asyncio, sys
from tests.nodes.stand import Node
from closeranks.nodes.words import Address, Farewell

async def main():
    node = Node()
    node.caller.retarget(Address(host="127.0.0.1", port=int(sys.argv[1])), 1)
    await node.up.get()
    await node.beats(1)
    node.caller.connection.send(Farewell(reason="the grant was read"))
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.process
def test_a_process_that_is_killed_hangs_up():
    # Unless it leaves something unread: then its kernel resets.
    async def talk():
        leader = Leader()
        address = await leader.open()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PEER, str(address.port), env=environment)
        try:
            async with asyncio.timeout(20):
                assert [await leader.heard.get() for _ in range(2)][1] == words.Farewell(reason="the grant was read")
            process.kill()
            assert (await soon(leader.ended)).how is Ended.HUNG_UP
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await leader.close()

    asyncio.run(talk())


def test_an_end_is_spelled_with_its_reason():
    assert str(link.End(Ended.CUT, "enough")) == "cut: enough"
    assert str(link.End(Ended.LOST, "")) == "lost"


def test_a_peer_is_named_by_its_address():
    async def talk():
        async with met() as (leader, node):
            assert node.caller.connection.peer == str(leader.listener.address)

    asyncio.run(talk())


def test_long_frames_travel_packed_and_come_out_as_the_words_they_were():
    told = [words.TurnedAway(reason="x" * 50_000, final=False), words.Granted(number=7, lease_s=3.0)]
    plain = b"".join(map(frames.encode, told))
    short = frames.packed(plain)
    assert len(short) < len(plain) / 10
    stream, heard = frames.encode(told[1]) + short + frames.encode(told[1]), []
    decoder = frames.Decoder(words.FromCoordinator)
    for first in range(0, len(stream), 100):
        heard += decoder.feed(stream[first : first + 100])
    assert heard == [told[1], *told, told[1]]
    assert frames.packed(frames.encode(told[1])) == frames.encode(told[1])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (zlib.compress(bytes(frames.MAX_FRAME_BYTES + 1)), "at most 16777216 bytes"),
        (zlib.compress(bytes(1000))[:-5], "got more or none"),
        (b"no such stream", "cannot be read"),
        (zlib.compress(frames.encode(words.Granted(number=7, lease_s=3.0))[:-1]), "in the middle of one"),
        (zlib.compress(b"\x80\x00\x00\x01x"), "packed twice"),
    ],
)
def test_packed_frames_that_are_none_or_too_many_are_an_error(content, problem):
    frame = (2**31 | len(content)).to_bytes(4, "big") + content
    with pytest.raises(frames.FrameError, match=problem):
        frames.Decoder(words.FromCoordinator).feed(frame)


OURS = (OSError(errno.EBADF, "Bad file descriptor"), KeyError("seat 3"))


@pytest.mark.parametrize("error", OURS)
@pytest.mark.parametrize("side", ["who listens", "who calls"])
def test_a_connection_that_is_not_taken_is_a_defect_of_ours_and_told_as_one(error, side):
    """It ended the call by its deadline; an OSError was told to nobody."""

    def fail(*_):
        raise error

    async def talk():
        told: asyncio.Queue[dict] = asyncio.Queue()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: told.put_nowait(what))
        leader, node = Leader(), Node()
        (leader.met if side == "who listens" else node.up).put_nowait = fail
        node.caller.retarget(await leader.open(), 1)
        what = await soon(told)
        assert what["exception"] is error
        assert isinstance(what["protocol"], Connection)
        if side == "who calls":
            assert "it was not taken here" in (await soon(node.missed)).reason
        await until(lambda: leader.listener.guests == 0)
        node.caller.close("done")
        await leader.close()

    asyncio.run(talk())


def test_a_caller_whose_hearer_fails_on_a_miss_says_so():
    """Its pursuit ended, and nobody heard of it: the node called no more and said nothing."""

    def fail(*_):
        raise KeyError("epoch 1")

    async def talk():
        told: asyncio.Queue[dict] = asyncio.Queue()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: told.put_nowait(what))
        caller = Caller(KEYS, words.FromCoordinator, Hearer(fail, fail), random.Random(0))
        caller.retarget(Address(host="127.0.0.1", port=1), 1)
        assert repr((await soon(told))["exception"]) == "KeyError('epoch 1')"

    asyncio.run(talk())


@pytest.mark.parametrize("error", OURS)
def test_a_word_that_its_hearer_fails_on_is_a_defect_of_ours_and_no_lost_connection(error):
    """An OSError of a hearer passed for one of the connection: it was cut, and nobody was told of the defect."""

    async def talk():
        told: asyncio.Queue[dict] = asyncio.Queue()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: told.put_nowait(what))
        async with met() as (leader, node):

            def fail(_word):
                raise error

            leader.heard.put_nowait = fail
            node.caller.connection.send(beat(1))
            what = await soon(told)
            assert what["exception"] is error
            assert what["message"].startswith("a Beat from 127.0.0.1:")
            end = await soon(leader.ended)
            assert end.how is Ended.CUT
            assert repr(error) in end.detail
        assert told.empty()

    asyncio.run(talk())
