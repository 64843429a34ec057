"""The first code that runs in a worker, before the first line of the user's script.

The script runs as ``__main__`` just as under ``python script.py``, so that pickling by reference, ``multiprocessing``
and ``__name__ == "__main__"`` work. What is added: the worker ends with its supervisor, says Hello, and reports the
exception that ends it.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import gc
import importlib.util
import io
import math
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

import msgspec

from closeranks import messages
from closeranks.run.birth import CONTROL, STACKS, STDERR, STDOUT, VITALS, Birth, name_descriptors
from closeranks.run.linux import die_with_parent, limit_open_files
from closeranks.run.options import Target
from closeranks.signs import Doing
from closeranks.vitals import Vitals

STACK_SIGNAL = signal.SIGUSR2  # asks for the stacks of all threads, even of one that holds the GIL
_TEXT_CHARS_MAX = 32_000  # of a reported traceback; a frame of this size goes out in one piece
_SEND_S = 2.0


def run(birth: Birth, fds: tuple[int, ...]) -> NoReturn:
    """Be the worker until its script ends. ``fds`` are those of ``birth.open_channels``."""
    _settle(birth, fds)
    _send(fds[CONTROL], messages.Hello(pid=os.getpid()))
    if birth.kind is Target.COMMAND:
        _become_command(birth, fds)
    faulthandler.register(STACK_SIGNAL, file=fds[STACKS], all_threads=True)
    try:
        code, module = _load(birth)
        sys.modules["__main__"] = module
        exec(code, module.__dict__)  # noqa: S102 - running the user's script is the purpose
    except SystemExit as end:
        status = _status_of(end)
    except BaseException as error:  # the boundary between the user's code and ours
        _report(error, fds, birth)
        _leave_quickly(1)
    else:
        status = 0
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what the interpreter does first: it waits for threads that are no daemons
    _leave_quickly(status)


def _status_of(end: SystemExit) -> int:
    """As the interpreter reads it: nothing is success, a number is itself, anything else is told and is failure."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{end.code}\n")
    return 1


def _settle(birth: Birth, fds: tuple[int, ...]) -> None:
    if birth.open_files:
        limit_open_files(birth.open_files)
    os.dup2(fds[STDOUT], 1)
    os.dup2(fds[STDERR], 2)
    for fd in (fds[STDOUT], fds[STDERR]):
        os.close(fd)
    os.environ.clear()
    os.environ.update(birth.environment | name_descriptors(fds))
    if birth.kind is not Target.COMMAND:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # a pipe would be buffered by the block, and lost by a kill


def _become_command(birth: Birth, fds: tuple[int, ...]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.set_inheritable(fd, True)  # the command may lead to a script that joins
    try:
        os.execvp(birth.target, [birth.target, *birth.args])  # noqa: S606 - what the user asked for
    except OSError as error:
        sys.stderr.write(f"closeranks: {birth.target}: {error.strerror}\n")
        sys.exit(127)


# --- the script as __main__ -------------------------------------------------------------------------------------


def _load(birth: Birth) -> tuple[CodeType, ModuleType]:
    sys.argv = [birth.target, *birth.args]
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    if birth.kind is Target.MODULE:
        return _load_module(birth.target, module), module
    path = birth.target
    # As under `python script.py`: the folder of the file itself, not of a link to it.
    _put_on_path(str(Path(path).resolve().parent))
    module.__file__ = path
    module.__dict__["__cached__"] = None
    with io.open_code(str(Path(path).absolute())) as file:
        return compile(file.read(), path, "exec"), module


def _load_module(name: str, module: ModuleType) -> CodeType:
    _put_on_path(str(Path.cwd()))
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    loader = None if spec is None else spec.loader
    code = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None  # type: ignore[union-attr]
    if spec is None or code is None:
        raise ModuleNotFoundError(f"no module named {name!r} that can be run", name=name)
    module.__spec__ = spec
    module.__loader__ = loader
    module.__package__ = spec.parent
    module.__file__ = spec.origin
    sys.argv[0] = spec.origin or name
    return code  # type: ignore[no-any-return]


def _put_on_path(folder: str) -> None:
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


# --- the last words ---------------------------------------------------------------------------------------------


def _report(error: BaseException, fds: tuple[int, ...], birth: Birth) -> None:
    trace = _users_part(error.__traceback__)
    error.with_traceback(trace)
    text = "".join(traceback.format_exception(type(error), error, trace))
    failed = messages.Failed(
        error=type(error).__qualname__,
        message=str(error)[:_TEXT_CHARS_MAX],
        where=_where(error, trace, birth),
        step=_step_in_flight(fds[VITALS]),
        traceback=text[-_TEXT_CHARS_MAX:],
    )
    # The report goes first: printing may block on a full pipe, and a hook of the user's may do anything.
    _send(fds[CONTROL], failed)
    with contextlib.suppress(OSError, ValueError):
        sys.excepthook(type(error), error, trace)
        sys.stderr.flush()


def _leave_quickly(status: int) -> NoReturn:
    """End the process without taking the interpreter apart.

    That takes up to two seconds with torch, in which peers wait for sockets that are still open, and the run for its
    end. Exit handlers run and files are flushed.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - the only way to run them without an ordinary exit
    for thing in gc.get_objects():  # those made since the fork; what the zygote made is frozen
        if isinstance(thing, io.TextIOWrapper | io.BufferedWriter):
            with contextlib.suppress(Exception):
                thing.flush()
    os._exit(status)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _where(error: BaseException, trace: TracebackType | None, birth: Birth) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    main_file = getattr(sys.modules["__main__"], "__file__", None)
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    own = [place for place in frames if place[0] == main_file] or frames
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else Path(birth.target).name


def _step_in_flight(fd: int) -> int:
    """Step of the open attempt; -1 before the first, and for a script without vitals."""
    try:
        page = Vitals(fd)
    except (OSError, ValueError):  # the script closed our descriptor
        return -1
    if not page.begun:
        return -1
    reading = page.read()
    return -1 if reading.doing is Doing.STARTING else reading.step


def _send(fd: int, message: messages.Message) -> None:
    """Write one frame, waiting at most ``_SEND_S``; a supervisor that does not listen must not keep us."""
    try:
        link = socket.socket(fileno=os.dup(fd))
    except OSError:  # the script closed our descriptor
        return
    data, end_s = memoryview(messages.encode(message)), time.monotonic() + _SEND_S
    poll = select.poll()
    poll.register(link, select.POLLOUT)
    with contextlib.suppress(OSError), link:
        while data and (left_ms := (end_s - time.monotonic()) * 1000) > 0:
            if poll.poll(math.ceil(left_ms)):
                with contextlib.suppress(BlockingIOError):
                    data = data[link.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]


# --- a worker in an interpreter of its own ----------------------------------------------------------------------


def read_birth(fd: int) -> Birth:
    """Read what the supervisor put into a memfd, and close it."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return msgspec.msgpack.decode(file.read(), type=Birth)


def main(argv: list[str]) -> int:
    """``python -P -m closeranks.run.worker_main BIRTH_FD FD...``."""
    birth = read_birth(int(argv[0]))
    if not die_with_parent(birth.parent_pid, signal.SIGKILL):
        return 1
    fds = tuple(int(fd) for fd in argv[1:])
    for fd in fds:
        os.set_inheritable(fd, False)
    gc.collect()
    return run(birth, fds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
