"""Streams whose gateway dies, or whose client loses its connection: the rest arrives once, wherever it is asked for."""

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import sys

import pytest
from tests.ports import free_port
from tests.serve.stand import Client, fakes, run, settings_for

from closeranks.serve.drill.engines import WORDS, Engine, events_of, text_of
from closeranks.serve.gateway import Gateway
from closeranks.serve.sessions.files import FileStreams
from closeranks.serve.sessions.record import Entry, EventId, Head
from closeranks.serve.sessions.redis import RedisStreams
from closeranks.serve.sessions.store import MemoryStreams

CHAT = json.dumps({"messages": [{"role": "user", "content": "?"}], "stream": True, "temperature": 0}).encode()
LLAMA = 'engine = "llama.cpp"\ninvariant = true\n'


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory):
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server")
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen([program, *options], stdout=subprocess.PIPE)
    while b"Ready to accept" not in server.stdout.readline():
        assert server.poll() is None
    yield port
    server.kill()
    server.communicate()


@pytest.fixture(params=["file", pytest.param("redis", marks=pytest.mark.process)])
def store(request, tmp_path):
    """The address of a store that two gateways share."""
    if request.param == "file":
        return f"file:{tmp_path}"
    return f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}/0"


def kept(store, keep):
    return f'[sessions]\nkeep = "{keep}"\nstore = "{store}"\n'


async def read_events(client, count):
    """The first so many events, as bytes."""
    events = []
    while len(events) < count:
        events += [event for event in (await client.chunk()).split(b"\n\n") if event]
    return events


def split(event):
    """The id of an event, and the event without it."""
    line, _, rest = event.partition(b"\n")
    return line.removeprefix(b"id: ").decode(), rest


@pytest.mark.parametrize("keep", ["checkpoint", "mirror"])
@pytest.mark.parametrize("seen", [1, 6, len(WORDS)])
def test_a_client_whose_gateway_dies_gets_the_rest_from_another_one(store, keep, seen):
    async def script():
        engines = [Engine("llama.cpp", gap_s=0.002), Engine("llama.cpp", gap_s=0.002)]
        async with fakes(*engines) as replicas:
            settings = settings_for(replicas, kept(store, keep), LLAMA)
            first, second = Gateway(settings), Gateway(settings)
            client = await Client.to(await first.start())
            client.post("/v1/chat/completions", CHAT)
            _, headers = await client.head()
            before = await read_events(client, seen)
            await first.close()
            last, _ = split(before[-1])
            assert last.startswith(headers["x-closeranks-stream"])
            again = await Client.to(await second.start())
            again.post("/v1/chat/completions", CHAT, [f"last-event-id: {last}"])
            status, _, body = await again.response()
            await second.close()
        assert status == 200
        after = [event for event in body.split(b"\n\n") if event]
        ids = [split(event)[0] for event in (*before, *after)]
        assert len(set(ids)) == len(ids)
        events = events_of(b"\n\n".join(split(event)[1] for event in (*before, *after)))
        assert text_of(events) == "".join(WORDS)
        assert events[-1] == "[DONE]"
        assert sum("role" in c["delta"] for e in events[:-1] for c in e["choices"]) == 1

    run(script())


@contextlib.asynccontextmanager
async def gateway_processes(folder, count, replicas, more):
    """So many processes of the command with the same settings; (process, port) of each."""
    tables = "".join(
        f'[[replica]]\nname = "{name}"\nurl = "http://127.0.0.1:{fake.port}"\n{LLAMA}'
        for name, fake in zip("ab", replicas, strict=True)
    )
    path = folder / "gateway.toml"
    path.write_text(f"{more}[listen]\nport = 0\n{tables}")
    command = [sys.executable, "-m", "closeranks", "serve", str(path)]
    begun = [
        await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, start_new_session=True)
        for _ in range(count)
    ]
    try:
        lines = [(await process.stdout.readline()).decode() for process in begun]
        yield [
            (process, int(re.search(r"127\.0\.0\.1:(\d+);", line)[1]))
            for process, line in zip(begun, lines, strict=True)
        ]
    finally:
        for process in begun:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*(process.communicate() for process in begun))


@pytest.mark.process
def test_streams_of_a_gateway_process_that_is_killed_are_finished_by_another_process(redis_port, tmp_path):
    async def script():
        engines = [Engine("llama.cpp", gap_s=0.1), Engine("llama.cpp", gap_s=0.1)]
        more = kept(f"redis://127.0.0.1:{redis_port}/2", "checkpoint")
        async with fakes(*engines) as replicas, gateway_processes(tmp_path, 2, replicas, more) as processes:
            (first, port), (_, other) = processes
            clients = [await Client.to(port) for _ in range(8)]
            for client in clients:
                client.post("/v1/chat/completions", CHAT)
            seen = []
            for count, client in enumerate(clients, start=1):
                await client.head()
                seen.append(await read_events(client, count))
            first.kill()
            await first.wait()
            for before, client in zip(seen, clients, strict=True):
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    while b"[DONE]" not in before[-1]:
                        before.extend(await read_events(client, 1))
            assert any(b"[DONE]" not in before[-1] for before in seen)
            for before in seen:
                again = await Client.to(other)
                again.post("/v1/chat/completions", CHAT, [f"last-event-id: {split(before[-1])[0]}"])
                status, _, body = await again.response()
                assert status == 200
                before.extend(event for event in body.split(b"\n\n") if event)
        for whole in seen:
            events = events_of(b"\n\n".join(split(event)[1] for event in whole))
            assert text_of(events) == "".join(WORDS)
            assert events.count("[DONE]") == 1
            assert len({split(event)[0] for event in whole}) == len(whole)

    run(script())


