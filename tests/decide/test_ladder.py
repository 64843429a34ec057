import pytest
from msgspec.structs import replace

from closeranks.decide.budgets import Exceeded
from closeranks.decide.ladder import LADDER, Situation, choose
from closeranks.events import Rung

LOST_ONE = Situation(
    fault="process killed", lost=1, survivors=3, spares=1, looped=True, start_up=False, replicated=True
)


@pytest.mark.parametrize(
    ("changes", "rung"),
    [
        ({}, Rung.SPARE),
        ({"lost": 0, "survivors": 4}, Rung.REGROUP),
        ({"lost": 0, "survivors": 4, "replicated": False}, Rung.REGROUP),
        ({"lost": 0, "survivors": 4, "spent": frozenset({Rung.REGROUP})}, Rung.COLD_RESTART),
        ({"spares": 0}, Rung.FORK),
        ({"lost": 2, "survivors": 2}, Rung.FORK),
        ({"spent": frozenset({Rung.SPARE})}, Rung.FORK),
        ({"spent": frozenset({Rung.SPARE, Rung.FORK})}, Rung.COLD_RESTART),
        ({"replicated": False}, Rung.COLD_RESTART),
        ({"survivors": 0, "lost": 4}, Rung.COLD_RESTART),
        ({"corrupt": "digests have no majority"}, Rung.COLD_RESTART),
        ({"looped": False}, Rung.COLD_RESTART),
        ({"start_up": True}, Rung.COLD_RESTART),
        ({"corrupt": "bad", "cold_budget": Exceeded(reason="used up")}, Rung.STOP),
        ({"hopeless": "deterministic"}, Rung.STOP),
        ({"budget": Exceeded(reason="too many")}, Rung.STOP),
    ],
)
def test_the_cheapest_rung_that_nothing_speaks_against_is_taken(changes, rung):
    choice = choose(replace(LOST_ONE, **changes))
    assert choice.rung is rung
    for word in changes.values():
        assert not isinstance(word, str) or word in choice.reason, "the reason names what decided"


def test_the_reason_says_why_no_cheaper_rung_was_taken():
    reason = choose(replace(LOST_ONE, spares=0)).reason
    assert "1 of 4 seats need a new process" in reason
    assert "0 spares for 1 empty seats" in reason


def test_rungs_are_in_the_order_of_their_cost():
    order = list(Rung)
    assert [step.rung for step in LADDER] == sorted((step.rung for step in LADDER), key=order.index)
    assert LADDER[-1].rung is Rung.STOP
