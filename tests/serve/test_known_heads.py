"""A head that comes again on its connection means what it meant, and nothing that comes with it is taken on trust."""

import dataclasses

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.serve.test_fuzz import HEAD, POINTS, QUICK, Desk, Listener, NoPool, Wire, cut

from closeranks.serve.http.known import HEAD_BYTES_MAX, HEADS_MAX, VAIN_MAX, KnownHeads
from closeranks.serve.http.server import ClientConnection
from closeranks.serve.http.upstream import UpstreamConnection

POST = b"POST /a HTTP/1.1\r\nhost: x\r\nContent-Length: %d\r\nx: y\r\n\r\n%b"
ANSWER = b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: %d\r\n\r\n%b"


def post(body):
    return POST % (len(body), body)


@dataclasses.dataclass
class Parser:
    """Counts what the real one is given."""

    inner: object
    fed: int = 0

    def feed_data(self, data):
        self.fed += 1
        self.inner.feed_data(data)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def connection(desk=None):
    made = ClientConnection(desk or Desk())
    made.connection_made(Wire())
    made._parser = Parser(made._parser)
    return made


class Forgetful(KnownHeads):
    """Knows no head."""

    def learn(self, _data, _body_bytes, _meaning):
        return False


def heard(readings):
    desk, wire = Desk(), Wire()
    made = ClientConnection(desk)
    made.connection_made(wire)
    for reading in readings:
        if not wire.closed:
            made.data_received(reading)
    return desk.requests, wire.closed


MESSAGES = st.lists(st.sampled_from([
    post(b""), post(b"abc"), post(b"0123456789"),
    POST % (3, b"abcGET / HTTP/1.1\r\nhost: x\r\n\r\n"), POST % (4, b"abc"), POST % (2, b"abc"),
    POST.replace(b"x: y", b"Content-Length: 3") % (3, b"abc"),
    POST.replace(b"x: y", b"Transfer-Encoding: chunked") % (0, b""),
    POST.replace(b"%d", b"%b") % (b"+3", b"abc"), POST.replace(b"%d", b"%b") % (b"3 ", b"abc"),
    POST.replace(b"%d", b"%b") % (b"", b""), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n", b"G",
]) | st.lists(HEAD, max_size=8).map(b"".join), max_size=8)  # fmt: skip


@QUICK
@given(MESSAGES, POINTS)
@example([post(b"abc"), post(b"0123456789"), POST % (3, b"abcGET / HTTP/1.1\r\nhost: x\r\n\r\n")], [3])
def test_requests_that_come_whole_mean_what_they_mean_in_pieces(messages, points):
    pieces = [piece for message in messages for piece in cut(message, [len(message) // 2, *points])]
    assert heard([*messages]) == heard(pieces)


def test_a_head_that_is_known_is_not_parsed_again():
    desk = Desk()
    made = connection(desk)
    for body in (b"abc", b"", b"a longer one", b"abc"):
        made.data_received(post(body))
    assert made._parser.fed == 1
    assert [body for *_, body in desk.requests] == [b"abc", b"", b"a longer one", b"abc"]
    assert [dict(headers)[b"content-length"] for _, _, headers, _ in desk.requests] == [b"3", b"0", b"12", b"3"]


def test_limits_that_were_read_again_hold_for_heads_that_are_known():
    desk = Desk()
    made = connection(desk)
    made.data_received(post(b"abc"))
    desk.limits = msgspec.structs.replace(desk.limits, header_bytes=10)
    made.data_received(post(b"abc"))
    assert len(desk.requests) == 1
    assert b" 431 " in made.transport.written
    desk.limits = msgspec.structs.replace(Desk.limits, body_bytes=5)
    made = connection(desk)
    for body in (b"abc", b"abcdef"):
        made.data_received(post(body))
    assert b" 413 " in made.transport.written


@QUICK
@given(st.lists(st.sampled_from([
    ANSWER % (3, b"abc"), ANSWER % (0, b""), ANSWER % (12, b"a longer one"),
    b"HTTP/1.1 204 X\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER % (3, b"abc"), b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabc",
]), max_size=6), st.booleans())  # fmt: skip
def test_answers_mean_the_same_to_a_connection_that_remembers_no_heads(answers, halves):
    def told(made):
        listeners, wire = [], Wire()
        made.connection_made(wire)
        for answer in answers:
            if wire.closed:
                break
            listeners.append(Listener())
            made.request(b"", listeners[-1])
            for reading in cut(answer, [len(answer) // 2] if halves else []):
                if not wire.closed:
                    made.data_received(reading)
        return [(one.heads, one.ends, one.cuts, one.body) for one in listeners], wire.closed

    forgetful = UpstreamConnection(NoPool())
    forgetful._known = Forgetful()
    assert told(UpstreamConnection(NoPool())) == told(forgetful)


@pytest.mark.parametrize("before", [[], [ANSWER % (3, b"abc")]], ids=["the first", "a head that is known"])
@pytest.mark.parametrize("readings", [[ANSWER % (2, b"abc")], [ANSWER % (2, b"ab"), b"c"]], ids=["at once", "later"])
def test_a_connection_that_says_more_than_it_announced_is_closed_and_the_rest_goes_to_nobody(before, readings):
    wire, listener = Wire(), Listener()
    made = UpstreamConnection(NoPool())
    made.connection_made(wire)
    for answer in before:
        made.request(b"", Listener())
        made.data_received(answer)
    made.request(b"", listener)
    for reading in readings:
        made.data_received(reading)
    assert wire.closed
    assert b"c" not in listener.body


def test_a_connection_whose_heads_are_all_different_is_no_longer_learned_from():
    known, post_ = KnownHeads(), b"POST /%d HTTP/1.1\r\ncontent-length: 1\r\n\r\na"
    for number in range(VAIN_MAX + 1):
        known.learn(post_ % number, 1, number)
    assert not known.learn(post_ % 999, 1, 999)
    assert not KnownHeads().learn(post_.replace(b"%d", b"x" * HEAD_BYTES_MAX), 1, 0)
    assert len(known._forms) <= HEADS_MAX
