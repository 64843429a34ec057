"""From trouble to a rung: open or widen the incident, have a rung chosen, carry the choice out."""

from __future__ import annotations

from msgspec.structs import replace

from closeranks.decide import blame, canary, endings, ladder, membership, memory, pace, sizing
from closeranks.decide.choice import FROM_SCRATCH, choose, spent
from closeranks.decide.diagnosis import Diagnosis, Seen, Trouble, diagnose, signature, when
from closeranks.decide.protocol import InterruptTerm, Origin
from closeranks.decide.state import Incident, Life, Proc, Stage, State
from closeranks.decide.turn import Turn
from closeranks.events import Decided, Diagnosed, ErrorSeen, IncidentOpened, IncidentWidened, Phase, Rung

_OWN = frozenset({Seen.EXCEPTION, Seen.LEFT_EARLY})
_NOT_OF_THE_SCRIPT = frozenset({Seen.NODE, Seen.LEFT, Seen.SILENCE, Seen.COORDINATOR})
_DETAIL_MAX = 2000  # characters: it goes with every decision for every seat, and there may be thousands of both
_LIVES_AFTER_INTERRUPT = frozenset({Stage.INTERRUPTED, Stage.PAUSED, Stage.STARTED, Stage.JOINED, Stage.WARM})


def meet(
    turn: Turn, trouble: Trouble, *, gone: tuple[Proc, ...] = (), stuck: tuple[Proc, ...] = (), hopeless: str = ""
) -> None:
    """Something went wrong: ``gone`` have ended because of it, ``stuck`` live and have to be isolated.

    ``hopeless`` says why nothing can be done about it; empty when the ladder is to be tried.
    """
    state = turn.state
    if state.stop is not None:
        endings.stopped(turn, state.stop, f"asked to stop; while stopping: {trouble.detail}")
        return
    trouble = replace(trouble, detail=_brief(trouble.detail))
    repeated = _remember(turn, trouble, gone)
    start_up = _is_start_up(state, trouble)
    diagnosis = diagnose(trouble, repeated=bool(repeated), start_up=start_up)
    _open_or_widen(turn, trouble, diagnosis)
    blame.blame(turn, trouble, diagnosis)
    _count_failures(turn, trouble, (*stuck, *gone), attempt=state.incident is not None)
    turn.drop(*gone)
    doomed = [replace(proc, stage=Stage.DOOMED, since_s=turn.now_s) for proc in stuck]
    turn.put(*doomed)
    relieved = memory.relieve(turn, trouble, diagnosis.fault)
    hopeless = hopeless or ("" if relieved else memory.advised(repeated, diagnosis.fault))
    choice = choose(turn, trouble, diagnosis.fault, start_up=start_up, hopeless=hopeless, relieved=relieved)
    _carry_out(turn, trouble, choice, doomed)


def _brief(detail: str) -> str:
    """What names each of thousands of seats, cut to what a person reads; the events themselves list all of them."""
    left = len(detail) - _DETAIL_MAX
    return detail if left <= 0 else f"{detail[:_DETAIL_MAX]}... and {left} characters more"


def _is_start_up(state: State, trouble: Trouble) -> bool:
    """Before the loop nobody can be regrouped; a bug before the first step would meet a newcomer again."""
    if trouble.seen in _NOT_OF_THE_SCRIPT:
        return False  # whatever the script was about to do, this was not its fault
    own_bug = trouble.seen in _OWN or bool(trouble.code)
    return state.library and (not state.group.looped or (own_bug and state.group.newest_step < 0))


# --- the incident -----------------------------------------------------------------------------------------------


