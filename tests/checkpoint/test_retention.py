import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.logs import claimed, committed, entry, history_of

from closeranks.checkpoint.format import Pin, Retire, Verified
from closeranks.checkpoint.history import fold_all
from closeranks.checkpoint.retention import Policy, choose

HOUR_S = 3600.0
NOW_S = 100 * 24 * HOUR_S


def kept(policy, *acts, wall_s=lambda _: 0.0, now_s=NOW_S):
    history = history_of(claimed(), *acts, wall_s=wall_s)
    steps = {number: g.manifest.step for number, g in history.generations.items()}
    return {steps[number]: reason for number, reason in choose(history, policy, now_s).keep.items()}


def saves(*steps):
    return [committed(1, step, nonce=number) for number, step in enumerate(steps)]


def test_the_last_n_are_kept_each_with_its_reason():
    assert kept(Policy(last=2), *saves(10, 20, 30)) == {20: "one of the last 2", 30: "the newest"}


def test_one_generation_of_every_so_many_steps_is_kept_for_ever():
    assert sorted(kept(Policy(last=1, every_steps=100), *saves(10, 90, 110, 190, 210, 290))) == [10, 110, 210, 290]


def test_steps_that_were_rolled_back_are_not_kept_for_their_steps():
    found = kept(Policy(last=1, every_steps=100), *saves(10, 150, 250, 120, 130))
    assert sorted(found) == [10, 120, 130]


def test_hours_and_days_keep_the_newest_of_each():
    hours = [0.1, 0.2, 1.1, 1.2, 2.1, 26.0, 26.5]
    found = kept(Policy(last=1, hourly=2, daily=2), *saves(*range(7)), wall_s=lambda n: hours[max(n - 2, 0)] * HOUR_S)
    assert sorted(found) == [4, 6], "hours 26 and 2; days 1 and 0"


def test_a_clock_that_ran_ahead_fills_one_hour_only():
    ahead = [NOW_S - HOUR_S, NOW_S + 5 * HOUR_S, NOW_S + 9 * HOUR_S, NOW_S + 20 * HOUR_S]
    found = kept(Policy(last=1, hourly=2), *saves(*range(4)), wall_s=lambda n: ahead[max(n - 2, 0)])
    assert sorted(found) == [0, 3]


def test_untrusted_generations_do_not_push_trusted_ones_out():
    suspected = [committed(1, step, trusted=False) for step in (40, 50, 60)]
    assert sorted(kept(Policy(last=2), *saves(10, 20, 30), *suspected)) == [20, 30, 40, 50, 60]
    assert sorted(kept(Policy(last=2), *saves(10, 20), *suspected, committed(1, 70))) == [20, 70]


def test_broken_generations_do_not_push_sound_ones_out():
    broken = (1, Verified(generation=4, held=False))
    assert sorted(kept(Policy(last=2), *saves(10, 20, 30), broken)) == [10, 20, 30]


def test_each_group_is_counted_for_itself():
    part = [committed(1, step, group="embeddings") for step in (31, 32, 33)]
    assert sorted(kept(Policy(last=1), *saves(10, 20, 30), *part)) == [30, 33]


@given(
    st.lists(st.tuples(st.integers(0, 500), st.booleans(), st.sampled_from(["", "g"])), min_size=1, max_size=30),
    st.integers(1, 5),
    st.none() | st.integers(1, 100),
    st.integers(0, 5),
)
def test_what_is_chosen_to_go_is_what_the_log_lets_go(made, last, every, hourly):
    acts = [committed(1, s, nonce=n, trusted=t, group=g) for n, (s, t, g) in enumerate(made)]
    acts += [(1, Pin(generation=2)), (1, Verified(generation=2 + len(made) // 2, held=True))]
    history = history_of(claimed(), *acts, wall_s=lambda n: n * 1000.0)
    chosen = choose(history, Policy(last=last, every_steps=every, hourly=hourly), NOW_S)
    assert set(chosen.keep) | set(chosen.retire) == set(history.generations)
    assert not set(chosen.keep) & set(chosen.retire)
    if chosen.retire:
        after = fold_all(history, [entry(history.last + 1, 1, Retire(generations=chosen.retire))])
        assert set(after.generations) == set(chosen.keep)


def test_a_policy_is_read_from_text_and_written_back():
    policy = Policy.parse("last=3, hourly=24,daily=7,every=1000")
    assert policy == Policy(last=3, hourly=24, daily=7, every_steps=1000)
    assert Policy.parse(str(policy)) == policy
    assert Policy.parse("") == Policy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("last=3,dayly=7", "unknown key 'dayly', did you mean 'daily'"),
        ("zzz=7", "known are last, every, hourly, daily"),
        ("last", "expected last=NUMBER, got 'last'"),
        ("last=-1", "expected last=NUMBER"),
        ("last=3,last=4", "last is given twice"),
        ("last=0", "expected last from 1"),
        ("every=99999999999999999999999", "expected every_steps from 1"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused_with_the_way_out(text, message):
    with pytest.raises(ValueError, match=message):
        Policy.parse(text)
