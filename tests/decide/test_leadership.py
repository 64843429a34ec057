"""Who leads, step by step: one candidate, one supervisor, and the times between them."""

import pytest

from closeranks.decide import allegiance as al
from closeranks.decide import leadership as le
from closeranks.decide.leases import (
    CLOCK_SLACK,
    REACTION_S,
    Clockwork,
    fenced_at,
    outlasted,
    outnumbered,
    replacement_allowed,
)

CLOCKWORK = Clockwork(lease_s=3.0, renew_s=1.0, fence_s=1.0, authority_grace_s=300.0)


def candidacy(rank=0, **seen):
    fresh = le.Candidacy(boot="me", rank=rank, clockwork=CLOCKWORK)
    return le.observed(fresh, le.Seen(**seen), 0.0)


def at(now_s, **around):
    return le.Around(**{"now_s": now_s, "led": False} | around)


def won(now_s=0.0):
    """A candidate whose first bid was accepted at once."""
    state, choice = le.decide(candidacy(), at(now_s))
    return le.wrote(state, mine(choice.ballot), now_s)


def mine(ballot):
    return le.Seen(epoch=ballot.epoch, beat=ballot.beat, boot="me")


# --- candidates -------------------------------------------------------------------------------------------------


def test_nothing_is_decided_before_the_record_was_read():
    _, choice = le.decide(le.Candidacy(boot="me", rank=0), at(100.0))
    assert isinstance(choice, le.Wait)


def test_the_first_leader_is_the_lowest_rank_that_is_there():
    bids = {rank: le.decide(candidacy(rank), at(0.0))[1] for rank in (0, 1, 2)}
    assert bids[0] == le.Contend(ballot=le.Ballot(epoch=1, beat=1), reason="nobody has led yet")
    assert 0 < bids[1].again_s < bids[2].again_s < 1.0
    assert isinstance(le.decide(candidacy(2), at(bids[2].again_s))[1], le.Contend)


def test_a_leader_is_followed_until_its_record_has_not_changed_for_longer_than_a_lease():
    state = candidacy(epoch=4, beat=9, boot="other")
    due_s = outlasted(CLOCKWORK.lease_s)
    _, choice = le.decide(state, at(due_s - 0.01))
    assert choice == le.Follow(epoch=4, again_s=due_s)
    _, choice = le.decide(state, at(due_s))
    assert choice.ballot == le.Ballot(epoch=5, beat=1)
    renewed = le.observed(state, le.Seen(epoch=4, beat=10, boot="other"), due_s - 0.01)
    assert isinstance(le.decide(renewed, at(due_s))[1], le.Follow)


def test_whose_supervisor_is_led_does_not_contend_however_old_the_record_is():
    _, choice = le.decide(candidacy(epoch=4, beat=9, boot="other"), at(1000.0, led=True))
    assert isinstance(choice, le.Follow)


def test_a_leader_that_has_certainly_ended_is_replaced_at_once():
    _, choice = le.decide(candidacy(epoch=4, beat=9, boot="other"), at(0.0, led=True, leader_ended=True))
    assert isinstance(choice, le.Contend)


def test_nobody_contends_for_a_run_that_has_ended():
    _, choice = le.decide(candidacy(epoch=4, beat=9, boot="other", ended=True), at(1000.0))
    assert choice == le.Over()


def test_a_lease_counts_from_the_start_of_the_write_that_won_it():
    state, choice = le.decide(candidacy(), at(0.0))
    state = le.wrote(state, mine(choice.ballot), 1.5)
    assert le.grantable_s(state, 1.5) == 1.5
    assert le.grantable_s(state, 3.0) == 0.0


def test_a_leader_renews_each_renew_s_and_a_later_write_of_its_own_counts_as_one():
    state = won()
    state, choice = le.decide(state, at(0.5))
    assert choice == le.Lead(until_s=3.0, again_s=1.0)
    state, ballot = le.attempt(state, 0.9)
    state = le.wrote(state, mine(ballot), 1.0)
    state, choice = le.decide(state, at(1.0))
    assert choice.again_s == 1.9
    _, choice = le.decide(state, at(1.9))
    assert choice == le.Renew(ballot=le.Ballot(epoch=1, beat=3))


def test_a_refused_bid_follows_the_winner():
    state, _ = le.decide(candidacy(), at(0.0))
    state = le.wrote(state, le.Seen(epoch=1, beat=1, boot="other"), 0.1)
    _, choice = le.decide(state, at(0.1))
    assert choice == le.Follow(epoch=1, again_s=0.1 + outlasted(3.0))


