"""What a request is spared keeps its promise: timers, prepared heads, counts, and answers told in one call."""

import asyncio

from tests.serve.stand import Client, answer, fakes, gateway, run, settings_for
from tests.serve.test_policies_in_the_path import header


class Notes:
    """See Observer."""

    def __init__(self):
        self.stories = []

    def ended(self, story):
        self.stories.append(story)

    def close(self):
        pass


async def ok(talk):
    talk.write(answer(200, b"fine"))


def silent(asked):
    async def script(_talk):
        asked.set()
        await asyncio.Event().wait()

    return script


def test_a_request_that_is_over_at_once_never_has_a_timer_and_one_that_lasts_gets_it_at_the_next_look():
    async def script():
        asked = asyncio.Event()
        async with gateway(silent(asked), more="[timeouts]\nfirst_byte_s = 30.0\n") as (front, port, _):
            front._sweeper.cancel()
            client = await Client.to(port)
            client.post("/v1/x", b"{}")
            await asked.wait()
            (exchange,) = front._open
            assert exchange._watch is None
            exchange.look()
            assert exchange._watch is not None
            client.close()

    run(script())


def test_a_deadline_that_comes_before_the_next_look_has_a_timer_at_once():
    async def script():
        asked = asyncio.Event()
        async with gateway(silent(asked)) as (front, port, _):
            front._sweeper.cancel()  # nobody looks any more
            front.next_look_s = front.now_s() + 60.0
            client = await Client.to(port)
            client.post("/v1/x", b"{}", ["x-request-timeout-ms: 100"])
            status, _, _ = await client.response()
            assert status == 504
            assert front.in_flight == 0

    run(script())


def test_each_replica_gets_its_own_words_under_one_head_and_what_a_header_says_is_left_as_it_is():
    async def script():
        async with gateway(ok, ok) as (_, port, replicas):
            client = await Client.to(port)
            for number in range(6):
                client.post("/v1/x%20y?a=%d", b"x" * 9 + b"y" * number, ["x-mark: 100%d of %b"])
                assert (await client.response())[0] == 200
            for fake in replicas:
                assert len(fake.requests) == 3
                for head in (talk.head for talk in fake.requests):
                    assert head.startswith(b"POST /v1/x%20y?a=%d HTTP/1.1\r\n")
                    assert b"\r\nhost: 127.0.0.1:%d\r\n" % fake.port in head
                    assert b"\r\nx-mark: 100%d of %b\r\n" in head
            talks = [talk for fake in replicas for talk in fake.requests]
            assert len({header(talk, "idempotency-key") for talk in talks}) == 6

    run(script())


def test_after_a_reload_a_head_that_is_known_goes_to_the_new_address():
    async def script():
        async with fakes(ok) as (other,), gateway(ok) as (front, port, (first,)):
            client = await Client.to(port)
            for _ in range(2):
                client.post("/v1/x", b"{}")
                await client.response()
            front.reload(settings_for([other]))
            client.post("/v1/x", b"{}")
            assert (await client.response())[0] == 200
            assert (len(first.requests), len(other.requests)) == (2, 1)
            assert b"\r\nhost: 127.0.0.1:%d\r\n" % other.port in other.requests[0].head

    run(script())


def test_every_request_on_a_connection_tells_its_own_bytes_and_replica_though_heads_repeat():
    sizes = [3, 9, 10, 100, 99, 0, 10]

    async def script():
        left = iter(sizes)

        async def sized(talk):
            talk.write(answer(200, b"x" * next(left)))

        async with gateway(sized) as (front, port, _):
            notes = Notes()
            front.observers = (notes,)
            client = await Client.to(port)
            for size in sizes:
                client.post("/v1/x", b"y" * size)
                status, _, body = await client.response()
                assert (status, len(body)) == (200, size)
            assert [story.sent_bytes for story in notes.stories] == sizes
            assert all(story.whole and [visit.replica for visit in story.visits] == ["a"] for story in notes.stories)
            assert front.traffic._lives == {}
            assert front.traffic.fleet.members["a"].load.outstanding == 0

    run(script())


def test_bad_answers_with_heads_that_are_known_are_tried_elsewhere_and_open_the_breaker():
    async def script():
        async def broken(talk):
            talk.write(answer(500, b"no"))

        async with gateway(broken, ok, more="[breaker]\nin_a_row = 3\n[budget]\nbackoff_s = 0.0\n") as (front, port, _):
            client = await Client.to(port)
            for _ in range(12):
                client.post("/v1/x", b"{}")
                status, headers, body = await client.response()
                assert (status, headers["x-closeranks-replica"], body) == (200, "b", b"fine")
            bad = front.traffic.fleet.members["a"]
            assert bad.load.outstanding == 0
            assert bad.breaker.opened or bad.judge.grade(front.now_s()) == "doubtful"

    run(script())


def test_an_answer_of_events_that_comes_whole_with_a_known_head_is_read_as_events():
    events = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    async def script():
        async def streams(talk):
            talk.write(answer(200, events, ["content-type: text/event-stream"]))

        async with gateway(streams) as (front, port, _):
            notes = Notes()
            front.observers = (notes,)
            client = await Client.to(port)
            for _ in range(4):
                client.post("/v1/chat/completions", b'{"stream": true, "messages": []}')
                status, headers, body = await client.response()
                assert (status, body, "x-closeranks-resume" in headers) == (200, events, True)
            assert [story.status for story in notes.stories] == [200] * 4
            assert all(story.whole for story in notes.stories)

    run(script())
