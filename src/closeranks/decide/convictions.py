"""What the controller does about a ruling of the members: replace seats, roll back, meet again, or stop."""

from __future__ import annotations

from closeranks.decide import membership, trouble
from closeranks.decide.diagnosis import Seen, Trouble
from closeranks.decide.protocol import StepRuled
from closeranks.decide.state import Life
from closeranks.decide.suspicion import Cause
from closeranks.decide.turn import Turn

_SEEN = {Cause.REPLAY: Seen.REPLAY, Cause.OUTVOTED: Seen.OUTVOTED, Cause.SPLIT: Seen.DIGEST}


def ruled(turn: Turn, fact: StepRuled) -> None:
    """Every member tells the same; the first one counts, since it ends the term or the seats' processes."""
    if turn.state.life is not Life.RUNNING or fact.cause is Cause.NOTHING:
        return
    occupants = membership.occupants(turn.state)
    convicted = tuple(occupants[seat] for seat in fact.seats if seat in occupants)
    if len(convicted) < len(fact.seats):
        return
    wrong = Seen.DIVERGED if fact.roll_back else Seen.NUMERICS
    found = Trouble(
        seen=_SEEN.get(fact.cause, wrong),
        detail=f"step {fact.step}: {fact.reason}",
        seats=fact.seats,
        proc=convicted[0].proc if len(convicted) == 1 else None,
    )
    trouble.meet(turn, found, stuck=convicted, hopeless=found.detail if fact.stop else "")
