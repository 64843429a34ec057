"""The ladder: recovery actions, cheapest first, and the choice among them.

A rung is data: its name, what speaks against it in a situation, and what speaks for it. The choice is the first
rung that nothing speaks against. A new rung takes its place in ``LADDER``. A failed collective ends its term, so
neither WAIT nor RETRY can do without new connections: REGROUP retries the step. On one node a cold restart stands in
for RESPAWN. REPLACE_NODE is for seats whose node is gone; where no node has room, they wait for one;
SHRINK follows where none came and fewer seats are allowed. The answer to the fault (``answers``) may take rungs away.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from closeranks.decide.answers import Answer
from closeranks.decide.budgets import Exceeded, Within
from closeranks.events import Rung
from closeranks.faults import CATALOGUE


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """All that the choice depends on."""

    fault: str
    lost: int  # seats without a process
    survivors: int  # members whose state may be a donor's
    spares: int  # empty seats that a living spare can take
    looped: bool  # every member had reached its loop: survivors can be regrouped where they are
    start_up: bool  # it belongs to starting: a warm rung would meet it again, and restarts have their own budget
    replicated: bool  # False: a lost seat's state has no copy
    moves: int = 0  # empty seats that go to another node
    roomless: int = 0  # empty seats that no node has room for
    patience_s: float = 0.0  # that they may wait for a node
    seats: int = 0  # of the group
    fewer_seats: int = 0  # no node came in time, but so many of them can go on
    corrupt: str = ""  # why state is not trusted, or who gives it is missing
    hopeless: str = ""  # why no rung can help: the failure is deterministic, or there is nothing to go back to
    spent: frozenset[Rung] = frozenset()  # rungs that did not help in this incident, or right before it
    budget: Within | Exceeded = Within()  # of the incident as a whole
    cold_budget: Within | Exceeded = Within()  # of a restart of the whole group
    saved_step: int | None = None  # the newest that a restart can go on after
    suspect: str = ""  # why state that was saved lately may be corrupt
    wait_s: float = 0.0  # before members that lost nobody meet again
    answer: Answer = Answer()  # to the fault


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A rung, why it, and why none of the cheaper ones."""

    rung: Rung
    reason: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One rung of the ladder."""

    rung: Rung
    against: Callable[[Situation], str]  # empty: nothing
    because: Callable[[Situation], str]


def choose(situation: Situation) -> Choice:
    """The cheapest rung that nothing speaks against; STOP is always there."""
    objections: list[str] = []
    for step in LADDER:
        objection = step.against(situation) or _not_allowed(situation, step.rung)
        if not objection:
            reason = step.because(situation)
            told = [text for text in dict.fromkeys(objections) if text not in reason]
            return Choice(rung=step.rung, reason="; ".join([reason, *told]))
        objections.append(objection)
    raise AssertionError("the last rung takes everything")  # pragma: no cover - STOP has no objection


def _not_allowed(s: Situation, rung: Rung) -> str:
    allowed = s.answer.rungs
    if allowed is None or rung in allowed or rung is Rung.STOP:
        return ""
    named = ", ".join(one for one in allowed if one is not Rung.STOP)
    return f"the policy for {s.fault!r} allows {named or 'nothing but a person'}"


def _hopeless(s: Situation) -> str:
    if s.hopeless:
        return s.hopeless
    return s.budget.reason if isinstance(s.budget, Exceeded) else ""


def _against_warm(s: Situation) -> str:
    objections = (
        _hopeless(s),
        s.corrupt,
        "" if s.looped else "not every member had reached a loop in which it can be regrouped",
        "the process failed before the first step of its group" if s.start_up else "",
        "" if s.survivors else "no member survived that could give its state",
        "the state is sharded: a lost seat's part has no donor" if s.lost and not s.replicated else "",
    )
    return next(filter(None, objections), "")


def _against_regroup(s: Situation) -> str:
    if warm := _against_warm(s):
        return warm
    if s.lost:
        return f"{s.lost} of {s.lost + s.survivors} seats need a new process"
    return "regrouping in place did not help" if Rung.REGROUP in s.spent else ""


def _against_spare(s: Situation) -> str:
    if warm := _against_warm(s):
        return warm
    if not s.lost:
        return "no seat is empty"
    if away := _away(s):
        return away
    if s.spares < s.lost:
        return f"{s.spares} spares for {s.lost} empty seats"
    return "a spare did not help" if Rung.SPARE in s.spent else ""


def _against_fork(s: Situation) -> str:
    if warm := _against_warm(s):
        return warm
    if not s.lost:
        return "no seat is empty"
    return _away(s) or ("a new process for the seat did not help" if Rung.FORK in s.spent else "")


def _away(s: Situation) -> str:
    if s.roomless:
        return f"no node has room for {s.roomless} of {s.lost} empty seats"
    return f"{s.moves} of {s.lost} empty seats have to move to another node" if s.moves else ""


def _against_replace_node(s: Situation) -> str:
    if not s.roomless and not s.moves:
        return _against_fork(s)
    if warm := _against_warm(s):
        return warm
    if s.fewer_seats:
        return f"no node came within {s.patience_s:g} s"
    return "another node did not help" if Rung.REPLACE_NODE in s.spent and not s.roomless else ""


def _against_shrink(s: Situation) -> str:
    return _against_restart(s) if s.fewer_seats else _against_replace_node(s)


def _because_shrink(s: Situation) -> str:
    begins = "from the beginning of its script" if s.saved_step is None else f"from the saved step {s.saved_step}"
    return f"{s.fault}: the group goes on with {s.fewer_seats} of {s.seats} seats {begins}"


def _because_replace_node(s: Situation) -> str:
    kept = f"{s.fault}: {s.survivors} members keep their state"
    if s.roomless:
        return f"{kept} and wait up to {s.patience_s:g} s for a node with room for {s.roomless} of {s.lost} empty seats"
    return f"{kept}, {s.moves} of {s.lost} empty seats move to another node, where spares wait for {s.spares}"


def _against_restart(s: Situation) -> str:
    if hopeless := _hopeless(s):
        return hopeless
    return s.cold_budget.reason if isinstance(s.cold_budget, Exceeded) else ""


def _against_cold(s: Situation) -> str:
    if objection := _against_restart(s):
        return objection
    if s.suspect and s.saved_step is not None:
        return "the newest saved state may hold what is wrong"
    return ""


def _because_cold(s: Situation) -> str:
    if s.saved_step is None:
        return f"{s.fault}: the whole group starts again from nothing, no state was saved"
    return f"{s.fault}: the whole group starts again from the newest saved state, step {s.saved_step} or the next older"


def _because_stop(s: Situation) -> str:
    if hopeless := _hopeless(s):
        return hopeless
    if s.start_up and isinstance(s.cold_budget, Exceeded):
        return (
            f"failed before the first step ({s.fault}), and {s.cold_budget.reason}: a failure at start-up seldom goes "
            "away by itself; mend what the output shows"
        )
    if isinstance(s.cold_budget, Exceeded):
        return s.cold_budget.reason
    advice = CATALOGUE[s.fault].advice if s.fault in CATALOGUE else ""
    return f"no rung of the ladder is left; {advice}" if advice else "no rung of the ladder is left"


def _because_regroup(s: Situation) -> str:
    when = f" after {s.wait_s:g} s" if s.wait_s else ""
    return f"{s.fault}: nobody is lost, {s.survivors} members meet again{when} and retry the step"


LADDER: tuple[Step, ...] = (
    Step(
        rung=Rung.REGROUP,
        against=_against_regroup,
        because=_because_regroup,
    ),
    Step(
        rung=Rung.SPARE,
        against=_against_spare,
        because=lambda s: f"{s.fault}: {s.survivors} members keep their state, a spare is there for each empty seat",
    ),
    Step(
        rung=Rung.FORK,
        against=_against_fork,
        because=lambda s: f"{s.fault}: {s.survivors} members keep their state and wait for a new process",
    ),
    Step(
        rung=Rung.REPLACE_NODE,
        against=_against_replace_node,
        because=_because_replace_node,
    ),
    Step(
        rung=Rung.SHRINK,
        against=_against_shrink,
        because=_because_shrink,
    ),
    Step(
        rung=Rung.COLD_RESTART,
        against=_against_cold,
        because=_because_cold,
    ),
    Step(
        rung=Rung.ROLL_BACK,
        against=_against_restart,
        because=lambda s: f"{s.fault}: the whole group starts again from the last checkpoint that is trusted",
    ),
    Step(rung=Rung.STOP, against=lambda _: "", because=_because_stop),
)
