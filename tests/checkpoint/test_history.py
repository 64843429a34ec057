"""The fold of a log, by example. Random interleavings of writers are in test_history_properties.py."""

import msgspec
import pytest
from tests.checkpoint.logs import claimed, committed, entry, history_of, manifest

from closeranks.checkpoint.format import Claim, Commit, Pin, Retire, Unpin, Verified
from closeranks.checkpoint.history import EMPTY, Verification, fold


def test_a_commit_is_visible_under_the_number_of_its_entry():
    history = history_of(claimed(), committed(1, 100))
    assert list(history.generations) == [2] and history.newest().manifest.step == 100
    assert history.term == 1 and history.owner == "owner 1" and history.last == 2


def test_without_a_claim_nothing_is_published():
    history = history_of((0, Commit(manifest=manifest(0, 1))))
    assert not history.generations and history.void == {1: "no term was claimed yet"}


def test_a_claim_of_any_term_but_the_next_is_void():
    history = history_of(claimed(2), claimed(1), claimed(1), claimed(3), claimed(2))
    assert history.term == 2 and sorted(history.void) == [1, 3, 4]


@pytest.mark.parametrize(
    "act",
    [Commit(manifest=manifest(1, 7)), Retire(generations=(2,)), Pin(generation=2), Verified(generation=2, held=True)],
)
def test_whatever_an_old_term_appends_is_void_and_says_who_claimed_the_newer_one(act):
    before = history_of(claimed(1), committed(1, 5), committed(1, 6), claimed(2))
    after = fold(before, entry(5, 1, act))
    assert after.generations == before.generations and after.retired == before.retired
    assert after.void == {5: "it is of term 1, but owner 2 had claimed term 2"}


def test_an_attempt_is_committed_once():
    history = history_of(claimed(), committed(1, 5), committed(1, 5))
    assert list(history.generations) == [2] and "is generation 2 already" in history.void[3]


def test_an_attempt_cannot_be_adopted_by_a_later_term():
    history = history_of(claimed(1), claimed(2), (2, Commit(manifest=manifest(1, 5))))
    assert "belongs to term 1" in history.void[3]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shards": ()}, "0 shards for 1 writers"),
        ({"world": 2}, "1 shards for 2 writers"),
        ({"attempt": "../../etc"}, "not the name of an attempt"),
        ({"attempt": "t00000001-s000000000005-0000ffff"}, "does not name the shard of every writer"),
    ],
)
def test_a_manifest_that_lies_about_its_shards_is_void(change, reason):
    lie = msgspec.structs.replace(manifest(1, 5), **change)
    assert reason in history_of(claimed(), (1, Commit(manifest=lie))).void[2]


def test_a_commit_on_a_retired_base_is_void_and_one_before_the_retirement_is_not():
    late = history_of(
        claimed(), committed(1, 1), committed(1, 2), (1, Retire(generations=(2,))), committed(1, 3, bases=(2,))
    )
    assert "generation 2, which it builds on, was retired by entry 4" in late.void[5]
    early = history_of(claimed(), committed(1, 1), committed(1, 2, bases=(2,)), (1, Retire(generations=(2,))))
    assert list(early.generations) == [3] and not early.void


def test_a_retirement_takes_what_it_may_and_leaves_the_rest():
    history = history_of(
        claimed(),
        *(committed(1, step) for step in range(5)),  # generations 2 to 6
        (1, Pin(generation=2, label="paper")),
        (1, Verified(generation=4, held=True)),
        (1, Retire(generations=(2, 3, 4, 5, 6, 99))),
    )
    assert list(history.generations) == [2, 4, 6] and history.retired == {3: 9, 5: 9} and not history.void


def test_a_retirement_of_shielded_generations_alone_is_void_with_every_reason():
    history = history_of(claimed(), committed(1, 1), (1, Retire(generations=(2, 7))))
    assert history.void[3] == "generation 2 the newest; generation 7 does not exist"


def test_the_newest_that_can_be_trusted_is_kept_besides_the_newest():
    history = history_of(
        claimed(),
        committed(1, 1),
        committed(1, 2),
        committed(1, 3, trusted=False),
        committed(1, 4, trusted=False),
        (1, Retire(generations=(2, 3, 4, 5))),
    )
    assert list(history.generations) == [3, 5]
    assert history.newest().number == 3 and history.newest(trusted=False).number == 5


def test_each_group_of_state_keeps_its_own_newest():
    history = history_of(
        claimed(),
        committed(1, 1),
        committed(1, 2, group="embeddings"),
        committed(1, 3),
        (1, Retire(generations=(2, 3, 4))),
    )
    assert list(history.generations) == [3, 4] and history.newest(group="embeddings").number == 3


def test_a_drill_that_fails_later_takes_the_title_of_last_verified_away():
    acts = [claimed(), committed(1, 1), committed(1, 2), (1, Verified(generation=2, held=True))]
    acts.append((1, Verified(generation=3, held=True)))
    assert history_of(*acts).last_verified().number == 3
    broken = history_of(*acts, (1, Verified(generation=3, held=False, detail="w00000: digest")))
    assert broken.last_verified().number == 2 and broken.newest().number == 2
    assert (
        broken.generations[3].verified is Verification.BROKEN
        and broken.generations[3].verified_detail == "w00000: digest"
    )


def test_an_unpin_lets_a_generation_go_and_a_second_one_is_void():
    acts = [claimed(), committed(1, 1), committed(1, 2), (1, Pin(generation=2)), (1, Unpin(generation=2))]
    history = history_of(*acts, (1, Unpin(generation=2)), (1, Retire(generations=(2,))))
    assert list(history.generations) == [3] and history.void == {6: "generation 2 is not pinned"}


def test_entries_that_do_not_follow_are_an_error_of_the_caller():
    with pytest.raises(ValueError, match="expected entry 1, got entry 2"):
        fold(EMPTY, entry(2, 1, Claim(owner="a")))
