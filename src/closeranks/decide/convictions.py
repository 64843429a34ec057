"""What the controller does about a ruling of the members: replace seats, roll back, meet again, or stop."""

from __future__ import annotations

from closeranks.decide import membership, trouble
from closeranks.decide.diagnosis import Seen, Trouble
from closeranks.decide.protocol import StepRuled
from closeranks.decide.state import Life, Stage
from closeranks.decide.suspicion import Cause
from closeranks.decide.turn import Turn
from closeranks.detect.corruption import vote

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


def agree_at_the_end(turn: Turn) -> bool:
    """Compare the state that all hold after the last step: False if they differ, which has been seen to then."""
    occupants = membership.occupants(turn.state)
    digests = {seat: p.digest for seat, p in occupants.items() if p.stage is Stage.CONFIRMED and p.digest}
    if len(digests) < len(occupants):
        return True
    counted = vote(digests)
    if not counted.outvoted:
        return True
    told = f"after the last step the state of seats {list(counted.outvoted)} is not that of the others"
    if counted.settled:
        stuck = tuple(occupants[seat] for seat in counted.outvoted)
        found = Trouble(seen=Seen.OUTVOTED, detail=told, seats=counted.outvoted)
        trouble.meet(turn, found, stuck=stuck)
    else:
        trouble.meet(turn, Trouble(seen=Seen.DIGEST, detail=f"{told}, and there is no majority"))
    return False
