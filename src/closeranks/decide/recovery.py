"""The way back: members regroup, agree on a restore point, transfer and verify; and the deadlines of all that."""

from __future__ import annotations

from msgspec.structs import replace

from closeranks.decide import canary, endings, membership, nodes, trouble
from closeranks.decide.agree import NoDonor, NoMajority, Plan, agree
from closeranks.decide.diagnosis import Seen, Trouble, late_steps_counted
from closeranks.decide.protocol import PlanRestore, StepDone
from closeranks.decide.state import Life, Proc, Stage, State
from closeranks.decide.turn import Turn
from closeranks.detect.corruption import vote
from closeranks.events import (
    CanaryPassed,
    CorruptionCleared,
    CorruptionSuspected,
    ErrorSeen,
    PersonNeeded,
    Phase,
    RestorePlanned,
)

_CANARY = "canary"  # who raises a suspicion


def agree_when_regrouped(turn: Turn) -> None:
    """Plan the restore once every member is connected."""
    if turn.state.life is not Life.REGROUPING or not membership.all_at(turn.state, Stage.REGROUPED):
        return
    members = membership.occupants(turn.state)
    turn.phase(Phase.AGREE)
    if len({p.groups for p in members.values()}) > 1:
        known = ", ".join(f"seat {seat}: {p.groups[:12]}" for seat, p in members.items())
        trouble.meet(turn, Trouble(seen=Seen.DIGEST, detail=f"members know different process groups ({known})"))
        return
    outcome = _restore_point(turn, members)
    match outcome:
        case Plan():
            _plan_out(turn, outcome)
        case NoDonor():
            trouble.meet(turn, Trouble(seen=Seen.NO_DONOR, detail=f"no donor: {outcome.reason}"))
        case NoMajority():
            trouble.meet(turn, Trouble(seen=Seen.DIGEST, detail=f"state is not trusted: {outcome.reason}"))


def _restore_point(turn: Turn, members: dict[int, Proc]) -> Plan | NoDonor | NoMajority:
    if not turn.state.group.looped:
        begins = "saved state, once every seat has its model" if turn.state.group.loads else "step 0"
        return Plan(step=-1, donor=None, receivers=(), outvoted=(), reason=f"the group begins with {begins}")
    # A newcomer that was interrupted brings a report too, but no state of the job.
    brought = {seat: p.brought for seat, p in members.items() if p.brought is not None and p.holds_state}
    return agree(brought, frozenset(members) - frozenset(brought))


def _plan_out(turn: Turn, plan: Plan) -> None:
    state = turn.state
    for seat in plan.outvoted:
        proc = membership.occupants(state)[seat]
        number = state.incident.number if state.incident is not None else None
        detail = f"digest of step {plan.step} differs from the majority's; the seat is outvoted and receives"
        turn.note(ErrorSeen(detector=Seen.DIGEST.value, seat=seat, proc=proc.proc, detail=detail, incident=number))
    if state.incident is not None:
        turn.update(
            incident=replace(state.incident, plan_step=plan.step),
            signatures=late_steps_counted(state.signatures, state.incident.done_before, plan.step),
        )
    turn.note(
        RestorePlanned(
            term=state.group.term,
            step=plan.step,
            donor=plan.donor,
            receivers=plan.receivers,
            outvoted=plan.outvoted,
            reason=plan.reason,
        )
    )
    turn.enter(Life.RESTORING)
    turn.phase(Phase.TRANSFER)
    turn.decide(
        PlanRestore(term=state.group.term, step=plan.step, donor=plan.donor, receivers=plan.receivers),
    )
    turn.update_group(plan_step=plan.step)


