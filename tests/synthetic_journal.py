"""Journals of runs that never were, with the truth about every second of every place beside them."""

import random
from collections import defaultdict
from dataclasses import dataclass, field

from closeranks.events import (
    Account,
    Category,
    Decided,
    Diagnosed,
    ErrorSeen,
    FaultInjected,
    IncidentClosed,
    IncidentOpened,
    NormalAgain,
    Phase,
    PhaseBegan,
    PreflightDone,
    ProcessExited,
    ProcessFailed,
    ProcessJoined,
    ProcessReady,
    ProcessSeated,
    ProcessStarted,
    Record,
    RestorePlanned,
    RunEnded,
    Rung,
    RunStarted,
    SeatStalled,
    StackCaptured,
    StepClosed,
    TermBegan,
    TimerSummary,
)

WALL_S = 1_764_400_000.0
MONO_S = 5_000.0
FAULTS = {
    "kill": ("process killed", "exit", "ended by signal 9"),
    "freeze": ("process frozen", "progress", "silent in backward"),
    "crash": ("process crashed", "exception", "RuntimeError: <script>alert('x')</script> & co"),
}
TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 31, in <module>\n    loss.backward()\n'
    "RuntimeError: <script>alert('x')</script> & co"
)


@dataclass
class Worker:
    """Counts like a real one: seconds by category, cumulative since its first look at the clock."""

    proc: int
    category: Category
    since_s: float
    seat: int | None = None
    incarnation: int = 1
    seconds: dict[Category, float] = field(default_factory=lambda: defaultdict(float))

    def spend(self, category, at_s):
        self.seconds[self.category] += max(0.0, at_s - self.since_s)
        self.category, self.since_s = category, max(at_s, self.since_s)


