"""A small simulated world around the controller: processes that start, join, train, die and freeze on a fake clock.

It carries decisions out and feeds back the facts that a supervisor would see. It also checks, with its own
knowledge of who lives, what must hold of every decision. Everything is drawn from one seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from closeranks.decide.controller import initial, step
from closeranks.decide.protocol import (
    BeginTerm,
    Begun,
    ConfirmEnd,
    Crash,
    Decision,
    EndAfterStep,
    EndRun,
    Fact,
    GoOn,
    GroupLoaded,
    InterruptTerm,
    Isolate,
    LetLeave,
    Note,
    Origin,
    PlanRestore,
    ProcConfirmed,
    ProcEnded,
    ProcFinished,
    ProcJoined,
    ProcPaused,
    ProcReady,
    ProcRegrouped,
    ProcRestored,
    ProcResumed,
    ProcStuck,
    StartGroup,
    StartProc,
    StateSaved,
    StepDone,
    StopAsked,
    TermPoisoned,
    Tick,
)
from closeranks.decide.state import Settings
from closeranks.events import Decided

STEP_S = 0.1
TICK_S = 0.25


@dataclass
class Sim:
    """The truth about one process."""

    number: int
    seat: int | None
    incarnation: int | None
    original: bool
    alive: bool = True
    frozen: bool = False
    told_end: bool = False
    term: int = 0
    paused: bool = True
    intact: bool = True
    closed_step: int = -1
    joined: bool = False
    ready: bool = False
    finished: bool = False
    corrupt: str = ""

    @property
    def acts(self) -> bool:
        return self.alive and not self.frozen

    @property
    def digest(self) -> str:
        return f"step {self.closed_step}{self.corrupt}"


@dataclass
class World:
    """One run. ``lives`` and ``latency_s`` draw delays; faults are scheduled with ``at``."""

    settings: Settings
    seed: int = 0
    until: int = 30
    save_every: int = 0  # steps; 0: nothing is saved
    tells_of_saves: bool = True  # or it does not live to do so
    resumes_at: int | None = None  # step that an earlier run saved
    plain: bool = False
    jitter: float = 0.5
    end_s: float = 0.03  # from the wish that a process ends to its end
    now_s: float = 100.0
    procs: dict[int, Sim] = field(default_factory=dict)
    facts: list[tuple[Fact, float]] = field(default_factory=list)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    ended: EndRun | None = None
    started_hook: Callable[[Sim], None] = lambda _: None
    step_hook: Callable[[int], None] = lambda _: None
    decision_hook: Callable[[Decision], None] = lambda _: None
    final_digest: Callable[[Sim], str] = lambda _: ""
    loss_of: Callable[[int], float | None] = lambda _: None

    def __post_init__(self) -> None:
        self.doers = {
            StartGroup: self.do_start_group,
            StartProc: self.do_start_proc,
            BeginTerm: self.do_begin_term,
            PlanRestore: self.do_plan_restore,
            GoOn: self.do_go_on,
            InterruptTerm: self.do_interrupt_term,
            Isolate: self.do_isolate,
            EndAfterStep: self.do_end_after_step,
            ConfirmEnd: self.do_confirm_end,
            LetLeave: self.do_let_leave,
            EndRun: self.do_end_run,
        }
        self.rng = random.Random(self.seed)
        self.state = initial(self.settings)
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.terms: list[int] = []
        self.going: int | None = None  # the term that trains
        self.saved_step = self.resumes_at
        self.saves = [] if self.resumes_at is None else [self.resumes_at]
        self.loads: int | None = None  # step that the members of the newest group begin with
        self.steps_done: list[int] = []

    # --- running ------------------------------------------------------------------------------------------------

    def at(self, when_s: float, do: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (when_s, self.order, do))

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        spread = 1 + self.jitter * (self.rng.random() - 0.5)
        self.at(self.now_s + delay_s * spread, do)

    def run(self, horizon_s: float = 1500.0) -> World:
        self.at(self.now_s, lambda: self.feed(Begun(saved_step=self.resumes_at)))
        self.at(self.now_s + TICK_S, self._tick)
        end_s = self.now_s + horizon_s
        while self.queue and self.ended is None:
            when_s, _, do = heapq.heappop(self.queue)
            assert when_s <= end_s, f"neither progress nor a stop within {horizon_s} s: {self.transcript()}"
            self.now_s = max(self.now_s, when_s)
            do()
        assert self.ended is not None
        return self

    def _tick(self) -> None:
        self.feed(Tick())
        self.at(self.now_s + TICK_S, self._tick)

    def feed(self, fact: Fact) -> None:
        if self.ended is not None and not isinstance(fact, StopAsked):
            return
        self.facts.append((fact, self.now_s))
        self.state, decisions = step(self.state, fact, self.now_s)
        for decision in decisions:
            self.decisions.append((self.now_s, decision))
            self.decision_hook(decision)
            if not isinstance(decision, Note):
                self._check(decision)
                self.doers[type(decision)](decision)

    # --- invariants ---------------------------------------------------------------------------------------------

    def _check(self, decision: Decision) -> None:
        assert self.ended is None or isinstance(decision, EndRun), f"a decision after the end: {decision}"
        for number in _named(decision):
            if isinstance(decision, StartGroup | StartProc):
                assert number not in self.procs, f"p{number} is used twice"
            else:
                assert not self.procs[number].told_end, f"{decision} names a dead process"
        if isinstance(decision, StartGroup | BeginTerm):
            begun = {t for t in self.terms if t > 0}
            if isinstance(decision, StartGroup):
                assert all(decision.term > t for t in begun), "terms only grow"
                self.terms.append(-decision.term)
            else:
                assert all(decision.term > t for t in begun), "terms only grow"
                self.terms.append(decision.term)
        if isinstance(decision, BeginTerm):
            assert len(set(decision.procs)) == self.settings.seats
            members = set(decision.procs)
            for sim in self.procs.values():
                if sim.number not in members and sim.seat is not None:
                    assert not sim.alive, f"p{sim.number} still sits in seat {sim.seat}"
        if isinstance(decision, EndRun):
            assert decision.reason

    # --- carrying decisions out ---------------------------------------------------------------------------------

    def do_start_group(self, decision: StartGroup) -> None:
        self.going = None
        assert (decision.origin is Origin.NOTHING) == (self.saved_step is None)
        self.loads = self.saved_step if decision.before_step is None else self._saved_before(decision.before_step)
        for seat, number in enumerate(decision.procs):
            self._start(number, seat, 1, original=True)

    def _saved_before(self, step: int) -> int:
        return max(saved for saved in self.saves if saved < step)

    def do_start_proc(self, decision: StartProc) -> None:
        self._start(decision.proc, decision.seat, decision.incarnation, original=False)

    def _start(self, number: int, seat: int | None, incarnation: int | None, *, original: bool) -> None:
        sim = self.procs[number] = Sim(number=number, seat=seat, incarnation=incarnation, original=original)
        self.started_hook(sim)
        if self.plain:
            self.after(self.until * STEP_S, lambda: self.exit(number, code=0))
        else:
            self.after(0.2, lambda: self._join(sim))

    def _join(self, sim: Sim) -> None:
        if sim.acts and not sim.joined:
            sim.joined = True
            self.feed(ProcJoined(proc=sim.number))
            if not sim.original:
                self.after(0.3, lambda: self._newcomer_ready(sim))

    def _newcomer_ready(self, sim: Sim) -> None:
        if sim.acts:
            sim.ready = True
            self.feed(ProcReady(proc=sim.number, replicated=True, settled=True))

    def do_begin_term(self, decision: BeginTerm) -> None:
        for seat, number in enumerate(decision.procs):
            sim = self.procs[number]
            sim.seat, sim.term, sim.paused = seat, decision.term, False
        self.after(0.02, lambda: self._connect(decision.term))

    def _members(self, term: int) -> list[Sim]:
        return [s for s in self.procs.values() if s.term == term and s.seat is not None]

    def _together(self, term: int) -> bool:
        members = self._members(term)
        return len(members) == self.settings.seats and all(s.acts and not s.paused for s in members)

    def _connect(self, term: int) -> None:
        if self._together(term):
            for sim in self._members(term):
                self.after(0.01, lambda sim=sim: self._say(sim, ProcRegrouped(proc=sim.number, term=term, groups="g")))
        else:
            self._poison(term)

    def _say(self, sim: Sim, fact: Fact) -> None:
        if sim.acts:
            self.feed(fact)

    def do_plan_restore(self, decision: PlanRestore) -> None:
        for sim in self._members(decision.term):
            if sim.seat in decision.receivers:
                sim.intact = False
        self.after(0.05, lambda: self._transfer(decision))

    def _transfer(self, plan: PlanRestore) -> None:
        if not self._together(plan.term):
            self._poison(plan.term)
            return
        members = {s.seat: s for s in self._members(plan.term)}
        for seat, sim in members.items():
            if seat in plan.receivers:
                donor = members[plan.donor]
                sim.closed_step, sim.corrupt, sim.intact = donor.closed_step, donor.corrupt, True
            sim.finished = False
            fact = ProcRestored(proc=sim.number, term=plan.term, step=sim.closed_step, digest=sim.digest)
            self.after(0.01, lambda sim=sim, fact=fact: self._say(sim, fact))

    def do_go_on(self, decision: GoOn) -> None:
        self.going = decision.term
        if all(s.ready for s in self._members(decision.term)):
            for sim in self._members(decision.term):
                fact = ProcResumed(proc=sim.number, term=decision.term)
                self.after(0.01, lambda sim=sim, fact=fact: self._say(sim, fact))
        for sim in self._members(decision.term):
            if not sim.ready:
                self.after(0.3, lambda sim=sim: self._reach_loop(sim, decision.term))
        self.after(STEP_S, lambda: self._train(decision.term))

    def _reach_loop(self, sim: Sim, term: int) -> None:
        if sim.acts and sim.term == term and self.going == term:
            sim.ready = True
            self.feed(ProcReady(proc=sim.number, replicated=True, settled=True))
            self._say(sim, ProcResumed(proc=sim.number, term=term))

    def _train(self, term: int) -> None:
        members = self._members(term)
        if self.going != term or self.ended is not None or any(s.paused for s in members):
            return
        if not all(s.ready for s in members) and all(s.acts for s in members):
            self._load(members)
            self.after(STEP_S, lambda: self._train(term))
            return
        if not self._together(term):
            self._poison(term)
            return
        closed = members[0].closed_step
        if closed >= self.until - 1:
            for sim in members:
                sim.finished = True
                self.after(0.05, lambda sim=sim: self._say(sim, ProcFinished(proc=sim.number, step=closed)))
            self.after(0.5, lambda: self._train(term))
            return
        self.step_hook(closed + 1)
        if self.going != term:
            return
        if not self._together(term):
            self._poison(term)
            return
        for sim in members:
            sim.closed_step = closed + 1
        self.steps_done.append(closed + 1)
        self.feed(StepDone(step=closed + 1, duration_s=STEP_S, loss=self.loss_of(closed + 1)))
        self._save(closed + 1)
        self.after(STEP_S, lambda: self._train(term))

    def _save(self, step: int) -> None:
        if self.save_every and (step + 1) % self.save_every == 0:
            self.saved_step = step
            self.saves.append(step)
            if self.tells_of_saves:
                self.feed(StateSaved(step=step))

    def _load(self, members: list[Sim]) -> None:
        """Before they reach their loop, the members of a new group take saved state over."""
        if self.loads is not None and all(s.original for s in members):
            for sim in members:
                sim.closed_step = self.loads
            self.feed(GroupLoaded(step=self.loads))
            self.loads = None

    def _poison(self, term: int) -> None:
        """A collective of the term cannot complete: the dead are noticed by their peers, the frozen later."""
        members = self._members(term)
        if any(not s.alive for s in members):
            for sim in members:
                self.after(0.02, lambda sim=sim: self._notice(sim, term))
        elif self.going == term:
            for sim in members:
                if sim.frozen:
                    self.after(2.3, lambda sim=sim: self._suspect(sim))

    def _notice(self, sim: Sim, term: int) -> None:
        if sim.acts and sim.term == term and not sim.paused:
            self.feed(TermPoisoned(proc=sim.number, term=term, detail="connection closed by peer"))
            self._pause(sim, term)

    def _suspect(self, sim: Sim) -> None:
        if sim.alive and sim.frozen:
            self.feed(ProcStuck(proc=sim.number, detail="does not answer", silent_s=2.3, allowed_s=2.0))

    def _pause(self, sim: Sim, term: int) -> None:
        if sim.acts and sim.term == term and not sim.paused:
            sim.paused = True
            self.feed(
                ProcPaused(
                    proc=sim.number,
                    term=term,
                    closed_step=sim.closed_step,
                    intact=sim.intact,
                    settled=True,
                    digest=sim.digest,
                )
            )

    def do_interrupt_term(self, decision: InterruptTerm) -> None:
        for number in decision.procs:
            sim = self.procs[number]
            assert sim.term == decision.term, f"p{number} is interrupted under a term that it was not told of"
            self.after(0.03, lambda sim=sim: self._pause(sim, decision.term))

    def do_isolate(self, decision: Isolate) -> None:
        self.after(self.end_s, lambda: self.kill(decision.proc))

    def do_end_after_step(self, _: EndAfterStep) -> None:
        self.until = min(self.until, max(s.closed_step for s in self.procs.values()) + 3)

    def do_confirm_end(self, decision: ConfirmEnd) -> None:
        for sim in self._members(decision.term):
            fact = ProcConfirmed(proc=sim.number, term=decision.term, digest=self.final_digest(sim))
            self.after(0.05, lambda sim=sim, fact=fact: self._say(sim, fact))

    def do_let_leave(self, _: LetLeave) -> None:
        for sim in self.procs.values():
            self.after(0.1, lambda sim=sim: self.exit(sim.number, code=0))

    def do_end_run(self, decision: EndRun) -> None:
        self.ended = decision

    # --- faults -------------------------------------------------------------------------------------------------

    def kill(self, number: int) -> None:
        self.exit(number, signal=9)

    def exit(
        self,
        number: int,
        code: int | None = None,
        signal: int | None = None,
        crash: Crash | None = None,
        left_at_step: int | None = None,
    ) -> None:
        sim = self.procs[number]
        if not sim.alive or (sim.frozen and signal is None):
            return
        sim.alive = False
        fact = ProcEnded(proc=number, code=code, signal=signal, crash=crash, left_at_step=left_at_step)
        self.after(0.01, lambda: self._tell_end(sim, fact))
        if self.going == sim.term:
            self._poison(sim.term)

    def _tell_end(self, sim: Sim, fact: ProcEnded) -> None:
        sim.told_end = True
        self.feed(fact)

    def freeze(self, number: int) -> None:
        sim = self.procs[number]
        sim.frozen = True
        training = self.going == sim.term and sim.seat is not None and not self.plain
        self.after(2.3 if training else 150.0, lambda: self._suspect(sim))

    def occupant(self, seat: int) -> Sim:
        return max((s for s in self.procs.values() if s.seat == seat and s.alive), key=lambda s: s.number)

    def living(self) -> list[Sim]:
        return [s for s in self.procs.values() if s.alive]

    # --- looking ------------------------------------------------------------------------------------------------

    def events(self, kind: type) -> list:
        return [d.event for _, d in self.decisions if isinstance(d, Note) and isinstance(d.event, kind)]

    def of(self, kind: type) -> list:
        return [d for _, d in self.decisions if isinstance(d, kind)]

    def story(self) -> list[str]:
        """The decisions in short lines, notes left out but for the choice of a rung."""
        return [line for _, decision in self.decisions if (line := _line(decision))]

    def transcript(self) -> str:
        lines = [f"{at_s - 100:8.3f}  {decision}" for at_s, decision in self.decisions]
        return "\n" + "\n".join(lines[-60:])


def _named(decision: Decision) -> tuple[int, ...]:
    match decision:
        case StartGroup() | BeginTerm() | InterruptTerm():
            return decision.procs
        case StartProc() | Isolate():
            return (decision.proc,)
    return ()


def _line(decision: Decision) -> str:  # noqa: C901, PLR0912 - one plain case for each decision
    match decision:
        case StartGroup(term=term, procs=procs):
            return f"start group under term {term}: {_names(procs)}"
        case StartProc(proc=proc, seat=None):
            return f"start p{proc} as a spare"
        case StartProc(proc=proc, seat=seat, incarnation=incarnation):
            return f"start p{proc} as s{seat}.{incarnation}"
        case Isolate(proc=proc, capture_stack=capture):
            return f"isolate p{proc}{', stack first' if capture else ''}"
        case InterruptTerm(term=term, procs=procs):
            return f"interrupt term {term}: {_names(procs)}"
        case BeginTerm(term=term, procs=procs):
            return f"begin term {term}: {_names(procs)}"
        case PlanRestore(step=step, donor=None):
            return f"go on after step {step}, nobody receives"
        case PlanRestore(step=step, donor=donor, receivers=receivers):
            return f"go on after step {step}, seat {donor} gives to {list(receivers)}"
        case GoOn(term=term):
            return f"go on under term {term}"
        case EndAfterStep():
            return "end after the step"
        case LetLeave():
            return "let leave"
        case EndRun(outcome=outcome, exit_code=code, now=now):
            return f"end: {outcome}, code {code}{', now' if now else ''}"
        case Note(event=Decided(rung=rung)):
            return f"rung: {rung.value}"
    return ""


def _names(procs: tuple[int, ...]) -> str:
    return " ".join(f"p{proc}" for proc in procs)
