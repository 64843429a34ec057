"""What the policies decide, seen by a client and by the replicas over real sockets."""

import asyncio
import json

import pytest
from tests.serve.engines import events_of, text_of
from tests.serve.stand import Client, answer, gateway, run

from closeranks.serve.policies import Outcome

CHAT = "/v1/chat/completions"
QUESTION = {"model": "large", "messages": [{"role": "user", "content": "?"}], "tools": [{"type": "function"}]}


async def hello(talk):
    said = {"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]}
    talk.write(answer(200, json.dumps(said).encode(), ["content-type: application/json"]))


async def die(talk):
    talk.cut()


async def busy(talk):
    talk.write(answer(503, b"later", ["retry-after: 60"]))


async def post(port, headers=(), body=QUESTION, path=CHAT):
    client = await Client.to(port)
    client.post(path, json.dumps(body).encode(), headers)
    return await client.response()


def header(talk, name):
    lines = talk.head.decode().split("\r\n")
    return next((line.split(": ", 1)[1] for line in lines if line.startswith(f"{name}: ")), None)


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        ("x-request-timeout-ms: soon", 400, b"expected whole milliseconds"),
        ("x-priority: urgent", 400, b"expected interactive, standard or batch"),
        ("x-request-deadline: 1000", 504, b"its deadline had passed"),
    ],
)
def test_what_cannot_be_understood_or_met_is_refused_before_anybody_is_asked(sent, status, said):
    async def script():
        async with gateway(hello) as (_, port, (replica,)):
            got, _, body = await post(port, [sent])
            assert (got, said in body) == (status, True)
            assert replica.requests == []

    run(script())


def test_what_is_left_of_the_deadline_is_passed_on_and_all_attempts_have_one_key():
    async def script():
        async with gateway(die, hello) as (_, port, (first, second)):
            assert (await post(port, ["x-request-timeout-ms: 20000"]))[0] == 200
            asked = [first.requests[0], second.requests[0]]
            left_ms = [int(header(talk, "x-request-timeout-ms")) for talk in asked]
            assert 0 < left_ms[1] <= left_ms[0] <= 20000
            keys = {header(talk, "idempotency-key") for talk in asked}
            assert len(keys) == 1 and None not in keys

    run(script())


def test_work_that_must_not_be_done_twice_is_not_repeated_without_a_key():
    async def script():
        async with gateway(die, hello) as (_, port, (first, second)):
            status, _, body = await post(port, path="/v1/files")
            assert status == 502 and b"repeating it could do harm" in body
            assert (len(first.requests), len(second.requests)) == (1, 0)
        async with gateway(die, hello) as (_, port, _):
            assert (await post(port, ["idempotency-key: k"], path="/v1/files"))[0] == 200

    run(script())


def test_a_replica_that_asks_for_a_long_pause_is_believed():
    async def script():
        async with gateway(busy) as (_, port, (replica,)):
            status, headers, _ = await post(port)
            assert (status, headers["retry-after"], len(replica.requests)) == (503, "60", 1)

    run(script())


def test_a_tenant_that_has_used_its_quota_is_told_when_to_come_back():
    async def script():
        async with gateway(hello, more='[[tenant]]\nname = "t"\nper_s = 0.1\nburst = 1.0\n') as (_, port, _):
            assert (await post(port, ["x-tenant: t"]))[0] == 200
            status, headers, _ = await post(port, ["x-tenant: t"])
            assert status == 429
            assert 1 <= int(headers["retry-after"]) <= 10
            assert (await post(port, ["x-tenant: u"]))[0] == 200

    run(script())


def test_a_session_keeps_its_replica():
    async def script():
        async with gateway(hello, hello, hello) as (_, port, _):
            answers = [await post(port, ["x-session-id: s7"]) for _ in range(6)]
            assert len({headers["x-closeranks-replica"] for _, headers, _ in answers}) == 1

    run(script())


LADDER = """
[[ladder.level]]
name = "short"
model = "small"
drop_tools = true
max_tokens = 9
[[ladder.level]]
name = "remembered"
kind = "cached"
[[ladder.level]]
name = "fixed"
kind = "static"
answer = "come back later"
"""


def test_each_level_of_the_ladder_says_so_and_asks_for_less():
    async def script():
        async with gateway(hello, more=LADDER) as (front, port, (replica,)):
            _, headers, full = await post(port)
            assert "x-closeranks-degraded" not in headers
            front.traffic.force_level(0.0, 1)
            status, headers, _ = await post(port)
            assert (status, headers["x-closeranks-degraded"]) == (200, "short")
            assert json.loads(replica.requests[1].body) == {
                "model": "small",
                "messages": QUESTION["messages"],
                "max_tokens": 9,
            }
            front.traffic.force_level(0.0, 2)
            status, headers, body = await post(port)
            assert (status, headers["x-closeranks-degraded"], json.loads(body)) == (200, "remembered", json.loads(full))
            assert "age" in headers
            other = {**QUESTION, "model": "other"}
            status, headers, body = await post(port, body=other)
            assert headers["x-closeranks-degraded"] == "fixed"
            assert json.loads(body)["choices"][0]["message"]["content"] == "come back later"
            status, headers, body = await post(port, body={**other, "stream": True})
            assert headers["content-type"] == "text/event-stream"
            assert text_of(events_of(body)) == "come back later"
            assert len(replica.requests) == 2
            assert front.traffic.ladder.degraded_share(front.now_s()) == 0.8

    run(script())


def test_without_a_replica_the_ladder_answers_and_with_one_again_it_does_not():
    async def script():
        async with gateway(hello, more=LADDER) as (front, port, _):
            for _ in range(5):
                fleet = front.traffic.fleet
                fleet.end(front.now_s(), "a", fleet.begin(front.now_s(), "a"), Outcome.BROKEN)
            assert (await post(port))[1]["x-closeranks-degraded"] == "fixed"
            front.traffic.fleet.readmit("a")
            assert "x-closeranks-degraded" not in (await post(port))[1]

    run(script())


def test_requests_beyond_the_limit_wait_for_their_turn_and_the_urgent_ones_go_first():
    async def script():
        go, order = asyncio.Event(), []

        async def one_at_a_time(talk):
            order.append(header(talk, "x-name"))
            await go.wait()
            await hello(talk)

        limits = "[limiter]\nstart = 1.0\nmost = 1.0\n"
        async with gateway(one_at_a_time, more=limits, replica="capacity = 1\n") as (front, port, (replica,)):
            queued, wait = asyncio.Queue(), front.wait
            front.wait = lambda exchange: (wait(exchange), queued.put_nowait(exchange))
            tasks = [asyncio.create_task(post(port, ["x-name: first"]))]
            await replica.asked.wait()
            for priority in ("batch", "standard", "interactive"):
                tasks.append(asyncio.create_task(post(port, [f"x-name: {priority}", f"x-priority: {priority}"])))
                await queued.get()
            go.set()
            assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200] * 4
            assert order == ["first", "interactive", "standard", "batch"]

    run(script())
