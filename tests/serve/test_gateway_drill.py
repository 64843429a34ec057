"""An operator breaks what his gateway depends on, for a bounded time, if the file allows it, and sees what follows."""

import asyncio
import json
import signal
import sys

import pytest
from tests.serve.stand import Client, answer, gateway, run
from tests.serve.test_operation import administered, call
from tests.serve.test_policies_in_the_path import header

from closeranks.cli.drill_gateway import Seen, Wish, order_of, told, verdict_of
from closeranks.drill.verdict import Outcome
from closeranks.events import DrillBegan, DrillEnded
from closeranks.serve.drill.engines import WORDS, Engine, events_of, text_of
from closeranks.serve.drill_settings import DrillOrder, Effect
from closeranks.serve.metrics import Metrics
from closeranks.serve.policies.breaker import State
from closeranks.serve.policies.health import Grade
from closeranks.serve.probing import Prober
from closeranks.serve.settings import parse, risks
from closeranks.serve.states import gauges

RERANK = "/v1/rerank"
CHAT = {"messages": [{"role": "user", "content": "?"}], "stream": True, "temperature": 0}
ALLOWED = "[drill]\nallow = true\n"
CACHE = '[[dependency]]\nname = "cache"\nslow_s = 0.01\nbreaker = { in_a_row = 3, open_s = 0.05, lease_s = 5.0 }\n'
SMALL = '[[ladder.level]]\nname = "short"\nmax_tokens = 5\n'


async def ok(talk):
    talk.write(answer(200, b"{}"))


def ranks(seen):
    """A service that asks its cache unless it is told not to, and says so."""

    async def serve(talk):
        without = header(talk, "x-closeranks-without")
        seen.append(without)
        told = [] if without == "cache" else ["server-timing: cache;dur=1"]
        talk.write(answer(200, b"{}", told))

    return serve


def speaking(engine):
    """An engine that answers checks, and other questions, too."""

    async def serve(talk):
        await (engine if b"/completion" in talk.head.split(b"\r\n")[0] or b"/apply" in talk.head else ok)(talk)

    return serve


async def order(control, **wanted):
    status, raw = await call(control, "secret", "POST", "/drill", json.dumps(wanted).encode())
    return status, json.loads(raw)


async def until(holds):
    while not holds():  # noqa: ASYNC110 - what clocks, checks and processes do
        await asyncio.sleep(0.01)


async def state(control):
    return json.loads((await call(control, "secret", "GET", "/status"))[1])


async def asked(port, path=RERANK, body=b'{"query":"?"}'):
    client = await Client.to(port)
    client.post(path, body)
    status, headers, _ = await client.response()
    client.close()
    return status, headers.get("x-closeranks-degraded")


@pytest.mark.parametrize(
    ("effect", "delay_s", "first"),
    [("fail", 0.0, "without-cache"), ("kill", 0.0, "without-cache"), ("delay", 0.02, None)],
)
def test_a_dependency_that_is_broken_opens_its_breaker_and_is_back_when_the_drill_is_over(effect, delay_s, first):
    async def script():
        seen, noted = [], []
        async with gateway(ranks(seen), more=ALLOWED + CACHE) as (front, port, _):
            front.note = noted.append
            admin, control = await administered(front)
            breaker = front.traffic.dependencies.by_name["cache"].breaker
            assert await asked(port) == (200, None)
            status, said = await order(control, dependency="cache", effect=effect, delay_s=delay_s, for_s=60)
            assert (status, said["active"]) == (200, True)
            answers = [await asked(port) for _ in range(3)]
            assert answers == [(200, first)] * 3
            assert breaker.opened == 1
            shown = await state(control)
            assert shown["dependencies"]["cache"] in ("open", "half-open")
            assert (shown["drill"]["struck"], shown["drill"]["errors"]) == (3, 0)
            assert shown["drill"]["requests"] == 3
            metrics = Metrics(lambda: gauges(front)).text().decode()
            assert f'closeranks_serve_drilled_total{{dependency="cache",effect="{effect}"}} 3.0' in metrics
            assert "closeranks_serve_drill_active" in metrics
            assert (await call(control, "secret", "DELETE", "/drill"))[0] == 200
            while breaker.state is not State.CLOSED:
                await asked(port)
            shown = await state(control)
            assert (shown["drill"]["active"], shown["drill"]["back"]) == (False, True)
            assert await asked(port) == (200, None)
            admin.close()
        assert [type(event) for event in noted] == [DrillBegan, DrillEnded]
        assert (noted[1].reason, noted[1].errors) == ("ended by the operator", 0)

    run(script())


