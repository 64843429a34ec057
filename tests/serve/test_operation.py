"""What operators do with a gateway, and what they see of it."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from functools import partial

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.ports import free_port
from tests.serve.stand import Client, answer, fakes, gateway, run, settings_for

from closeranks.serve.access_log import AccessLog
from closeranks.serve.admin import Admin
from closeranks.serve.drill.engines import WORDS, Engine, events_of, text_of
from closeranks.serve.metrics import Metrics
from closeranks.serve.policies.health import Grade
from closeranks.serve.probing import Prober
from closeranks.serve.process import token_in
from closeranks.serve.settings import parse, risks
from closeranks.serve.states import gauges, replica_states
from closeranks.serve.traces import Traces

CHAT = json.dumps({"messages": [{"role": "user", "content": "?"}], "stream": True, "temperature": 0}).encode()
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EAGER = "[health]\ninterval_s = 0.02\ntimeout_s = 0.5\nfall = 2\nrise = 1\n"


async def ok(talk):
    talk.write(answer(200, b"{}"))


async def call(port, token, method, path, body=b""):
    client = await Client.to(port)
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    client.send(head.encode() + body)
    status, _, raw = await client.response()
    return status, raw


async def administered(front):
    metrics = Metrics(partial(gauges, front))
    front.observers += (metrics,)
    admin = Admin(front, "secret", metrics.text, lambda: "read again")
    return admin, await admin.start("127.0.0.1", 0)


def test_without_the_token_nothing_is_told_or_done():
    async def script():
        async with gateway(ok) as (front, _, _):
            admin, port = await administered(front)
            assert (await call(port, "", "GET", "/healthz"))[0] == 200
            for path in ("/replicas", "/metrics", "/ladder", "/replicas/a/eject"):
                assert (await call(port, "wrong", "POST", path))[0] == 401
            assert not front.traffic.fleet.members["a"].out
            admin.close()

    run(script())


def test_an_ejected_replica_hands_its_streams_over_and_comes_back_when_it_is_readmitted():
    async def script():
        engines = [Engine("llama.cpp", gap_s=0.02), Engine("llama.cpp")]
        table = 'engine = "llama.cpp"\ninvariant = true\n'
        async with gateway(*engines, replica=table) as (front, port, _):
            admin, control = await administered(front)
            client = await Client.to(port)
            client.post("/v1/chat/completions", CHAT)
            _, headers = await client.head()
            body = await client.chunk() + await client.chunk()
            name = headers["x-closeranks-replica"]
            assert (await call(control, "secret", "POST", f"/replicas/{name}/eject"))[0] == 200
            while chunk := await client.chunk():
                body += chunk
            states = {state["name"]: state for state in replica_states(front)}
            assert states[name]["reason"] == "eject by the operator"
            assert (await call(control, "secret", "POST", f"/replicas/{name}/readmit"))[0] == 200
            assert not front.traffic.fleet.members[name].out
            status, said = await call(control, "secret", "POST", "/replicas/nobody/drain")
            assert (status, b"known: a, b" in said) == (404, True)
            admin.close()
        assert text_of(events_of(body)) == "".join(WORDS)

    run(script())


def test_a_scrape_tells_of_requests_attempts_and_replicas():
    async def script():
        async with gateway(Engine(breaks="cut", after=3), Engine()) as (front, port, _):
            admin, control = await administered(front)
            client = await Client.to(port)
            client.post("/v1/chat/completions", CHAT)
            await client.response()
            status, text = await call(control, "secret", "GET", "/metrics")
            admin.close()
        assert status == 200
        lines = text.decode().splitlines()
        assert 'closeranks_serve_requests_total{arrived="whole",level="0",status="200"} 1.0' in lines
        assert 'closeranks_serve_attempts_total{kind="resume",outcome="ok",replica="b"} 1.0' in lines
        assert 'closeranks_serve_resumed_total{exactness="verified-regeneration"} 1.0' in lines
        assert 'closeranks_serve_replica_up{replica="b"} 1.0' in lines

    run(script())


def test_the_access_log_and_the_trace_of_a_request_have_the_same_ids(tmp_path):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Traces()
    traces._tracer = provider.get_tracer("test")

    async def script():
        async with gateway(Engine(breaks="cut", after=3), Engine()) as (front, port, _):
            front.observers = (AccessLog(tmp_path / "access.log"), traces)
            client = await Client.to(port)
            client.post("/v1/chat/completions", CHAT, [f"traceparent: {PARENT}"])
            await client.response()

    run(script())
    path = tmp_path / "access.log"
    assert path.stat().st_mode & 0o777 == 0o600
    (line,) = [json.loads(text) for text in path.read_text().splitlines()]
    assert (line["status"], line["whole"], line["resumed"]) == (200, True, 1)
    assert [(visit["name"], visit["kind"]) for visit in line["replicas"]] == [("a", "first"), ("b", "resume")]
    spans = exporter.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans} == {line["trace_id"], PARENT.split("-")[1]}
    assert sorted(span.name for span in spans) == ["POST /v1/chat/completions", "first a", "resume b"]


def test_a_replica_that_is_not_ready_is_not_asked_and_one_that_answers_wrongly_neither():
    async def loading(talk):
        talk.write(answer(503, b"loading"))

    def completing(text):
        async def serve(talk):
            chosen = {"choices": [{"text": text}]} if b"completions" in talk.head else {}
            talk.write(answer(200, json.dumps(chosen).encode()))

        return serve

    async def script():
        probe = '[probe]\nknown_answer = true\nexpect = "five"\n'
        replicas = [loading, completing("six"), completing("five")]
        async with gateway(*replicas, more=EAGER + probe) as (front, port, _):
            prober = Prober(front)
            prober.start()
            judges = {name: member.judge for name, member in front.traffic.fleet.members.items()}

            def grades():
                return [judge.grade(front.now_s()) for judge in judges.values()]

            while grades() != [Grade.DOWN, Grade.DOWN, Grade.UP]:  # noqa: ASYNC110 - what checks find out
                await asyncio.sleep(0.01)
            client = await Client.to(port)
            for _ in range(5):
                client.post("/v1/x", b"")
                assert (await client.response())[1]["x-closeranks-replica"] == "c"
            assert "got 'six'" in judges["b"].standing(front.now_s()).reason
            prober.close()

    run(script())


def test_when_all_checks_fail_the_best_is_tried_all_the_same():
    async def only_chats(talk):
        status = 200 if talk.head.startswith(b"POST") else 500
        talk.write(answer(status, b"{}"))

    async def script():
        async with gateway(only_chats, only_chats, more=EAGER) as (front, port, _):
            prober = Prober(front)
            prober.start()
            while not front.traffic.fleet.panics(front.now_s(), ""):  # noqa: ASYNC110 - what checks find out
                await asyncio.sleep(0.01)
            client = await Client.to(port)
            client.post("/v1/x", b"")
            assert (await client.response())[0] == 200
            prober.close()

    run(script())


def test_checks_that_get_no_answer_are_cancelled_at_the_replica():
    async def script():
        ended = []

        async def wedged(talk):
            await talk.gone()
            ended.append(talk)

        async with gateway(wedged, more=EAGER.replace("0.5", "0.05")) as (front, _, (replica,)):
            prober = Prober(front)
            prober.start()
            while len(ended) < 4:  # noqa: ASYNC110 - what the replica sees
                await asyncio.sleep(0.01)
            assert len(replica.requests) - len(ended) <= 2
            prober.close()

    run(script())


def test_settings_that_are_read_again_serve_new_requests_and_let_old_ones_end():
    async def script():
        go = asyncio.Event()

        async def later(talk):
            await go.wait()
            talk.write(answer(200, b"old"))

        async def new(talk):
            talk.write(answer(200, b"new"))

        async with fakes(new) as (added,), gateway(later) as (front, port, (old,)):
            waiting = await Client.to(port)
            waiting.post("/", b"")
            await old.asked.wait()
            told = front.reload(settings_for([added]))
            assert "1 replicas" in told
            client = await Client.to(port)
            client.post("/", b"")
            assert (await client.response())[2] == b"new"
            go.set()
            assert (await waiting.response())[2] == b"old"

    run(script())


def test_risks_are_said_before_anything_fails():
    text = '[[replica]]\nname = "a"\nurl = "http://h:1"\ndomain = "r1"\n[[replica]]\nname = "b"\nurl = "http://h:2"\n'
    assert any("domain" in risk for risk in risks(parse(text + 'domain = "r1"\n', "f")))
    assert risks(parse(text.replace("capacity", "") + 'domain = "r2"\n', "f")) != []


def test_the_token_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "gateway.token"
    token = token_in(path)
    assert len(token) > 30
    assert token_in(path) == token
    assert path.stat().st_mode & 0o777 == 0o600


# --- as a command -------------------------------------------------------------------------------------------------


def command(*arguments):
    return [sys.executable, "-m", "closeranks", "serve", *map(str, arguments)]


@pytest.mark.process
def test_the_command_says_what_is_wrong_with_a_file(tmp_path):
    path = tmp_path / "gateway.toml"
    path.write_text('[[replica]]\nname = "a"\nurl = "http://h:1"\nroll = "active"\n')
    done = subprocess.run(command("--check", path), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert 'gateway.toml line 4: replica 1.roll: unknown key; did you mean "role"?' in done.stderr
    path.write_text('[[replica]]\nname = "a"\nurl = "http://h:1"\n')
    done = subprocess.run(command("--check", "--json", path), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, json.loads(done.stdout)["replicas"]) == (0, 1)


@pytest.mark.process
@pytest.mark.parametrize("processes", [1, 2])
def test_the_command_serves_and_drains(tmp_path, processes):
    port = free_port()

    async def script():
        go = asyncio.Event()

        async def later(talk):
            if talk.head.startswith(b"POST"):
                await go.wait()
            talk.write(answer(200, b"done"))

        async with fakes(later) as (replica,):
            path = tmp_path / "gateway.toml"
            listen = f"[listen]\nport = {port}\nprocesses = {processes}\n[admin]\nport = 0\n"
            path.write_text(f'{listen}[[replica]]\nname = "a"\nurl = "http://127.0.0.1:{replica.port}"\n')
            server = await asyncio.create_subprocess_exec(*command(path), stdout=asyncio.subprocess.PIPE)
            ready = 0
            while ready < processes:
                line = await server.stdout.readline()
                assert line, "the gateway ended"
                ready += b"listening on" in line
            client = await Client.to(port)
            client.post("/", b"")
            while not any(talk.head.startswith(b"POST") for talk in replica.requests):  # noqa: ASYNC110 - seen there
                await asyncio.sleep(0.01)
            server.send_signal(signal.SIGTERM)
            while b"draining: 1" not in await server.stdout.readline():
                pass
            go.set()
            assert (await client.response())[2] == b"done"
            await server.stdout.read()
            assert await server.wait() == 0

    run(script())


@pytest.mark.process
def test_the_shipped_alerts_speak_of_metrics_that_there_are():
    done = subprocess.run(command("--alerts"), capture_output=True, text=True, timeout=60, check=True)
    told = set(re.findall(r"closeranks_serve_\w+", done.stdout))

    async def script():
        async with gateway(ok) as (front, _, _):
            return Metrics(partial(gauges, front)).text().decode()

    there = run(script())
    assert told
    assert {name for name in told if name.removesuffix("_total") not in there} == set()


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["gateway.toml"], ["--drill", "1"]])
def test_a_package_that_is_not_installed_is_named_with_the_extra_that_holds_it(tmp_path, arguments):
    (tmp_path / "gateway.toml").write_text('[[replica]]\nname = "a"\nurl = "http://h:1"\n')
    without = "import sys; sys.modules['httptools'] = None; from closeranks.cli.main import main; main()"
    asked = [sys.executable, "-c", without, "serve", *arguments]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "httptools: pip install 'closeranks[serve]'" in done.stderr
