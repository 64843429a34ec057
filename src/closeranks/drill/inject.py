"""Strikes from inside a worker. Costs one attribute test a call while no fault is planned for the seat."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from closeranks.drill.blows import BLOWS
from closeranks.drill.fault import (
    ANY_INCARNATION,
    ENVIRONMENT,
    FLIPS,
    IN_SCRIPT,
    OF_COLLECTIVES,
    OF_DATA,
    OF_FILES,
    Fault,
    Kind,
    Moment,
    read_faults,
)

if TYPE_CHECKING:
    from closeranks.train.batches import Batches
    from closeranks.train.protected import Protected

_MUSTER_S = 1.0  # a volley waits this long for its members; shorter than any deadline for progress
_MUSTER_POLL_S = 0.001


_ELSEWHERE = OF_DATA | OF_COLLECTIVES  # carried out where a batch is fetched, where a collective is launched
_AMID = (Moment.FORWARD, Moment.BACKWARD)

Call = Callable[[Any], Any]  # launches a collective on a backend


class Launch(NamedTuple):
    """A collective as the script would have called it."""

    tensors: Any  # that it was called with
    call: Call


class Training(Protocol):
    """What a striker needs of the job in whose process it is."""

    protected: Protected
    batches: Batches | None

    def section(self, name: str) -> AbstractContextManager[None]:
        """Work outside the steps."""

    def own_s(self) -> float:
        """Seconds that the last step took without waiting for others."""


class _Handle(Protocol):
    def remove(self) -> None: ...


def from_environment() -> Striker | None:
    """The striker of this process, None outside drills.

    Raises:
        ValueError: CLOSERANKS_DRILL names no readable list of faults.
    """
    path = os.environ.get(ENVIRONMENT)
    if not path:
        return None
    faults = read_faults(Path(path))
    striker = Striker(faults, claims_of(Path(path)))
    if seat := os.environ.get("CLOSERANKS_SEAT"):
        striker.seated(int(seat), int(os.environ.get("CLOSERANKS_INCARNATION", "1")))
    return striker


def claims_of(path: Path) -> Path:
    """The folder beside a fault list where the faults that struck leave a file named by their index."""
    return path.with_name(path.name + ".struck")


class Striker:
    """Carries out the faults planned for this process.

    A fault strikes at most once in a run, whatever is restarted: whoever strikes creates its claim file first.
    """

    def __init__(self, faults: tuple[Fault, ...], claims: Path) -> None:
        self._faults = faults
        self._claims = claims
        self._mine: tuple[Fault, ...] = ()
        self._training: Training | None = None
        self._hooks: list[_Handle] = []
        self._dragged: set[Fault] = set()
        self.announce: Callable[[str, int, str], None] = _nobody

    def seated(self, seat: int, incarnation: int) -> None:
        """From now on this process is ``incarnation`` of ``seat``."""
        sitting = (ANY_INCARNATION, incarnation)
        self._mine = tuple(f for f in self._faults if f.seat == seat and f.incarnation in sitting)

    def watch(self, training: Training) -> None:
        """The set-up is over: faults can strike amid forward and backward, state, and batches from now on."""
        self._training = training
        if training.batches is not None and any(fault.kind in OF_DATA for fault in self._faults):
            self._spoil_batches(training.batches)

    def at(self, moment: str, step: int) -> None:
        """The worker reaches ``moment`` of ``step``; returns unless a fault is due that ends or stops it."""
        if not self._mine:
            return
        if moment == Moment.FORWARD:
            self._set_hooks(step)
        for fault in self._mine:
            amid = bool(self._modules()) and fault.moment in _AMID
            if fault.due(moment, step) and not amid and fault.kind not in _ELSEWHERE:
                self._strike(fault, step)

    def tampered(self, step: int, operation: str, launch: Launch) -> Launch | None:
        """What is launched in place of a collective of ``step``; None: nothing, it is left out."""
        for fault in self._mine:
            due = fault.kind in OF_COLLECTIVES and fault.due(Moment.COLLECTIVE, step) and operation == "allreduce"
            if due and self._begins(fault, step):
                if fault.kind is Kind.SKIP:
                    return None
                from closeranks.train.spoiling import shortened

                return Launch(*shortened(launch.tensors))
        return launch

    def _modules(self) -> list[Any]:
        return [] if self._training is None else list(self._training.protected.modules.values())

    def _spoil_batches(self, batches: Batches) -> None:
        fetch = batches.fetch

        def spoiled(step: int, seat: int, seats: int) -> Any:
            for fault in self._mine:
                if fault.kind in OF_DATA and fault.due(Moment.FORWARD, step) and self._begins(fault, step):
                    from closeranks.train.spoiling import batch_of

                    return batch_of(fault, fetch, step, seat, seats)
            return fetch(step, seat, seats)

        batches.fetch = spoiled  # type: ignore[method-assign]

    def _set_hooks(self, step: int) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for fault in self._mine:
            if fault.kind in _ELSEWHERE:
                continue
            if fault.due(Moment.FORWARD, step):
                leaves = [m for root in self._modules() for m in root.modules() if not any(m.children())]
                self._hook_amid(fault, step, [leaf.register_forward_hook for leaf in leaves])
            elif fault.due(Moment.BACKWARD, step):
                parameters = [p for root in self._modules() for p in root.parameters() if p.requires_grad]
                self._hook_amid(fault, step, [p.register_hook for p in parameters])

    def _hook_amid(self, fault: Fault, step: int, registers: list[Callable[[Callable[..., Any]], _Handle]]) -> None:
        """Strike when as many of the hooked places were passed as the fault is deep."""
        left = 1 + int(fault.depth * len(registers))

        def passed(*words: Any) -> Any:
            nonlocal left
            left -= 1
            return self._strike(fault, step, words[-1]) if left == 0 else None

        self._hooks += [register(passed) for register in registers]

    def _strike(self, fault: Fault, step: int, value: Any = None) -> Any:
        """Carry a fault out if it is its turn; what takes the place of the value that passes by, None: it stays."""
        if fault.after_ms and self._claim(self._faults.index(fault)):
            later = threading.Timer(fault.after_ms / 1000, self._announce_and_carry_out, (fault, step))
            later.daemon = True
            later.start()
        elif not fault.after_ms and self._begins(fault, step):
            return self._carry_out(fault, value)
        return None

    def _begins(self, fault: Fault, step: int) -> bool:
        """Whether a fault that is due strikes now; announced if this is the first time."""
        if not self._claim(self._faults.index(fault)):
            return fault.repeats
        if fault.volley:
            self._muster(fault.volley)
        self.announce(fault.kind, step, fault.moment)
        return True

    def _announce_and_carry_out(self, fault: Fault, step: int) -> None:
        self.announce(fault.kind, step, fault.moment)
        self._carry_out(fault, None)

    def _carry_out(self, fault: Fault, value: Any) -> Any:
        training = self._training
        if fault.kind in OF_FILES and fault.moment not in IN_SCRIPT:
            return None  # the claim is the strike: see drill/files.py
        if fault.kind in FLIPS or fault.kind is Kind.NAN:
            from closeranks.train.spoiling import strike

            return None if training is None else strike(fault, training.protected, value)
        if fault.kind is Kind.SECTION and training is not None:
            with training.section("evaluation"):
                time.sleep(fault.for_s)
        elif fault.kind is Kind.DRAG and training is not None:
            time.sleep(training.own_s() * fault.share / (1 + fault.share * self._drags(fault)))
        elif fault.kind in BLOWS:
            BLOWS[fault.kind](fault)
        return None

    def _drags(self, fault: Fault) -> bool:
        """Whether the last step was dragged already: its time has the share in it. True from the second time on."""
        before = fault in self._dragged
        self._dragged.add(fault)
        return before

    def _claim(self, index: int) -> bool:
        self._claims.mkdir(mode=0o700, exist_ok=True)
        try:
            os.close(os.open(self._claims / str(index), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True

    def _muster(self, volley: int) -> None:
        """Wait until all members of the volley stand at their moment, so that they strike at the same time."""
        members = [self._claims / str(i) for i, fault in enumerate(self._faults) if fault.volley == volley]
        deadline_s = time.monotonic() + _MUSTER_S
        while not all(member.exists() for member in members) and time.monotonic() < deadline_s:
            time.sleep(_MUSTER_POLL_S)  # files are all that processes of one volley share


def _nobody(kind: str, step: int, moment: str) -> None:
    """The announcement of a process that has no supervisor."""
