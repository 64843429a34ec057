"""Failures that other gateways are known for, each with the assertion that would have caught it, over real sockets."""

import asyncio
import itertools
import json

import pytest
from tests.serve.stand import Client, answer, fakes, gateway, run, settings_for
from tests.serve.test_failover import CHAT, ask, table
from tests.serve.test_policies_in_the_path import post

from closeranks.serve.drill.engines import WORDS, Engine, text_of
from closeranks.serve.policies import Grade, State
from closeranks.serve.probing import Prober
from closeranks.serve.states import gauges

PROBED = """
[health]
interval_s = 0.02
timeout_s = 0.6
fall = 2
rise = 1
busy_max = 1
[probe]
known_answer = true
expect = "five"
"""


async def good(talk):
    said = {"choices": [{"text": "five", "message": {"content": "hi"}}]}
    talk.write(answer(200, json.dumps(said).encode()))


async def refuses(talk):
    talk.write(answer(400, b"{}"))


async def breaks(talk):
    talk.write(answer(500, b"{}"))


async def hangs(talk):
    """What only lists, pings and versions answer."""
    if talk.head.startswith(b"GET"):
        talk.write(answer(200, b"{}"))
    else:
        await talk.gone()


def gauge(front, name):
    return sum(value for found, _, _, value in gauges(front) if found == name)


async def until(true):
    while not true():  # noqa: ASYNC110 - what timers and sockets bring about
        await asyncio.sleep(0.005)


def test_a_replica_that_takes_requests_and_says_nothing_leaves_no_request_in_flight():
    async def script():
        async with gateway(hangs) as (front, port, _):
            answers = await asyncio.gather(*(post(port, ["x-request-timeout-ms: 300"]) for _ in range(8)))
            assert [status for status, _, _ in answers] == [504] * 8
            assert (gauge(front, "in_flight"), gauge(front, "replica_outstanding")) == (0, 0)
            assert front.traffic.admission.in_flight == 0

    run(script())


def test_no_request_outlives_its_deadline_while_replicas_come_and_go():
    async def script():
        async with fakes(good, hangs, breaks, good) as replicas, gateway(hangs) as (front, port, _):
            loop = asyncio.get_running_loop()
            deadline_s, over_s = 0.3, []

            async def timed():
                began_s = loop.time()
                await post(port, [f"x-request-timeout-ms: {1000 * deadline_s:.0f}"])
                over_s.append(loop.time() - began_s - deadline_s)

            tasks = []
            for turn in range(8):
                front.reload(settings_for([replicas[turn % 4], replicas[(turn + 1) % 4]]))
                tasks += [asyncio.create_task(timed()) for _ in range(4)]
                await asyncio.sleep(0.02)
            await asyncio.gather(*tasks)
            assert len(over_s) == 32
            assert max(over_s) < 20.0  # a busy machine is late; a request that hangs ends with this test's own limit
            assert gauge(front, "in_flight") == 0

    run(script())


def test_what_answers_pings_but_generates_nothing_is_ejected_by_a_question_of_our_own():
    async def script():
        async with gateway(hangs, good, more=PROBED) as (front, port, (stuck, _)):
            prober = Prober(front)
            prober.start()
            judge = front.traffic.fleet.members["a"].judge
            await until(lambda: "known answer" in judge.standing(front.now_s()).reason)
            assert judge.grade(front.now_s()) is Grade.DOWN
            prober.close()
            before = sum(talk.head.startswith(b"POST /v1/chat") for talk in stuck.requests)
            for _ in range(6):
                assert (await post(port))[1]["x-closeranks-replica"] == "b"
            assert sum(talk.head.startswith(b"POST /v1/chat") for talk in stuck.requests) == before == 0

    run(script())


def test_a_probe_has_to_have_its_own_answer_whatever_else_the_replica_sends():
    async def script():
        async def only_chats(talk):  # the probe asks for a completion
            if talk.head.startswith(b"POST /v1/completions"):
                await talk.gone()
            else:
                await good(talk)

        async with gateway(only_chats, more=PROBED) as (front, port, _):
            prober = Prober(front)
            prober.start()
            judge = front.traffic.fleet.members["a"].judge
            while judge.grade(front.now_s()) is not Grade.DOWN:
                assert (await post(port))[0] == 200  # traffic flows all the time
            prober.close()

    run(script())


def test_a_replica_whose_users_wait_in_vain_is_left_although_it_answers_pings():
    async def script():
        more = "[timeouts]\nfirst_byte_s = 1.0\n"
        async with gateway(hangs, good, more=more) as (front, port, (stuck, _)):
            answers = [await post(port) for _ in range(6)]
            assert {(status, headers["x-closeranks-replica"]) for status, headers, _ in answers} == {(200, "b")}
            assert len(stuck.requests) <= 2
            assert front.traffic.fleet.members["a"].judge.grade(front.now_s()) is not Grade.UP

    run(script())


def test_a_flood_of_bad_requests_opens_no_breaker():
    async def script():
        async with gateway(refuses) as (front, port, (replica,)):
            client = await Client.to(port)
            for _ in range(40):
                client.post("/v1/chat/completions", b"{}")
                assert (await client.response())[0] == 400
            member = front.traffic.fleet.members["a"]
            assert (member.breaker.state, member.judge.grade(front.now_s())) == (State.CLOSED, Grade.UP)
            assert len(replica.requests) == 40  # and none was repeated

    run(script())


