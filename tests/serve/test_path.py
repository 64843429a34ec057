"""The data path between clients and replicas, over real sockets."""

import asyncio

import pytest
from tests.serve.stand import Client, answer, gateway, run


async def hello(talk):
    talk.write(answer(200, b"hello " + talk.body, ["content-type: text/plain", "x-own: 1"]))


async def refuse(talk):
    talk.write(answer(503, b"busy"))


async def die(talk):
    talk.cut()


def test_an_answer_passes_with_its_headers_and_the_connection_is_kept():
    async def script():
        async with gateway(hello) as (_, port, (replica,)):
            client = await Client.to(port)
            for word in (b"one", b"two"):
                client.post("/v1/x?y=1", word, ["connection: keep-alive, x-mine", "x-mine: 1", "x-yours: 2"])
                status, headers, body = await client.response()
                assert (status, body, headers["x-own"]) == (200, b"hello " + word, "1")
                assert headers["x-closeranks-replica"] == "a"
            assert replica.connections == 1
            head = replica.requests[0].head
            assert head.startswith(b"POST /v1/x?y=1 HTTP/1.1\r\n")
            assert b"x-yours: 2" in head
            assert b"x-mine" not in head

    run(script())


def test_pipelined_requests_are_answered_in_their_order():
    async def script():
        async with gateway(hello) as (_, port, _):
            client = await Client.to(port)
            for word in (b"1", b"2", b"3"):
                client.post("/", word)
            assert [(await client.response())[2] for _ in range(3)] == [b"hello 1", b"hello 2", b"hello 3"]

    run(script())


def test_chunks_pass_as_they_come():
    async def script():
        more = asyncio.Event()

        async def two(talk):
            talk.stream()
            talk.chunk(b"data: 1\n\n")
            await more.wait()
            talk.chunk(b"data: 2\n\n")
            talk.end()

        async with gateway(two) as (_, port, _):
            client = await Client.to(port)
            client.post("/", b"")
            await client.head()
            assert await client.chunk() == b"data: 1\n\n"
            more.set()
            assert [await client.chunk(), await client.chunk()] == [b"data: 2\n\n", b""]

    run(script())


@pytest.mark.parametrize("bad", [die, refuse])
def test_a_request_whose_replica_fails_is_answered_by_another(bad):
    async def script():
        async with gateway(bad, hello) as (_, port, (first, _)):
            client = await Client.to(port)
            client.post("/", b"x")
            status, headers, body = await client.response()
            assert (status, headers["x-closeranks-replica"], body) == (200, "b", b"hello x")
            assert len(first.requests) == 1

    run(script())


def test_a_half_answer_that_was_held_back_is_never_seen():
    async def half(talk):
        talk.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await talk.writer.drain()
        talk.cut()

    async def script():
        async with gateway(half, hello) as (_, port, _):
            client = await Client.to(port)
            client.post("/", b"x")
            assert (await client.response())[2] == b"hello x"

    run(script())


def test_when_all_replicas_fail_the_client_is_told_and_its_connection_lives():
    async def script():
        async with gateway(die, die) as (_, port, _):
            client = await Client.to(port)
            for _ in range(2):
                client.post("/", b"x")
                status, headers, body = await client.response()
                assert status in (502, 503)
                assert headers["content-type"] == "application/json"
                assert b'"error"' in body

    run(script())


def test_a_client_that_leaves_takes_its_request_along():
    async def script():
        left = asyncio.Event()

        async def wait(talk):
            await talk.gone()
            left.set()

        async with gateway(wait) as (front, port, (replica,)):
            client = await Client.to(port)
            client.post("/", b"x")
            await replica.asked.wait()
            client.close()
            await left.wait()
            assert front.connections == set()

    run(script())


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: +1\r\n\r\n", 400),
        (b"garbage\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 101 + b"\r\n", 431),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n", 431),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", 501),
    ],
)
def test_a_request_of_doubtful_or_excessive_length_is_refused_and_reaches_nobody(sent, status):
    async def script():
        async with gateway(hello) as (_, port, (replica,)):
            client = await Client.to(port)
            client.send(sent)
            assert (await client.response())[0] == status
            assert await client.reader.read() == b""
            assert replica.requests == []

    run(script())


def test_a_slow_head_and_a_slow_body_are_not_waited_for():
    async def script():
        limits = "[limits]\nheader_s = 0.3\nbody_s = 0.3\n"
        async with gateway(hello, more=limits) as (_, port, (replica,)):
            for sent in (b"GET / HT", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n12"):
                client = await Client.to(port)
                client.send(sent)
                assert (await client.response())[0] == 408
            assert replica.requests == []

    run(script())


def test_draining_lets_what_was_begun_end():
    async def script():
        go = asyncio.Event()

        async def later(talk):
            await go.wait()
            await hello(talk)

        async with gateway(later) as (front, port, (replica,)):
            client = await Client.to(port)
            client.post("/", b"x")
            await replica.asked.wait()
            draining = asyncio.create_task(front.drain(20))
            await asyncio.sleep(0)
            with pytest.raises(ConnectionError):
                await Client.to(port)
            go.set()
            assert (await client.response())[2] == b"hello x"
            await draining

    run(script())
