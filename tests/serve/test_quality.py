"""What the levels of the ladder cost is measured on a few answers, after their clients have them."""

import json

import pytest
from tests.serve.stand import answer, gateway, run
from tests.serve.test_doubles import QUESTION, says
from tests.serve.test_policies_in_the_path import post

from closeranks.serve.policies.difference import difference
from closeranks.serve.states import ladder_state

LEVELS = """
[ladder]
compare_share = {share}
[[ladder.level]]
name = "small"
tier = "small"
model = "mini"
[[ladder.level]]
name = "remembered"
kind = "cached"
"""


def chat(text, **message):
    return {"choices": [{"message": {"content": text, **message}}]}


@pytest.mark.parametrize(
    ("full", "less", "expected"),
    [
        (chat("the sea is deep"), chat("the sea is deep"), 0.0),
        (chat("the sea is deep"), chat("a lake"), 1.0),
        (chat("the sea is deep"), chat("the sea is blue and deep"), 1 - 8 / 10),
        (chat(""), chat(""), 0.0),
        (chat(None, tool_calls=[{"function": {"name": "f"}}]), chat("f"), 1.0),
        ({"choices": [{"text": "one two"}]}, {"choices": [{"text": "one"}]}, 1 - 2 / 3),
        ({"results": [{"index": 3}, {"index": 1}]}, {"results": [{"index": 3}, {"index": 2}]}, 1 - (1 + 0.5) / 2),
        ({"results": []}, {"results": []}, 0.0),
        ({"data": []}, {"data": []}, None),
        ({"choices": [7]}, chat("x"), None),
    ],
)
def test_the_difference_is_what_two_answers_do_not_have_in_common(full, less, expected):
    assert difference(full, less) == (expected if expected is None else pytest.approx(expected))


def test_a_level_is_asked_what_the_full_service_answered_and_the_difference_is_shown():
    async def script():
        asked = []

        async def small(talk):
            asked.append(json.loads(talk.body))
            await says("the sea is blue")(talk)

        async with gateway(says("the sea is deep"), small) as (front, port, replicas):
            front.reload(_tiers(replicas))
            front.traffic._random.seed(1)
            for _ in range(12):
                status, headers, _ = await post(port, body=QUESTION)
                assert (status, headers["x-closeranks-replica"]) == (200, "a")
                await front.quality.settled()
            full, less, remembered = ladder_state(front)["levels"]
            assert all(level["compared"] for level in (full, less, remembered))
            assert (full["difference"], remembered["difference"]) == (0.0, 0.0)
            assert less["difference"] == pytest.approx(0.25)
            assert {body["model"] for body in asked} == {"mini"}

    run(script())


@pytest.mark.parametrize(("share", "status"), [(0.0, 200), (1.0, 500)])
def test_without_a_share_or_a_good_answer_nothing_is_compared(share, status):
    async def script():
        async def small(talk):
            talk.write(answer(status, b"{}"))

        async with gateway(says("x"), small) as (front, port, replicas):
            front.reload(_tiers(replicas, share))
            for _ in range(6):
                assert (await post(port, body=QUESTION))[0] == 200
                await front.quality.settled()
            assert ladder_state(front)["levels"][1]["compared"] == 0

    run(script())


def _tiers(replicas, share=1.0):
    """The second replica is of the tier of the level."""
    from closeranks.serve.settings import parse

    large, small = (fake.port for fake in replicas)
    return parse(
        f"""{LEVELS.format(share=share)}
[listen]
port = 0
[[replica]]
name = "a"
url = "http://127.0.0.1:{large}"
[[replica]]
name = "b"
url = "http://127.0.0.1:{small}"
tier = "small"
""",
        "test.toml",
    )
