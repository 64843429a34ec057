"""A session's KV cache goes where the session goes, or it is computed again: no client ever notices."""

import asyncio
import importlib.util
import json
import sys

import pytest
from tests.ports import free_port
from tests.serve.stand import Client, answer, gateway, run

from closeranks.serve.demo.tiny_model import tiny_words, write_tiny_model
from closeranks.serve.drill.engines import events_of, sse, text_of
from closeranks.serve.gateway import Gateway
from closeranks.serve.metrics import Metrics
from closeranks.serve.settings import parse, risks
from closeranks.serve.states import gauges

CHAT = "/v1/chat/completions"
LLAMA = 'engine = "llama.cpp"\ncapacity = 2\n'
KV = '[sessions]\nkv = "snapshot"\n[sessions.snapshots]\nrestore_s = 30.0\nsave_s = 30.0\n'
PROMPT, WORDS = 100, ("one", " two", " three")


class Llama:
    """A stand-in for the server of llama.cpp, as far as slots are concerned. ``files`` is the folder of all of them."""

    def __init__(self, files, slots=2, save=200, restore=200, uses=True):
        self.files, self.save, self.restore, self.uses = files, save, restore, uses
        self.dies = None  # before which word it is killed
        self.slots = [0] * slots
        self.acts, self.bodies = [], []

    async def __call__(self, talk):
        path = talk.head.split(b" ")[1].decode()
        body = json.loads(talk.body or b"{}")
        if path == "/props":
            talk.write(answer(200, json.dumps({"total_slots": len(self.slots)}).encode()))
        elif path.startswith("/slots/"):
            slot, action = path.removeprefix("/slots/").split("?action=")
            self.acts.append((action, int(slot), body["filename"]))
            await getattr(self, f"_{action}")(talk, int(slot), body["filename"])
        elif path == "/apply-template":
            talk.write(answer(200, b'{"prompt":"<chat>"}'))
        elif path == "/tokenize":
            talk.write(answer(200, b'{"tokens":[1]}'))
        elif path == "/completion":
            self.bodies.append(body)
            self._rest(talk, body)
        else:
            self.bodies.append(body)
            self._chat(talk, body)

    async def _save(self, talk, slot, file):
        if self.save != 200:
            await self._fail(talk, self.save)
            return
        self.files[file] = self.slots[slot]
        done = {"n_saved": self.slots[slot], "n_written": 10 * self.slots[slot]}
        talk.write(answer(200, json.dumps(done).encode()))

    async def _restore(self, talk, slot, file):
        if self.restore != 200 or file not in self.files:
            await self._fail(talk, 400 if self.restore == 200 else self.restore)
            return
        self.slots[slot] = self.files[file]
        talk.write(answer(200, json.dumps({"n_restored": self.files[file]}).encode()))

    @staticmethod
    async def _fail(talk, how):
        if how == "hangs":
            await talk.gone()
        elif how == "cut":
            talk.cut()
        elif how == "nonsense":
            talk.write(answer(200, b'{"n_saved":"many","n_restored":[]}'))
        else:
            talk.write(answer(how, b'{"error":{"message":"no"}}'))

    def _rest(self, talk, body):
        talk.stream()
        counts = {"cache_n": self.slots[body["id_slot"]], "prompt_n": 3, "predicted_n": 2}
        for number, word in enumerate(WORDS[1:], 1):
            talk.chunk(sse({"content": word, "tokens": [number], "stop": False, "tokens_predicted": number}))
        last = {"content": "", "tokens": [], "stop": True, "stop_type": "eos", "tokens_predicted": 2}
        talk.chunk(sse({**last, "timings": counts}))
        talk.end()

    def _chat(self, talk, body):
        if self.dies == 0:
            talk.cut()
            return
        slot = body.get("id_slot", 0)
        cached = min(self.slots[slot], PROMPT) if self.uses else 0
        timings = {"cache_n": cached, "prompt_n": PROMPT - cached, "predicted_n": len(WORDS)}
        self.slots[slot] = PROMPT + len(WORDS) - 1
        if not body.get("stream"):
            said = {"choices": [{"message": {"content": "".join(WORDS)}}], "timings": timings}
            talk.write(answer(200, json.dumps(said).encode()))
            return
        talk.stream()
        more = {"timings": timings} if body.get("timings_per_token") else {}
        talk.chunk(sse({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}))
        for word in WORDS[: self.dies]:
            talk.chunk(sse({"id": "x", "choices": [{"index": 0, "delta": {"content": word}}], **more}))
        if self.dies is not None:
            talk.cut()
            return
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        talk.chunk(sse({"id": "x", "choices": [last], "timings": timings}) + sse("[DONE]"))
        talk.end()