def test_after_a_bid_in_doubt_the_record_is_read_first():
    state, _ = le.decide(candidacy(), at(0.0))
    state = le.unanswered(state)
    assert isinstance(le.decide(state, at(50.0))[1], le.Wait)
    state = le.observed(state, le.Seen(), 50.0)
    _, choice = le.decide(state, at(50.0))
    assert choice.ballot == le.Ballot(epoch=2, beat=1)


def test_a_bid_that_turns_up_late_gives_only_what_is_left_of_its_lease():
    state, choice = le.decide(candidacy(), at(0.0))
    state = le.observed(le.unanswered(state), mine(choice.ballot), 2.5)
    assert le.grantable_s(state, 2.5) == 0.5
    assert isinstance(le.decide(state, at(3.0))[1], le.StepDown)


def test_a_renewal_in_doubt_is_tried_again_with_a_beat_of_its_own():
    state, first = le.decide(won(), at(1.0))
    state, second = le.decide(le.unanswered(state), at(2.0))
    assert (first.ballot.beat, second.ballot.beat) == (2, 3)
    state = le.wrote(state, mine(first.ballot), 2.1)  # it was refused: the first had taken place
    assert le.grantable_s(state, 2.1) == pytest.approx(1.9)


def test_another_leader_in_the_record_ends_the_reign_at_once():
    state = le.observed(won(), le.Seen(epoch=2, beat=1, boot="other"), 0.5)
    assert le.grantable_s(state, 0.5, heard_s=0.5) == 0.0
    assert not le.admits(state, 0.5)
    state, choice = le.decide(state, at(0.5, heard_s=0.5))
    assert choice == le.StepDown(reason="the register names epoch 2, not our epoch 1")
    assert isinstance(le.decide(state, at(0.5))[1], le.Follow)


def test_without_the_authority_a_leader_goes_on_while_all_nodes_follow_it_and_not_for_ever():
    state, _ = le.decide(won(), at(1.0))
    state = le.unanswered(state)
    assert le.grantable_s(state, 100.0, heard_s=99.0) == 2.0
    assert not le.admits(state, 100.0)
    assert le.grantable_s(state, 299.0, heard_s=299.0) == 1.0
    assert isinstance(le.decide(state, at(299.0, heard_s=298.9))[1], le.Renew)
    _, choice = le.decide(state, at(300.0, heard_s=299.9))
    assert "last renewed 300.00 s ago" in choice.reason


def test_without_the_authority_a_leader_that_misses_one_node_stops_with_its_lease():
    state, _ = le.decide(won(), at(1.0))
    state, choice = le.decide(le.unanswered(state), at(3.0))
    assert isinstance(choice, le.StepDown)
    assert le.grantable_s(state, 3.0) == 0.0


def test_what_a_leader_gave_up_it_takes_again_only_as_anybody_else():
    state, _ = le.decide(won(), at(3.0))
    state = le.observed(state, le.Seen(epoch=1, beat=1, boot="me"), 3.1)
    _, choice = le.decide(state, at(3.1))
    assert isinstance(choice, le.Wait)
    state, choice = le.decide(state, at(choice.again_s))
    assert choice.ballot == le.Ballot(epoch=2, beat=1)


def test_a_leader_that_reaches_the_minority_lets_others_try_once():
    state, gave_up_s = outnumbered_reign(won(), 0.0)
    assert gave_up_s == 6.0
    _, choice = le.decide(state, at(gave_up_s))
    assert choice.again_s > gave_up_s + 2 * CLOCKWORK.lease_s
    again_s = choice.again_s
    state, choice = le.decide(state, at(again_s))
    assert choice.ballot.epoch == 2
    # In its first look it does not know yet whom it reaches.
    state, choice = le.decide(le.wrote(state, mine(choice.ballot), again_s), at(again_s))
    assert isinstance(choice, le.Lead)
    _, gave_up_s = outnumbered_reign(state, again_s + 0.1)
    assert gave_up_s == float("inf")


def test_a_leader_that_reached_enough_again_lets_others_try_anew():
    state, gave_up_s = outnumbered_reign(won(), 0.0)
    _, choice = le.decide(state, at(gave_up_s))
    again_s = choice.again_s
    state, choice = le.decide(state, at(again_s))
    state, _ = le.decide(le.wrote(state, mine(choice.ballot), again_s), at(again_s, outnumbered=False))
    assert outnumbered_reign(state, again_s)[1] == pytest.approx(again_s + 6.0)


def outnumbered_reign(state, now_s):
    """Lead without enough nodes: the state afterwards, and when the leader gave up."""
    for _ in range(40):
        state, choice = le.decide(state, at(now_s, outnumbered=True))
        if isinstance(choice, le.StepDown):
            return state, now_s
        if isinstance(choice, le.Renew):
            state = le.wrote(state, mine(choice.ballot), now_s)
        now_s += 0.5
    return state, float("inf")


