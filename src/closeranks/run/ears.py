"""What workers say becomes facts for the controller and records in the journal."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import msgspec

from closeranks import messages
from closeranks.decide.protocol import (
    Crash,
    ProcConfirmed,
    ProcFinished,
    ProcJoined,
    ProcPaused,
    ProcReady,
    ProcRegrouped,
    ProcRestored,
    ProcResumed,
    ProcSplits,
    StepRuled,
    TermPoisoned,
)
from closeranks.decide.suspicion import Cause, Next
from closeranks.detect.numerics import RESPONSES, Action, in_words
from closeranks.drill import blows
from closeranks.events import (
    CurveSeen,
    FaultInjected,
    GroupsAbandoned,
    PreflightDone,
    ProcessFailed,
    ProcessJoined,
    ProcessReady,
    SeatStalled,
    SpotChecks,
    StepHeld,
    StepReplayed,
    StepSkipped,
    TimerSummary,
)
from closeranks.launch.outcome import code_of_own_end
from closeranks.run.context import Context
from closeranks.run.exits import Exits
from closeranks.run.keeping import Keeping
from closeranks.run.preflight import Finding, compare
from closeranks.run.worker import Worker


class Ears:
    """Hears all workers."""

    def __init__(self, context: Context, exits: Exits, keeping: Keeping, resources: tuple[Finding, ...] = ()) -> None:
        self._context = context
        self._exits = exits
        self._keeping = keeping
        self._resources = resources  # findings of preflight that need no worker
        self._compared_group = -1
        self._recorded = (-1, -1, "")  # term, step and verdict of the newest replay in the journal
        self.on_joined: Callable[[Worker], None] = lambda _: None

    def hear(self, worker: Worker, message: messages.Message) -> None:
        """Take one message. A fenced worker is not heard."""
        if not worker.fenced:
            self._hear(message, worker)

    @functools.singledispatchmethod
    def _hear(self, message: messages.Message, worker: Worker) -> None:
        """Hello needs no answer: the process is known by its descriptor already."""

    @_hear.register
    def _(self, message: messages.Joined, worker: Worker) -> None:
        context = self._context
        context.library = True
        worker.facts = message.facts
        context.note(ProcessJoined(proc=worker.proc, facts=message.facts))
        self.on_joined(worker)
        if self._agree():
            context.feed(ProcJoined(proc=worker.proc))

    @_hear.register
    def _(self, _message: messages.NeedsSeat, worker: Worker) -> None:
        self._context.note(ProcessReady(proc=worker.proc, rehearsed=False))
        self._context.feed(ProcReady(proc=worker.proc, replicated=True, settled=False))

    @_hear.register
    def _(self, message: messages.Ready, worker: Worker) -> None:
        worker.can_replay = message.replicated
        self._context.note(ProcessReady(proc=worker.proc, rehearsed=message.rehearsed))
        self._context.feed(ProcReady(proc=worker.proc, replicated=message.replicated, settled=True))

    @_hear.register
    def _(self, message: messages.SetupRecord, worker: Worker) -> None:
        # An empty record means that the worker wrote it into the memory itself.
        if message.record is None or message.record:
            record = message.record or b""
            os.ftruncate(worker.channels.setup, len(record))
            os.pwrite(worker.channels.setup, record, 0)

    @_hear.register
    def _(self, message: messages.Poisoned, worker: Worker) -> None:
        self._context.feed(TermPoisoned(proc=worker.proc, term=message.term, detail=message.detail))

    @_hear.register
    def _(self, message: messages.Paused, worker: Worker) -> None:
        if message.abandoned > worker.abandoned:
            worker.abandoned = message.abandoned
            self._context.note(GroupsAbandoned(proc=worker.proc, seat=worker.seat, groups=message.abandoned))
        self._context.feed(
            ProcPaused(
                proc=worker.proc,
                term=message.term,
                closed_step=message.closed_step,
                intact=message.intact,
                settled=message.settled,
                digest=message.digest,
            )
        )

    @_hear.register
    def _(self, message: messages.Regrouped, worker: Worker) -> None:
        self._context.feed(ProcRegrouped(proc=worker.proc, term=message.term, groups=message.groups))

    @_hear.register
    def _(self, message: messages.Restored, worker: Worker) -> None:
        self._context.feed(ProcRestored(proc=worker.proc, term=message.term, step=message.step, digest=message.digest))

    @_hear.register
    def _(self, message: messages.Resumed, worker: Worker) -> None:
        incident = self._context.incident
        if incident is not None and worker.seat is not None:
            self._context.note(
                SeatStalled(
                    incident=incident,
                    proc=worker.proc,
                    seat=worker.seat,
                    since_mono_s=message.lost_since_mono_s,
                    until_mono_s=message.resumed_mono_s,
                )
            )
        self._context.feed(ProcResumed(proc=worker.proc, term=message.term))

    @_hear.register
    def _(self, message: messages.Finished, worker: Worker) -> None:
        self._context.last_step = message.step
        self._context.feed(ProcFinished(proc=worker.proc, step=message.step))

    @_hear.register
    def _(self, message: messages.Confirmed, worker: Worker) -> None:
        self._context.feed(ProcConfirmed(proc=worker.proc, term=message.term, digest=message.digest))

    @_hear.register
    def _(self, message: messages.Snapped, worker: Worker) -> None:
        self._keeping.snapped(worker, message)

    @_hear.register
    def _(self, message: messages.Loaded, worker: Worker) -> None:
        self._keeping.loaded(worker, message)

    @_hear.register
    def _(self, message: messages.Adopted, worker: Worker) -> None:
        self._keeping.adopted(worker, message)

    @_hear.register
    def _(self, message: messages.Replayed, worker: Worker) -> None:
        self._keeping.replayed(worker, message)

    @_hear.register
    def _(self, message: messages.LeftLoop, worker: Worker) -> None:
        worker.left_at_step = message.closed_step

    @_hear.register
    def _(self, message: messages.Failed, worker: Worker) -> None:
        worker.crash = Crash(error=message.error, message=message.message, where=message.where, step=message.step)
        worker.traceback = message.traceback
        self._context.note(
            ProcessFailed(
                proc=worker.proc,
                seat=worker.seat,
                error=message.error,
                message=message.message,
                where=message.where,
                step=message.step,
                traceback=message.traceback,
            )
        )
        self._exits.failed(worker)

    @_hear.register
    def _(self, _message: messages.Pong, worker: Worker) -> None:
        worker.pong.set()

    @_hear.register
    def _(self, message: messages.Stack, worker: Worker) -> None:
        if worker.stack is not None and not worker.stack.done():
            worker.stack.set_result(message.text)

    @_hear.register
    def _(self, message: messages.Timer, worker: Worker) -> None:
        if worker.seat is not None:
            self._context.note(
                TimerSummary(
                    proc=worker.proc,
                    seat=worker.seat,
                    name=message.name,
                    count=message.count,
                    p50_s=message.p50_s,
                    p99_s=message.p99_s,
                )
            )

    @_hear.register
    def _(self, message: messages.Held, _worker: Worker) -> None:
        told = msgspec.structs.asdict(message)
        self._context.note(StepHeld(**told))

    @_hear.register
    def _(self, message: messages.Ruled, worker: Worker) -> None:
        # Whoever was to be recorded may have lost its term to what another one's word brought about, and never say it.
        told = message.record or message.cause is not Cause.NOTHING
        ruled = (message.term, message.step, message.verdict)
        if message.verdict and told and ruled != self._recorded:
            self._recorded = ruled
            replayed = StepReplayed(
                step=message.step,
                verdict=message.verdict,
                seats=message.seats,
                then=message.then,
                reason=message.reason,
            )
            self._context.note(replayed)
            if message.then == Next.SKIP:
                self._context.note(StepSkipped(step=message.step, reason=message.reason))
        if message.cause is not Cause.NOTHING:
            self._context.feed(
                StepRuled(
                    proc=worker.proc,
                    term=message.term,
                    step=message.step,
                    cause=message.cause,
                    seats=message.seats,
                    stop=message.stop,
                    roll_back=message.roll_back,
                    reason=message.reason,
                )
            )

    @_hear.register
    def _(self, message: messages.SpotChecks, _worker: Worker) -> None:
        self._context.note(SpotChecks(step=message.step, way=message.way, reason=message.reason))

    @_hear.register
    def _(self, message: messages.CurveSeen, worker: Worker) -> None:
        response = RESPONSES[message.signature]
        seen = CurveSeen(
            step=message.step,
            signature=message.signature.value,
            response=in_words(response),
            reason=response.reason,
        )
        self._context.note(seen)
        if message.act and response.action is Action.ROLL_BACK:
            self._context.feed(
                StepRuled(
                    proc=worker.proc,
                    term=message.term,
                    step=message.step,
                    cause=Cause.NUMERICS,
                    seats=(),
                    stop=False,
                    roll_back=True,
                    reason=f"{message.signature} at step {message.step}: {response.reason}",
                )
            )

    @_hear.register
    def _(self, message: messages.Splits, worker: Worker) -> None:
        self._context.feed(ProcSplits(proc=worker.proc, finer=message.finer))

    @_hear.register
    def _(self, message: messages.Injected, worker: Worker) -> None:
        self._context.note(
            FaultInjected(
                fault=message.fault, seat=worker.seat, proc=worker.proc, step=message.step, moment=message.moment
            )
        )
        blows.heard(message.fault)

    def _agree(self) -> bool:
        """Compare once all seats of a group have joined; False when the run had to be ended over it."""
        context = self._context
        occupants = {seat: context.workers.get(proc) for seat, proc in context.members.items()}
        facts = {seat: worker.facts for seat, worker in occupants.items() if worker and worker.facts is not None}
        if self._compared_group == context.group or len(facts) < len(occupants):
            return True
        self._compared_group = context.group
        findings = (*self._resources, *compare(facts))
        if context.node.nodes == 1 or findings:  # that all agree is for the coordinator to say
            context.note(PreflightDone(findings=tuple(finding.text for finding in findings)))
        for finding in findings:
            context.say(f"closeranks: preflight: {finding.text}")
        fatal = [finding.text for finding in findings if finding.fatal]
        if fatal:
            code = code_of_own_end(context.options, 1)
            context.fail(f"preflight: {'; '.join(fatal)}; make all seats run the same versions and script", code)
        return not fatal