class Told:
    """One turn as its client has read it."""

    def __init__(self, status, headers, body, stream):
        self.status, self.replica = status, headers.get("x-closeranks-replica")
        self.session = headers.get("x-closeranks-session")
        self.events = events_of(body) if stream else [json.loads(body)]
        self.text = text_of(self.events) if stream else self.events[0]["choices"][0]["message"]["content"]


async def turn(port, *, stream=False, session="s", more=None):
    client = await Client.to(port)
    body = {"messages": [{"role": "user", "content": "?"}], "temperature": 0, "stream": stream, **(more or {})}
    client.post(CHAT, json.dumps(body).encode(), [f"x-session-id: {session}"])
    return Told(*await client.response(), stream)


async def until(holds):
    while not holds():  # noqa: ASYNC110 - what replicas and tasks do beside
        await asyncio.sleep(0.005)


async def settled(front):
    """Whatever was begun beside the answers has ended."""
    await until(lambda: not front.snapshots._tasks)


async def moved(front, port, engines, *, dies=0, **options):
    """A turn, and the next one, before or in which the replica of the first is lost."""
    await settled(front)
    first = await turn(port, **options)
    await settled(front)
    engines["ab".index(first.replica)].dies = dies
    second = await turn(port, **options)
    await settled(front)
    assert dies or second.replica != first.replica
    return first, second