def _open_or_widen(turn: Turn, trouble: Trouble, diagnosis: Diagnosis) -> None:
    incident = turn.state.incident
    nodes = (trouble.node,) if trouble.node else ()
    first_sign_s = _first_sign_s(turn, trouble)
    seats = trouble.seats
    if incident is None:
        number = turn.state.next_incident
        incident = Incident(
            number=number,
            opened_s=first_sign_s,
            seats=seats,
            nodes=nodes,
            exit_code=trouble.exit_code,
            summary=trouble.detail,
            done_before=turn.state.group.newest_step,
            unsure=turn.state.group.unsure,
        )
        turn.note(IncidentOpened(incident=number, seats=seats, summary=trouble.detail))
        quiet = {"pace": pace.disturbed(turn.state.pace), "canary": canary.disturbed(turn.state.canary)}
        turn.update(next_incident=number + 1, incident=incident, **quiet)
        turn.phase(Phase.SEE, at_s=first_sign_s)
    else:
        turn.note(IncidentWidened(incident=incident.number, seats=seats, summary=trouble.detail))
        turn.update(
            incident=replace(
                incident,
                seats=tuple(sorted({*incident.seats, *seats})),
                nodes=(*incident.nodes, *nodes),
                exit_code=incident.exit_code or trouble.exit_code,
            )
        )
        turn.phase(Phase.SEE)
    turn.note(
        ErrorSeen(
            detector=trouble.seen.value,
            seat=seats[0] if len(seats) == 1 else None,
            proc=trouble.proc,
            detail=trouble.detail,
            incident=incident.number,
            silent_s=trouble.silent_s,
            allowed_s=trouble.allowed_s,
        )
    )
    turn.phase(Phase.DIAGNOSE)
    turn.note(
        Diagnosed(
            incident=incident.number,
            fault=diagnosis.fault,
            culprits=diagnosis.culprits,
            confidence=diagnosis.confidence,
            evidence=diagnosis.evidence,
        )
    )


def _first_sign_s(turn: Turn, trouble: Trouble) -> float:
    """A stuck process stopped when it fell silent; an unexplained collective failed when it was reported."""
    signs = [turn.now_s - (trouble.silent_s or 0.0)]
    if turn.state.poison is not None:
        signs.append(turn.state.poison.at_s)
    return min(signs)


def _count_failures(turn: Turn, trouble: Trouble, lost: tuple[Proc, ...], *, attempt: bool) -> None:
    """Book what did not help in this incident; ``attempt``: it was open already."""
    by_itself = trouble.seen in (Seen.EXCEPTION, Seen.LEFT_EARLY, Seen.DEADLINE) or bool(trouble.code)
    # A newcomer that fails by itself would fail again; one that was killed from outside deserves another try.
    weight = turn.state.settings.tries_per_rung if by_itself else 1
    failed = [p.filled_by for p in lost if p.filled_by is not None and not p.holds_state]
    # However many of them were on a node that was lost, it was one attempt.
    for rung in dict.fromkeys(failed) if trouble.node else failed:
        _count(turn, rung, weight)
    if attempt and not lost and trouble.seen in (Seen.POISON, Seen.DEADLINE, Seen.STANDSTILL, Seen.REPLAY):
        _count(turn, Rung.REGROUP, 1)


def _count(turn: Turn, rung: Rung, times: int) -> None:
    incident = turn.incident()
    failures = {**incident.failures, rung: incident.failures.get(rung, 0) + times}
    turn.update(incident=replace(incident, failures=failures))


def _remember(turn: Turn, trouble: Trouble, gone: tuple[Proc, ...]) -> str:
    """Why this failure is deterministic; empty when it is not known to be."""
    state = turn.state
    mark = signature(trouble, max(state.group.newest_step, state.group.plan_step))
    # Without the library no step is known, and whoever loses a peer fails at the same line each time.
    if mark is None or not state.library:
        return ""
    term = gone[0].term if gone else state.group.term
    seen_in = state.signatures.get(mark)
    turn.update(signatures={**state.signatures, mark: term if seen_in is None else min(term, seen_in)})
    # Several seats that fail alike under one term are one failure; under a later term it was repeated.
    if seen_in is None or term <= seen_in:
        return ""
    if trouble.crash is not None:
        place = f"at {mark.where} {when(mark.step)}"
    else:
        place = f"after step {mark.step}" if mark.step >= 0 else when(mark.step)
    return (
        f"deterministic: {mark.error} {place} came again after a recovery; "
        "repeating it cannot help, mend the script or the data of that step"
    )


# --- carrying it out --------------------------------------------------------------------------------------------


def _carry_out(turn: Turn, trouble: Trouble, choice: ladder.Choice, doomed: list[Proc]) -> None:
    incident = turn.incident()
    if choice.rung is not Rung.STOP:
        turn.phase(Phase.ISOLATE)
    capture = trouble.seen in (Seen.PROGRESS, Seen.DEADLINE, Seen.LATE_JOIN)
    for proc in doomed:
        membership.isolate(turn, proc, trouble.detail, capture_stack=capture)
    if choice.rung is Rung.STOP:
        told = dict.fromkeys((incident.summary, trouble.detail, choice.reason))
        endings.fail(turn, incident.exit_code or 1, "; ".join(told))
    elif choice.rung in FROM_SCRATCH:
        _clear(turn, trouble, choice.rung)
    else:
        _gather(turn, trouble, use_spares=Rung.SPARE not in spent(turn.state, incident))


