"""A request whose answer does not begin is asked of a second replica, too; the first good head decides."""

import asyncio
import json
from random import Random

import pytest
from tests.serve.stand import Client, answer, gateway, run

from closeranks.serve.drill.engines import WORDS, Engine, events_of, text_of
from closeranks.serve.policies import Alike, Ask, Kind, Outcome
from closeranks.serve.settings import parse
from closeranks.serve.traffic import Traffic

CHAT = "/v1/chat/completions"
ON = "[hedging]\nenabled = true\nleast_s = 0.02\nenough = 1\n"
QUESTION = {"messages": [{"role": "user", "content": "?"}], "temperature": 0}
STREAM = {**QUESTION, "stream": True}


async def hello(talk):
    talk.write(answer(200, b"hello"))


def learn(front, body):
    """Answers to such requests usually begin at once."""
    front.traffic.hedging.heard(front.now_s(), Alike("", "", stream=body is STREAM), 0.001)


class Sleeper:
    """A replica that says nothing until ``wake``; ``left`` is set when its request is cancelled."""

    def __init__(self, then=hello):
        self.then, self.wake, self.left = then, asyncio.Event(), asyncio.Event()

    async def __call__(self, talk):
        gone, wake = asyncio.create_task(talk.gone()), asyncio.create_task(self.wake.wait())
        await asyncio.wait([gone, wake], return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.left.set()
            wake.cancel()
            raise ConnectionResetError
        gone.cancel()
        await asyncio.wait([gone])
        await self.then(talk)


class Stories:
    """What is told of the requests."""

    def __init__(self, front):
        self.told = asyncio.Queue()
        front.observers = (self,)

    def ended(self, story):
        self.told.put_nowait(story)

    def close(self):
        pass

    async def visits(self):
        """Of the next request: replica, kind and outcome of each attempt."""
        story = await self.told.get()
        return [(visit.replica, visit.kind, visit.outcome) for visit in story.visits]


def ended(front):
    """Is set when an attempt has ended."""
    event, tell = asyncio.Event(), front.traffic.ended

    def told(*what):
        tell(*what)
        event.set()

    front.traffic.ended = told
    return event


async def ask(port, body=QUESTION, path=CHAT):
    client = await Client.to(port)
    client.post(path, json.dumps(body).encode())
    return await client.response()


def test_a_replica_that_does_not_begin_loses_to_the_hedge_and_is_cancelled():
    async def script():
        slow = Sleeper()
        async with gateway(slow, hello, more=ON) as (front, port, _):
            stories = Stories(front)
            learn(front, QUESTION)
            status, headers, body = await ask(port)
            assert (status, headers["x-closeranks-replica"], body) == (200, "b", b"hello")
            await slow.left.wait()
            assert await stories.visits() == [("a", Kind.FIRST, Outcome.GONE), ("b", Kind.HEDGE, Outcome.OK)]
            assert front.traffic.fleet.members["a"].judge.spotless
            assert [member.load.outstanding for member in front.traffic.fleet.members.values()] == [0, 0]

    run(script())


def test_the_hedge_that_loses_is_cancelled():
    async def script():
        first, second = Sleeper(), Sleeper()
        async with gateway(first, second, more=ON) as (front, port, (_, b)):
            stories = Stories(front)
            learn(front, QUESTION)
            asking = asyncio.create_task(ask(port))
            await b.asked.wait()
            first.wake.set()
            status, headers, _ = await asking
            assert (status, headers["x-closeranks-replica"]) == (200, "a")
            await second.left.wait()
            assert await stories.visits() == [("a", Kind.FIRST, Outcome.OK), ("b", Kind.HEDGE, Outcome.GONE)]

    run(script())


async def die(talk):
    talk.cut()


async def broken(talk):
    talk.write(answer(500, b"no"))


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("failure", [die, broken])
def test_if_one_of_the_two_fails_the_other_goes_on_and_no_retry_is_spent(failing, failure):
    async def script():
        sides = [Sleeper(), Sleeper()]
        sides[failing].then = failure
        async with gateway(*sides, more=ON) as (front, port, replicas):
            stories, over = Stories(front), ended(front)
            learn(front, QUESTION)
            asking = asyncio.create_task(ask(port))
            await replicas[1].asked.wait()
            sides[failing].wake.set()
            await over.wait()
            sides[1 - failing].wake.set()
            assert (await asking)[0] == 200
            outcomes = [Outcome.OK, Outcome.OK]
            outcomes[failing] = Outcome.BROKEN
            assert await stories.visits() == [("a", Kind.FIRST, outcomes[0]), ("b", Kind.HEDGE, outcomes[1])]
            assert [len(replica.requests) for replica in replicas] == [1, 1]

    run(script())


def test_a_first_replica_that_stays_silent_is_given_up_and_the_hedge_goes_on():
    async def script():
        first, second = Sleeper(), Sleeper()
        async with gateway(first, second, more=f"{ON}[timeouts]\nfirst_byte_s = 0.4\n") as (front, port, _):
            stories, over = Stories(front), ended(front)
            learn(front, QUESTION)
            asking = asyncio.create_task(ask(port))
            await over.wait()
            await first.left.wait()
            second.wake.set()
            assert (await asking)[0] == 200
            assert await stories.visits() == [("a", Kind.FIRST, Outcome.SLOW), ("b", Kind.HEDGE, Outcome.OK)]

    run(script())


@pytest.mark.parametrize("ejected", [0, 1])
def test_a_side_whose_replica_is_ejected_leaves_the_answer_to_the_other(ejected):
    async def script():
        sides = [Sleeper(), Sleeper()]
        async with gateway(*sides, more=ON) as (front, port, (_, b)):
            learn(front, QUESTION)
            asking = asyncio.create_task(ask(port))
            await b.asked.wait()
            front.order("ab"[ejected], "eject")
            await sides[ejected].left.wait()
            sides[1 - ejected].wake.set()
            assert (await asking)[1]["x-closeranks-replica"] == "ab"[1 - ejected]

    run(script())


def test_if_both_fail_it_is_retried_as_ever():
    async def script():
        sides = [Sleeper(die), Sleeper(die)]
        async with gateway(*sides, hello, more=ON) as (front, port, (_, b, _)):
            stories = Stories(front)
            learn(front, QUESTION)
            asking = asyncio.create_task(ask(port))
            await b.asked.wait()
            for side in sides:
                side.wake.set()
            assert (await asking)[1]["x-closeranks-replica"] == "c"
            kinds = [kind for _, kind, _ in await stories.visits()]
            assert kinds == [Kind.FIRST, Kind.HEDGE, Kind.RETRY]

    run(script())


@pytest.mark.parametrize("winner", [0, 1])
def test_a_stream_is_whole_whoever_wins(winner):
    async def script():
        sides = [Sleeper(Engine()), Sleeper(Engine())]
        async with gateway(*sides, more=ON) as (front, port, replicas):
            learn(front, STREAM)
            asking = asyncio.create_task(ask(port, STREAM))
            await replicas[1].asked.wait()
            sides[winner].wake.set()
            status, headers, raw = await asking
            assert (status, headers["x-closeranks-replica"]) == (200, "ab"[winner])
            events = events_of(raw)
            assert text_of(events) == "".join(WORDS)
            assert events.count("[DONE]") == 1
            await sides[1 - winner].left.wait()

    run(script())


def test_a_stream_that_breaks_after_the_hedge_has_won_is_resumed():
    async def script():
        slow = Sleeper()
        async with gateway(slow, Engine(breaks="cut", after=5), Engine(), more=ON) as (front, port, _):
            stories = Stories(front)
            learn(front, STREAM)
            _, _, raw = await ask(port, STREAM)
            assert text_of(events_of(raw)) == "".join(WORDS)
            assert [kind for _, kind, _ in await stories.visits()] == [Kind.FIRST, Kind.HEDGE, Kind.RESUME]

    run(script())


def test_a_client_that_leaves_takes_both_along():
    async def script():
        sides = [Sleeper(), Sleeper()]
        async with gateway(*sides, more=ON) as (front, port, (_, b)):
            stories = Stories(front)
            learn(front, QUESTION)
            client = await Client.to(port)
            client.post(CHAT, json.dumps(QUESTION).encode())
            await b.asked.wait()
            client.close()
            for side in sides:
                await side.left.wait()
            assert [outcome for _, _, outcome in await stories.visits()] == [Outcome.GONE] * 2

    run(script())


async def asked_twice(more, path, apart):
    """Whether a request is hedged whose deadline comes long after its hedge would have been due."""
    slow, other = Sleeper(), Sleeper()
    async with gateway(slow, other, more=f"{more}[timeouts]\nrequest_s = 0.3\n") as (front, port, _):
        for name in apart:
            front.traffic.fleet.take_out(name, "for this test")
        stories = Stories(front)
        learn(front, QUESTION)
        assert (await ask(port, QUESTION, path))[0] == 504
        return len(await stories.visits()) == 2


NO_BUDGET = "[budget]\nshare = 0.0\nfloor_per_s = 0.0\n"


@pytest.mark.parametrize(
    ("more", "path", "apart", "hedged"),
    [
        pytest.param(ON, CHAT, (), True, id="all is well"),
        pytest.param("", CHAT, (), False, id="by default"),
        pytest.param(ON + NO_BUDGET, CHAT, (), False, id="without budget"),
        pytest.param(ON, "/v1/files", (), False, id="not to be repeated"),
        pytest.param(ON, CHAT, "b", False, id="the other is out"),
    ],
)
def test_a_hedge_is_made_only_where_it_may_be(more, path, apart, hedged):
    assert run(asked_twice(more, path, apart)) is hedged


@pytest.mark.parametrize(("engine", "tier", "second"), [("vllm", "", "b"), ("openai", "", ""), ("vllm", "small", "")])
def test_a_hedge_goes_to_the_same_engine_and_tier_once_a_request(engine, tier, second):
    text = """
[[replica]]
name = "a"
url = "http://127.0.0.1:1"
engine = "vllm"
[[replica]]
name = "b"
url = "http://127.0.0.1:2"
"""
    traffic = Traffic(parse(f'{ON}{text}engine = "{engine}"\ntier = "{tier}"\n', "test.toml"), Random(1))
    traffic.hedging.heard(1.0, Alike("", "", stream=False), 0.001)
    request = Ask(number=1, arrived_s=1.0)
    assert traffic.hedge_after_s(1.0, request) == 0.02
    assert traffic.hedge(1.0, request, "a", frozenset({"a"})) == second
    assert (traffic.hedge_after_s(1.0, request) is None) is bool(second)


def test_a_hedge_draws_on_the_budget_until_it_has_ended():
    async def script():
        sides = [Sleeper(), Sleeper()]
        async with gateway(*sides, more=f"{ON}[budget]\nwindow_s = 1e-6\nfloor_per_s = 1e6\n") as (front, port, (_, b)):
            learn(front, QUESTION)
            budget = front.traffic.budget
            asking = asyncio.create_task(ask(port))
            await b.asked.wait()
            assert budget.spent(front.now_s()) == 1
            sides[1].wake.set()
            await asking
            assert budget.spent(front.now_s()) == 0

    run(script())
