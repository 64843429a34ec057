from __future__ import annotations

import array
import asyncio
import os
import socket

from closeranks import messages
from closeranks.run.links import Link


class End:
    """A link and what it told."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.heard: list[messages.Message] = []
        self.broken: list[str] = []
        self.link = Link(self.ours, self.heard.append, self.broken.append)

    def close(self) -> None:
        self.link.close()
        self.ours.close()
        self.theirs.close()


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - callbacks of the loop bring it about, and set no event
            await asyncio.sleep(0.001)


def test_messages_arrive_however_they_are_cut():
    async def talk() -> list[messages.Message]:
        end = End()
        for byte in messages.encode(messages.Finished(step=3)) + messages.encode(messages.Pong(nonce=1)):
            end.theirs.send(bytes([byte]))
        await until(lambda: len(end.heard) == 2)
        end.close()
        return end.heard

    assert asyncio.run(talk()) == [messages.Finished(step=3), messages.Pong(nonce=1)]


def test_what_a_process_said_before_it_died_is_heard():
    async def talk() -> list[messages.Message]:
        end = End()
        end.theirs.send(messages.encode(messages.LeftLoop(closed_step=9)))
        end.theirs.close()
        end.link.drain()
        end.close()
        return end.heard

    assert asyncio.run(talk()) == [messages.LeftLoop(closed_step=9)]


def test_bytes_that_are_no_message_break_the_link_once():
    async def talk() -> tuple[list[str], list[messages.Message]]:
        end = End()
        end.theirs.send(b"\xff\xff\xff\xff garbage")
        await until(lambda: end.broken)
        end.link.send(messages.Leave())
        end.close()
        return end.broken, end.heard

    broken, heard = asyncio.run(talk())
    assert len(broken) == 1
    assert "frame of" in broken[0]
    assert heard == []


def test_a_message_of_the_supervisor_is_not_taken_from_a_worker():
    async def talk() -> list[str]:
        end = End()
        end.theirs.send(messages.encode(messages.Go(term=1)))
        await until(lambda: end.broken)
        end.close()
        return end.broken

    assert len(asyncio.run(talk())) == 1


def test_a_frozen_worker_costs_memory_for_itself_only_and_then_its_link():
    async def talk() -> tuple[list[str], list[messages.Message]]:
        frozen, other = End(), End()
        for term in range(200):
            frozen.link.send(messages.Interrupt(term=term, reason="x" * 100_000))
        other.theirs.send(messages.encode(messages.Pong(nonce=7)))
        await until(lambda: other.heard)
        frozen.close()
        other.close()
        return frozen.broken, other.heard

    broken, heard = asyncio.run(talk())
    assert len(broken) == 1
    assert heard == [messages.Pong(nonce=7)]


def test_descriptors_arrive_with_their_frame_even_behind_a_full_socket():
    seat = messages.Seat(term=2, seat=1, incarnation=2, size=4, store_host="127.0.0.1", store_port=1)
    frame = messages.encode(seat)

    async def talk() -> bytes:
        end = End()
        page = os.memfd_create("page")
        os.write(page, b"content")
        for term in range(10):
            end.link.send(messages.Interrupt(term=term, reason="x" * 100_000))
        end.link.send(seat, (page,))
        end.theirs.setblocking(False)
        data, fds = b"", array.array("i")

        def complete() -> bool:
            nonlocal data
            try:
                chunk, control, *_ = end.theirs.recvmsg(65536, 1024)
            except BlockingIOError:
                return data.endswith(frame)
            data += chunk
            for _level, _kind, raw in control:
                fds.frombytes(raw)
            return False

        await until(complete)
        (fd,) = fds
        end.close()
        content = os.pread(fd, 100, 0)
        os.close(fd)
        os.close(page)
        return content

    assert asyncio.run(talk()) == b"content"
