"""What a node says that it holds: one that was out of reach, or any to a new coordinator."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from closeranks.decide import endings, exits, membership, nodes, trouble
from closeranks.decide.diagnosis import Seen, Trouble
from closeranks.decide.protocol import InterruptTerm, KnownProc, LetLeave, NodeBack, ProcEnded
from closeranks.decide.state import THROUGH, TRAINING, Life, Proc, Stage
from closeranks.decide.turn import Turn
from closeranks.events import Rung

_NOT_SEATED = frozenset({Stage.STARTED, Stage.JOINED, Stage.WARM})
IN_STEP = TRAINING | THROUGH


def as_told(known: KnownProc, node: str, now_s: float) -> Proc:
    """The process as its node knows it."""
    told = Proc(
        proc=known.proc,
        node=node,
        stage=Stage.STARTED,
        since_s=now_s,
        seat=known.seat,
        incarnation=known.incarnation,
        term=known.term,
        filled_by=Rung.FORK if known.newcomer else None,
    )
    return _updated(told, known, now_s)


def _updated(proc: Proc, known: KnownProc, now_s: float) -> Proc:
    stage = Stage(known.stage)
    return replace(
        proc,
        stage=stage,
        since_s=now_s,
        # Before it is seated, a process belongs to the term that it is meant for.
        term=proc.term if stage in _NOT_SEATED else known.term,
        replicated=known.replicated,
        settled=known.settled,
        holds_state=proc.holds_state or known.looped or stage in IN_STEP,
        brought=None if stage in IN_STEP else known.paused,
        groups=known.groups,
        digest=known.digest,
        restored_step=known.restored_step,
    )


def how_it_ended(proc: Proc, ended: Mapping[int, ProcEnded]) -> ProcEnded:
    """What its node saw of the end of a process that is not there any more."""
    unseen = ProcEnded(proc=proc.proc, code=None, signal=None, crash=None, left_at_step=None)
    return ended.get(proc.proc, unseen)


def take_stray(turn: Turn, known: KnownProc, node: str, vacant: Collection[int | None]) -> None:
    """A process that the coordinator had not known: a spare, a newcomer for a vacant seat, or one that must end."""
    proc = as_told(known, node, turn.now_s)
    fresh = proc.stage in _NOT_SEATED and known.size in (0, turn.state.seats)  # else it is warmed for another world
    if fresh and (known.seat is None or (known.newcomer and known.seat in vacant)):
        turn.put(replace(proc, term=turn.state.term + 1))
        if known.seat is not None:
            membership.note_place(turn, known.seat, node)
    else:
        membership.isolate(turn, proc, "it belongs to no seat of the newest term", capture_stack=False)


def back(turn: Turn, fact: NodeBack) -> None:
    """A silent node is heard again: what it holds is compared with what it should."""
    node = turn.state.nodes.get(fact.node)
    if node is None or not node.silent:
        return
    turn.update(nodes={**turn.state.nodes, node.name: replace(node, silent=False)})
    told = {known.proc: known for known in fact.procs}
    expected = [p for p in turn.state.procs.values() if p.node == node.name]
    astray = [p for p in expected if p.proc in told and not _take(turn, p, told[p.proc])]
    strays = sorted(told.keys() - {p.proc for p in expected})
    vacant: set[int | None] = set(membership.empty_seats(turn.state)) if strays else set()
    for number in strays:
        take_stray(turn, told[number], node.name, vacant)
        if turn.state.procs[number].stage is not Stage.DOOMED:
            vacant.discard(told[number].seat)
    ended = {one.proc: one for one in fact.ended}
    gone = [(p, how_it_ended(p, ended)) for p in expected if p.proc not in told]
    meet_losses(turn, gone, Seen.SILENCE, f"while {node.name} was out of reach")
    if astray and turn.state.life not in (Life.GATHERING, Life.CLEARING, Life.ENDED):
        seats = sorted(p.seat for p in astray if p.seat is not None)
        detail = f"{node.name} was out of reach, its seats {seats} are not where the others are"
        trouble.meet(turn, Trouble(seen=Seen.SILENCE, detail=detail, seats=tuple(seats)))
    _go_on(turn, node.name)


def meet_losses(turn: Turn, gone: list[tuple[Proc, ProcEnded]], seen: Seen, while_: str) -> None:
    """Processes ended unheard: one member's end counts as if it was heard of now; several lost at once are one loss."""
    if not gone:
        return
    lost = [(proc, fact) for proc, fact in gone if proc.seat is not None and proc.stage is not Stage.DOOMED]
    members = membership.occupants(turn.state)
    # Only where they train, an end with success need not be a loss to the others.
    plain = len(lost) <= 1 or (turn.state.life is Life.RUNNING and all(fact.code == 0 for _, fact in lost))
    sits = all(members.get(proc.seat) == proc for proc, _ in lost if proc.seat is not None)
    at_once = turn.state.life is not Life.LEAVING and not (plain and sits)
    # Those without a seat first: a spare that has ended must not be given the seat of a member that has.
    members_lost = {proc.proc for proc, _ in lost}
    for proc, fact in sorted(gone, key=lambda item: item[0].proc in members_lost):
        if turn.state.life is not Life.ENDED and not (at_once and proc.proc in members_lost):
            exits.ended(turn, turn.state.procs[proc.proc], fact)
    if not at_once or turn.state.life is Life.ENDED:
        return
    first = next((fact for _, fact in lost if fact.code or fact.signal), lost[0][1])
    found = Trouble(
        seen=seen,
        detail=f"{while_}, {', '.join(exits.account(proc, fact) for proc, fact in lost)}",
        seats=tuple(sorted(proc.seat for proc, _ in lost if proc.seat is not None)),
        code=first.code,
        signal=first.signal,
        crash=first.crash,
    )
    trouble.meet(turn, found, gone=tuple(turn.state.procs[proc.proc] for proc, _ in lost))