def go_on_when_restored(turn: Turn) -> None:
    """Let the members train once all of them hold the same state."""
    state = turn.state
    if state.life is not Life.RESTORING or not membership.all_at(state, Stage.RESTORED):
        return
    members = membership.occupants(state)
    astray = [seat for seat, p in members.items() if p.restored_step != state.group.plan_step]
    if astray:
        detail = f"seats {astray} restored another step than the planned {state.group.plan_step}"
        trouble.meet(turn, Trouble(seen=Seen.DIGEST, detail=detail))
    elif changed := _changed(state):
        stuck = tuple(members[seat] for seat in changed)
        detail = f"the state of seats {list(changed)} is another one after the recovery than when it began"
        trouble.meet(turn, Trouble(seen=Seen.OUTVOTED, detail=detail, seats=changed), stuck=stuck)
    elif state.group.looped and len({p.digest for p in members.values()}) > 1:
        digests = ", ".join(f"seat {seat}: {p.digest[:12]}" for seat, p in members.items())
        trouble.meet(turn, Trouble(seen=Seen.DIGEST, detail=f"digests differ after the transfer ({digests})"))
    else:
        membership.go_on(turn)


def _changed(state: State) -> tuple[int, ...]:
    """Seats whose state should have stayed, and did not: one of them may have given it to others meanwhile."""
    if not state.group.looped:
        return ()
    kept = {
        seat: p.brought.digest
        for seat, p in membership.occupants(state).items()
        if p.holds_state and p.brought is not None and p.brought.closed_step == state.group.plan_step
    }
    if not kept:
        return ()
    agreed = vote(kept).digest
    found = membership.occupants(state)
    return tuple(seat for seat, digest in kept.items() if digest == agreed and found[seat].digest != agreed)


# --- after it ---------------------------------------------------------------------------------------------------


def watch_canary(turn: Turn, fact: StepDone) -> None:
    """A step after a recovery, or an undisturbed one: if training is not what it was, an older state is tried."""
    sample = canary.Sample(step=fact.step, duration_s=fact.duration_s, loss=fact.loss, grad_norm=fact.grad_norm)
    watched = turn.state.canary.watched
    after, verdict = canary.stepped(turn.state.canary, sample, turn.state.settings.canary)
    turn.update(canary=after)
    if verdict is None or watched is None:
        return
    turn.note(verdict)
    if isinstance(verdict, CanaryPassed):
        turn.update(before_step=None)
        clear(turn, _CANARY, "training is what it was before the failure")
        return
    suspect(turn, _CANARY, verdict.reason)
    if turn.state.saved_step is None or turn.state.stop is not None:
        reason = f"{verdict.reason}; no state was saved that could be gone back to, so the run goes on"
        turn.note(PersonNeeded(about="the state of the run", reason=reason))
        return
    before = turn.state.before_step
    turn.update(before_step=watched.before_step if before is None else min(before, watched.before_step))
    trouble.meet(turn, Trouble(seen=Seen.CANARY, detail=f"training is not what it was before: {verdict.reason}"))


def suspect(turn: Turn, source: str, detail: str) -> None:
    """The state may hold wrong values: no save of it is trusted until this source has cleared it."""
    if source not in turn.state.suspicions:
        turn.note(CorruptionSuspected(source=source, detail=detail))
    turn.update(suspicions={**turn.state.suspicions, source: detail})


def clear(turn: Turn, source: str, detail: str) -> None:
    """What this source suspected is settled."""
    if source in turn.state.suspicions:
        turn.note(CorruptionCleared(source=source, detail=detail))
        turn.update(suspicions={who: why for who, why in turn.state.suspicions.items() if who != source})


def clear_by_loading(turn: Turn, step: int) -> None:
    """Every seat holds trusted state: what was suspected of the one before is void, but for whether training works."""
    for source in [source for source in turn.state.suspicions if source != _CANARY]:
        clear(turn, source, f"the state was replaced by the trusted one of step {step}")


# --- deadlines --------------------------------------------------------------------------------------------------


def check_deadlines(turn: Turn) -> None:
    """Time passed: whoever did not do in time what the recovery needs is lost, or the attempt has failed."""
    {
        Life.ASSEMBLING: nodes.assembling_late,
        Life.JOINING: _joining_late,
        Life.REGROUPING: _regrouping_late,
        Life.RESTORING: _restoring_late,
        Life.RUNNING: _resuming_late,
        Life.GATHERING: _gathering_late,
        Life.CLEARING: _clearing_late,
    }.get(turn.state.life, lambda _: None)(turn)
    nodes.check_room(turn)
    check_poison(turn)
    _settle_plain(turn)