def test_a_client_that_lost_its_connection_gets_what_it_missed():
    async def script():
        async with fakes(Engine()) as replicas:
            front = Gateway(settings_for(replicas, kept("memory", "checkpoint")))
            port = await front.start()
            client = await Client.to(port)
            client.post("/v1/chat/completions", CHAT)
            _, headers, body = await client.response()
            whole = [event for event in body.split(b"\n\n") if event]
            again = await Client.to(port)
            again.post("/v1/chat/completions", b"", [f"last-event-id: {split(whole[4])[0]}"])
            _, _, rest = await again.response()
            stranger = await Client.to(port)
            wanted = [f"last-event-id: {headers['x-closeranks-stream']}/1.0", "authorization: Bearer other"]
            stranger.post("/v1/chat/completions", b"", wanted)
            refused = await stranger.response()
            await front.close()
        assert [event for event in rest.split(b"\n\n") if event] == whole[5:]
        assert refused[0] == 404
        assert b"kept for you" in refused[2]

    run(script())


def test_whoever_claims_a_stream_last_has_it_alone():
    async def script():
        async with fakes(Engine(gap_s=0.05)) as replicas:
            front = Gateway(settings_for(replicas, kept("memory", "mirror")))
            port = await front.start()
            client = await Client.to(port)
            client.post("/v1/chat/completions", CHAT)
            await client.head()
            seen = await read_events(client, 3)
            other = await Client.to(port)
            other.post("/v1/chat/completions", b"", [f"last-event-id: {split(seen[-1])[0]}"])
            _, _, rest = await other.response()
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    seen += await read_events(client, 1)
            await front.close()
        assert text_of(events_of(b"\n\n".join(split(e)[1] for e in rest.split(b"\n\n") if e))) == "".join(WORDS[2:])
        assert len(seen) < len(WORDS)

    run(script())


def test_a_store_that_is_gone_stops_no_stream():
    async def script():
        async with fakes(Engine()) as replicas:
            settings = settings_for(replicas, kept("redis://127.0.0.1:1/0", "mirror"))
            front = Gateway(settings)
            client = await Client.to(await front.start())
            client.post("/v1/chat/completions", CHAT)
            _, _, body = await client.response()
            await front.close()
        assert text_of(events_of(b"\n\n".join(split(e)[1] for e in body.split(b"\n\n") if e))) == "".join(WORDS)

    run(script())


@pytest.mark.parametrize("kind", ["memory", "file", "redis"])
def test_every_store_keeps_the_same_promises(kind, tmp_path, request):
    head = Head(stream="0" * 32, owner="o", target=b"/v1/chat/completions", body=b"{}")

    async def script():
        if kind == "memory":
            store = MemoryStreams()
        elif kind == "file":
            store = FileStreams(tmp_path, 60.0)
        else:
            store = RedisStreams(f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}/1", 60.0)
        assert await store.claim(head.stream) is None
        generation = await store.begin(head)
        assert await store.append(head.stream, generation, [Entry(b"one", (1, 2))])
        assert await store.append(head.stream, generation, [Entry(b"two"), Entry(b"three")])
        claimed = await store.claim(head.stream)
        assert (claimed.head, [entry.raw for entry in claimed.entries]) == (head, [b"one", b"two", b"three"])
        assert claimed.entries[0].ids == (1, 2)
        assert not await store.append(head.stream, generation, [Entry(b"late")])
        assert await store.append(head.stream, claimed.generation, [Entry(b"four")])
        again = await store.claim(head.stream)
        assert [entry.raw for entry in again.entries] == [b"one", b"two", b"three", b"four"]
        await store.close()

    run(script())


def test_a_batch_that_was_being_written_when_its_writer_died_is_cut_off(tmp_path):
    head = Head(stream="1" * 32, owner="o", target=b"/", body=b"{}")

    async def script():
        store = FileStreams(tmp_path, 60.0)
        generation = await store.begin(head)
        await store.append(head.stream, generation, [Entry(b"whole")])
        (path,) = tmp_path.glob("*.stream")
        assert path.stat().st_mode & 0o777 == 0o600
        whole = path.read_bytes()
        await store.append(head.stream, generation, [Entry(b"torn, torn, torn")])
        for length in range(len(whole), path.stat().st_size):
            path.write_bytes(path.read_bytes()[:length])
            claimed = await store.claim(head.stream)
            assert [entry.raw for entry in claimed.entries] == [b"whole"]
            assert path.stat().st_size == len(whole)
            await store.append(head.stream, claimed.generation, [Entry(b"torn, torn, torn")])

    run(script())


@pytest.mark.parametrize(
    "text", ["", "x", "0" * 32, "0" * 32 + "/1", "0" * 31 + "/1.2", "0" * 32 + "/1.2x", "../../etc"]
)
def test_only_ids_of_ours_are_taken_for_ids(text):
    assert EventId.parse(text) is None
