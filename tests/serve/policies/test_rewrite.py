import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from closeranks.serve.policies import AnswerCache, CacheLimits, LevelSettings, as_events, key_of, rewrite, static

CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "42"}
TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u1"},
    CALL,
    RESULT,
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "u2"},
]


def level(**more):
    return LevelSettings(name="x", **more)


def test_a_level_asks_for_less_and_leaves_the_request_alone():
    request = {"model": "large", "messages": TALK, "tools": [1], "tool_choice": "auto", "max_tokens": 500, "n": 4}
    before = copy.deepcopy(request)
    smaller = rewrite(request, level(model="small", drop_tools=True, messages=2, max_tokens=100, results=1))
    assert request == before
    assert smaller == {"model": "small", "messages": [TALK[0], *TALK[4:]], "max_tokens": 100, "n": 1}


def test_a_limit_of_tokens_is_set_where_there_was_none_and_never_raised():
    assert rewrite({}, level(max_tokens=9)) == {"max_tokens": 9}
    assert rewrite({"max_completion_tokens": 5}, level(max_tokens=9)) == {"max_completion_tokens": 5}


def test_a_tools_result_is_never_without_its_call():
    kept = rewrite({"messages": TALK[:4]}, level(messages=1))["messages"]
    assert kept == [TALK[0], CALL, RESULT]
    assert rewrite({"messages": TALK}, level(messages=3))["messages"] == [TALK[0], *TALK[4:]]


@given(st.lists(st.sampled_from(TALK)), st.integers(0, 5), st.booleans())
def test_what_is_kept_is_in_its_order_and_holds_the_last_word(messages, count, drop):
    kept = rewrite({"messages": messages}, level(messages=count, drop_tools=drop))["messages"]
    left = iter(messages)
    assert all(any(message == other for other in left) for message in [m for m in kept if m["role"] != "system"])
    if messages and messages[-1]["role"] == "user":
        assert kept[-1] == messages[-1] or messages[-1] in kept


def test_the_cache_never_crosses_tenants_and_ages():
    cache = AnswerCache(CacheLimits())
    request = {"model": "m", "messages": TALK}
    mine, theirs = key_of("a", b"/v1/chat/completions", request), key_of("b", b"/v1/chat/completions", request)
    assert key_of("a", b"/v1/chat/completions", {**request, "stream": True}) == mine
    cache.put(0.0, mine, b"answer")
    assert cache.get(5.0, theirs, 10.0) is None
    assert cache.get(5.0, mine, 10.0).body == b"answer"
    assert cache.get(11.0, mine, 10.0) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60))))
def test_the_cache_stays_within_its_bytes(puts):
    cache = AnswerCache(CacheLimits(bytes=100, answer_bytes=50))
    for key, size in puts:
        cache.put(0.0, str(key), b"x" * size)
        held = [kept for number in range(10) if (kept := cache.get(0.0, str(number), 1.0)) is not None]
        assert cache.size_bytes == sum(len(kept.body) for kept in held) <= 100


def test_a_whole_answer_becomes_a_stream_with_one_end():
    answer = static({"model": "m"}, b"/v1/chat/completions", "come back later", 1)
    events = [event.removeprefix(b"data: ").strip() for event in as_events(answer, usage=True)]
    chunks = [json.loads(event) for event in events[:-1]]
    assert events[-1] == b"[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "come back later"}
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]] == [None, "stop"]
    assert chunks[-1]["usage"]["total_tokens"] == 0
    text = static({}, b"/v1/completions", "later", 1)
    assert json.loads(next(as_events(text)).removeprefix(b"data: "))["choices"][0]["text"] == "later"