def _waits(turn: Turn, since_s: float, allowed_s: float) -> bool:
    return turn.now_s - since_s >= allowed_s


def _joining_late(turn: Turn) -> None:
    group, allowed_s = turn.state.group, turn.state.settings.deadlines.join_s
    if group.joined_s is None or not _waits(turn, group.joined_s, allowed_s):
        return
    late = [p for p in membership.occupants(turn.state).values() if p.stage is Stage.STARTED]
    if not all(turn.reaches(p) for p in late):
        return
    missing = [p.seat for p in late if p.seat is not None]
    detail = (
        f"seats {missing} did not call join() within {allowed_s:g} s of the first that did; "
        "every process must call it; give more time with --join-timeout"
    )
    trouble.meet(turn, Trouble(seen=Seen.LATE_JOIN, detail=detail, seats=tuple(missing)), stuck=tuple(late))


def _regrouping_late(turn: Turn) -> None:
    deadlines, allowed_s = turn.state.settings.deadlines, turn.state.settings.deadlines.regroup_s
    members = membership.occupants(turn.state).values()
    if not all(p.settled or p.holds_state for p in members):
        allowed_s += deadlines.ready_s  # the rest of its script comes first
    if _waits(turn, turn.state.since_s, allowed_s):
        missing = _not_yet(turn, Stage.REGROUPED)
        _attempt_failed(turn, f"term {turn.state.group.term} did not connect, waiting for seats {missing}", allowed_s)


def _restoring_late(turn: Turn) -> None:
    allowed_s = turn.state.settings.deadlines.transfer_s
    if _waits(turn, turn.state.since_s, allowed_s):
        _attempt_failed(
            turn, f"state was not transferred, waiting for seats {_not_yet(turn, Stage.RESTORED)}", allowed_s
        )


def _not_yet(turn: Turn, stage: Stage) -> list[int]:
    return [seat for seat, p in membership.occupants(turn.state).items() if p.stage is not stage]


def _attempt_failed(turn: Turn, detail: str, allowed_s: float) -> None:
    # Who is to blame cannot be told from here. A frozen member will not pause either, and is found by that.
    silent_s = turn.now_s - turn.state.since_s
    trouble.meet(turn, Trouble(seen=Seen.DEADLINE, detail=detail, silent_s=silent_s, allowed_s=allowed_s))


def _gathering_late(turn: Turn) -> None:
    deadlines = turn.state.settings.deadlines
    if _ends_late(turn):
        return
    members = list(membership.occupants(turn.state).values())
    interrupted = [p for p in members if p.stage is Stage.INTERRUPTED]
    unready = [p for p in members if p.stage in (Stage.STARTED, Stage.JOINED)]
    inside = [p for p in interrupted if p.brought is None]
    outside = [p for p in interrupted if p.brought is not None]  # of its block: it only connected, or took over state
    _isolate_late(turn, inside, "did not leave its block after the interrupt", deadlines.pause_s)
    if turn.state.life is Life.GATHERING:
        _isolate_late(turn, outside, "did not come back from the recovery after the interrupt", deadlines.transfer_s)
    if turn.state.life is Life.GATHERING:
        _isolate_late(turn, unready, "was not ready to take its seat", deadlines.ready_s)
    trouble.regroup_when_gathered(turn)  # a wait may be over


def _resuming_late(turn: Turn) -> None:
    allowed_s = turn.state.settings.deadlines.resume_s
    seated = (p for p in turn.state.procs.values() if p.stage is Stage.RESUMING and p.seat is not None)
    resuming = sorted(seated, key=lambda p: p.seat or 0)
    _isolate_late(turn, resuming, "did not open an attempt after it was told to go on", allowed_s)
    _confirming_late(turn)