def test_a_drill_ends_by_the_gateways_own_clock():
    async def script():
        async with gateway(ranks([]), more=ALLOWED + CACHE) as (front, port, _):
            admin, control = await administered(front)
            await order(control, dependency="cache", for_s=0.05)
            await until(lambda: front.drills.drill is None)
            assert (await state(control))["drill"]["ended"] == "its time is over"
            assert front.observers[-1] is not front.drills
            assert (await asked(port))[0] == 200
            admin.close()

    run(script())


@pytest.mark.parametrize("effect", ["fail", "kill"])
def test_a_replica_that_is_broken_hands_its_streams_over_and_its_checks_fail(effect):
    async def script():
        engines = [speaking(Engine("llama.cpp", gap_s=0.01)) for _ in range(2)]
        eager = "[health]\ninterval_s = 0.02\nfall = 2\nrise = 1\n"
        table = 'engine = "llama.cpp"\ninvariant = true\n'
        async with gateway(*engines, more=ALLOWED + eager, replica=table) as (front, port, _):
            admin, control = await administered(front)
            client = await Client.to(port)
            client.post("/v1/chat/completions", json.dumps(CHAT).encode())
            _, headers = await client.head()
            name = headers["x-closeranks-replica"]
            await order(control, dependency=name, effect=effect, for_s=60)
            prober = Prober(front)
            prober.start()
            read = b""
            while chunk := await client.chunk():
                read += chunk
            assert text_of(events_of(read)) == "".join(WORDS)
            judge = front.traffic.fleet.members[name].judge
            await until(lambda: judge.grade(front.now_s()) is Grade.DOWN)
            assert (await asked(port, "/v1/x"))[0] == 200
            front.drills.end("enough")
            while not front.drills.state()["back"]:
                await asked(port, "/v1/x")
                await asyncio.sleep(0.01)
            prober.close()
            admin.close()

    run(script())


def test_a_request_that_a_replica_fails_in_a_drill_is_answered_by_another():
    async def script():
        async with gateway(ok, ok, more=ALLOWED) as (front, port, replicas):
            admin, control = await administered(front)
            await order(control, dependency="a", effect="delay", delay_s=0.01, for_s=60)
            assert [(await asked(port))[0] for _ in range(2)] == [200, 200]
            front.drills.end("enough")
            count = len(replicas[0].requests)
            await order(control, dependency="a", effect="fail", for_s=60)
            assert [(await asked(port))[0] for _ in range(4)] == [200] * 4
            assert len(replicas[0].requests) == count
            admin.close()

    run(script())


@pytest.mark.parametrize("effect", ["fail", "delay"])
def test_streams_go_on_when_the_store_of_sessions_is_broken(effect):
    async def script():
        keep = '[sessions]\nkeep = "checkpoint"\n'
        async with gateway(Engine(), more=ALLOWED + keep) as (front, port, _):
            admin, control = await administered(front)
            delay_s = 0.01 if effect == "delay" else 0.0
            assert (await order(control, dependency="sessions", effect=effect, delay_s=delay_s, for_s=60))[0] == 200
            client = await Client.to(port)
            client.post("/v1/chat/completions", json.dumps(CHAT).encode())
            assert b"[DONE]" in (await client.response())[2]
            assert (await state(control))["drill"]["struck"] >= 1
            admin.close()

    run(script())


def test_a_tier_is_forced_and_given_back():
    async def script():
        async with gateway(Engine(), more=ALLOWED + SMALL) as (front, port, _):
            admin, control = await administered(front)
            body = json.dumps(CHAT).encode()
            assert (await order(control, tier="short", for_s=60))[0] == 200
            assert await asked(port, "/v1/chat/completions", body) == (200, "short")
            assert (await state(control))["drill"]["degraded"] == 1
            front.drills.end("enough")
            assert front.traffic.ladder.forced is None
            await order(control, tier="short", for_s=60)
            front.traffic.force_level(front.now_s(), 0)
            front.drills.end("enough")
            assert front.traffic.ladder.forced == 0, "an operator's later word stays"
            admin.close()

    run(script())


def test_nothing_is_broken_unless_the_file_allows_it():
    async def script():
        async with gateway(ok, more=CACHE) as (front, _, _):
            admin, control = await administered(front)
            status, said = await order(control, dependency="cache", for_s=1)
            assert (status, "allow = true in [drill]" in said["error"]["message"]) == (403, True)
            assert (await call(control, "wrong", "POST", "/drill", b"{}"))[0] == 401
            assert front.drills.drill is None
            admin.close()

    run(script())


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({}, "a dependency or a tier"),
        ({"dependency": "cash"}, "known: a, cache"),
        ({"dependency": "sessions"}, "known: a, cache"),
        ({"tier": "large"}, "known: short"),
        ({"dependency": "cache", "tier": "short"}, "not both"),
        ({"dependency": "cache", "for_s": 121}, "at most 120"),
        ({"dependency": "cache", "for_s": -1}, "at most 120"),
        ({"dependency": "cache", "effect": "delay"}, "delay_s"),
        ({"dependency": "cache", "effect": "explode"}, "explode"),
        ({"dependency": "cache", "until": 3}, "until"),
    ],
)
def test_an_order_that_makes_no_sense_changes_nothing(wanted, said):
    async def script():
        async with gateway(ok, more=ALLOWED + CACHE + SMALL) as (front, _, _):
            admin, control = await administered(front)
            status, answered = await order(control, **wanted)
            assert (status, said in answered["error"]["message"]) == (400, True)
            assert front.drills.drill is None
            admin.close()

    run(script())


