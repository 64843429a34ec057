"""A service that replicas depend on is slow or gone: they are told to do without it, and the answers say so."""

import asyncio

import pytest
from tests.serve.stand import Client, answer, gateway, run
from tests.serve.test_policies_in_the_path import header

from closeranks.serve.drill.cascade import Plan, play
from closeranks.serve.policies import BreakerSettings, Dependencies, DependencySettings, State, Timing, timings
from closeranks.serve.states import gauges

RERANK = "/v1/rerank"
STORE = """
[[dependency]]
name = "features"
breaker = { in_a_row = 3, open_s = 1.0, lease_s = 5.0 }
[[dependency]]
name = "clicks"
"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"features;dur=12.5", {"features": Timing(0.0125, failed=False)}),
        (
            b'a;dur=700;desc="failed", b; desc=hit; dur=1',
            {"a": Timing(0.7, failed=True), "b": Timing(0.001, failed=False)},
        ),
        (b'a;dur="3"', {"a": Timing(0.003, failed=False)}),
        (b"a, b;dur=-1, c;dur=nan, d;dur=1e9, ;dur=1, e;dur=99999999999", {}),
        (b"\xff;;;=,,", {}),
    ],
)
def test_what_a_replica_says_of_its_dependencies_is_read_or_left_out(said, expected):
    assert timings(said) == expected


def test_a_probe_whose_answer_says_nothing_of_the_dependency_does_not_wedge_its_breaker():
    subject = Dependencies(
        [DependencySettings(name="s", breaker=BreakerSettings(in_a_row=1, open_s=1.0, lease_s=60.0))]
    )
    subject.answered(0.0, subject.ask(0.0), b's;dur=5;desc="failed"')
    assert subject.ask(0.5).without == ("s",)
    probe = subject.ask(1.0)
    assert (probe.without, subject.ask(1.0).without) == ((), ("s",))
    subject.answered(1.1, probe, b"")
    again = subject.ask(1.1)
    assert again.without == ()
    subject.answered(1.2, again, b"s;dur=5")
    assert subject.by_name["s"].breaker.state is State.CLOSED


def test_replicas_are_told_to_do_without_what_has_failed_and_clients_that_it_was_so():
    async def script():
        timing, told = ['features;dur=750;desc="failed", clicks;dur=2'], []

        async def ranks(talk):
            told.append(header(talk, "x-closeranks-without"))
            talk.write(answer(200, b"{}", [f"server-timing: {timing[0]}"]))

        async with gateway(ranks, more=STORE) as (front, port, _):
            client = await Client.to(port)

            async def ask():
                client.post(RERANK, b'{"query":"?"}')
                return (await client.response())[1].get("x-closeranks-degraded")

            assert [await ask() for _ in range(5)] == [None] * 3 + ["without-features"] * 2
            assert told == [None] * 3 + ["features"] * 2
            shown = {(name, *label.values()): value for name, _, label, value in gauges(front)}
            assert shown["dependency_open", "features"] == 1.0
            assert shown["dependency_open", "clicks"] == 0.0
            assert shown["degraded_share",] == pytest.approx(0.4)
            timing[0] = "features;dur=3"
            while front.traffic.dependencies.by_name["features"].breaker.state is not State.CLOSED:
                await ask()
                await asyncio.sleep(0.01)
            assert await ask() is None

    run(script())


def test_a_request_that_nobody_answers_says_nothing_of_a_dependency():
    async def script():
        async def dies(talk):
            talk.cut()

        async with gateway(dies, dies, more=STORE) as (front, port, _):
            client = await Client.to(port)
            client.post(RERANK, b"{}")
            assert (await client.response())[0] in (502, 503)
            assert front.traffic.dependencies.by_name["features"].breaker.state is State.CLOSED
            assert front.traffic._lives == {}

    run(script())


def test_the_classic_cascade_ends_in_an_open_breaker_and_default_features():
    played = asyncio.run(play(Plan(usual_s=0.1, lost_s=1.0, after_s=0.1, per_s=60.0), guarded=True))
    assert played.opened and played.closed
    assert played.lost.error_rate == 0.0