def _confirming_late(turn: Turn) -> None:
    """A member that does not answer at the end, while others have done so for long."""
    if not membership.any_at(turn.state, Stage.CONFIRMED):
        return
    members = membership.occupants(turn.state).values()
    answered = [p.since_s for p in members if p.stage is Stage.CONFIRMED]
    allowed_s = turn.state.settings.deadlines.confirm_s
    silent = tuple(p for p in members if p.stage is Stage.FINISHED and turn.reaches(p))
    if turn.state.life is not Life.RUNNING or not answered or not silent or not _waits(turn, min(answered), allowed_s):
        return
    what = f" closed the last step, and did not answer within {allowed_s:g} s of the others"
    _meet_late(turn, Seen.PROGRESS, silent, what, allowed_s)


def _isolate_late(turn: Turn, procs: list[Proc], what: str, allowed_s: float) -> None:
    late = tuple(p for p in procs if _waits(turn, p.since_s, allowed_s) and turn.reaches(p))
    if not late:
        return
    _meet_late(turn, Seen.DEADLINE, late, f": {what} within {allowed_s:g} s", allowed_s)


def _meet_late(turn: Turn, seen: Seen, late: tuple[Proc, ...], what: str, allowed_s: float) -> None:
    seats = tuple(p.seat for p in late if p.seat is not None)
    silent_s = turn.now_s - min(p.since_s for p in late)
    found = Trouble(seen=seen, detail=f"seats {list(seats)}{what}", seats=seats, silent_s=silent_s, allowed_s=allowed_s)
    trouble.meet(turn, found, stuck=late)


def _ends_late(turn: Turn) -> bool:
    allowed_s = turn.state.settings.deadlines.isolate_s
    ending = [p for p in membership.ending_members(turn.state) if turn.reaches(p)]
    late = [p for p in ending if _waits(turn, p.since_s, allowed_s)]
    if not late:
        return False
    names = [f"p{p.proc} of seat {p.seat}" for p in late]
    for proc in late:
        turn.stage(proc, Stage.DOOMED)
    detail = f"{', '.join(names)} did not end within {allowed_s:g} s and could still act"
    trouble.meet(turn, Trouble(seen=Seen.DEADLINE, detail=detail, allowed_s=allowed_s))
    return True


def _clearing_late(turn: Turn) -> None:
    allowed_s = turn.state.settings.deadlines.isolate_s
    ending = [p for p in membership.ending_members(turn.state) if turn.reaches(p)]
    if not ending or not _waits(turn, turn.state.since_s, allowed_s):
        return
    names = [f"p{p.proc} of seat {p.seat}" for p in ending]
    detail = f"{', '.join(names)} did not end within {allowed_s:g} s"
    found = Trouble(seen=Seen.DEADLINE, detail=detail, allowed_s=allowed_s)
    trouble.meet(turn, found, hopeless="they could act beside a new group, so none is started")


def check_poison(turn: Turn) -> None:
    """A failed collective that nothing explained in time: seats that left, or else nobody, are lost."""
    state = turn.state
    if state.poison is None or state.life not in (Life.RUNNING, Life.REGROUPING, Life.RESTORING):
        return
    if not _waits(turn, state.poison.at_s, state.settings.deadlines.poison_grace_s):
        return
    if state.group.exited:
        meet_left_early(turn)
    else:
        poison = state.poison
        trouble.meet(turn, Trouble(seen=Seen.POISON, detail=f"a collective failed: {poison.detail}", proc=poison.proc))


def meet_left_early(turn: Turn) -> None:
    """Seats exited with success while others still wait for them."""
    exited = turn.state.group.exited
    seats = tuple(sorted(exited))
    step = max(exited.values())
    detail = f"seats {list(seats)} left after step {step} and exited with success while the others still train"
    trouble.meet(turn, Trouble(seen=Seen.LEFT_EARLY, detail=detail, seats=seats, left_at_step=step))


def _settle_plain(turn: Turn) -> None:
    """A restarted script without the library shows nothing but that it lives on."""
    state = turn.state
    plain = not state.library and state.life is Life.JOINING and state.incident is not None
    if plain and _waits(turn, state.since_s, state.settings.deadlines.plain_settle_s):
        endings.close_incident(turn, "recovered", first_step_s=None)
