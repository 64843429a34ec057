"""A job that saves: steps, pauses and writes take the time that they are given; the controller decides the rest."""

import itertools

from closeranks.decide import saving
from closeranks.decide.save_interval import Prior
from closeranks.decide.saving_protocol import (
    SaveCommitted,
    SaveFailed,
    SaveFreed,
    SavingBegan,
    SnapshotTaken,
    StepPassed,
    TakeSnapshot,
)

QUIET = Prior(mtbf_s=86_400.0, source="of the test")


class Job:
    """``write_s(n)`` is the time that the n-th save takes, or the problem that it meets."""

    def __init__(self, *, step_s=1.0, pause_s=0.1, write_s=lambda _: 5.0, first_step=-1, durable=False, **settings):
        self.step_s, self.pause_s, self.write_s = step_s, pause_s, write_s
        self.state = saving.initial(saving.Settings(**{"prior": QUIET, **settings}))
        self.now_s, self.closed, self.asked = 1000.0, first_step, None
        self.decisions = []  # (now_s, decision)
        self.taken = []  # (now_s, step)
        self.durable = []  # (now_s, step)
        self._ends = []  # (at_s, step, problem)
        self.tell(SavingBegan(step=first_step, durable=durable))

    def tell(self, fact):
        self.state, decisions = saving.step(self.state, fact, self.now_s)
        self.decisions += [(self.now_s, decision) for decision in decisions]
        for decision in decisions:
            if isinstance(decision, TakeSnapshot):
                assert decision.step > self.closed or decision.final
                self.asked = decision
        return decisions

    def said(self, kind):
        return [decision for _, decision in self.decisions if isinstance(decision, kind)]

    def snapshot(self):
        """The seats carry out what was asked."""
        self.now_s += self.pause_s
        self.taken.append((self.now_s, self.asked.step))
        outcome = self.write_s(len(self.taken) - 1)
        problem = outcome if isinstance(outcome, str) else ""
        self._ends.append((self.now_s + (1.0 if problem else outcome), self.asked.step, problem))
        self.asked = None
        self.tell(SnapshotTaken(step=self.taken[-1][1], pause_s=self.pause_s))

    def pass_time(self, duration_s):
        until_s = self.now_s + duration_s
        for at_s, step, problem in [end for end in self._ends if end[0] <= until_s]:
            self._ends.remove((at_s, step, problem))
            self.now_s = max(at_s, self.now_s)
            if problem:
                self.tell(SaveFailed(step=step, problem=problem))
            else:
                self.durable.append((at_s, step))
                self.tell(SaveCommitted(step=step))
                self.tell(SaveFreed(step=step))
        self.now_s = until_s

    def run(self, steps):
        pause_s = 0.0  # for a snapshot: it comes between two closes
        for _ in range(steps):
            self.pass_time(self.step_s)
            self.closed += 1
            closed_s = self.now_s
            if self.asked is not None and self.asked.step == self.closed:
                self.snapshot()
            self.tell(StepPassed(step=self.closed, period_s=self.step_s + pause_s))
            pause_s = self.now_s - closed_s
        return self

    def gaps_s(self):
        times = [at_s for at_s, _ in self.taken]
        return [b - a for a, b in itertools.pairwise(times)]