def test_drills_come_one_at_a_time_and_end_with_what_allows_them():
    async def script():
        async with gateway(ok, more=ALLOWED + CACHE) as (front, _, _):
            admin, control = await administered(front)
            assert (await order(control, dependency="cache", for_s=60))[0] == 200
            assert (await order(control, dependency="a", for_s=60))[0] == 409
            front.reload(parse('[[replica]]\nname = "a"\nurl = "http://127.0.0.1:1"\n', "f"))
            assert front.drills.drill is None
            admin.close()

    run(script())


def test_that_drills_are_allowed_is_a_risk_that_is_said():
    text = f'{ALLOWED}[admin]\nport = 0\n[[replica]]\nname = "a"\nurl = "http://h:1"\n'
    assert any("[drill] allow = true" in risk for risk in risks(parse(text, "f")))


# --- the command ------------------------------------------------------------------------------------------------------


def wish(**more):
    blank = {"url": "http://h", "token_file": None, "dependency": "", "tier": "", "delay": "", "fail": False}
    return Wish(**{**blank, "kill": False, "for_": "30s", **more})


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (
            wish(dependency="cache", delay="750ms"),
            DrillOrder(dependency="cache", effect=Effect.DELAY, delay_s=0.75, for_s=30.0),
        ),
        (wish(dependency="a", kill=True, for_="2m"), DrillOrder(dependency="a", effect=Effect.KILL, for_s=120.0)),
        (wish(tier="small", for_="5"), DrillOrder(tier="small", for_s=5.0)),
    ],
)
def test_the_command_line_is_an_order(wanted, expected):
    assert order_of(wanted) == expected


@pytest.mark.parametrize(
    "wanted",
    [
        wish(),
        wish(dependency="a"),
        wish(dependency="a", fail=True, kill=True),
        wish(tier="small", fail=True),
        wish(dependency="a", delay="soon"),
    ],
)
def test_a_command_line_that_is_none_is_refused(wanted):
    with pytest.raises(ValueError, match="expected"):
        order_of(wanted)


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (Seen(struck=5, requests=200, errors=2, back_s=0.1), Outcome.HELD),
        (Seen(struck=5, requests=200, errors=3, back_s=0.1), Outcome.BROKEN),
        (Seen(struck=5, requests=200, back_s=None), Outcome.BROKEN),
        (Seen(requests=200, back_s=0.1), Outcome.UNKNOWN),
        (Seen(struck=5, back_s=0.1), Outcome.UNKNOWN),
    ],
)
def test_the_verdict_is_what_was_seen(seen, verdict):
    assert verdict_of(seen) is verdict
    assert told(seen)


@pytest.mark.process
def test_the_command_watches_a_drill_and_ctrl_c_ends_it_at_the_gateway(tmp_path):
    async def script():
        async with gateway(ranks([]), more=ALLOWED + CACHE) as (front, port, _):
            admin, control = await administered(front)
            (tmp_path / "gateway.token").write_text("secret\n")
            command = [
                sys.executable,
                "-m",
                "closeranks",
                "drill",
                "--gateway",
                f"http://127.0.0.1:{control}",
                "--json",
            ]
            command += [
                "--token-file",
                str(tmp_path / "gateway.token"),
                "--dependency",
                "cache",
                "--fail",
                "--for",
                "100s",
            ]
            pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
            process = await asyncio.create_subprocess_exec(*command, **pipes)
            opened = asyncio.ensure_future(process.stderr.readuntil(b"its breaker opened after"))
            ended = asyncio.ensure_future(process.wait())
            while not ended.done():
                assert (await asked(port))[0] == 200
                await asyncio.sleep(0.01)
                if opened.done() and front.drills.drill is not None:
                    process.send_signal(signal.SIGINT)
                    await until(lambda: front.drills.drill is None)
            await opened
            said = json.loads(await process.stdout.read())
            assert (said["verdict"], said["errors"], ended.result()) == ("held", 0, 0)
            assert said["ended"] == "ended by the operator"
            admin.close()

    run(script())
