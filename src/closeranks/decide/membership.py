"""Who sits where: groups, seats, spares and terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from closeranks.decide import budgets
from closeranks.decide.placement import Site, first_layout, place, rank
from closeranks.decide.protocol import BeginTerm, GoOn, Isolate, Origin, StartGroup, StartProc
from closeranks.decide.state import THROUGH, Group, Life, Proc, Stage, State
from closeranks.decide.turn import Turn
from closeranks.events import ErrorSeen, Phase, ProcessSeated, Rung, TermBegan

_SPARE_ORDER = {Stage.WARM: 0, Stage.JOINED: 1, Stage.STARTED: 2}


def occupants(state: State) -> dict[int, Proc]:
    """By seat, in ascending order: the process that sits there or is meant to."""
    seated = {p.seat: p for p in state.procs.values() if p.seat is not None and p.stage is not Stage.DOOMED}
    return dict(sorted(seated.items()))


def all_at(state: State, *stages: Stage) -> bool:
    """Whether all occupants are at one of these stages.

    Asked at every fact of thousands of processes, so it looks no further than the first that is not, and begins with
    the last: nodes mostly come in the order in which their processes were numbered.
    """
    for proc in reversed(state.procs.values()):
        if proc.stage not in stages and proc.seat is not None and proc.stage is not Stage.DOOMED:
            return False
    return True


def any_at(state: State, stage: Stage) -> bool:
    """Whether a process that has or had a seat is at this stage."""
    return any(proc.stage is stage and proc.seat is not None for proc in state.procs.values())


def empty_seats(state: State) -> tuple[int, ...]:
    """Seats that nobody sits in or is meant for."""
    taken = occupants(state)
    return tuple(seat for seat in range(state.seats) if seat not in taken)


def spares(state: State) -> list[Proc]:
    """Living processes without a seat, the warmest first."""
    free = [p for p in state.procs.values() if p.seat is None and p.stage is not Stage.DOOMED]
    return sorted(free, key=lambda p: (_SPARE_ORDER[p.stage], p.proc))


def ending_members(state: State) -> list[Proc]:
    """Isolated processes that had a seat and whose end is not confirmed."""
    return [p for p in state.procs.values() if p.seat is not None and p.stage is Stage.DOOMED]


def sites(state: State) -> list[Site]:
    """The nodes that can take seats, with what speaks for and against each."""
    if not state.settings.nodes_needed:
        return [Site(name="", room=len(empty_seats(state)), spares=len(spares(state)))]
    seats = Counter(p.node for p in occupants(state).values())
    waiting = Counter(p.node for p in spares(state))
    failed = {domain for lost in state.lost_nodes.values() for domain in lost.domains.items()}
    return [
        Site(
            name=node.name,
            room=node.slots - seats[node.name],
            spares=waiting[node.name],
            exposed=len(failed & set(node.domains.items())),
        )
        for node in state.nodes.values()
        if node.open
    ]


def placements(state: State) -> dict[int, str]:
    """The node that each empty seat goes to; those without room are left out."""
    homes, there = {seat: home(state, seat) for seat in empty_seats(state)}, sites(state)
    placed = place(homes, [site for site in there if site.name not in state.last_choices])
    return placed if len(placed) == len(homes) else place(homes, there)


def served(state: State, placed: Mapping[int, str]) -> int:
    """How many of these seats would be taken by a spare that waits on their node."""
    waiting = Counter(p.node for p in spares(state))
    return sum(min(seats, waiting[node]) for node, seats in Counter(placed.values()).items())


def home(state: State, seat: int) -> str:
    """The node that the seat is or last was on."""
    return state.places[seat] if state.places else ""


def start_group(turn: Turn, origin: Origin) -> None:
    """One new process for every seat, which begins with the state of this origin. There is room for all."""
    state = turn.state
    term, first, seats = state.term + 1, state.next_proc, state.seats
    numbers = tuple(range(first, first + seats))
    incarnations = _renewed(state.incarnations, seats)
    nodes = layout(state)
    if nodes is None:
        raise AssertionError("a group is started only where there is room for it")
    started = {
        number: Proc(
            proc=number,
            node=nodes[seat] if nodes else "",
            stage=Stage.STARTED,
            since_s=turn.now_s,
            seat=seat,
            incarnation=incarnations[seat],
            term=term,
        )
        for seat, number in enumerate(numbers)
    }
    turn.enter(Life.JOINING)
    turn.update(
        term=term,
        next_proc=first + len(numbers),
        incarnations=incarnations,
        procs={**state.procs, **started},
        places=nodes,
        short_since_s=None,
        group=Group(loads=origin is not Origin.NOTHING, trusted=origin is Origin.VERIFIED),
        unhelped_step=None,
    )
    # First, for the slots of those that end are those of the members.
    _end_surplus_spares(turn, resized=len(state.places) not in (0, seats))
    before_step = state.before_step if origin is not Origin.NOTHING else None
    turn.decide(
        StartGroup(term=term, procs=numbers, origin=origin, before_step=before_step, nodes=nodes, finer=state.finer)
    )


def _renewed(newest: tuple[int, ...], seats: int) -> tuple[int, ...]:
    """The next incarnation of each seat; of those that the group does not have now, the newest that there was."""
    begun = [n + 1 for n in newest[:seats]]
    return (*begun, *(1,) * (seats - len(begun)), *newest[seats:])


def layout(state: State) -> tuple[str, ...] | None:
    """The node of every seat of a new group, empty in a run of one node; None: there is no room for all."""
    seats = state.seats
    if not state.settings.nodes_needed:
        return ()
    if len(state.places) != seats:  # the first group, or the first smaller one
        needed = -(-seats // state.seats_each)
        reached = {node.name: node.slots for node in state.nodes.values() if node.open}
        good = {name: slots for name, slots in reached.items() if name not in state.last_choices}
        return first_layout(seats, good, needed) or first_layout(seats, reached, needed) or None
    placed = placements(state)
    return tuple(placed[seat] for seat in range(seats)) if len(placed) == seats else None


def _end_surplus_spares(turn: Turn, *, resized: bool) -> None:
    """A group that moved needs slots in which spares were kept; one of another size has no use for any of them."""
    for site in sites(turn.state) if turn.state.nodes else ():
        here = [p for p in spares(turn.state) if p.node == site.name]
        for proc in here[0 if resized else max(0, site.room) + turn.state.settings.spares :]:
            why = "it was warmed for another number of seats" if resized else "its slot is needed for a seat"
            isolate(turn, proc, why, capture_stack=False)


def wanted_spares(state: State) -> dict[str, int]:
    """How many processes should wait on each node."""
    each = state.settings.spares
    if not state.settings.nodes_needed:
        return {"": each}
    seated = {p.node for p in state.procs.values() if p.seat is not None and p.stage is not Stage.DOOMED}
    reached = [node for node in state.nodes.values() if node.open and node.name not in state.last_choices]
    return {node.name: each if node.name in seated else node.slots for node in reached}


def refill_spares(turn: Turn) -> None:
    """Start as many spares as are wanted and not there, within their budget."""
    wanted = wanted_spares(turn.state)
    total = sum(wanted.values())
    here = Counter(p.node for p in spares(turn.state))
    openings: list[_Opening] = []
    exceeded = ""
    for node in sorted((node for node in wanted if here[node] < wanted[node]), key=rank):
        for _ in range(wanted[node] - here[node]):
            ledger, verdict = budgets.charge_spare(turn.state.ledger, total, turn.now_s)
            if isinstance(verdict, budgets.Exceeded):
                exceeded = verdict.reason
                break
            turn.update(ledger=ledger)
            openings.append(_Opening(None, node, None, None))
        if exceeded:
            break
    _start_procs(turn, openings)
    if exceeded:
        turn.note(ErrorSeen(detector="spares", seat=None, proc=None, detail=f"no further spare: {exceeded}"))


def fill_seats(turn: Turn, *, use_spares: bool) -> tuple[int, ...]:
    """Give every empty seat for which there is room a process: a spare where there is one, else a new one.

    The seats that were filled.
    """
    state = turn.state
    placed = placements(state)
    waiting: dict[str, list[Proc]] = {}
    for spare in reversed(spares(state) if use_spares else []):
        waiting.setdefault(spare.node, []).append(spare)
    incarnations, places = list(state.incarnations), list(state.places)
    seated: list[Proc] = []
    openings: list[_Opening] = []
    for seat, node in sorted(placed.items()):
        moves = node != home(state, seat)
        incarnations[seat] += 1
        if places:
            places[seat] = node
        if waiting.get(node):
            seated.append(
                replace(
                    waiting[node].pop(),
                    seat=seat,
                    incarnation=incarnations[seat],
                    since_s=turn.now_s,
                    term=state.term + 1,
                    filled_by=Rung.REPLACE_NODE if moves else Rung.SPARE,
                )
            )
        else:
            openings.append(_Opening(seat, node, incarnations[seat], Rung.REPLACE_NODE if moves else Rung.FORK))
    turn.update(incarnations=tuple(incarnations), places=tuple(places))
    if seated:
        turn.put(*seated)
    _start_procs(turn, openings)
    note_shortage(turn, short=bool(empty_seats(turn.state)))
    return tuple(placed)


def note_place(turn: Turn, seat: int, node: str) -> None:
    """Remember which node the seat is on now."""
    places = turn.state.places
    if places:
        turn.update(places=(*places[:seat], node, *places[seat + 1 :]))


def note_shortage(turn: Turn, *, short: bool) -> None:
    """Remember since when seats have had no room."""
    since_s = turn.now_s if turn.state.short_since_s is None else turn.state.short_since_s
    turn.update(short_since_s=since_s if short else None)


class _Opening(NamedTuple):
    """For which a process is started."""

    seat: int | None  # None: a spare
    node: str
    incarnation: int | None
    filled_by: Rung | None


def _start_procs(turn: Turn, openings: Sequence[_Opening]) -> None:
    """Together: there may be one for each of thousands of seats."""
    if not openings:
        return
    state = turn.state
    started = [
        Proc(
            proc=state.next_proc + number,
            node=one.node,
            stage=Stage.STARTED,
            since_s=turn.now_s,
            seat=one.seat,
            incarnation=one.incarnation,
            term=state.term + 1,
            filled_by=one.filled_by,
        )
        for number, one in enumerate(openings)
    ]
    turn.update(next_proc=state.next_proc + len(started))
    turn.put(*started)
    for proc in started:
        turn.decide(
            StartProc(proc=proc.proc, seat=proc.seat, incarnation=proc.incarnation, node=proc.node, finer=state.finer)
        )


def isolate(turn: Turn, proc: Proc, reason: str, *, capture_stack: bool) -> None:
    """The process must never act again; its end will be confirmed."""
    turn.stage(proc, Stage.DOOMED)
    turn.decide(Isolate(proc=proc.proc, reason=reason, capture_stack=capture_stack))


def isolate_all(turn: Turn, procs: Iterable[Proc], reason: str) -> None:
    """As ``isolate``, for all members of a group."""
    doomed = tuple(procs)
    turn.stage_all(doomed, Stage.DOOMED)
    for proc in doomed:
        turn.decide(Isolate(proc=proc.proc, reason=reason, capture_stack=False))


def note_arrival(turn: Turn) -> None:
    """Remember it once every seat has reached its loop."""
    if turn.state.group.looped:
        return
    arrived = all_at(turn.state, Stage.LOOPING, *THROUGH)
    if arrived and len(occupants(turn.state)) == turn.state.seats:
        turn.update_group(looped=True)


def begin_when_joined(turn: Turn) -> None:
    """The first term of a group, once every seat has joined."""
    if all_at(turn.state, Stage.JOINED) and len(occupants(turn.state)) == turn.state.seats:
        begin_term(turn)


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
    turn.stage_all(members.values(), Stage.SEATED, term=term, groups="", digest="")
    numbers = tuple(p.proc for p in members.values())
    nodes = tuple(p.node for p in members.values())
    turn.note(TermBegan(term=term, members=numbers, nodes=nodes if any(nodes) else ()))
    finer = turn.state.finer
    turn.decide(BeginTerm(term=term, procs=numbers, incarnations=tuple(incarnations), finer=finer))


def go_on(turn: Turn) -> None:
    """All members hold verified state: train."""
    fresh = not turn.state.group.looped
    turn.enter(Life.RUNNING)
    stage = Stage.BUILDING if fresh else Stage.RESUMING
    turn.stage_all(occupants(turn.state).values(), stage, holds_state=True, brought=None)
    turn.phase(Phase.VERIFY)
    turn.decide(GoOn(term=turn.state.group.term))
