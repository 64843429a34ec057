"""Some requests are executed twice; replicas vote, and the odd one is quarantined."""

import asyncio
import json

import pytest
from tests.serve.stand import answer, gateway, run
from tests.serve.test_policies_in_the_path import LADDER, post

from closeranks.serve.exercise import Exerciser

QUESTION = {"messages": [{"role": "user", "content": "?"}], "temperature": 0}
ALWAYS = "[redundancy]\nshare = 1.0\n"


def says(text):
    async def script(talk):
        choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]
        talk.write(answer(200, json.dumps({"object": "chat.completion", "choices": choices}).encode()))

    return script


async def broken(talk):
    talk.write(answer(500, b"no"))


def text(body):
    return json.loads(body)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("wrong", [0, 1])
def test_two_replicas_outvote_the_one_that_answers_otherwise_and_it_is_quarantined(wrong):
    async def script():
        scripts = [says("right")] * 3
        scripts[wrong] = says("wrong")
        async with gateway(*scripts, more=ALWAYS) as (front, port, _):
            status, _, body = await post(port, body=QUESTION)
            assert (status, text(body)) == (200, "right")
            name = "abc"[wrong]
            assert name in front.traffic.quarantine
            assert "differs" in front.traffic.fleet.members[name].out
            answers = [await post(port, body=QUESTION) for _ in range(3)]
            assert name not in {headers["x-closeranks-replica"] for _, headers, _ in answers}

    run(script())


def test_without_a_majority_the_safe_answer_is_served_or_the_request_fails():
    async def script():
        async with gateway(says("x"), says("y"), more=ALWAYS) as (_, port, _):
            status, _, body = await post(port, body=QUESTION)
            assert status == 502 and b"no two of them agree" in body
        safe = ALWAYS + 'safe_answer = "please ask a person"\n'
        async with gateway(says("x"), says("y"), says("z"), more=safe) as (front, port, _):
            status, headers, body = await post(port, body=QUESTION)
            assert (status, text(body)) == (200, "please ask a person")
            assert headers["x-closeranks-degraded"] == "safe-answer"
            assert front.traffic.quarantine.reasons == {}

    run(script())


def test_equal_answers_and_comparisons_that_could_not_be_made_change_nothing():
    async def script():
        for other in (says("x"), broken):
            async with gateway(says("x"), other, more=ALWAYS) as (front, port, (first, second)):
                status, headers, body = await post(port, body=QUESTION)
                assert (status, text(body), headers["x-closeranks-replica"]) == (200, "x", "a")
                assert (len(first.requests), len(second.requests)) == (1, 1)
                assert front.traffic.quarantine.reasons == {}

    run(script())


def test_what_has_no_one_right_answer_is_not_compared():
    async def script():
        async with gateway(says("x"), says("y"), more=ALWAYS) as (_, port, (_, second)):
            assert (await post(port, body={**QUESTION, "temperature": 1}))[0] == 200
            assert second.requests == []

    run(script())


def test_levels_are_exercised_and_verified_without_a_client():
    async def script():
        async with gateway(says("x"), more=LADDER) as (front, _, (replica,)):
            exerciser = Exerciser(front)
            assert not any(state.verified for state in front.traffic.ladder.levels)
            for _ in range(3):
                exerciser.tick()
                await asyncio.gather(*exerciser._running.values())
                await asyncio.sleep(0)  # the callbacks of the tasks
            verified = [state.verified for state in front.traffic.ladder.levels]
            assert verified == [False, True, False, True]  # nothing is remembered yet
            assert json.loads(replica.requests[0].body)["model"] == "small"
            exerciser.close()

    run(script())
