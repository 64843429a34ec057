"""Streams whose replica dies in the middle: the client reads the undisturbed text, once."""

import asyncio
import json

import pytest
from tests.serve.stand import Client, gateway, run

from closeranks.serve.drill.engines import PROMPT_TOKENS, WORDS, Break, Engine, events_of, text_of

CHAT = {"messages": [{"role": "user", "content": "?"}], "stream": True, "temperature": 0}
QUICK = "[stall]\nunlearned_s = 0.3\nfloor_s = 0.2\n"


def table(engine, *, invariant=True):
    return f'engine = "{engine}"\ninvariant = {str(invariant).lower()}\n'


async def ask(port, body, path="/v1/chat/completions"):
    client = await Client.to(port)
    client.post(path, json.dumps(body).encode(), ["content-type: application/json"])
    status, headers, raw = await client.response()
    return status, headers, events_of(raw)


@pytest.mark.parametrize("breaks", list(Break))
@pytest.mark.parametrize("engine", ["openai", "llama.cpp", "vllm", "sglang"])
def test_a_chat_goes_on_elsewhere_to_the_same_text(engine, breaks):
    async def script():
        dying, other = Engine(engine, breaks=breaks, after=9), Engine(engine)
        async with gateway(dying, other, more=QUICK if breaks == "silence" else "", replica=table(engine)) as (
            _,
            port,
            _,
        ):
            body = {**CHAT, "stream_options": {"include_usage": True}}
            status, _, events = await ask(port, body)
        assert status == 200
        assert text_of(events) == "".join(WORDS)
        chunks = [event for event in events if isinstance(event, dict)]
        assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks}) == 1
        assert sum("role" in c["delta"] for chunk in chunks for c in chunk["choices"]) == 1
        finishes = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        assert finishes == ["stop"]
        usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        whole = PROMPT_TOKENS + len(WORDS)
        assert usages == [{"prompt_tokens": PROMPT_TOKENS, "completion_tokens": len(WORDS), "total_tokens": whole}]
        assert events.count("[DONE]") == 1
        assert events[-1] == "[DONE]"

    run(script())


@pytest.mark.parametrize(
    ("engine", "invariant", "said"),
    [
        ("llama.cpp", True, "invariant-replay"),
        ("llama.cpp", False, "best-effort"),
        ("sglang", True, "best-effort"),
        ("openai", True, "verified-regeneration"),
    ],
)
def test_the_response_says_how_exact_a_continuation_would_be(engine, invariant, said):
    async def script():
        async with gateway(Engine(engine), replica=table(engine, invariant=invariant)) as (_, port, _):
            _, headers, events = await ask(port, CHAT)
        assert headers["x-closeranks-resume"] == said
        assert text_of(events) == "".join(WORDS)

    run(script())


def test_what_only_the_gateway_asked_for_is_not_shown():
    async def script():
        engine = Engine("llama.cpp")
        async with gateway(engine, replica=table("llama.cpp")) as (_, port, _):
            _, _, events = await ask(port, CHAT)
        assert engine.asked[0][1]["logprobs"] is True
        assert not any("logprobs" in c for chunk in events[:-1] for c in chunk["choices"])

    run(script())


def test_a_second_death_during_the_continuation_costs_nothing_either():
    async def script():
        engines = [Engine("llama.cpp", breaks="cut", after=4), Engine("llama.cpp", breaks="cut", after=3)]
        async with gateway(*engines, Engine("llama.cpp"), replica=table("llama.cpp")) as (_, port, _):
            _, _, events = await ask(port, CHAT)
        assert text_of(events) == "".join(WORDS)

    run(script())


def test_a_limit_of_tokens_holds_for_both_parts_together():
    async def script():
        dying, other = Engine("llama.cpp", breaks="cut", after=3), Engine("llama.cpp")
        async with gateway(dying, other, replica=table("llama.cpp")) as (_, port, _):
            _, _, events = await ask(port, {**CHAT, "max_tokens": 5})
        assert text_of(events) == "".join(WORDS[:5])
        assert events[-2]["choices"][0]["finish_reason"] == "length"

    run(script())


def test_text_completions_go_on_from_their_text():
    async def script():
        dying, other = Engine(breaks="cut", after=6), Engine()
        async with gateway(dying, other) as (_, port, _):
            body = {"prompt": "<p>", "stream": True, "temperature": 0}
            _, _, events = await ask(port, body, "/v1/completions")
        assert text_of(events) == "".join(WORDS)

    run(script())


def test_another_answer_than_the_one_that_was_begun_is_never_joined_to_it():
    async def script():
        dying, other = Engine(breaks="cut", after=6, always=True), Engine(words=("No", ".", "\n"))
        async with gateway(dying, other) as (_, port, _):
            _, _, events = await ask(port, CHAT)
        assert text_of(events) == "".join(WORDS[:6])
        assert "differs from what the client has seen" in events[-1]["error"]["message"]

    run(script())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"n": 2, "temperature": 1}, "streams.choices"),
        ({"response_format": {"type": "json_object"}, "temperature": 1}, "streams.guided"),
    ],
)
def test_what_cannot_be_resumed_exactly_fails_clearly_unless_it_is_allowed(body, reason):
    async def script():
        async with gateway(Engine(breaks="cut", after=6), Engine()) as (_, port, _):
            _, _, events = await ask(port, {**CHAT, **body})
        assert reason in events[-1]["error"]["message"]

    run(script())


def test_a_stream_that_was_cut_after_its_last_token_only_gets_its_end_mark():
    async def script():
        async def nearly(talk):
            engine = Engine(words=("a", "b"))
            talk.end = talk.cut
            await engine(talk)

        other = Engine()
        async with gateway(nearly, other) as (_, port, _):
            _, _, events = await ask(port, CHAT)
        assert text_of(events) == "ab"
        assert events[-1] == "[DONE]"
        assert other.asked == []

    run(script())


def test_a_stream_that_is_slow_but_even_is_left_alone():
    async def script():
        # Its gaps are twice the least silence that counts; 4 s are allowed, and a machine may stop for one.
        slow, other = Engine(gap_s=0.1), Engine()
        async with gateway(slow, other, more="[stall]\nfloor_s = 0.05\nfactor = 40.0\n") as (_, port, _):
            _, _, events = await ask(port, CHAT)
        assert text_of(events) == "".join(WORDS)
        assert other.asked == []

    run(script())


def test_many_streams_lose_a_replica_at_once_and_nothing_else():
    async def script():
        engines = [Engine("llama.cpp", gap_s=0.005), Engine("llama.cpp", gap_s=0.005)]
        async with gateway(*engines, replica=table("llama.cpp")) as (_, port, (first, _)):
            streams = [asyncio.create_task(ask(port, CHAT)) for _ in range(24)]
            await asyncio.sleep(0.03)
            await first.stop()
            answers = await asyncio.gather(*streams)
        assert [text_of(events) for _, _, events in answers] == ["".join(WORDS)] * 24

    run(script())
