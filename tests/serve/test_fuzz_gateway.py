"""Two tenants and a replica that may send anything, through one real gateway: nobody ever reads what is another's."""

import asyncio
import contextlib
import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.stand import OPENED, Client, answer, gateway, run
from tests.serve.test_fuzz import ANSWER, HEAD

from closeranks.serve.asking import Asker, BadPriority
from closeranks.serve.drill.engines import sse
from closeranks.serve.fallbacks import Fallbacks
from closeranks.serve.foreign import decode, decoded_object
from closeranks.serve.http.head import Request
from closeranks.serve.policies import CacheLimits, Clock, LevelSettings
from closeranks.serve.settings import parse
from closeranks.serve.stream.request import parse as parse_stream

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=60, deadline=None)
LIMIT_S = 20.0
EVIL = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
NUMBERS = itertools.count(1)


class Echo:
    """Answers with the secret of the request; ``before`` and ``after`` are put around the next answer."""

    def __init__(self):
        self.before, self.after, self.streamed = b"", b"", False

    async def __call__(self, talk):
        before, after, self.before, self.after = self.before, self.after, b"", b""
        secret = talk.body.partition(b"<")[2].partition(b">")[0]
        talk.write(before)
        if b'"stream"' in talk.body:
            talk.stream()
            for delta in ({"role": "assistant"}, {"content": f"<{secret.decode('latin-1')}>"}):
                talk.chunk(sse({"choices": [{"index": 0, "delta": delta}]}))
            talk.chunk(sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) + sse("[DONE]"))
            talk.end()
        else:
            talk.write(answer(200, b"<" + secret + b">"))
        talk.write(after)
        if before or after:
            with contextlib.suppress(ConnectionError):
                await talk.writer.drain()


async def everything(client):
    """All bytes that a client gets before the gateway falls silent or closes."""
    got = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        while data := await asyncio.wait_for(client.reader.read(65536), 0.02):
            got += data
    return got


async def one(port, replica, junk, around, streamed):
    """A tenant sends junk, a replica surrounds an answer with more of it; another tenant asks three times."""
    echo = replica.script
    attacker = await Client.to(port)
    attacker.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n<attack1>" + junk)
    echo.before, echo.after = around
    victim = await Client.to(port)
    for _ in range(3):
        secret = f"s{next(NUMBERS)}"
        body = {"messages": [{"role": "user", "content": f"<{secret}>"}], "temperature": 0}
        victim.post("/v1/chat/completions", json.dumps(body | ({"stream": True} if streamed else {})).encode())
        status, _, got = await victim.response()
        assert (status == 200 and f"<{secret}>".encode() in got) or status >= 400 or around[0]
        assert b"attack" not in got
        assert got.count(b"<s") <= 1
        echo.before = echo.after = b""
    seen = await everything(attacker)
    assert b"<s" not in seen
    for client in (attacker, victim):
        client.close()
        OPENED.discard(client)


@pytest.fixture(scope="module")
def stand():
    """A runner, and a gateway in it that all examples share."""
    with asyncio.Runner() as runner:
        context = gateway(Echo(), more="[budget]\nfloor_per_s = 1000.0\n[breaker]\nin_a_row = 1000\nleast = 100000\n")
        front, port, (replica,) = runner.run(context.__aenter__())
        yield runner, front, port, replica
        runner.run(context.__aexit__(None, None, None))


@FEW
@given(
    junk=st.one_of(st.binary(max_size=80), st.lists(HEAD, max_size=10).map(b"".join)),
    around=st.tuples(
        st.lists(ANSWER, max_size=4).map(b"".join), st.one_of(st.just(EVIL), st.lists(ANSWER, max_size=4).map(b"".join))
    ),
    streamed=st.booleans(),
)
def test_nothing_of_one_tenant_is_read_by_another_whatever_both_sides_send(stand, junk, around, streamed):
    runner, front, port, replica = stand
    runner.run(asyncio.wait_for(one(port, replica, junk, around, streamed), LIMIT_S))

    async def at_rest():
        while front.in_flight:  # noqa: ASYNC110 - what sockets bring about
            await asyncio.sleep(0.001)

    runner.run(asyncio.wait_for(at_rest(), LIMIT_S))
    assert front.traffic._lives == {}


KEYS = (
    *("model", "messages", "role", "content", "stream", "tools", "tool_calls", "n", "max_tokens", "seed", "prompt"),
    *("temperature", "response_format", "type", "stream_options", "documents", "top_n"),
)
ATOMS = st.sampled_from([None, True, False, 0, -1, 2**70, 0.5, float("nan"), "", "x", "tool", "user"])
LISTS = st.lists(ATOMS | st.dictionaries(st.sampled_from(KEYS), ATOMS, max_size=3), max_size=3)
OBJECTS = st.dictionaries(st.sampled_from(KEYS), ATOMS | LISTS, max_size=6)
VALUES = ATOMS | LISTS | OBJECTS
SETTINGS = parse('[[replica]]\nname = "a"\nurl = "http://h:1"\n', "fuzz.toml")
LEVEL = LevelSettings(name="x", drop_tools=True, messages=1, max_tokens=3, results=1, model="m")
FIXED = LevelSettings(name="y", kind="static", answer="no")


@MANY
@given(
    VALUES, st.sampled_from([b"/v1/chat/completions", b"/v1/completions", b"/v1/rerank", b"/x"]), st.binary(max_size=9)
)
def test_whatever_a_body_says_it_is_read_and_made_smaller_or_left_as_it_is(value, path, tail):
    body = json.dumps(value).encode() + tail
    request = Request(method=b"POST", target=path, headers=[(b"x-priority", b"batch")], body=body)
    ask = Asker(SETTINGS).ask(request, Clock(0.0, 0.0), 1)
    parse_stream(path, body)
    fallbacks = Fallbacks([LevelSettings(name="full"), LEVEL, FIXED], CacheLimits())
    fallbacks.smaller(request, LEVEL)
    fallbacks.local(Clock(0.0, 0.0), ask, request, 1)
    fallbacks.keep(0.0, ask, request, body)


@FEW
@given(st.sampled_from([b"[", b'{"a":', b'[{"a":[']), st.integers(1, 2000))
def test_what_is_nested_too_deeply_is_no_json_and_what_is_not_can_be_written_again(opening, depth):
    closing = opening.replace(b'"a":', b"")[::-1].translate(bytes.maketrans(b"[{", b"]}"))
    data = opening * depth + b"1" + closing * depth
    found = decoded_object(b'{"x":' + data + b"}")
    if depth < 100:
        assert found is not None
    if found is not None:
        json.dumps(found)


def test_a_body_that_is_nested_too_deeply_costs_one_answer_and_no_place():
    async def script():
        async with gateway(Echo()) as (front, port, (replica,)):
            client = await Client.to(port)
            for stream in (b"true", b"false"):
                nested = b"[" * 100_000 + b"]" * 100_000
                client.post(
                    "/v1/chat/completions", b'{"stream":%b,"messages":[{"content":"<me>"}],"x":%b}' % (stream, nested)
                )
                assert (await client.response())[0] == 200  # what it means is the replica's to say
            assert len(replica.requests) == 2
            assert (front.in_flight, front.traffic._lives) == (0, {})

    run(script())


def test_bad_priorities_are_the_callers_fault():
    with pytest.raises(BadPriority):
        Asker(SETTINGS).ask(Request(method=b"GET", target=b"/", headers=[(b"x-priority", b"x")]), Clock(0.0, 0.0), 1)
    assert decode(b"[1]") == [1]