def _take(turn: Turn, proc: Proc, known: KnownProc) -> bool:
    """Believe the node; False: the process is not where the others are."""
    if proc.stage is Stage.DOOMED:
        membership.isolate(turn, proc, "it was to end while its node was out of reach", capture_stack=False)
        return True
    told, life = _updated(proc, known, turn.now_s), turn.state.life
    turn.put(told)
    if told.seat is None or (life in (Life.GATHERING, Life.JOINING) and told.stage in _NOT_SEATED):
        return True
    if life is Life.GATHERING:
        if told.stage is not Stage.PAUSED:
            turn.stage(told, Stage.INTERRUPTED)
            reason = "the interrupt was not heard while the node was out of reach"
            turn.decide(InterruptTerm(term=told.term, procs=(told.proc,), reason=reason))
        return True
    if life is Life.LEAVING:
        return True  # it may have been interrupted meanwhile; it can leave from there
    if life is Life.RUNNING:
        return told.stage in IN_STEP and told.term == turn.state.group.term
    return (told.stage, told.term) == (proc.stage, proc.term)


def seats_joined(turn: Turn) -> None:
    """Do what the first of a group's seats to join brings about, if one has."""
    if any(p.stage is Stage.JOINED for p in membership.occupants(turn.state).values()):
        turn.update(library=True)
        exits.seat_joined(turn)


def _go_on(turn: Turn, node: str) -> None:
    """Do what had to wait for the node."""
    life = turn.state.life
    if life is Life.JOINING:
        seats_joined(turn)
    elif life is Life.RUNNING:
        membership.note_arrival(turn)
        endings.confirm_if_finished(turn)
    elif life is Life.LEAVING:
        turn.decide(LetLeave())
    elif life is Life.GATHERING:
        trouble.regroup_when_gathered(turn)
    nodes.make_use(turn, node)
