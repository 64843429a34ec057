"""Who sits where: groups, seats, spares and terms."""

from __future__ import annotations

from msgspec.structs import replace

from closeranks.decide import budgets
from closeranks.decide.protocol import BeginTerm, GoOn, Isolate, Origin, StartGroup, StartProc
from closeranks.decide.state import Group, Life, Proc, Stage, State
from closeranks.decide.turn import Turn
from closeranks.events import ErrorSeen, Phase, ProcessSeated, Rung, TermBegan

_SPARE_ORDER = {Stage.WARM: 0, Stage.JOINED: 1, Stage.STARTED: 2}


def occupants(state: State) -> dict[int, Proc]:
    """By seat, in ascending order: the process that sits there or is meant to."""
    seated = {p.seat: p for p in state.procs.values() if p.seat is not None and p.stage is not Stage.DOOMED}
    return dict(sorted(seated.items()))


def empty_seats(state: State) -> tuple[int, ...]:
    """Seats that nobody sits in or is meant for."""
    taken = occupants(state)
    return tuple(seat for seat in range(state.settings.seats) if seat not in taken)


def spares(state: State) -> list[Proc]:
    """Living processes without a seat, the warmest first."""
    free = [p for p in state.procs.values() if p.seat is None and p.stage is not Stage.DOOMED]
    return sorted(free, key=lambda p: (_SPARE_ORDER[p.stage], p.proc))


def ending_members(state: State) -> list[Proc]:
    """Isolated processes that had a seat and whose end is not confirmed."""
    return [p for p in state.procs.values() if p.seat is not None and p.stage is Stage.DOOMED]


def start_group(turn: Turn, origin: Origin) -> None:
    """One new process for every seat, which begins with the state of this origin."""
    state = turn.state
    term, first = state.term + 1, state.next_proc
    numbers = tuple(range(first, first + state.settings.seats))
    incarnations = tuple(n + 1 for n in state.incarnations) or (1,) * state.settings.seats
    started = {
        number: Proc(
            proc=number, stage=Stage.STARTED, since_s=turn.now_s, seat=seat, incarnation=incarnations[seat], term=term
        )
        for seat, number in enumerate(numbers)
    }
    turn.enter(Life.JOINING)
    turn.update(
        term=term,
        next_proc=first + len(numbers),
        incarnations=incarnations,
        procs={**state.procs, **started},
        group=Group(loads=origin is not Origin.NOTHING),
        unhelped_step=None,
    )
    turn.decide(StartGroup(term=term, procs=numbers, origin=origin))


def refill_spares(turn: Turn) -> None:
    """Start as many spares as are wanted and not there, within their budget."""
    wanted = turn.state.settings.spares
    for _ in range(wanted - len(spares(turn.state))):
        ledger, verdict = budgets.charge_spare(turn.state.ledger, wanted, turn.now_s)
        if isinstance(verdict, budgets.Exceeded):
            turn.note(ErrorSeen(detector="spares", seat=None, proc=None, detail=f"no further spare: {verdict.reason}"))
            return
        turn.update(ledger=ledger)
        _start_proc(turn, None)


def fill_seats(turn: Turn, *, use_spares: bool) -> None:
    """Give every empty seat a process: a spare where there is one, else a new one."""
    for seat in empty_seats(turn.state):
        free = spares(turn.state) if use_spares else []
        if free:
            incarnation = _next_incarnation(turn, seat)
            turn.put(
                replace(
                    free[0],
                    seat=seat,
                    incarnation=incarnation,
                    since_s=turn.now_s,
                    term=turn.state.term + 1,
                    filled_by=Rung.SPARE,
                )
            )
        else:
            _start_proc(turn, seat)


def _start_proc(turn: Turn, seat: int | None) -> None:
    number = turn.state.next_proc
    incarnation = None if seat is None else _next_incarnation(turn, seat)
    turn.update(next_proc=number + 1)
    turn.put(
        Proc(
            proc=number,
            stage=Stage.STARTED,
            since_s=turn.now_s,
            seat=seat,
            incarnation=incarnation,
            term=turn.state.term + 1,
            filled_by=None if seat is None else Rung.FORK,
        )
    )
    turn.decide(StartProc(proc=number, seat=seat, incarnation=incarnation))


def _next_incarnation(turn: Turn, seat: int) -> int:
    numbers = list(turn.state.incarnations)
    numbers[seat] += 1
    turn.update(incarnations=tuple(numbers))
    return numbers[seat]


def isolate(turn: Turn, proc: Proc, reason: str, *, capture_stack: bool) -> None:
    """The process must never act again; its end will be confirmed."""
    turn.stage(proc, Stage.DOOMED)
    turn.decide(Isolate(proc=proc.proc, reason=reason, capture_stack=capture_stack))


def begin_term(turn: Turn) -> None:
    """All seats are taken by processes that can meet: let them."""
    first = turn.state.group.term == 0
    # The first term of a group has had its number since the group was started.
    term = turn.state.term if first else turn.state.term + 1
    members = occupants(turn.state)
    turn.enter(Life.REGROUPING)
    turn.update(term=term)
    turn.update_group(term=term)
    incarnations = []
    for seat, proc in members.items():
        incarnation = proc.incarnation or 1
        incarnations.append(incarnation)
        if proc.stage in (Stage.JOINED, Stage.WARM):
            turn.note(ProcessSeated(proc=proc.proc, seat=seat, incarnation=incarnation))
        turn.stage(proc, Stage.SEATED, term=term, groups="", digest="")
    numbers = tuple(p.proc for p in members.values())
    turn.note(TermBegan(term=term, members=numbers))
    turn.decide(BeginTerm(term=term, procs=numbers, incarnations=tuple(incarnations)))


def go_on(turn: Turn) -> None:
    """All members hold verified state: train."""
    fresh = not turn.state.group.looped
    turn.enter(Life.RUNNING)
    for proc in occupants(turn.state).values():
        turn.stage(proc, Stage.BUILDING if fresh else Stage.RESUMING, holds_state=True, brought=None)
    turn.phase(Phase.VERIFY)
    turn.decide(GoOn(term=turn.state.group.term))
