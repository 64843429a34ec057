"""Carrying out the controller's decisions: each becomes a message, a start, a kill or a record."""

from __future__ import annotations

import functools
from collections.abc import Callable

from closeranks import messages
from closeranks.decide.diagnosis import Seen
from closeranks.decide.protocol import (
    BeginTerm,
    ConfirmEnd,
    Decision,
    EndAfterStep,
    EndRun,
    GoOn,
    InterruptTerm,
    Isolate,
    LetLeave,
    Note,
    PlanRestore,
    StartGroup,
    StartProc,
)
from closeranks.events import (
    AnyEvent,
    CorruptionCleared,
    CorruptionSuspected,
    Decided,
    ErrorSeen,
    IncidentClosed,
    IncidentOpened,
    Stamp,
)
from closeranks.run.births import Births
from closeranks.run.context import Context
from closeranks.run.exits import Exits
from closeranks.run.hooks import HookRunner
from closeranks.run.keeping import Keeping
from closeranks.run.watch import Watch

_STEPS_IN_FLIGHT = 2  # a seat may be one step ahead of what its page shows, and must not have ended by then
_SHARE_OF_GRACE = 0.1  # the rest of it is for the last save
_STOP_AHEAD_S = 0.5  # until the word has reached every seat: one that heard it too late would go on alone


class Carry:
    """Knows who does what."""

    def __init__(self, context: Context, births: Births, exits: Exits, watch: Watch, keeping: Keeping) -> None:
        self._context = context
        self._births = births
        self._exits = exits
        self._watch = watch
        self._keeping = keeping
        self._hooks = HookRunner(context)
        self.on_note: Callable[[AnyEvent], None] = lambda _: None
        self.stamp: Stamp | None = None  # of the coordinator whose decision is carried out

    def out(self, decision: Decision) -> None:
        """Carry out one decision."""
        self._out(decision)

    @functools.singledispatchmethod
    def _out(self, decision: Decision) -> None:
        raise TypeError(f"no way to carry out {type(decision).__name__}")

    @_out.register
    def _(self, decision: StartGroup) -> None:
        self._watch.start_group()
        self._keeping.start_group(decision.origin, decision.before_step)
        self._births.start_group(decision)
        self._watch.expect()

    @_out.register
    def _(self, decision: StartProc) -> None:
        self._births.start_proc(decision)

    @_out.register
    def _(self, decision: Isolate) -> None:
        self._exits.isolate(decision)

    @_out.register
    def _(self, decision: InterruptTerm) -> None:
        message = messages.Interrupt(term=decision.term, reason=decision.reason)
        for proc in decision.procs:
            self._send(proc, message)

    @_out.register
    def _(self, decision: BeginTerm) -> None:
        self._births.begin_term(decision)
        self._watch.expect()

    @_out.register
    def _(self, decision: PlanRestore) -> None:
        self._watch.settle(decision.step)
        message = messages.Restore(
            term=decision.term, step=decision.step, donor=decision.donor, receivers=decision.receivers
        )
        for proc in self._context.members.values():
            self._send(proc, message)

    @_out.register
    def _(self, decision: GoOn) -> None:
        for proc in self._context.members.values():
            self._send(proc, messages.Go(term=decision.term))
        self._keeping.go_on()

    @_out.register
    def _(self, _decision: EndAfterStep) -> None:
        ahead_s = min(_STOP_AHEAD_S, _SHARE_OF_GRACE * self._context.options.grace_s)
        step = self._watch.newest_open_step() + _STEPS_IN_FLIGHT + int(self._watch.steps_in(ahead_s))
        for proc in self._context.members.values():
            self._send(proc, messages.StopAfter(step=step))

    @_out.register
    def _(self, decision: ConfirmEnd) -> None:
        for proc in self._context.members.values():
            self._send(proc, messages.Confirm(term=decision.term))

    @_out.register
    def _(self, _decision: LetLeave) -> None:
        self._keeping.let_leave(self._let_leave)

    def _let_leave(self) -> None:
        for worker in self._context.living():
            worker.asked = True
            worker.send(messages.Leave())

    @_out.register
    def _(self, decision: EndRun) -> None:
        context = self._context
        if context.ending is None or (decision.now and not context.ending.now):
            context.ending = decision
        context.ended.set()

    @_out.register
    def _(self, decision: Note) -> None:
        self._context.note(decision.event, self.stamp)
        self.on_note(decision.event)
        if isinstance(decision.event, IncidentOpened | IncidentClosed):
            self._hooks.run(decision.event)
            if isinstance(decision.event, IncidentClosed) and self._watch.stragglers is not None:
                self._watch.stragglers.recovered(decision.event.first_step_s)
        elif isinstance(decision.event, Decided):
            self._keeping.loss_seen(decision.event)
        elif isinstance(decision.event, ErrorSeen) and decision.event.detector in (Seen.DIGEST, Seen.OUTVOTED):
            self._keeping.suspect(decision.event.detail)
        elif isinstance(decision.event, CorruptionSuspected):
            self._keeping.doubt(decision.event.source)
        elif isinstance(decision.event, CorruptionCleared):
            self._keeping.believe(decision.event.source)

    def _send(self, proc: int, message: messages.SupervisorMessage) -> None:
        worker = self._context.workers.get(proc)
        if worker is not None:
            worker.send(message)