def pair(**options):
    files = {}
    return [Llama(files, **options), Llama(files, **options)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_goes_on_elsewhere_with_what_its_replica_knew(stream):
    async def script():
        engines = pair()
        async with gateway(*engines, more=KV, replica=LLAMA) as (front, port, _):
            first, second = await moved(front, port, engines, stream=stream)
            assert (first.session, second.session) == (None, "restored-kv")
            assert first.text == second.text == "".join(WORDS)
            other = engines["ab".index(second.replica)]
            (_, slot, file) = next(act for act in other.acts if act[0] == "restore")
            assert (other.bodies[0]["id_slot"], other.bodies[0]["cache_prompt"]) == (slot, True)
            assert file in other.files
            assert front.snapshots.counts == {("save", "ok"): 2, ("restore", "used"): 1}
            metrics = Metrics(lambda: gauges(front)).text().decode()
            assert 'closeranks_serve_sessions_moved_total{exactness="restored-kv"} 1.0' in metrics
            assert 'closeranks_serve_kv_total{action="restore",outcome="used"} 1.0' in metrics

    run(script())


def test_an_answer_that_is_cut_goes_on_from_the_snapshot_of_the_turn_before_and_claims_no_more_than_a_replay():
    async def script():
        engines = pair()
        async with gateway(*engines, more=KV, replica=LLAMA) as (front, port, _):
            first, second = await moved(front, port, engines, dies=1, stream=True)
            assert second.text == "".join(WORDS)
            assert second.session is None
            other = engines[1 - "ab".index(first.replica)]
            (_, slot, _) = next(act for act in other.acts if act[0] == "restore")
            assert other.bodies[0]["id_slot"] == slot
            assert front.snapshots.counts["restore", "used"] == 1
            assert front.snapshots.moved == {}

    run(script())


def test_a_gateway_that_ends_begins_no_more_saves():
    """The engine wrote the next one when the files of the gateway had been removed already."""

    async def script():
        engine, held = Llama({}), asyncio.Event()
        save = engine._save

        async def when_released(*words):
            await held.wait()
            await save(*words)

        engine._save = when_released
        async with gateway(engine, more=KV, replica=LLAMA) as (front, port, _):
            await settled(front)
            await turn(port, session="s")
            await turn(port, session="t")
            await until(lambda: engine.acts)
            ending = asyncio.create_task(front.snapshots.close())
            await asyncio.sleep(0)
            held.set()
            await ending
        assert [action for action, *_ in engine.acts] == ["save"]

    run(script())


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ({"save": 500}, ("save", "failed")),
        ({"save": 501}, ("save", "not supported")),
        ({"save": "hangs"}, ("save", "timeout")),
        ({"save": "cut"}, ("save", "unreached")),
        ({"save": "nonsense"}, ("save", "failed")),
        ({"restore": 400}, ("restore", "failed")),
        ({"restore": 501}, ("restore", "not supported")),
        ({"restore": "hangs"}, ("restore", "timeout")),
        ({"restore": "cut"}, ("restore", "unreached")),
        ({"restore": "nonsense"}, ("restore", "failed")),
        ({"uses": False}, ("restore", "not used")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_is_counted_and_the_turns_are_computed_again(options, counted, stream):
    async def script():
        engines = pair(**options)
        what = next((action for action, how in options.items() if how == "hangs"), "nothing")
        hasty = KV.replace(f"{what}_s = 30.0", f"{what}_s = 0.1")
        async with gateway(*engines, more=hasty, replica=LLAMA) as (front, port, _):
            first, second = await moved(front, port, engines, stream=stream)
            assert (first.status, second.status) == (200, 200)
            assert first.text == second.text == "".join(WORDS)
            assert second.session == "best-effort"
            assert front.snapshots.counts[counted] >= 1
            assert ("restore", "used") not in front.snapshots.counts
            assert front.snapshots._stays == {}

    run(script())


def test_a_file_that_is_gone_is_given_up():
    async def script():
        engines = pair()
        async with gateway(*engines, more=KV, replica=LLAMA) as (front, port, _):
            await settled(front)
            first = await turn(port)
            await settled(front)
            engines[0].files.clear()
            engines["ab".index(first.replica)].dies = 0
            second = await turn(port)
            assert (second.session, second.text) == ("best-effort", first.text)
            assert front.snapshots.counts["restore", "failed"] == 1

    run(script())


def test_the_client_sees_nothing_that_only_the_gateway_has_asked_for():
    async def script():
        engines = pair()
        async with gateway(*engines, more=KV, replica=LLAMA) as (front, port, _):
            _, second = await moved(front, port, engines, stream=True)
            survivor = engines["ab".index(second.replica)]
            assert survivor.bodies[0]["timings_per_token"] is True
            assert not any("timings" in event for event in second.events[:-1])

    run(script())


def test_a_save_is_not_waited_for():
    async def script():
        engines = pair(save="hangs")
        async with gateway(*engines, more=KV, replica=LLAMA) as (front, port, _):
            await settled(front)
            for _ in range(3):
                assert (await turn(port, stream=True)).text == "".join(WORDS)
            assert front.snapshots.counts == {}

    run(script())


@pytest.mark.parametrize("own", [{"id_slot": 1}, {"lora": [{"id": 0, "scale": 1.0}]}])
def test_whoever_looks_after_slots_is_left_alone(own):
    async def script():
        engines = pair()
        async with gateway(*engines, more=KV, replica=LLAMA) as (front, port, _):
            await settled(front)
            await turn(port, more=own)
            await settled(front)
            assert "cache_prompt" not in [*engines[0].bodies, *engines[1].bodies][0]
            assert not engines[0].acts + engines[1].acts

    run(script())


def test_other_engines_have_no_slots():
    async def script():
        engines = pair()
        llama = '[[replica]]\nname = "l"\nurl = "http://127.0.0.1:1"\nengine = "llama.cpp"\nrole = "standby"\n'
        async with gateway(*engines, more=KV + llama) as (front, port, _):
            assert (await turn(port)).session is None
            await settled(front)
            assert not engines[0].acts + engines[1].acts

    run(script())


def test_files_are_removed_when_sessions_end_and_when_the_gateway_does(tmp_path):
    async def script():
        engines = pair()
        more = f'{KV}folder = "{tmp_path}"\ncount = 1\n'
        async with gateway(*engines, more=more, replica=LLAMA) as (front, port, _):
            await settled(front)
            for session in ("s", "t"):
                await turn(port, session=session)
                await settled(front)
                for file in engines[0].files:
                    (tmp_path / file).touch()
                front.snapshots._tick()
                await settled(front)
            assert front.snapshots.plan.count == 1
            (tmp_path / "somebody-elses.kv").touch()
            first, last = engines[0].files
            front.snapshots.plan.removable.append(first)
            front.snapshots._remove()
            await settled(front)
            assert {path.name for path in tmp_path.iterdir()} == {last, "somebody-elses.kv"}
        assert {path.name for path in tmp_path.iterdir()} == {"somebody-elses.kv"}

    run(script())


def test_a_folder_that_the_gateway_cannot_reach_is_a_risk_that_is_said():
    text = f'{KV}[[replica]]\nname = "a"\nurl = "http://h:1"\nengine = "llama.cpp"\n'
    assert any("sessions.snapshots.folder" in risk for risk in risks(parse(text, "f")))


# --- a real engine ----------------------------------------------------------------------------------------------------


async def started(model, folder, *arguments):
    """A real server of llama.cpp and its port."""
    port = free_port()
    program = [sys.executable, "-m", "closeranks.serve.demo.engine", str(model), str(port), "--slot-files", str(folder)]
    return port, await asyncio.create_subprocess_exec(*program, *arguments, stdout=asyncio.subprocess.PIPE)


@pytest.mark.process
@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="no engine is installed")
def test_a_real_engine_goes_on_from_the_snapshot_of_one_that_was_killed(tmp_path):
    words, model = tiny_words(), tmp_path / "tiny.gguf"
    write_tiny_model(model)
    talk = [{"role": "user", "content": " ".join(words[:200])}]

    async def ask(port):
        client = await Client.to(port)
        body = {"messages": talk, "temperature": 0, "max_tokens": 12}
        client.post(CHAT, json.dumps(body).encode(), ["x-session-id: s"])
        _, headers, raw = await client.response()
        said = json.loads(raw)
        return headers, said["choices"][0]["message"]["content"], said["timings"]

    async def script():
        pairs = await asyncio.gather(*(started(model, tmp_path) for _ in range(2)))
        try:
            for _, process in pairs:
                await process.stdout.readline()
            tables = "".join(
                f'[[replica]]\nname = "{name}"\nurl = "http://127.0.0.1:{port}"\n{LLAMA}'
                for name, (port, _) in zip("ab", pairs, strict=True)
            )
            more = f'[listen]\nport = 0\n{KV}folder = "{tmp_path}"\n'
            front = Gateway(parse(more + tables, "test.toml"))
            port = await front.start()
            await settled(front)
            headers, text, _ = await ask(port)
            talk.extend([{"role": "assistant", "content": text}, {"role": "user", "content": words[9]}])
            await until(lambda: front.snapshots.counts.get(("save", "ok")))
            first = "ab".index(headers["x-closeranks-replica"])
            _, undisturbed, usual = await ask(pairs[first][0])
            pairs[first][1].kill()
            await pairs[first][1].wait()
            headers, text, timings = await ask(port)
            assert headers["x-closeranks-session"] == "restored-kv"
            assert text == undisturbed
            assert timings["cache_n"] >= 200
            assert (timings["cache_n"], timings["prompt_n"]) == (usual["cache_n"], usual["prompt_n"])
            await settled(front)  # a save that the engine is still at would be written later
            await front.close()
            assert not list(tmp_path.glob("closeranks-*.kv"))
        finally:
            for _, process in pairs:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    run(script())
