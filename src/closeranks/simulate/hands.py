"""Carries out what the controller decides, as supervisors and processes would, and reports back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from closeranks.decide.protocol import (
    BeginTerm,
    ConfirmEnd,
    Decision,
    EndAfterStep,
    EndRun,
    GoOn,
    GroupLoaded,
    InterruptTerm,
    Isolate,
    LetLeave,
    Origin,
    PlanRestore,
    ProcConfirmed,
    ProcEnded,
    ProcJoined,
    ProcPaused,
    ProcReady,
    ProcRegrouped,
    ProcRestored,
    ProcResumed,
    StartGroup,
    StartProc,
    TermPoisoned,
)
from closeranks.events import Category
from closeranks.simulate.body import Body
from closeranks.simulate.saves import Restored

if TYPE_CHECKING:
    from closeranks.simulate.world import World

_KILL = 9


class Hands:
    """The acting side of the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[Callable[[], bool]] = []  # starts that need a node; True: done
        self._loads: Restored | None = None
        self._origin = Origin.NOTHING
        self.groups = 0
        self._doers: Mapping[type[Decision], Callable[[Any], None]] = {
            StartGroup: self._start_group,
            StartProc: self._start_proc,
            BeginTerm: self._begin_term,
            PlanRestore: self._plan_restore,
            GoOn: self._go_on,
            InterruptTerm: self._interrupt,
            Isolate: self._isolate,
            EndAfterStep: lambda _: None,
            ConfirmEnd: self._confirm_end,
            LetLeave: self._let_leave,
            EndRun: lambda decision: world.end(decision.outcome, decision.reason),
        }

    def carry_out(self, decision: Decision) -> None:
        """Do it, now or in a while; nothing is told back before this returns."""
        self._doers[type(decision)](decision)

    @property
    def waits(self) -> bool:
        """Whether the job waits for a node."""
        return bool(self._waiting) and not self._world.fleet.whole

    # --- starting -----------------------------------------------------------------------------------------------

    def _start_group(self, decision: StartGroup) -> None:
        world = self._world
        self.groups += 1
        world.going, self._origin, self._loads = None, decision.origin, None
        self._waiting.clear()
        bodies = [self._new_body(number, seat, original=True) for seat, number in enumerate(decision.procs)]
        self._when_there_are_nodes(lambda: self._start_all(bodies))

    def _start_all(self, bodies: list[Body]) -> bool:
        if not self._world.fleet.whole:
            return False
        self._world.fleet.fill()
        self.retire_spares(0.0)
        self._world.after(self._world.setup.timing.start_s, self._join, bodies)
        return True

    def _start_proc(self, decision: StartProc) -> None:
        body = self._new_body(decision.proc, decision.seat, original=False)
        self._when_there_are_nodes(lambda: self._start_one(body))

    def _start_one(self, body: Body) -> bool:
        fleet = self._world.fleet
        if not body.alive:
            return True
        if body.seat is None:
            if fleet.nodes and fleet.idle - fleet.missing <= len(self._placed_spares()):
                return False
            body.placed = True
        elif not fleet.whole:
            return False
        else:
            fleet.fill()
            self.retire_spares(0.0)
        self._world.after(self._world.setup.timing.start_s, self._join, [body])
        return True

    def _when_there_are_nodes(self, start: Callable[[], bool]) -> None:
        if not start():
            self._waiting.append(start)

    def nodes_came_back(self) -> None:
        """Start what waited for nodes, as far as they go."""
        waiting, self._waiting = self._waiting, []
        self._waiting += [start for start in waiting if not start()]

    def _new_body(self, number: int, seat: int | None, *, original: bool) -> Body:
        world = self._world
        body = Body(number=number, seat=seat, original=original, born_s=world.now_s, since_s=world.now_s)
        world.bodies[number] = body
        if seat is not None:
            world.seats[seat] = body
        if world.tape is not None:
            world.tape.started(body, world.now_s)
        return body

    def _join(self, bodies: list[Body]) -> None:
        world = self._world
        for body in bodies:
            if body.acts and not body.joined:
                body.joined = True
                if world.tape is not None:
                    world.tape.joined(body, world.now_s)
                world.feed(ProcJoined(proc=body.number))
                if not body.original:
                    world.after(world.setup.timing.ready_s, self._newcomer_ready, body)

    def _newcomer_ready(self, body: Body) -> None:
        if body.acts:
            body.ready = True
            self._tell_ready(body)

    def _tell_ready(self, body: Body) -> None:
        world = self._world
        if world.tape is not None:
            world.tape.ready(body, world.now_s)
        world.feed(ProcReady(proc=body.number, replicated=world.setup.replicated, settled=True))

    # --- terms --------------------------------------------------------------------------------------------------

    def _begin_term(self, decision: BeginTerm) -> None:
        world = self._world
        for seat, number in enumerate(decision.procs):
            body = world.bodies[number]
            if body.seat is None and world.tape is not None:
                body.spend(Category.STALLED, world.now_s)
            body.seat, body.term, body.paused = seat, decision.term, False
            world.seats[seat] = body
        world.fleet.fill()
        world.after(world.setup.timing.connect_s, self._connect, decision.term)

    def _connect(self, term: int) -> None:
        world = self._world
        if world.heals_s > world.now_s:
            world.at(world.heals_s, self._connect, term)
        elif world.together(term):
            for body in world.members(term):
                self.say(body, ProcRegrouped(proc=body.number, term=term, groups="g"))
        else:
            self.notice_soon(term)

    def say(self, body: Body, fact: Any) -> None:
        """The process reports it, if it still can."""
        if body.acts:
            self._world.feed(fact)

    def _plan_restore(self, decision: PlanRestore) -> None:
        world = self._world
        for body in world.members(decision.term):
            if body.seat in decision.receivers:
                body.intact = False
        delay_s = world.setup.timing.transfer_s if decision.receivers else 0.0
        world.after(delay_s, self._transfer, decision)

    def _transfer(self, plan: PlanRestore) -> None:
        world = self._world
        if not world.together(plan.term) or world.heals_s > world.now_s:
            self.notice_soon(plan.term)
            return
        members = {body.seat: body for body in world.members(plan.term)}
        for seat in plan.receivers:
            donor = members[plan.donor]
            members[seat].closed, members[seat].doubt, members[seat].intact = donor.closed, donor.doubt, True
        for body in members.values():
            self.say(body, ProcRestored(proc=body.number, term=plan.term, step=body.closed, digest=body.digest))

    def _go_on(self, decision: GoOn) -> None:
        world = self._world
        world.going = decision.term
        if all(body.ready for body in world.members(decision.term)):
            world.after(world.setup.timing.resume_s, self._resume, decision.term)
            return
        self._loads = world.restore(self._origin)
        slow = world.store_factor if self._loads.step >= 0 else 1.0
        self._load_when_the_store_answers(decision.term, slow)

    def _load_when_the_store_answers(self, term: int, slow: float) -> None:
        world = self._world
        if slow == float("inf"):
            world.at(world.store_back_s, self._load_when_the_store_answers, term, 1.0)
            return
        loads = self._loads
        read_s = 0.0 if loads is None else loads.read_s
        world.after((world.setup.timing.load_s + read_s) * slow, self._loaded, term)

    def _loaded(self, term: int) -> None:
        world = self._world
        if world.going != term or not world.together(term):
            self.notice_soon(term)
            return
        members = world.members(term)
        loads = self._loads
        if loads is not None and loads.step >= 0:
            for body in members:
                body.closed = loads.step
            world.feed(GroupLoaded(step=loads.step))
            if world.tape is not None:
                world.tape.loaded(loads, world.setup.timing.load_s + loads.read_s, world.now_s)
        for body in members:
            body.ready = True
            self._tell_ready(body)
        world.after(world.setup.timing.warm_up_s, world.train, term)

    def _resume(self, term: int) -> None:
        world = self._world
        if world.going != term:
            return
        for body in world.members(term):
            self.say(body, ProcResumed(proc=body.number, term=term))
        if world.together(term):
            world.train(term)
        else:
            self.notice_soon(term)

    # --- losses -------------------------------------------------------------------------------------------------

    def notice_soon(self, term: int) -> None:
        """Members see that a collective of the term failed, where a dead one can be noticed at all."""
        world, notice_s = self._world, self._world.setup.timing.notice_s
        dead = any(not body.alive for body in world.members(term))
        if notice_s is not None and (dead or world.heals_s > world.now_s):
            for body in world.members(term):
                world.after(notice_s, self._notice, body, term)

    def _notice(self, body: Body, term: int) -> None:
        if body.acts and body.term == term and not body.paused:
            self._world.feed(TermPoisoned(proc=body.number, term=term, detail="connection closed by peer"))
            self._pause(body, term)

    def poison(self, term: int, detail: str) -> None:
        """Every member reports a failed collective and leaves its block."""
        for body in self._world.members(term):
            if body.acts and not body.paused:
                self._world.feed(TermPoisoned(proc=body.number, term=term, detail=detail))
                self._pause(body, term)

    def _interrupt(self, decision: InterruptTerm) -> None:
        world = self._world
        for number in decision.procs:
            world.after(world.setup.timing.pause_s, self._pause, world.bodies[number], decision.term)

    def _pause(self, body: Body, term: int) -> None:
        if not body.acts or body.term != term or body.paused:
            return
        self._world.halt(lost=True)
        body.paused = True
        self._world.feed(
            ProcPaused(
                proc=body.number,
                term=term,
                closed_step=body.closed,
                intact=body.intact,
                settled=True,
                digest=body.digest,
            )
        )

    def _isolate(self, decision: Isolate) -> None:
        world, body = self._world, self._world.bodies[decision.proc]
        body.doomed = True
        world.after(world.setup.timing.end_s, self.kill, body, 0.0)

    def kill(self, body: Body, seen_after_s: float) -> None:
        """It ends now, and that is seen so much later."""
        self.die(body)
        # Of one that was dead already and had not been missed, this is how it is found.
        self._world.after(seen_after_s, self.tell_end, body, ProcEnded(**_ended(body, signal=_KILL)))

    def die(self, body: Body) -> None:
        """It ends now; who trains with it stands still."""
        world = self._world
        if body.alive and body.seat is not None and world.seats.get(body.seat) is body and world.stretch is not None:
            world.halt(lost=True)
            self.notice_soon(body.term)
        body.alive = False

    def tell_end(self, body: Body, fact: ProcEnded) -> None:
        """The supervisor reports the end of a process."""
        if body.told_end:
            return
        body.told_end = True
        world = self._world
        if world.tape is not None:
            world.tape.ended(body, fact, world.now_s)
        world.feed(fact)
        world.bodies.pop(body.number, None)

    def _confirm_end(self, decision: ConfirmEnd) -> None:
        for body in self._world.bodies.values():
            if body.alive and body.seat is not None and body.term == decision.term:
                self._world.after(0.0, self._world.feed, ProcConfirmed(proc=body.number, term=body.term, digest=""))

    def _let_leave(self, _: LetLeave) -> None:
        for body in self._world.bodies.values():
            if body.alive:
                body.alive = False
                fact = ProcEnded(**_ended(body, code=0, left_at_step=body.closed))
                self._world.after(0.0, self.tell_end, body, fact)

    # --- spares -------------------------------------------------------------------------------------------------

    def retire_spares(self, seen_after_s: float) -> None:
        """End spare processes whose nodes were lost or are needed by the job."""
        fleet = self._world.fleet
        room = max(0, fleet.idle - fleet.missing)
        for body in self._placed_spares()[room:] if fleet.nodes else []:
            self.kill(body, seen_after_s)

    def _placed_spares(self) -> list[Body]:
        return [body for body in self._world.bodies.values() if body.alive and body.seat is None and body.placed]


def _ended(body: Body, **how: Any) -> dict[str, Any]:
    return {"proc": body.number, "code": None, "signal": None, "crash": None, "left_at_step": None, **how}
