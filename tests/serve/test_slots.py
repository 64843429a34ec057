"""The plan of slots and snapshots: whose KV cache lies where, what is saved, and what a session finds elsewhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.serve.sessions.settings import SessionSettings, SnapshotSettings
from closeranks.serve.sessions.slots import NEVER_AGAIN_S, PAUSE_S, SAVES_MAX, SlotPlan, Tokens, Turn, used
from closeranks.serve.sessions.timings import tokens_in, tokens_of
from closeranks.serve.settings import parse
from closeranks.toml_text import TomlProblem

A, B = "http://a", "http://b"
TOKENS = Tokens(cached=0, computed=90, predicted=10)


def plan(slots=2, **limits):
    subject = SlotPlan(SnapshotSettings(**limits), "gw")
    for url in (A, B):
        subject.learned(url, slots)
    return subject


def answered(subject, session, number, url=A, tokens=TOKENS):
    place = subject.claim(0.0, url, Turn(number, session, "m"))
    subject.ended(url, Turn(number, session, "m"), tokens)
    return place


def keep(subject, session, number, url=A, size_bytes=1000):
    """A turn of a session, and its save."""
    answered(subject, session, number, url)
    (save,) = subject.due(0.0)
    assert subject.saved(0.0, save, 99, size_bytes, 0.001)
    return save


def test_a_session_gets_its_slot_back_and_others_get_what_nobody_needs():
    subject = plan()
    assert answered(subject, "s", 1).slot == 0
    assert answered(subject, "", 2).slot == 1
    assert answered(subject, "t", 3).slot == 1
    assert answered(subject, "s", 4).slot == 0
    assert answered(subject, "u", 5).slot == 1, "the one that has rested longest"


def test_a_slot_in_use_is_given_to_nobody_else():
    subject = plan(slots=1)
    assert subject.claim(0.0, A, Turn(1, "s", "m")) is not None
    assert subject.claim(0.0, A, Turn(2, "s", "m")) is None
    assert subject.claim(0.0, A, Turn(3, "", "m")) is None
    assert subject.claim(0.0, "http://unknown", Turn(4, "", "m")) is None


def test_a_session_that_goes_on_elsewhere_finds_its_snapshot():
    subject = plan()
    save = keep(subject, "s", 1)
    assert not subject.wants(A, Turn(2, "s", "m"))
    place = subject.claim(0.0, B, Turn(2, "s", "m"))
    assert (place.restore.file, place.moved) == (save.file, True)
    assert answered(subject, "s", 3, url=A).moved is False


@pytest.mark.parametrize("turn", [Turn(2, "s", "another"), Turn(2, "t", "m"), Turn(2, "", "m")])
def test_another_model_or_session_finds_nothing(turn):
    subject = plan()
    keep(subject, "s", 1)
    assert not subject.wants(B, turn)
    assert subject.claim(0.0, B, turn).restore is None


def test_what_a_server_forgot_when_it_was_restarted_is_restored_there():
    subject = plan()
    save = keep(subject, "s", 1)
    subject.lost(A)
    subject.learned(A, 2)
    place = subject.claim(0.0, A, Turn(2, "s", "m"))
    assert (place.restore.file, place.moved) == (save.file, False)


def test_a_save_that_came_too_late_for_its_answer_is_not_kept():
    subject = plan()
    answered(subject, "s", 1)
    (save,) = subject.due(0.0)
    answered(subject, "s", 2)
    assert not subject.saved(0.0, save, 99, 1000, 0.001)
    answered(subject, "s", 3)
    (save,) = subject.due(0.0)
    assert not subject.saved(0.0, save, 12, 1000, 0.001), "so few tokens are not those of the answer"
    assert subject.count == 0


def test_nothing_is_saved_of_a_request_without_a_session_or_an_answer():
    subject = plan()
    answered(subject, "", 1)
    answered(subject, "s", 2, tokens=None)
    assert subject.due(0.0) == []


def test_a_save_that_would_hold_up_others_waits_until_there_are_none():
    subject = plan(pause_s=0.05)
    other = Turn(9, "", "m")
    subject.claim(0.0, A, other)
    answered(subject, "s", 1)
    assert subject.due(0.0) == [], "how long it takes is not known yet"
    subject.ended(A, other, None)
    (save,) = subject.due(0.0)
    subject.saved(0.0, save, 99, 1000, 0.010)
    subject.claim(0.0, A, other)
    answered(subject, "s", 2)
    (save,) = subject.due(0.0)
    subject.saved(0.0, save, 99, 1000, 0.200)
    answered(subject, "s", 3)
    assert subject.due(0.0) == []


def test_snapshots_are_bounded_in_number_and_bytes_and_the_oldest_go_first():
    subject = plan(slots=8, count=2, size_bytes=5000)
    files = [keep(subject, session, number).file for number, session in enumerate("stu", 1)]
    assert (subject.count, subject.size_bytes) == (2, 2000)
    assert subject.removable == files[:1]
    assert not subject.wants(B, Turn(9, "s", "m"))
    keep(subject, "v", 5, size_bytes=4500)
    assert (subject.count, subject.size_bytes) == (1, 4500)
    answered(subject, "w", 6, tokens=Tokens(0, 90_000, 10))
    assert subject.due(0.0) == [], "45 bytes a token: it would never fit"


def test_sessions_that_nobody_uses_end():
    subject = plan()
    save = keep(subject, "s", 1)
    subject.expire(0.0)
    assert subject.count == 1
    subject.expire(1.0)
    assert (subject.count, subject.removable) == (0, [save.file])


@pytest.mark.parametrize(("never", "rest_s"), [(False, PAUSE_S), (True, NEVER_AGAIN_S)])
def test_a_server_that_failed_to_save_is_left_alone_for_a_while(never, rest_s):
    subject = plan()
    answered(subject, "s", 1)
    (save,) = subject.due(0.0)
    subject.failed(0.0, save, never=never)
    answered(subject, "s", 2)
    assert subject.due(rest_s - 0.1) == []
    assert len(subject.due(rest_s)) == 1


def test_a_file_that_may_be_written_yet_gives_its_name_to_nobody():
    subject = plan(count=1)
    names = set()
    for number in range(1, 10):
        answered(subject, "s", number)
        (save,) = subject.due(PAUSE_S * number)
        assert save.file not in names
        names.add(save.file)
        subject.failed(PAUSE_S * (number - 1), save, late=True)


def test_a_snapshot_that_cannot_be_restored_is_given_up():
    subject = plan()
    keep(subject, "s", 1)
    place = subject.claim(0.0, B, Turn(2, "s", "m"))
    subject.useless(place.restore)
    subject.useless(place.restore)
    assert (subject.count, subject.removable) == (0, [place.restore.file])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["turn", "saved", "failed", "late", "lost", "useless", "expire"]),
        st.sampled_from([A, B]),
        st.integers(0, 4),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_no_file_is_ever_two_sessions_and_no_more_saves_are_under_way_than_may_be(steps):
    subject, under_way, number, now_s, retired = plan(count=2), [], 0, 0.0, set()
    for step, url, which in steps:
        number, now_s = number + 1, now_s + PAUSE_S
        if step == "turn":
            answered(subject, f"s{which}", number, url)
            under_way += subject.due(now_s)
        elif step == "lost":
            subject.lost(url)
            subject.learned(url, 2)
        elif step == "expire":
            subject.expire(now_s - which * PAUSE_S)
        elif step == "useless" and subject.wants(url, Turn(number, f"s{which}", "m")):
            place = subject.claim(now_s, url, Turn(number, f"s{which}", "m"))
            if place is not None and place.restore is not None:
                subject.useless(place.restore)
            subject.ended(url, Turn(number, f"s{which}", "m"), None)
        elif under_way and step in ("saved", "failed", "late"):
            save = under_way.pop(which % len(under_way))
            if step == "saved":
                subject.saved(now_s, save, 99, 1000, 0.001)
            else:
                subject.failed(now_s, save, late=step == "late")
                retired |= {save.file} if step == "late" else set()
        kept = [one.snapshot.file for one in subject._kept.values()]
        writing = [save.file for save in under_way]
        assert len(set(kept + writing)) == len(kept + writing)
        assert not set(kept + writing) & retired
        assert not set(kept + writing) & set(subject._names)
        assert len(under_way) <= SAVES_MAX
        assert subject.count <= 2


# --- what engines say -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"choices":[],"timings":{"cache_n":3,"prompt_n":4,"predicted_n":5,"prompt_ms":1.5}}', Tokens(3, 4, 5)),
        (b'{\n "timings": {"cache_n": 3, "prompt_n": 4, "predicted_n": 5}\n}', Tokens(3, 4, 5)),
        (
            b'data: {"choices":["\\"timings\\":{"]}\n\ndata: {"timings":{"cache_n":1,"prompt_n":2,"predicted_n":1}}\n',
            Tokens(1, 2, 1),
        ),
        (b'data: {"timings":{"cache_n":-1,"prompt_n":2,"predicted_n":1}}\n\n', None),
        (b'data: {"timings":null}\n\ndata: [DONE]\n\n', None),
        (b"data: " + b"[" * 5000, None),
        (b"", None),
    ],
)
def test_the_counts_of_an_answer_are_found_wherever_they_are(body, tokens):
    assert tokens_in(body) == tokens


@pytest.mark.parametrize("timings", [None, 3, {}, {"cache_n": "3", "prompt_n": 1, "predicted_n": 1}])
def test_what_are_no_counts_is_taken_for_none(timings):
    assert tokens_of(timings) is None


def test_a_restore_counts_only_if_the_engine_has_used_it():
    subject = plan()
    keep(subject, "s", 1)
    snapshot = subject.claim(0.0, B, Turn(2, "s", "m")).restore
    assert used(snapshot, Tokens(cached=88, computed=20, predicted=1))
    assert not used(snapshot, Tokens(cached=1, computed=107, predicted=1)), "the first token alone is nobody's"


# --- settings ---------------------------------------------------------------------------------------------------------


REPLICA = '[[replica]]\nname = "a"\nurl = "http://h:1"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[sessions]\nkv = "snapshot"\n' + REPLICA, "without a [[replica]] of engine"),
        ('[listen]\nprocesses = 2\n[sessions]\nkv = "snapshot"\n' + REPLICA, "share no slots"),
        ('[sessions]\nkv = "snapshots"\n' + REPLICA, "kv"),
        ("[sessions.snapshots]\ncount = 0\n" + REPLICA, "count"),
        ("[sessions.snapshots]\nrestore_s = -1\n" + REPLICA, "restore_s"),
    ],
)
def test_settings_that_cannot_be_met_are_refused_by_name(text, said):
    with pytest.raises(TomlProblem, match=said.replace("[", r"\[")):
        parse(text, "gateway.toml")


def test_by_default_nothing_is_saved():
    assert SessionSettings().kv == "none"
