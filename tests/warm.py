"""A fork server that has imported torch once: what it starts begins in milliseconds instead of seconds.

Ranks of the tests come from it, and so do runs of the real command line: the guardian is forked, and so is the
supervisor, instead of each being an interpreter that imports everything anew. All that follows is the real thing.
The cold start has tests of its own in tests/run, and the undisturbed run of tests/situations begins cold.
"""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
import sys
import traceback
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

PRELOADED = [
    "numpy",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",  # what a first compilation imports takes longer than it
    "torch.distributed.fsdp",
    "torch.nn.parallel.distributed",
    "torch.optim",
    "closeranks.train.checkpointer",
    "closeranks.cli.run",
    "closeranks.run.supervisor",
    "tests.train.scripts",
    "tests.checkpoint.rank_scripts",
    "tests.frozen",
]


@functools.cache
def context() -> ForkServerContext:
    """Makes processes of the fork server, which is started here; one for each process of pytest."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    # As in production: numpy's import would start a thread in the fork server, and a fork beside threads can hang.
    with mock.patch.dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"):
        multiprocessing.forkserver.ensure_running()
    return made


class WarmRun:
    """``closeranks run`` with these words, forked. In place of a ``subprocess.Popen``, of which it has a part."""

    def __init__(self, words: tuple[str, ...], *, cwd: Path, environment: dict[str, str], output: Path) -> None:
        self._process = context().Process(target=_be_guardian, args=(words, str(cwd), environment, str(output)))
        output.touch(0o600)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.terminate = self._process.terminate
        self.kill = self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("closeranks run", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _be_guardian(words: tuple[str, ...], cwd: str, environment: dict[str, str], output: str) -> None:
    from closeranks.cli.main import main
    from closeranks.run import guardian

    os.setsid()
    out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.chdir(cwd)
    _set_environment(environment)
    sys.argv = ["closeranks", "run", *words]
    guardian.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": _Supervisor})
    main()


class _Supervisor:
    """Forked instead of started; the guardian asks no more of it than this."""

    def __init__(self, command: list[str], *, env: dict[str, str], pass_fds: tuple[int, ...], **_: Any) -> None:
        words = command[command.index("closeranks.run.supervisor") + 1 :]
        self.pid = os.fork()
        if self.pid == 0:
            _be_supervisor(words, env, pass_fds)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _be_supervisor(words: list[str], environment: dict[str, str], keep: tuple[int, ...]) -> NoReturn:
    try:
        from closeranks.run import supervisor
        from closeranks.run.zygote import close_all_but

        os.setsid()
        close_all_but({0, 1, 2, *keep})
        _set_environment(environment)
        os._exit(supervisor.main(words))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def _set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
