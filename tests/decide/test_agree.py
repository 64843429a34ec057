from hypothesis import given
from hypothesis import strategies as st

from closeranks.decide.agree import NoDonor, NoMajority, Plan, agree
from closeranks.decide.protocol import ProcPaused


def brought(step=9, digest="a", *, intact=True, settled=True):
    return ProcPaused(proc=1, term=1, closed_step=step, intact=intact, settled=settled, digest=digest)


reports = st.builds(
    brought, st.integers(-1, 2), st.sampled_from(["a", "b", "c"]), intact=st.booleans(), settled=st.booleans()
)


def test_a_newcomer_receives_from_the_lowest_seat_of_the_majority():
    plan = agree({1: brought(), 2: brought()}, frozenset({0}))
    assert (plan.step, plan.donor, plan.receivers, plan.outvoted) == (9, 1, (0,), ())


def test_nobody_receives_when_all_agree():
    plan = agree({0: brought(), 1: brought()}, frozenset())
    assert (plan.donor, plan.receivers) == (None, ())


def test_those_behind_receive():
    plan = agree({0: brought(8, "old"), 1: brought(), 2: brought()}, frozenset())
    assert (plan.step, plan.donor, plan.receivers, plan.outvoted) == (9, 1, (0,), ())


def test_a_corrupt_survivor_is_outvoted_and_receives():
    plan = agree({0: brought(digest="bad"), 1: brought(), 2: brought()}, frozenset({3}))
    assert (plan.donor, plan.receivers, plan.outvoted) == (1, (0, 3), (0,))
    assert "outvoted: seats [0]" in plan.reason


def test_a_tie_is_no_majority_nor_is_a_plurality():
    assert isinstance(agree({0: brought(digest="a"), 1: brought(digest="b")}, frozenset()), NoMajority)
    four = {0: brought(digest="a"), 1: brought(digest="a"), 2: brought(digest="b"), 3: brought(digest="c")}
    assert isinstance(agree(four, frozenset()), NoMajority)


def test_a_single_survivor_is_a_majority_of_itself():
    assert agree({2: brought()}, frozenset({0, 1})).donor == 2


def test_a_torn_or_unsettled_seat_gives_nothing():
    plan = agree({0: brought(10, intact=False), 1: brought(10, settled=False), 2: brought(9)}, frozenset({3}))
    assert (plan.step, plan.donor, plan.receivers) == (9, 2, (0, 1, 3))


def test_without_newcomers_unsettled_seats_can_go_on_together():
    both = {0: brought(settled=False), 1: brought(settled=False)}
    assert isinstance(agree(both, frozenset()), Plan)
    assert isinstance(agree(both, frozenset({2})), NoDonor)


def test_no_donor_says_why():
    assert "torn" in agree({0: brought(intact=False)}, frozenset({1})).reason
    assert "no final layout" in agree({0: brought(settled=False)}, frozenset({1})).reason
    assert agree({}, frozenset({0})).reason == "no member survived"


@given(st.dictionaries(st.integers(0, 5), reports, max_size=6), st.frozensets(st.integers(6, 8)))
def test_a_plan_is_safe_whatever_was_brought(survivors, newcomers):
    plan = agree(survivors, newcomers)
    if not isinstance(plan, Plan):
        return
    keepers = set(survivors) - set(plan.receivers)
    assert {(survivors[s].closed_step, survivors[s].digest) for s in keepers} == {
        (plan.step, survivors[min(keepers)].digest)
    }, "who keeps its state holds the same"
    assert all(survivors[s].intact for s in keepers)
    assert newcomers <= set(plan.receivers)
    assert set(plan.outvoted) <= set(plan.receivers)
    assert plan.donor == (min(keepers) if plan.receivers else None)
