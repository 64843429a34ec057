import contextlib
import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.serve.asking import Asker, BadPriority
from closeranks.serve.http.head import Request
from closeranks.serve.policies import BadDeadline, Clock, Priority
from closeranks.serve.settings import parse

REPLICA = '[[replica]]\nname = "a"\nurl = "http://h:1"\n'
KEY = sha256(b"secret").hexdigest()
TENANTS = f"""
[[tenant]]
name = "gold"
premium = true
priority = "interactive"
keys_sha256 = ["{KEY}"]
[[tenant]]
name = "plain"
priority = "batch"
"""
CLOCK = Clock(now_s=100.0, epoch_s=1e9)
LONG = "x" * 600


def ask(headers=(), body=b"", method=b"POST", path=b"/v1/chat/completions", settings=TENANTS):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    pairs = [tuple(part.encode() for part in header.split(": ", 1)) for header in headers]
    request = Request(method=method, target=path, headers=pairs, body=data)
    return Asker(parse(settings + REPLICA, "x.toml")).ask(request, CLOCK, 1)


@pytest.mark.parametrize(
    ("headers", "tenant", "premium", "priority"),
    [
        ([], "", False, Priority.STANDARD),
        (["authorization: Bearer secret"], "gold", True, Priority.INTERACTIVE),
        (["authorization: bearer secret", "x-tenant: plain"], "gold", True, Priority.INTERACTIVE),
        (["authorization: Bearer wrong"], "", False, Priority.STANDARD),
        (["x-tenant: gold"], "?gold", False, Priority.STANDARD),  # a name proves nothing where there are keys
        (["x-tenant: plain"], "plain", False, Priority.BATCH),
        (["x-tenant: plain", "x-priority: interactive"], "plain", False, Priority.INTERACTIVE),
        (["x-tenant: nobody"], "?nobody", False, Priority.STANDARD),
    ],
)
def test_who_asks_and_how_urgently(headers, tenant, premium, priority):
    one = ask(headers)
    assert (one.tenant, one.premium, one.priority) == (tenant, premium, priority)


def test_a_session_is_a_header_a_cookie_or_the_beginning_of_a_long_conversation():
    first = [{"role": "system", "content": LONG}, {"role": "user", "content": "hello"}]
    later = [*first, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
    turns = [ask(body={"model": "m", "messages": messages}).session for messages in (first, later)]
    assert turns[0] == turns[1] != ""
    other = [{"role": "system", "content": LONG}, {"role": "user", "content": "another"}]
    assert ask(body={"model": "m", "messages": other}).session not in ("", turns[0])
    assert ask(body={"model": "m", "messages": [{"role": "user", "content": "short"}]}).session == ""
    assert ask(["x-session-id: 7"]).session == ask(["x-session-id: 7"], body={"messages": later}).session != ""
    by_cookie = '[routing]\nsession_cookie = "sid"\n'
    sessions = [ask([f"cookie: a=b; sid={sid}; c=d"], settings=by_cookie).session for sid in ("1", "1", "2")]
    assert sessions[0] == sessions[1] != sessions[2]


def test_sessions_of_two_tenants_never_have_one_name():
    assert ask(["x-session-id: 7"]).session != ask(["x-session-id: 7", "x-tenant: plain"]).session


@pytest.mark.parametrize(
    ("method", "path", "headers", "repeatable"),
    [
        (b"POST", b"/v1/chat/completions", [], True),
        (b"POST", b"/v1/embeddings", [], True),
        (b"GET", b"/v1/files", [], True),
        (b"POST", b"/v1/files", [], False),
        (b"POST", b"/v1/files?x=1", ["idempotency-key: k"], True),
        (b"PATCH", b"/v1/anything", [], False),
    ],
)
def test_what_may_be_done_twice(method, path, headers, repeatable):
    assert ask(headers, method=method, path=path).repeatable is repeatable


@pytest.mark.parametrize(
    ("body", "comparable"),
    [({"temperature": 0}, True), ({"seed": 3}, True), ({"temperature": 0.5}, False), ({}, False)],
)
def test_what_has_one_right_answer(body, comparable):
    assert ask(body=body).comparable is comparable


def test_what_is_read_of_a_body():
    one = ask(body={"model": "m", "stream": True})
    assert (one.model, one.stream, one.deadline_s) == ("m", True, 700.0)


@given(st.binary(max_size=200), st.binary(max_size=30))
def test_no_bytes_of_a_client_break_it(body, header):
    request = Request(
        method=b"POST",
        target=b"/v1/chat/completions",
        headers=[(b"x-tenant", header), (b"cookie", header), (b"authorization", b"Bearer " + header)],
        body=b"{" + body,
    )
    asker = Asker(parse(TENANTS + '[routing]\nsession_cookie = "s"\n' + REPLICA, "x.toml"))
    asker.ask(request, CLOCK, 1)
    for name, problem in ((b"x-request-deadline", BadDeadline), (b"x-priority", BadPriority)):
        with contextlib.suppress(problem):
            asker.ask(Request(method=b"GET", target=b"/", headers=[(name, header)]), CLOCK, 1)
