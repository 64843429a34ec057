"""What a supervisor knows of its processes, in the controller's words: what a new coordinator begins with. Pure."""

from __future__ import annotations

import functools

from msgspec.structs import replace

from closeranks.decide.protocol import (
    BeginTerm,
    Decision,
    Fact,
    GoOn,
    InterruptTerm,
    KnownProc,
    ProcConfirmed,
    ProcEnded,
    ProcFinished,
    ProcJoined,
    ProcPaused,
    ProcReady,
    ProcRegrouped,
    ProcRestored,
    ProcResumed,
    StartGroup,
    StartProc,
)
from closeranks.decide.state import THROUGH, Stage

_ENDED_KEPT = 256
_WAITING = THROUGH | {Stage.PAUSED, Stage.WARM, Stage.STARTED, Stage.JOINED}


class Known:
    """Follows what this node's processes say and what they are told."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._procs: dict[int, KnownProc] = {}
        self._ended: dict[int, ProcEnded] = {}
        self.size = 0  # seats of the newest group, as far as this node has heard

    @property
    def procs(self) -> tuple[KnownProc, ...]:
        """Those that live, or whose end was not seen yet."""
        return tuple(self._procs.values())

    @property
    def ended(self) -> tuple[ProcEnded, ...]:
        """The last that ended."""
        return tuple(self._ended.values())

    def acting(self) -> frozenset[int]:
        """Processes that may be at work on the job: they have not paused."""
        return frozenset(k.proc for k in self.procs if k.stage not in _WAITING)

    def interrupted(self, proc: int) -> None:
        """The process was told to leave its attempt; one that waits already has nothing more to say."""
        if proc in self.acting():
            self._set(proc, stage=Stage.INTERRUPTED.value)

    def _set(self, number: int, **changes: object) -> None:
        known = self._procs.get(number)
        if known is not None:
            self._procs[number] = replace(known, **changes)

    def _start(self, proc: int, seat: int | None, incarnation: int | None, term: int, *, newcomer: bool) -> None:
        self._procs[proc] = KnownProc(
            proc=proc,
            seat=seat,
            incarnation=incarnation,
            stage=Stage.STARTED.value,
            term=term,
            newcomer=newcomer,
            replicated=True,
            settled=True,
            looped=False,
            size=self.size,
        )

    # --- what is said -------------------------------------------------------------------------------------------

    @functools.singledispatchmethod
    def hear(self, fact: Fact) -> None:
        """A fact of this node; most are about no single process."""

    @hear.register
    def _(self, fact: ProcJoined) -> None:
        self._set(fact.proc, stage=Stage.JOINED.value)

    @hear.register
    def _(self, fact: ProcReady) -> None:
        known = self._procs.get(fact.proc)
        if known is None:
            return
        if known.stage == Stage.BUILDING:
            self._set(fact.proc, stage=Stage.LOOPING.value, replicated=fact.replicated, looped=True)
        elif known.seat is None or known.newcomer:
            self._set(fact.proc, stage=Stage.WARM.value, replicated=fact.replicated, settled=fact.settled)

    @hear.register
    def _(self, fact: ProcPaused) -> None:
        self._set(fact.proc, stage=Stage.PAUSED.value, paused=fact)

    @hear.register
    def _(self, fact: ProcRegrouped) -> None:
        self._set(fact.proc, stage=Stage.REGROUPED.value, groups=fact.groups)

    @hear.register
    def _(self, fact: ProcRestored) -> None:
        self._set(fact.proc, stage=Stage.RESTORED.value, digest=fact.digest, restored_step=fact.step)

    @hear.register
    def _(self, fact: ProcResumed) -> None:
        known = self._procs.get(fact.proc)
        if known is not None and known.stage == Stage.RESUMING:
            self._set(fact.proc, stage=Stage.LOOPING.value)

    @hear.register
    def _(self, fact: ProcFinished) -> None:
        self._set(fact.proc, stage=Stage.FINISHED.value)

    @hear.register
    def _(self, fact: ProcConfirmed) -> None:
        self._set(fact.proc, stage=Stage.CONFIRMED.value, digest=fact.digest)

    @hear.register
    def _(self, fact: ProcEnded) -> None:
        self._procs.pop(fact.proc, None)
        self._ended[fact.proc] = fact
        while len(self._ended) > _ENDED_KEPT:
            del self._ended[next(iter(self._ended))]

    # --- what is told -------------------------------------------------------------------------------------------

    @functools.singledispatchmethod
    def told(self, decision: Decision) -> None:
        """A decision that this node is about to carry out."""

    @told.register
    def _(self, decision: StartGroup) -> None:
        self.size = len(decision.procs)
        for seat, (proc, node) in enumerate(zip(decision.procs, decision.nodes, strict=True)):
            if node == self._node:
                self._start(proc, seat, None, decision.term, newcomer=False)

    @told.register
    def _(self, decision: StartProc) -> None:
        if decision.node == self._node:
            seated = decision.seat is not None
            self._start(decision.proc, decision.seat, decision.incarnation, 0, newcomer=seated)

    @told.register
    def _(self, decision: BeginTerm) -> None:
        self.size = len(decision.procs)
        for seat, (proc, incarnation) in enumerate(zip(decision.procs, decision.incarnations, strict=True)):
            self._set(
                proc,
                seat=seat,
                incarnation=incarnation,
                term=decision.term,
                stage=Stage.SEATED.value,
                groups="",
                digest="",
            )

    @told.register
    def _(self, decision: InterruptTerm) -> None:
        for proc in decision.procs:
            self.interrupted(proc)

    @told.register
    def _(self, decision: GoOn) -> None:
        for known in self.procs:
            if known.term == decision.term and known.stage == Stage.RESTORED:
                stage = Stage.RESUMING if known.looped or known.newcomer else Stage.BUILDING
                self._set(known.proc, stage=stage.value, paused=None, looped=stage is Stage.RESUMING)