def test_a_successor_knows_since_when_its_predecessor_has_not_written():
    state = candidacy(epoch=4, beat=9, boot="other")  # read at 0 s
    state, choice = le.decide(state, at(7.0))
    state = le.wrote(state, mine(choice.ballot), 8.0)
    assert (state.reign.predecessor_s, state.reign.since_s) == (0.0, 7.0)


def test_times_under_which_a_leader_loses_its_lease_are_refused():
    with pytest.raises(ValueError, match="at most half of the lease of 3 s, got 2 s"):
        Clockwork(lease_s=3.0, renew_s=2.0)
    with pytest.raises(ValueError, match="expected a fence above 0 s"):
        Clockwork(fence_s=0.0)


# --- supervisors ------------------------------------------------------------------------------------------------


def follower(epoch=2, until_s=3.0):
    state, _ = al.welcomed(al.Allegiance(clockwork=CLOCKWORK), epoch, 0.0)
    return al.granted(state, epoch, until_s - CLOCKWORK.lease_s, CLOCKWORK.lease_s)


def test_a_new_supervisor_follows_whoever_leads_and_may_not_act_yet():
    state, answer = al.welcomed(al.Allegiance(), 5, 0.0)
    assert answer == al.Accepted(epoch=5)
    assert al.standing(state, 0.0).order is al.Order.FENCE


def test_a_grant_counts_from_when_its_beat_was_sent_and_never_gets_shorter():
    state = al.granted(follower(until_s=0.0), 2, beat_sent_s=10.0, lease_s=2.0)
    assert al.standing(state, 11.9) == al.Standing(order=al.Order.ACT, until_s=12.0)
    assert al.granted(state, 2, beat_sent_s=9.0, lease_s=2.0) == state
    assert al.granted(state, 2, beat_sent_s=11.0, lease_s=99.0).until_s == 14.0
    assert al.granted(state, 1, beat_sent_s=11.0, lease_s=2.0) == state


def test_without_a_grant_workers_are_interrupted_and_then_killed():
    orders = [al.standing(follower(), now_s) for now_s in (2.9, 3.0, 3.9, 4.0)]
    assert [one.order for one in orders] == ["act", "interrupt", "interrupt", "fence"]
    assert [one.until_s for one in orders] == [3.0, 4.0, 4.0, float("inf")]


def test_an_older_leader_is_refused_for_ever():
    state, answer = al.welcomed(follower(epoch=2), 1, 100.0)
    assert (state.epoch, answer.final) == (2, True)


def test_a_newer_leader_waits_while_the_old_one_holds_this_node():
    state, answer = al.welcomed(follower(until_s=3.0), 3, 1.0)
    assert (state.epoch, answer.final, answer.until_s) == (2, False, 3.0)
    assert al.welcomed(state, 3, 3.0)[1] == al.Accepted(epoch=3)


def test_a_newer_leader_is_followed_at_once_when_the_old_one_is_lost_and_workers_go_on():
    state, answer = al.welcomed(al.unlinked(follower(until_s=3.0)), 3, 1.0)
    assert answer == al.Accepted(epoch=3)
    assert al.standing(state, 2.0).order is al.Order.ACT


# --- from when on a silent node is fenced -----------------------------------------------------------------------


def test_a_silent_node_is_fenced_when_the_slowest_clock_has_counted_lease_and_fence():
    slow = (1 + 0.01) / (1 - 0.01)
    assert fenced_at(100.0, CLOCKWORK) >= 100.0 + (3.0 + 1.0) * slow + REACTION_S
    assert fenced_at(100.0, CLOCKWORK) == 100.0 + 4.0 * (1 + CLOCK_SLACK) + REACTION_S


def test_half_of_the_nodes_are_enough_and_less_are_not():
    assert [outnumbered(nodes=4, reached=reached) for reached in (0, 1, 2, 3)] == [True, True, False, False]
    assert not outnumbered(nodes=0, reached=0)


def allowed(nodes, reached):
    return replacement_allowed(
        nodes=nodes, reached=reached, predecessor_s=10.0, let_go_s=12.0, clockwork=CLOCKWORK
    ).from_s


def test_a_successor_that_is_followed_waits_for_grants_of_its_predecessor():
    assert allowed(nodes=2, reached=1) == fenced_at(12.0, CLOCKWORK)


def test_a_successor_that_few_follow_waits_until_no_leader_can_go_on_without_the_authority():
    assert allowed(nodes=3, reached=1) == allowed(nodes=3, reached=0) > 10.0 + 300.0 + 1.0
