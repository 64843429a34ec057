"""Strikes from inside a worker. Costs one attribute test a call while no fault is planned for the seat."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol

import msgspec

from closeranks.drill.fault import ANY_INCARNATION, ENVIRONMENT, FAILURE_CODE, Fault, Kind, Moment

_MUSTER_S = 1.0  # a volley waits this long for its members; shorter than any deadline for progress
_MUSTER_POLL_S = 0.001


class DrillFault(Exception):
    """Raised by a drill in place of a bug of the training script."""


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
    try:
        faults = msgspec.json.decode(Path(path).read_bytes(), type=tuple[Fault, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{ENVIRONMENT}={path}: expected a JSON list of faults: {error}") from error
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
        self._modules: list[Any] = []
        self._hooks: list[_Handle] = []
        self.announce: Callable[[str, int, str], None] = _nobody

    def seated(self, seat: int, incarnation: int) -> None:
        """From now on this process is ``incarnation`` of ``seat``."""
        sitting = (ANY_INCARNATION, incarnation)
        self._mine = tuple(f for f in self._faults if f.seat == seat and f.incarnation in sitting)

    def watch(self, modules: Iterable[Any]) -> None:
        """Let faults strike amid the forward and backward of these ``torch.nn.Module``."""
        self._modules = list(modules)

    def at(self, moment: str, step: int) -> None:
        """The worker reaches ``moment`` of ``step``; returns unless a fault is due that ends or stops it."""
        if not self._mine:
            return
        if moment == Moment.FORWARD:
            self._set_hooks(step)
        for fault in self._mine:
            amid = bool(self._modules) and fault.moment in (Moment.FORWARD, Moment.BACKWARD)
            if fault.due(moment, step) and not amid:
                self._strike(fault, step)

    def _set_hooks(self, step: int) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for fault in self._mine:
            if fault.due(Moment.FORWARD, step):
                leaves = [m for root in self._modules for m in root.modules() if not any(m.children())]
                self._hook_amid(fault, step, [leaf.register_forward_hook for leaf in leaves])
            elif fault.due(Moment.BACKWARD, step):
                parameters = [p for root in self._modules for p in root.parameters() if p.requires_grad]
                self._hook_amid(fault, step, [p.register_hook for p in parameters])

    def _hook_amid(self, fault: Fault, step: int, registers: list[Callable[[Callable[..., None]], _Handle]]) -> None:
        """Strike when as many of the hooked places were passed as the fault is deep."""
        left = 1 + int(fault.depth * len(registers))

        def passed(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._strike(fault, step)

        self._hooks += [register(passed) for register in registers]

    def _strike(self, fault: Fault, step: int) -> None:
        index = self._faults.index(fault)
        if not self._claim(index):
            if fault.kind is Kind.SLOW:
                time.sleep(fault.for_s)
            return
        if fault.volley:
            self._muster(fault.volley)
        if fault.after_ms:
            later = threading.Timer(fault.after_ms / 1000, self._carry_out, (fault, step))
            later.daemon = True
            later.start()
        else:
            self._carry_out(fault, step)

    def _carry_out(self, fault: Fault, step: int) -> None:
        self.announce(fault.kind, step, fault.moment)
        _BLOWS[fault.kind](fault)

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


# --- blows ------------------------------------------------------------------------------------------------------


def _kill(_: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _freeze(_: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(fault: Fault) -> NoReturn:
    raise DrillFault(f"a drill raised this: {fault}")


def _hang(library: ctypes.CDLL, duration_s: float) -> None:
    until_s = time.monotonic() + duration_s
    while (left_s := until_s - time.monotonic()) > 0:  # a signal handler ends one sleep early
        library.poll(None, 0, min(int(left_s * 1000) + 1, 2**31 - 1))


def _hold_gil(fault: Fault) -> None:
    _hang(ctypes.PyDLL(None), fault.for_s)  # PyDLL does not release the interpreter lock around the call


def _block(fault: Fault) -> None:
    _hang(ctypes.CDLL(None), fault.for_s)


def _exit_success(_: Fault) -> NoReturn:
    os._exit(0)


def _system_exit(_: Fault) -> NoReturn:
    raise SystemExit(0)


def _exit_failure(_: Fault) -> NoReturn:
    os._exit(FAILURE_CODE)


def _segfault(_: Fault) -> None:
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # leave no core file behind
    ctypes.string_at(0)


def _pause(fault: Fault) -> None:
    time.sleep(fault.for_s)


_BLOWS: dict[Kind, Callable[[Fault], None]] = {
    Kind.KILL: _kill,
    Kind.FREEZE: _freeze,
    Kind.EXCEPTION: _raise,
    Kind.GIL: _hold_gil,
    Kind.BLOCK: _block,
    Kind.EXIT0: _exit_success,
    Kind.SYSTEM_EXIT: _system_exit,
    Kind.EXIT_CODE: _exit_failure,
    Kind.SEGFAULT: _segfault,
    Kind.PAUSE: _pause,
    Kind.SLOW: _pause,
}