def _clear(turn: Turn, trouble: Trouble, rung: Rung) -> None:
    if turn.state.life is not Life.CLEARING:
        turn.enter(Life.CLEARING)
    turn.update(incident=replace(turn.incident(), failures={}, plan_step=None))
    membership.isolate_all(turn, membership.occupants(turn.state).values(), f"{rung}: {trouble.detail}")
    if rung is Rung.SHRINK:
        # Nobody waits for room any more; the members that are to end may take longer than the wait did.
        turn.update(shrunk_to=trouble.fewer_seats, short_since_s=None)
    start_when_clear(turn)


def clear_again(turn: Turn, why: str) -> None:
    """The group was to end when the coordinator did: see to it."""
    turn.enter(Life.CLEARING)
    membership.isolate_all(turn, membership.occupants(turn.state).values(), why)
    start_when_clear(turn)


def start_when_clear(turn: Turn) -> None:
    """Start the group anew once every member of the old one has ended."""
    if turn.state.life is not Life.CLEARING or membership.any_at(turn.state, Stage.DOOMED):
        return
    sizing.grow(turn)
    short = membership.layout(turn.state) is None
    membership.note_shortage(turn, short=short)
    if not short:
        turn.phase(Phase.INTERRUPT)
        turn.phase(Phase.REGROUP)
        membership.start_group(turn, _origin(turn))


def _origin(turn: Turn) -> Origin:
    if turn.state.saved_step is None:
        return Origin.NOTHING
    incident = turn.state.incident
    rolled_back = incident is not None and incident.rung is Rung.ROLL_BACK
    return Origin.VERIFIED if rolled_back or turn.state.suspicion else Origin.NEWEST


def _gather(turn: Turn, trouble: Trouble, *, use_spares: bool) -> None:
    if turn.state.life is not Life.GATHERING:
        turn.enter(Life.GATHERING)
    turn.update_group(exited={})
    turn.update(incident=replace(turn.incident(), plan_step=None))
    told = [p for p in membership.occupants(turn.state).values() if p.stage not in _LIVES_AFTER_INTERRUPT]
    if told:
        turn.stage_all(told, Stage.INTERRUPTED)
        for term in sorted({p.term for p in told}):
            numbers = tuple(p.proc for p in told if p.term == term)
            turn.decide(InterruptTerm(term=term, procs=numbers, reason=trouble.detail))
    membership.fill_seats(turn, use_spares=use_spares)
    regroup_when_gathered(turn)


def fill_from(turn: Turn, node: str) -> None:
    """A node is there that seats without room have waited for."""
    state, incident = turn.state, turn.incident()
    if not membership.empty_seats(state):
        return
    filled = membership.fill_seats(turn, use_spares=Rung.SPARE not in spent(state, incident))
    if filled:
        moves = any(membership.home(state, seat) != node for seat in filled)
        rung = Rung.REPLACE_NODE if moves else Rung.FORK
        reason = f"{node} is there and takes seats {list(filled)}; the other members have kept their state"
        turn.note(Decided(incident=incident.number, rung=rung, term=state.term + 1, reason=reason))
        turn.update(incident=replace(turn.incident(), rung=rung))
    regroup_when_gathered(turn)


def regroup_when_gathered(turn: Turn) -> None:
    """Begin the next term once the lost have ended, the survivors have paused and the newcomers are ready."""
    state = turn.state
    if state.life is not Life.GATHERING or membership.any_at(state, Stage.DOOMED):
        return
    if turn.incident().phase is Phase.ISOLATE:
        turn.phase(Phase.INTERRUPT)
    if membership.any_at(state, Stage.INTERRUPTED) or turn.now_s < turn.incident().not_before_s:
        return
    if turn.incident().phase is Phase.INTERRUPT:
        turn.phase(Phase.REGROUP)
    members = membership.occupants(state).values()
    if all(p.stage in (Stage.PAUSED, Stage.WARM) for p in members) and not membership.empty_seats(state):
        membership.begin_term(turn)
