"""What the end of a process means, by who it was and when."""

from __future__ import annotations

from closeranks.decide import endings, membership, recovery, trouble
from closeranks.decide.diagnosis import Seen, Trouble, signal_name, when
from closeranks.decide.protocol import ProcEnded
from closeranks.decide.state import Life, Proc, Stage
from closeranks.decide.turn import Turn
from closeranks.events import ErrorSeen

_NEVER_IN_LOOP = -1
SEAT_STATE_MISSING = "SeatStateMissing"  # the exception of a process that cannot take over what its seat alone had


def ended(turn: Turn, proc: Proc, fact: ProcEnded) -> None:
    """A process is gone."""
    if proc.seat is None:
        _spare_ended(turn, proc, fact)
    elif proc.stage is Stage.DOOMED:
        turn.drop(proc)
        trouble.start_when_clear(turn)
        trouble.regroup_when_gathered(turn)
    elif turn.state.life is Life.LEAVING:
        _left(turn, proc, fact)
    elif fact.code == 0:
        _exited_with_success(turn, proc, fact)
    else:
        _failed(turn, proc, fact)


def _spare_ended(turn: Turn, proc: Proc, fact: ProcEnded) -> None:
    turn.drop(proc)
    if turn.state.life is Life.LEAVING:
        return
    detail = f"a spare {_how(fact)}"
    turn.note(ErrorSeen(detector=Seen.EXIT.value, seat=None, proc=proc.proc, detail=detail))
    # During a recovery a new spare would compete with it; the end of the incident refills.
    if turn.state.incident is None and turn.state.stop is None:
        membership.refill_spares(turn)


def _left(turn: Turn, proc: Proc, fact: ProcEnded) -> None:
    turn.drop(proc)
    if fact.code != 0:
        trouble.meet(turn, _trouble(proc, fact), gone=(proc,), hopeless="the last step was closed everywhere before")
    elif not membership.occupants(turn.state):
        endings.complete(turn, "every seat finished and left")


def _exited_with_success(turn: Turn, proc: Proc, fact: ProcEnded) -> None:
    state, seat = turn.state, proc.seat
    in_loop = proc.holds_state and proc.stage is not Stage.BUILDING
    if seat is None or (fact.left_at_step is None and in_loop) or state.life not in (Life.JOINING, Life.RUNNING):
        trouble.meet(turn, _left_early(proc, fact), gone=(proc,))
        return
    turn.drop(proc)
    left_at = _NEVER_IN_LOOP if fact.left_at_step is None else fact.left_at_step
    turn.update_group(exited={**state.group.exited, seat: left_at})
    refuse_without_join(turn)
    exited = turn.state.group.exited
    if turn.state.life is Life.ENDED:
        return
    if len(set(exited.values())) > 1:
        recovery.meet_left_early(turn)
    elif len(exited) == state.seats:
        endings.complete(turn, "every process exited with success")
    else:
        endings.confirm_if_finished(turn)


def seat_joined(turn: Turn) -> None:
    """A seat of a group that starts has called join: the first one, the last one, or one too many."""
    if turn.state.group.joined_s is None:
        turn.update_group(joined_s=turn.now_s)
        membership.refill_spares(turn)
    if turn.state.group.exited:
        refuse_without_join(turn)
    else:
        membership.begin_when_joined(turn)


def refuse_without_join(turn: Turn) -> None:
    """A seat that exits without join can never meet those that joined."""
    group = turn.state.group
    if turn.state.life is not Life.JOINING or group.joined_s is None or not group.exited:
        return
    seats = sorted(group.exited)
    detail = f"seats {seats} exited with success without calling join(), which others did"
    found = Trouble(seen=Seen.NO_JOIN, detail=detail, seats=tuple(seats))
    trouble.meet(turn, found, hopeless="every process must call it")


def _failed(turn: Turn, proc: Proc, fact: ProcEnded) -> None:
    found = _trouble(proc, fact)
    exited = turn.state.group.exited
    others_left = len(exited) == turn.state.seats - 1 > 0
    # Whoever fails inside the loop has left it too, by its exception: only when all others are through is it over.
    if others_left and set(exited.values()) == {fact.left_at_step}:
        trouble.meet(turn, found, gone=(proc,), hopeless="all seats had left the loop after the same step before")
    else:
        trouble.meet(turn, found, gone=(proc,))


def _trouble(proc: Proc, fact: ProcEnded) -> Trouble:
    # A successor that finds nothing of its seat's own state is no bug of the script: what it needs was lost, with the
    # node of its predecessor for example, and nobody can give it.
    orphaned = fact.crash is not None and fact.crash.error == SEAT_STATE_MISSING
    seen = Seen.NO_DONOR if orphaned else Seen.EXIT if fact.crash is None else Seen.EXCEPTION
    return Trouble(
        seen=seen,
        detail=account(proc, fact),
        seats=() if proc.seat is None else (proc.seat,),
        proc=proc.proc,
        code=fact.code,
        signal=fact.signal,
        crash=None if orphaned else fact.crash,
        hint=None if orphaned else fact.hint,
    )


def _left_early(proc: Proc, fact: ProcEnded) -> Trouble:
    return Trouble(
        seen=Seen.LEFT_EARLY,
        detail=f"{_name(proc)} exited with success while the others still train",
        seats=() if proc.seat is None else (proc.seat,),
        proc=proc.proc,
        left_at_step=fact.left_at_step,
    )


def account(proc: Proc, fact: ProcEnded) -> str:
    """Who ended, and how."""
    return f"{_name(proc)} {_how(fact)}"


def _name(proc: Proc) -> str:
    return f"spare p{proc.proc}" if proc.seat is None else f"s{proc.seat}.{proc.incarnation}"


def _how(fact: ProcEnded) -> str:
    if fact.crash is not None:
        crash = fact.crash
        step = f" {when(crash.step)}" if crash.step >= 0 else ""
        return f"failed with {crash.error} at {crash.where}{step}: {crash.message}"
    if fact.unkillable:
        return "cannot be ended and was fenced"
    if fact.signal is not None:
        return f"was ended by {signal_name(fact.signal)}"
    if fact.code is None:
        return "is gone, and nobody saw how"
    return f"exited with code {fact.code}"