def test_an_open_breaker_lets_nobody_through_and_one_probe_closes_it():
    async def script():
        state = [breaks]

        async def changes(talk):
            await state[0](talk)

        async with gateway(changes, good, more="[breaker]\nin_a_row = 1\nopen_s = 0.15\n") as (front, port, (first, _)):
            breaker = front.traffic.fleet.members["a"].breaker
            while breaker.state is State.CLOSED:
                assert (await post(port))[0] == 200
            asked, opened_s = len(first.requests), breaker.opened_s
            while front.now_s() < opened_s + 0.1:
                assert (await post(port))[1]["x-closeranks-replica"] == "b"
            if breaker.opened_s == opened_s and breaker.state is State.OPEN:  # else this machine has slept
                assert len(first.requests) == asked
            state[0] = good
            while breaker.state is not State.CLOSED:
                assert (await post(port))[0] == 200

    run(script())


def test_a_probe_that_never_ends_wedges_no_breaker():
    async def script():
        state = [breaks]

        async def changes(talk):
            await state[0](talk)

        more = "[breaker]\nin_a_row = 1\nopen_s = 0.05\nlease_s = 0.1\n"
        async with gateway(changes, more=more) as (front, port, _):
            breaker = front.traffic.fleet.members["a"].breaker
            await post(port, ["x-request-timeout-ms: 300"])
            state[0] = hangs
            waiting = asyncio.create_task(post(port, ["x-request-timeout-ms: 20000"]))
            await until(lambda: breaker.state is State.HALF_OPEN or waiting.done())
            state[0] = good
            while breaker.state is not State.CLOSED:
                await post(port)
                await asyncio.sleep(0.01)
            waiting.cancel()

    run(script())


def test_when_every_replica_has_failed_the_client_is_told_when_to_come_back():
    async def script():
        async with gateway(breaks, breaks) as (front, port, _):
            for member in front.traffic.fleet.members.values():
                member.breaker.trip(front.now_s(), "it failed")
            status, headers, _ = await post(port)
            assert status in (429, 503)
            assert int(headers["retry-after"]) >= 1

    run(script())


@pytest.mark.parametrize("gone", ["dead", "full"])
def test_a_session_whose_replica_is_dead_or_full_is_answered_by_another(gone):
    async def script():
        async def full(talk):
            talk.write(answer(503, b"{}", ["retry-after: 60"]))

        async with gateway(good, good, good) as (_, port, replicas):
            name = (await post(port, ["x-session-id: s"]))[1]["x-closeranks-replica"]
            home = replicas["abc".index(name)]
            if gone == "dead":
                await home.stop()
            else:
                home.script = full
            answers = [await post(port, ["x-session-id: s"]) for _ in range(5)]
            assert {status for status, _, _ in answers} == {200}
            moved = {headers["x-closeranks-replica"] for _, headers, _ in answers}
            assert len(moved) == 1 and name not in moved

    run(script())


def test_hundreds_of_failures_at_once_are_repeated_within_the_budget():
    async def script():
        count, together, statuses = 120, asyncio.Event(), []

        def look():
            if sum(len(replica.requests) for replica in replicas) + len(statuses) >= count:
                together.set()

        async def breaks_together(talk):
            look()
            await together.wait()
            talk.write(answer(500, b"{}"))

        async def ask_once(port):
            status, _, _ = await post(port)
            statuses.append(status)
            look()  # it may have been turned away

        more = "[limiter]\nstart = 1.0\n[budget]\nbackoff_s = 0.1\nfloor_per_s = 0.5\n"
        async with gateway(breaks_together, breaks_together, more=more, replica="capacity = 200\n") as (
            front,
            port,
            replicas,
        ):
            await asyncio.gather(*(ask_once(port) for _ in range(count)))
            assert set(statuses) <= {500, 502, 503}
            asked = sum(len(replica.requests) for replica in replicas)
            budget = front.settings.budget
            assert asked - count <= budget.floor_per_s * budget.window_s + budget.share * count

    run(script())


def test_token_ids_that_are_not_complete_are_not_used_to_go_on():
    class Forgets(Engine):
        """Some chunks have text without the ids of its tokens, as where a parser held them back."""

        def sse_of(self, chunk):
            return chunk.replace(b'"token_ids": [4]', b'"token_ids": []')

        async def __call__(self, talk):
            write = talk.chunk
            talk.chunk = lambda data: write(self.sse_of(data))
            await super().__call__(talk)

    async def script():
        dying, other = Forgets("vllm", breaks="cut", after=9), Engine("vllm")
        async with gateway(dying, other, replica=table("vllm")) as (_, port, _):
            _, _, events = await ask(port, CHAT)
        assert text_of(events) == "".join(WORDS)
        (path, body), *_ = other.asked
        assert path == "/v1/chat/completions"  # from the text: what is known of the tokens is not the whole
        assert body["messages"][-1] == {"role": "assistant", "content": "".join(WORDS[:9])}

    run(script())


def test_a_primary_that_works_every_other_time_is_stepped_down_from_and_probed_back_to():
    async def script():
        turn = [0]

        async def flaps(talk):
            turn[0] += 1
            await (breaks if turn[0] % 2 and turn[0] < 8 else good)(talk)

        ladder = """
[budget]
tries = 1
[ladder]
error_rate = 0.2
passes = 2
timing = { worse_s = 1.0, better_s = 2.0, dwell_s = 1.0 }
[[ladder.level]]
name = "fixed"
kind = "static"
answer = "later"
"""
        async with gateway(flaps, more=ladder + "[breaker]\nin_a_row = 9\nshare = 1.0\n") as (front, port, _):
            clock = [front.now_s()]
            front.now_s = lambda: clock[0]
            levels = []
            for _ in range(60):
                await post(port)
                clock[0] += 0.5
                front.traffic.tick(clock[0])
                levels.append(front.traffic.ladder.level)
            assert levels[0] == 0 and 1 in levels
            assert levels[-1] == 0  # the way back was probed
            assert sum(a != b for a, b in itertools.pairwise(levels)) <= 6  # it does not swing along

    run(script())
