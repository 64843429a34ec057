"""What strikes a whole process: it ends, stops, waits, or a call of it fails. Nothing here needs torch."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from closeranks.drill.fault import CLOCK_JUMP_S, ENVIRONMENT, FAILURE_CODE, Fault, Kind

KERNEL_LOG: Final = "kernel.log"  # beside the list of faults
# The driver's own line for an uncontained memory error, and what the process's next call says then.
_XID_LINE: Final = "[{now_s:.6f}] NVRM: Xid (PCI:0000:5e:00): 95, pid={pid}, name=python, Uncontained ECC error.\n"
_XID_ERROR: Final = "CUDA error: uncorrectable ECC error encountered"
_SHM_ERROR: Final = "unable to allocate shared memory(shm) for file </torch_{pid}>: No space left on device (28)"


class DrillFault(Exception):
    """Raised by a drill in place of a bug of the training script."""


def kernel_log_of(faults: Path) -> Path:
    """The file that stands for the kernel's log in a drill: what drilled processes write, its supervisor follows."""
    return faults.with_name(KERNEL_LOG)


def heard(fault: str) -> None:
    """By the supervisor, when a worker announces a fault that strikes the whole node."""
    if ENVIRONMENT not in os.environ:
        return
    if fault == Kind.CLOCK_JUMP:
        _jump()
    elif fault == Kind.LOST_METRICS:
        _lose_metrics()


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


def _no_space(_: Fault) -> None:
    """The kernel's own answer: its full device."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        full.write(b"a line of a log")


def _io_error(_: Fault) -> None:
    """The kernel's own answer: nothing is mapped at address 0 of this process."""
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        memory.read(1)


def _shm_full(_: Fault) -> NoReturn:
    """In torch's words; filling the machine's shared memory would strike others."""
    raise RuntimeError(_SHM_ERROR.format(pid=os.getpid()))


def _xid(_: Fault) -> NoReturn:
    with kernel_log_of(Path(os.environ[ENVIRONMENT])).open("a", encoding="ascii") as log:
        log.write(_XID_LINE.format(now_s=time.monotonic(), pid=os.getpid()))
    raise RuntimeError(_XID_ERROR)


def _jump_here(_: Fault) -> None:
    _jump()


def _jump() -> None:
    """Python's wall clock in this process is ahead from now on.

    The machine's own clock would strike everybody on it, and a time namespace shifts no wall clock. Clocks read by
    native code stay as they are.
    """
    now_s, now_ns = time.time, time.time_ns
    time.time = lambda: now_s() + CLOCK_JUMP_S
    time.time_ns = lambda: now_ns() + int(CLOCK_JUMP_S * 1e9)


def _lose_metrics() -> None:
    """What this process asks of the kernel for telemetry has no answer from now on; others go on being told."""
    from closeranks.probe import host

    for asked in ("available_bytes", "free_bytes"):
        setattr(host, asked, lambda *_: None)


BLOWS: Final[dict[Kind, Callable[[Fault], None]]] = {
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
    Kind.NO_SPACE: _no_space,
    Kind.IO_ERROR: _io_error,
    Kind.SHM_FULL: _shm_full,
    Kind.XID: _xid,
    Kind.CLOCK_JUMP: _jump_here,
}
