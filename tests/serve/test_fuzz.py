"""Whatever bytes come, in whatever pieces: no crash, no hang, and the same meaning however they are cut."""

import itertools
import json

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from closeranks.serve.drill.engines import WORDS, sse
from closeranks.serve.http.limits import Limits
from closeranks.serve.http.server import ClientConnection
from closeranks.serve.http.upstream import Answer, UpstreamConnection
from closeranks.serve.relay import Finished, NoResume, Prepare, Resume
from closeranks.serve.stream.pace import Gaps, Pace, PaceLimits
from closeranks.serve.stream.policy import StreamPolicy
from closeranks.serve.stream.relay import CompletionsRelay
from closeranks.serve.stream.request import parse
from closeranks.serve.stream.sse import Splitter

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CHAT = json.dumps({"messages": [], "stream": True, "temperature": 0}).encode()


def cut(data, points):
    """The data in pieces."""
    places = sorted({0, len(data), *(point % (len(data) + 1) for point in points)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


class Wire:
    """A transport that keeps what is written."""

    def __init__(self):
        self.written, self.closed, self.paused = b"", False, False

    def write(self, data):
        self.written += data

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False

    def get_extra_info(self, _):
        return ("127.0.0.1", 1)


class Desk:
    """Notes every request and answers it at once."""

    limits = Limits()

    def __init__(self):
        self.connections, self.requests = set(), []

    def begin(self, request, client):
        self.requests.append((request.method, request.target, tuple(request.headers), request.body))
        client.answer(200, [], b"ok")

    def now_s(self):
        return 0.0


def heard_at_desk(pieces):
    desk, wire = Desk(), Wire()
    connection = ClientConnection(desk)
    connection.connection_made(wire)
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    return desk.requests, wire


HEAD = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /a HTTP/1.1\r\n",
        b"content-length: 3\r\n",
        b"Content-Length: 0\r\n",
        b"transfer-encoding: chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"host: x\r\n",
        b"x: y\r\n",
        b"\r\n",
        b"\n",
        b"abc",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"connection: close\r\n",
        b" folded\r\n",
        b"\x00",
    ]
)
BYTES = st.one_of(st.binary(max_size=200), st.lists(HEAD, max_size=14).map(b"".join))
POINTS = st.lists(st.integers(0, 10_000), max_size=6)


@QUICK
@given(BYTES, POINTS)
@example(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabcGET / HTTP/1.1\r\nhost: x\r\n\r\n", [44, 47, 50])
def test_requests_are_the_same_however_their_bytes_are_cut(data, points):
    whole, _ = heard_at_desk([data])
    parts, wire = heard_at_desk(cut(data, points))
    assert parts == whole
    for method, _, headers, _ in parts:
        assert method.isalpha()
        lengths = [value for name, value in headers if name == b"content-length"]
        codings = [value for name, value in headers if name == b"transfer-encoding"]
        assert len(lengths) + len(codings) <= 1
    assert wire.written.count(b"HTTP/1.1 200") == len(parts)


class Listener(Answer):
    """Hears an answer; what comes after its end is an error."""

    def __init__(self):
        self.body, self.ends, self.cuts, self.heads = b"", 0, 0, 0

    def on_head(self, _status, _headers):
        assert not self.ends + self.cuts
        self.heads += 1

    def on_data(self, data):
        assert not self.ends + self.cuts
        self.body += data

    def on_end(self):
        self.ends += 1

    def on_cut(self, _cut, _detail):
        self.cuts += 1


class NoPool:
    """Takes connections back."""

    def forget(self, _):
        pass

    give_back = forget


ANSWER = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"content-length: 3\r\n",
        b"transfer-encoding: chunked\r\n",
        b"\r\n",
        b"abc",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"connection: close\r\n",
    ]
)


@QUICK
@given(st.one_of(st.binary(max_size=200), st.lists(ANSWER, max_size=12).map(b"".join)), POINTS)
def test_an_answer_ends_once_whatever_a_replica_sends(data, points):
    listener, wire = Listener(), Wire()
    connection = UpstreamConnection(NoPool())
    connection.connection_made(wire)
    connection.request(b"", listener)
    for piece in cut(data, points):
        if not wire.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    assert listener.ends + listener.cuts == 1
    assert listener.heads or not listener.ends


@QUICK
@given(st.lists(st.sampled_from([b"data: x", b"data:y\n", b"\n\n", b"\r\n\r\n", b": c\n\n", b"id: 1\n"])), POINTS)
def test_events_are_the_same_however_they_are_cut(parts, points):
    data = b"".join(parts)
    splitter = Splitter()
    found = [event.data for piece in cut(data, points) for event in splitter.feed(piece)]
    assert found == [event.data for event in Splitter().feed(data)]


def relay():
    made = CompletionsRelay(parse(b"/v1/chat/completions", CHAT), StreamPolicy(), Pace(PaceLimits(), Gaps()))
    made.plan("openai")
    made.begin()
    return made


@QUICK
@given(st.lists(st.one_of(st.binary(max_size=60), st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from(["choices", "delta", "index", "content", "tool_calls", "finish_reason", "usage", "id", "error",
                         "logprobs", "text", "function", "arguments", "token_ids"]), inner, max_size=4),
    max_leaves=12,
).map(sse)), max_size=6), st.sampled_from(["openai", "llama.cpp", "vllm", "sglang", "tgi"]))  # fmt: skip
def test_no_stream_breaks_the_relay(pieces, engine):
    subject = relay()
    for number, piece in enumerate(pieces):
        subject.feed(piece, float(number))
    subject.feed(b"\n\n", 99.0)
    plan = subject.plan(engine)
    assert isinstance(plan, (Finished, NoResume, Prepare, Resume))
    assert subject.fail("reason").startswith(b"data: ")


@QUICK
@given(POINTS, st.integers(0, len(WORDS)))
def test_a_stream_passes_byte_for_byte_however_it_is_cut(points, end):
    chunks = [{"id": "i", "choices": [{"index": 0, "delta": {"content": word}}]} for word in WORDS[:end]]
    chunks.append({"id": "i", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    data = b"".join(map(sse, chunks)) + sse("[DONE]")
    subject = relay()
    assert b"".join(subject.feed(piece, 0.0) for piece in cut(data, points)) == data
    assert subject.complete
    assert subject.seen.choices[0].text == "".join(WORDS[:end])
