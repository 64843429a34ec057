"""A new coordinator takes the run over: its controller's state, made from the record and from what the nodes know.

Where every seat of the newest term trains, nothing is decided, and nobody notices. Else the group meets under a
newer term. Members of nodes that do not answer yet count as present: they come back, or their node is lost.
"""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

import msgspec
from msgspec.structs import replace

from closeranks.decide import endings, membership, nodes, reports, trouble
from closeranks.decide.budgets import Ledger
from closeranks.decide.diagnosis import Seen, Trouble
from closeranks.decide.memo import Memo, on_clock
from closeranks.decide.pace import Pace
from closeranks.decide.protocol import Decision, EndAfterStep, KnownProc, LetLeave, ProcEnded
from closeranks.decide.state import THROUGH, Group, Life, Node, Proc, Settings, Stage, State
from closeranks.decide.turn import Turn
from closeranks.events import CoordinatorBegan

_MEANWHILE = "while there was no coordinator"


class KnownNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that answers, and what it holds."""

    name: str
    slots: int
    domains: dict[str, str] = {}
    host: str = ""
    procs: tuple[KnownProc, ...] = ()  # all that live there
    ended: tuple[ProcEnded, ...] = ()  # the last that ended there
    closed_step: int = -1  # newest step closed by all seats of this node, -1: none
    closed_everywhere: int = -1  # newest step of which it has heard that all seats closed it


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """All that a new coordinator knows."""

    leader: str  # node of the new coordinator
    reason: str  # why there is a new one
    term: int  # the newest in the record, 0: none
    members: tuple[int, ...]  # of that term: process by seat
    places: tuple[str, ...]  # node by seat
    incarnations: tuple[int, ...]  # newest by seat
    next_proc: int  # no number from here on was ever given
    incidents: int  # opened so far
    nodes: tuple[KnownNode, ...]
    memo: Memo | None = None  # the newest; None: there is none
    saved_step: int | None = None  # newest that a restart can go on after, as the node says that saves
    stored_step: int | None = None  # newest in the store: who saved it may not have lived to say so


def adopt(settings: Settings, known: Known, now_s: float) -> tuple[State, tuple[Decision, ...]]:
    """The state that goes on where the last coordinator ended, and what to do first."""
    turn = Turn(_carried(settings, known, now_s), now_s)
    turn.note(CoordinatorBegan(reason=known.reason))
    if known.members:
        _take_over(turn, known)
    else:
        _start_over(turn, known)
    return turn.state, tuple(turn.decisions)


# --- what is carried over ---------------------------------------------------------------------------------------


def _carried(settings: Settings, known: Known, now_s: float) -> State:
    memo = known.memo
    empty = State(settings=settings, ledger=Ledger(limits=settings.limits), pace=Pace())
    old = empty if memo is None else on_clock(memo, now_s)
    procs = [p for node in known.nodes for p in node.procs]
    return replace(
        old,
        settings=settings,
        ledger=replace(old.ledger, limits=settings.limits),
        life=Life.RUNNING,
        since_s=now_s,
        term=max([known.term, old.term, *(p.term for p in procs)]),
        next_proc=known.next_proc,
        next_incident=max(old.next_incident, known.incidents + 1),
        shrunk_to=_shrunk_to(settings, known, old),
        procs={},
        nodes=_nodes(known, old),
        lost_nodes={name: node for name, node in old.lost_nodes.items() if name not in {n.name for n in known.nodes}},
        places=known.places,
        incarnations=_incarnations(known, old, procs),
        library=old.library or any(p.stage != Stage.STARTED for p in procs),
        group=_group(known, old, now_s),
        saved_step=_saved_step(known, old),
        short_since_s=None,
        unhelped_step=None,
        ending=None,
    )


def _saved_step(known: Known, old: State) -> int | None:
    """The newest is not always the highest, after a roll back: whoever knows of that comes first."""
    return next((s for s in (known.saved_step, old.saved_step, known.stored_step) if s is not None), None)


def _shrunk_to(settings: Settings, known: Known, old: State) -> int:
    """As the memo has it, which may know of a size that no term has had yet, unless the record is of a later term."""
    if known.memo is not None and old.term >= known.term:
        return old.shrunk_to
    return len(known.members) if 0 < len(known.members) < settings.seats else 0


def _nodes(known: Known, old: State) -> dict[str, Node]:
    there = {n.name: Node(name=n.name, slots=n.slots, domains=dict(n.domains), host=n.host) for n in known.nodes}
    # A node that was lost under this very term cannot be a member of it again. Of an older one it could.
    lost = old.lost_nodes if old.group.term == known.term else {}
    for name, seats in Counter(known.places).items():
        if name not in there and name not in lost:
            node = old.nodes.get(name, Node(name=name, slots=seats))
            there[name] = replace(node, silent=True)
    return there


def _incarnations(known: Known, old: State, procs: list[KnownProc]) -> tuple[int, ...]:
    # The memo reaches every node before the decisions of its state do: it knows of all that was ever started.
    newest = list(map(max, zip_longest(known.incarnations, old.incarnations, fillvalue=0)))
    for proc in procs:
        if proc.seat is not None and proc.seat < len(newest):
            newest[proc.seat] = max(newest[proc.seat], proc.incarnation or 0)
    return tuple(newest)


def _group(known: Known, old: State, now_s: float) -> Group:
    members = [p for node in known.nodes for p in node.procs if p.proc in known.members]
    group = old.group if _same_group(known) else Group()
    connected = {node.name: node.closed_step for node in known.nodes}
    closed = min((connected.get(name, -1) for name in known.places), default=-1)
    unsure = not set(known.places) <= set(connected)
    # Who knew best may be gone with the seats: others have heard, with their grants, how far all had come.
    heard = max((node.closed_everywhere for node in known.nodes), default=-1) if unsure else -1
    return replace(
        group,
        joined_s=now_s,
        term=known.term,
        looped=group.looped or (bool(members) and all(p.looped for p in members if not p.newcomer)),
        newest_step=max(group.newest_step, closed, heard),
        unsure=unsure,
    )


def _same_group(known: Known) -> bool:
    """The memo is about the group of the record: a group starts with new processes only."""
    return known.memo is not None and not set(known.members).isdisjoint(known.memo.members)


# --- the processes ----------------------------------------------------------------------------------------------


def _start_over(turn: Turn, known: Known) -> None:
    """No term was ever recorded: whatever was started for one ends, and the group starts."""
    strays = [reports.as_told(proc, node.name, turn.now_s) for node in known.nodes for proc in node.procs]
    turn.update(life=Life.CLEARING if strays else Life.ASSEMBLING, group=Group())
    for proc in strays:
        membership.isolate(turn, proc, "it was started for a term that never began", capture_stack=False)
    nodes.make_use(turn, known.leader)


def _take_over(turn: Turn, known: Known) -> None:
    missing = _seat_members(turn, known)
    ended = {fact.proc: fact for node in known.nodes for fact in node.ended}
    gone = [(proc, reports.how_it_ended(proc, ended)) for proc in missing]
    numbers = {proc.proc for proc in missing}
    members = [p for p in membership.occupants(turn.state).values() if p.proc not in numbers]
    before = known.memo.state.life if known.memo is not None and _same_group(known) else Life.RUNNING
    # They may have been let leave: some have, or all had answered before.
    ends = THROUGH if gone else {Stage.CONFIRMED}
    all_over = all(fact.code == 0 for _, fact in gone) and all(p.stage in ends for p in members)
    if before is Life.LEAVING or all_over:
        turn.update(life=Life.LEAVING)
        reports.meet_losses(turn, gone, Seen.COORDINATOR, _MEANWHILE)
        if turn.state.life is Life.LEAVING:
            turn.decide(LetLeave())
        return
    if before is Life.CLEARING:
        turn.drop(*missing)
        trouble.clear_again(turn, "the coordinator was lost while the group was to end")
        return
    if not missing and all(p.stage in (Stage.STARTED, Stage.JOINED) for p in members) and not _silent(turn):
        turn.update(life=Life.JOINING, term=turn.state.term + 1)
        turn.update_group(term=0, joined_s=None)
        reports.seats_joined(turn)
        return
    reports.meet_losses(turn, gone, Seen.COORDINATOR, _MEANWHILE)
    _go_on(turn)


def _silent(turn: Turn) -> bool:
    return any(node.silent for node in turn.state.nodes.values())


def _seat_members(turn: Turn, known: Known) -> list[Proc]:
    """Enter all processes; the members that their node does not hold any more."""
    told = {proc.proc: (proc, node.name) for node in known.nodes for proc in node.procs}
    seated, missing = [], []
    for seat, number in enumerate(known.members):
        if seat in turn.state.group.exited:
            continue
        if number in told:
            seated.append(_member(turn, known, seat, *told.pop(number)))
            continue
        proc = _unheard(turn, known, seat)
        seated.append(proc)
        if proc.stage is Stage.INTERRUPTED:
            missing.append(proc)
    turn.put(*seated)
    seats = {p.seat for p in missing} if turn.state.group.looped else set()
    for number in sorted(told, reverse=True):  # the newest take the seats
        stray, name = told[number]
        reports.take_stray(turn, stray, name, seats)
        if turn.state.procs[number].stage is not Stage.DOOMED:
            seats.discard(stray.seat)
    return missing


def _member(turn: Turn, known: Known, seat: int, told: KnownProc, node: str) -> Proc:
    # A spare hears of its seat with the term that begins with it.
    newcomer = told.newcomer or told.seat is None
    incarnation = told.incarnation or known.incarnations[seat]
    told = msgspec.structs.replace(told, seat=seat, incarnation=incarnation, newcomer=newcomer)
    return reports.as_told(told, node, turn.now_s)


def _unheard(turn: Turn, known: Known, seat: int) -> Proc:
    """A member as it should be: of a node that does not answer, or one that is not there any more."""
    node = turn.state.nodes.get(known.places[seat])
    expected = Stage.LOOPING if turn.state.group.looped else Stage.BUILDING
    return Proc(
        proc=known.members[seat],
        node=known.places[seat],
        stage=expected if node is not None and node.silent else Stage.INTERRUPTED,
        since_s=turn.now_s,
        seat=seat,
        incarnation=known.incarnations[seat],
        term=known.term,
        holds_state=True,
    )


# --- going on ---------------------------------------------------------------------------------------------------


def _go_on(turn: Turn) -> None:
    state = turn.state
    if state.life is not Life.RUNNING:
        return
    behind = [
        seat
        for seat, p in membership.occupants(state).items()
        if p.stage not in reports.IN_STEP or p.term != state.group.term
    ]
    if behind:
        detail = f"the coordinator was lost during a recovery, seats {behind} did not train yet"
        trouble.meet(turn, Trouble(seen=Seen.COORDINATOR, detail=detail))
    elif state.incident is not None and state.incident.plan_step is None:
        turn.update(incident=replace(state.incident, plan_step=state.group.newest_step))
    elif state.incident is None and state.stop is None:
        membership.refill_spares(turn)
    if turn.state.stop is not None and turn.state.life is Life.RUNNING:
        turn.decide(EndAfterStep())
    endings.confirm_if_finished(turn)
