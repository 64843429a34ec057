"""The guardian: the process that outlives the supervisor just long enough to leave nothing behind.

It is the process that the user started. It imports no torch, holds no state of the job, and can therefore hardly
fail. It starts the supervisor in a session of its own (so that Ctrl-C reaches it once, through the guardian), passes
signals on, and when the supervisor ends, in whatever way, ends every process that is left below.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from closeranks.launch.outcome import code_of_own_end
from closeranks.run.descendants import kill_descendants
from closeranks.run.folder import read_run_file, write_run_file
from closeranks.run.linux import become_subreaper
from closeranks.run.telling import tell

# Set in the supervisor only: a worker gets the user's own environment back.
OPENBLAS = "OPENBLAS_NUM_THREADS"  # numpy's import would start a thread, and a zygote must have one
OMP = "OMP_NUM_THREADS"
USER_SETTINGS = "CLOSERANKS_USER_"  # prefix under which the user's own values of the two travel

_OUTCOMES = {0: "completed", 128 + signal.SIGINT: "stopped", 128 + signal.SIGTERM: "stopped"}  # by exit code
_FORWARDED = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
    # For schedulers that signal every process of a job: whoever does not know this one ignores it, as workers do.
    signal.SIGURG: signal.SIGTERM,
}


def supervisor_environment(environment: Mapping[str, str], seats: int) -> dict[str, str]:
    """What the supervisor, and so the zygote, runs under: libraries read these when they are loaded."""
    kept = {f"{USER_SETTINGS}{name}": environment[name] for name in (OPENBLAS, OMP) if name in environment}
    changed = {**environment, **kept, OPENBLAS: "1"}
    if seats > 1:
        changed.setdefault(OMP, "1")  # as torchrun does: N processes with all cores each slow each other down
    return changed


def guard(folder: Path, seats: int) -> int:
    """Run the supervisor of a claimed run folder to its end; the exit code of the run."""
    become_subreaper()
    # The supervisor sees our end as the end of this pipe. We never write.
    lifeline, alive = os.pipe()
    command = [sys.executable, "-P", "-m", "closeranks.run.supervisor", str(folder), str(lifeline), str(os.getpid())]
    supervisor = subprocess.Popen(
        command,
        env=supervisor_environment(os.environ, seats),
        pass_fds=(lifeline,),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    os.close(lifeline)
    pidfd = os.pidfd_open(supervisor.pid)
    try:
        _forward_signals(pidfd)
        select.select([pidfd], [], [])
        code = supervisor.wait()
    finally:
        left = kill_descendants()
        os.close(pidfd)
        os.close(alive)
    if left:
        tell(f"closeranks: processes {left} do not react to SIGKILL; they hold no part of the run", sys.stderr)
    return _supervisor_lost(folder, -code) if code < 0 else _settled(folder, code)


def _forward_signals(pidfd: int) -> None:
    def forward(number: int, _frame: object) -> None:
        try:
            signal.pidfd_send_signal(pidfd, _FORWARDED[signal.Signals(number)])
        except ProcessLookupError:
            return

    for number in _FORWARDED:
        signal.signal(number, forward)


def _settled(folder: Path, code: int) -> int:
    """The supervisor ended by itself; where it could not write down how (a full disk, say), that is done here."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):  # it said so itself
        file = read_run_file(folder)
        if file.exit_code is None:
            reason = f"the supervisor ended with code {code} and could not write down why"
            outcome = _OUTCOMES.get(code, "failed")
            write_run_file(folder, msgspec.structs.replace(file, outcome=outcome, exit_code=code, reason=reason))
    return code


def _supervisor_lost(folder: Path, number: int) -> int:
    """The supervisor was killed: say so where a person and ``closeranks report`` will look."""
    reason = f"the supervisor was ended by signal {number}; every process of the run was ended after it"
    tell(f"closeranks: {reason}; what is known is in {folder}", sys.stderr)
    exit_code = 128 + number
    try:
        file = read_run_file(folder)
        exit_code = code_of_own_end(file.options, exit_code)
        write_run_file(folder, msgspec.structs.replace(file, outcome="failed", exit_code=exit_code, reason=reason))
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        tell(f"closeranks: {folder}/run.json was not updated: {error}", sys.stderr)
    return exit_code