class Tape:
    """A run that is written down as it is made up."""

    def __init__(self, seats=4, spares=1, seed=0):
        self.random = random.Random(seed)
        self.now_s, self.term, self.step, self.incident = MONO_S, 0, 0, 0
        self.highest_step = -1
        self.records, self.truth = [], defaultdict(lambda: defaultdict(float))
        self.workers, self.spares, self.next_proc = {}, [], 1
        self.seats, self.spare_count, self.first_sign_s = seats, spares, 0.0

    # --- elements

    def say(self, event):
        self.records.append(
            Record(
                seq=len(self.records),
                wall_s=WALL_S + self.now_s - MONO_S,
                mono_s=self.now_s,
                run="run-1",
                node="node-1",
                term=self.term,
                event=event,
            )
        )

    def wait(self, seconds, **by_seat):
        """Time passes: every seat is charged ``default``, those named otherwise theirs, spares their own."""
        categories = by_seat.pop("seats", {})
        for seat in range(self.seats):
            self.truth[f"seat {seat}"][categories.get(seat, by_seat["default"])] += seconds
        for spare in self.spares:
            self.truth[f"spare p{spare.proc}"][spare.category] += seconds
        self.now_s += seconds

    def account(self, worker):
        seconds = dict(worker.seconds)
        seconds[worker.category] = seconds.get(worker.category, 0.0) + self.now_s - worker.since_s
        self.say(Account(proc=worker.proc, at_mono_s=self.now_s, seconds=seconds))

    def start_proc(self, seat, how="fork"):
        worker = Worker(self.next_proc, Category.START_UP, self.now_s, seat)
        self.next_proc += 1
        self.say(ProcessStarted(proc=worker.proc, pid=4000 + worker.proc, how=how, seat=seat))
        return worker

    # --- acts

    def begin(self, startup_s=1.5):
        self.say(
            RunStarted(
                command=("train.py", "--lr", "3e-4"),
                seats=self.seats,
                spares=self.spare_count,
                pid=4000,
                versions={"closeranks": "0.1.0", "torch": "2.13.0"},
            )
        )
        self.term = 1
        self.wait(0.2, default=Category.START_UP)
        self.workers = {seat: self.start_proc(seat) for seat in range(self.seats)}
        self.wait(startup_s, default=Category.START_UP)
        for worker in self.workers.values():
            self.say(ProcessJoined(proc=worker.proc, facts={"torch": "2.13.0"}))
        self.spares = [self.start_proc(None) for _ in range(self.spare_count)]
        self.say(PreflightDone(findings=()))
        self.say(TermBegan(term=1, members=tuple(worker.proc for worker in self.workers.values())))
        for seat, worker in self.workers.items():
            self.say(ProcessSeated(proc=worker.proc, seat=seat, incarnation=1))
        self.wait(0.1, default=Category.START_UP)
        for worker in self.workers.values():
            worker.spend(Category.USEFUL, self.now_s)

    def spares_ready(self):
        for spare in self.spares:
            if spare.category is Category.START_UP:
                spare.spend(Category.SPARE_IDLE, self.now_s)
                self.say(ProcessReady(proc=spare.proc, rehearsed=True))

    def train(self, steps, step_s=0.1):
        for _ in range(steps):
            began_s = self.now_s
            repeated = self.step <= self.highest_step
            category = Category.REPEATED if repeated else Category.USEFUL
            self.wait(step_s * self.random.uniform(0.95, 1.1), default=category)
            self.highest_step = max(self.highest_step, self.step)
            losses = tuple(3.0 / (1 + self.step / 20) + 1 + self.random.uniform(-0.1, 0.1) for _ in range(self.seats))
            self.say(
                StepClosed(
                    step=self.step,
                    began_mono_s=began_s,
                    closed_mono_s=self.now_s,
                    losses=losses,
                    repeated=repeated,
                )
            )
            self.step += 1

    def lose(self, seat, how="kill", into_attempt_s=0.04):
        """One seat is lost in the middle of an attempt; a ready spare or a fork takes it."""
        victim, attempt_s = self.workers[seat], self.now_s
        stalled = {"default": Category.STALLED}
        self.say(FaultInjected(fault=how, seat=seat, proc=victim.proc, step=self.step, moment="backward"))
        self.wait(into_attempt_s, **stalled)
        if how == "freeze":
            self.wait(1.5, **stalled)
        if how == "crash":
            self.say(self._failure(victim, seat))
        if how != "freeze":
            self._end_victim(victim, signal=9 if how == "kill" else None, code=None if how == "kill" else 1)
        self._diagnose(victim, seat, how)
        ready = [spare for spare in self.spares if spare.category is Category.SPARE_IDLE]
        self.term += 1
        rung = Rung.SPARE if ready else Rung.FORK
        self.say(Decided(incident=self.incident, rung=rung, term=self.term, reason=f"seat {seat} needs a process"))
        self._phase(Phase.ISOLATE)
        newcomer = ready[0] if ready else self.start_proc(seat)
        if how == "freeze":
            self.wait(0.02, **stalled)
            self.say(StackCaptured(proc=victim.proc, path="stacks/p1.txt", summary="train.py:31 backward"))
            self._end_victim(victim, signal=9, asked=True)
        self._phase(Phase.INTERRUPT, 0.01)
        if not ready:
            self.wait(0.4, **stalled)
        self._seat(newcomer, seat, victim.incarnation + 1)
        self._recover(newcomer, seat, attempt_s)
        if ready:
            self.spares.append(self.start_proc(None))

    def restart_cold(self, startup_s=1.2):
        """One seat is lost, and the whole group starts again from its first step."""
        victim = self.workers[0]
        self.wait(0.03, default=Category.STALLED)
        self._end_victim(victim, signal=9)
        self._diagnose(victim, 0, "kill")
        self.term += 1
        self.say(Decided(incident=self.incident, rung=Rung.COLD_RESTART, term=self.term, reason="no replica"))
        self._phase(Phase.ISOLATE)
        self.wait(0.02, default=Category.STALLED)
        for worker in list(self.workers.values())[1:]:
            self._end_victim(worker, signal=9, asked=True)
        self.wait(0.05, default=Category.STALLED)
        olds, self.workers = self.workers, {seat: self.start_proc(seat) for seat in range(self.seats)}
        self.wait(startup_s, default=Category.STALLED)
        for seat, worker in self.workers.items():
            worker.incarnation = olds[seat].incarnation + 1
            self.say(ProcessSeated(proc=worker.proc, seat=seat, incarnation=worker.incarnation))
            worker.spend(Category.USEFUL, self.now_s)  # it does not know that these steps were closed before
        lost, self.step = self.step, 0
        self.train(1)
        self.say(IncidentClosed(incident=self.incident, outcome="recovered", steps_lost=lost, first_step_s=1.5))

    def _diagnose(self, victim, seat, how):
        self.incident += 1
        self.first_sign_s = self.now_s
        fault, detector, detail = FAULTS[how]
        self.say(ErrorSeen(detector=detector, seat=seat, proc=victim.proc, detail=detail, incident=self.incident))
        self.say(IncidentOpened(incident=self.incident, seats=(seat,), summary=f"seat {seat}: {detail}"))
        self._phase(Phase.SEE)
        self._phase(Phase.DIAGNOSE, 0.002)
        self.say(Diagnosed(incident=self.incident, fault=fault, culprits=(seat,), confidence=0.9, evidence=(detail,)))
        self._phase(Phase.DECIDE, 0.001)

    def _recover(self, newcomer, seat, attempt_s):
        self._phase(Phase.REGROUP, 0.005)
        self._phase(Phase.AGREE, 0.06)
        self.say(
            RestorePlanned(
                term=self.term,
                step=self.step - 1,
                donor=(seat + 1) % self.seats,
                receivers=(seat,),
                outvoted=(),
                reason="all survivors agree",
            )
        )
        self._phase(Phase.TRANSFER, 0.002)
        self._phase(Phase.VERIFY, 0.05)
        self.wait(0.01, default=Category.STALLED)
        for at, worker in self.workers.items():
            since_s = attempt_s if worker is not newcomer else newcomer.since_s
            if worker is not newcomer:  # it takes the lost attempt back: the page says useful until now
                worker.spend(Category.STALLED, attempt_s)
            self.say(
                SeatStalled(
                    incident=self.incident, proc=worker.proc, seat=at, since_mono_s=since_s, until_mono_s=self.now_s
                )
            )
            worker.spend(Category.USEFUL, self.now_s)
        first_sign_s = self.first_sign_s
        self.train(1)
        self.say(
            IncidentClosed(
                incident=self.incident, outcome="recovered", steps_lost=0, first_step_s=self.now_s - first_sign_s
            )
        )
        self.train(3)
        self.say(
            NormalAgain(incident=self.incident, after_s=self.now_s - first_sign_s, step_s=0.1, band_s=(0.09, 0.12))
        )

    def end(self, outcome="completed", code=0):
        for worker in self.workers.values():
            worker.spend(Category.SHUT_DOWN, self.now_s)
            self.say(
                TimerSummary(proc=worker.proc, seat=worker.seat or 0, name="load", count=9, p50_s=0.01, p99_s=0.02)
            )
        self.wait(0.3, default=Category.SHUT_DOWN)
        for worker in [*self.workers.values(), *self.spares]:
            self.account(worker)
            self.say(ProcessExited(proc=worker.proc, seat=worker.seat, code=0, asked=True))
        self.spares = []
        self.wait(0.1, default=Category.SHUT_DOWN)
        self.say(RunEnded(outcome=outcome, exit_code=code, reason="every seat closed the last step"))
        return self

    # --- pieces

    def _failure(self, victim, seat):
        return ProcessFailed(
            proc=victim.proc,
            seat=seat,
            error="RuntimeError",
            message="<script>alert('x')</script> & co",
            where="train.py:31",
            step=self.step,
            traceback=TRACEBACK,
        )

    def _end_victim(self, victim, **how):
        self.account(victim)
        self.say(ProcessExited(proc=victim.proc, seat=victim.seat, **how))

    def _phase(self, phase, after_s=0.0):
        self.wait(after_s, default=Category.STALLED)
        self.say(PhaseBegan(incident=self.incident, phase=phase, at_mono_s=self.now_s))

    def _seat(self, newcomer, seat, incarnation):
        if newcomer in self.spares:
            self.spares.remove(newcomer)
        newcomer.seat, newcomer.incarnation = seat, incarnation
        newcomer.spend(Category.STALLED, self.now_s)
        self.workers[seat] = newcomer
        self.say(TermBegan(term=self.term, members=tuple(self.workers[s].proc for s in range(self.seats))))
        self.say(ProcessSeated(proc=newcomer.proc, seat=seat, incarnation=incarnation))


def eventful_run(seed=0, seats=4, spares=1):
    """Start, three losses of three kinds, an orderly end."""
    tape = Tape(seats, spares, seed)
    tape.begin()
    tape.train(10)
    tape.spares_ready()
    tape.train(15)
    tape.lose(min(2, seats - 1), "kill")
    tape.train(12)
    tape.spares_ready()
    tape.train(8)
    tape.lose(0, "freeze")
    tape.train(10)
    tape.lose(min(1, seats - 1), "crash")
    tape.train(12)
    return tape
