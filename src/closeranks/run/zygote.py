"""The zygote: a process that has imported torch once and forks workers from then on.

It must have exactly one thread: a lock that another thread holds at the moment of a fork stays locked in the child
for ever. A worker is forked twice, so that the process between them ends and the supervisor, as the nearest
subreaper, becomes the parent: it can wait for the worker, and the worker can ask for a parent-death signal that is
bound to the supervisor's main thread.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from closeranks.run import worker_main
from closeranks.run.birth import Birth
from closeranks.run.linux import count_threads, die_with_parent

# DDP() itself imports torch._dynamo, which alone takes a second.
_PRELOADED = ("torch", "torch.distributed", "torch.nn.parallel.distributed", "torch._dynamo", "torch.optim", "numpy")
_OURS = ("closeranks.train",)
_FDS_MAX = 16
_GO = b"g"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The zygote's answer to a request: a pid, or why there is none."""

    pid: int = 0
    problem: str = ""


class Newborn(NamedTuple):
    """Returned in the worker only: what it is to be."""

    birth: Birth
    fds: tuple[int, ...]


def preload() -> str:
    """Import what workers need; "" or why this process cannot be (or father) a zygote."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    for name in (*_PRELOADED, *_OURS):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    threads = count_threads()
    return "" if threads == 1 else f"importing torch left {threads} threads, and a fork needs exactly one"


def fork_zygote() -> tuple[int, socket.socket] | Newborn:
    """In the caller, which must have one thread: the zygote's pid and our end of its socket. In a worker: itself."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    supervisor_pid = os.getpid()
    gc.collect()
    gc.freeze()  # the collector would write to, and so copy, every page that parent and workers share
    pid = os.fork()
    if pid != 0:
        theirs.close()
        return pid, ours
    ours.close()  # by its object: closed by number alone, the object would close a worker's descriptor of that number
    newborn = _live(theirs, supervisor_pid)
    if newborn is None:
        os._exit(0)
    return newborn


def _live(link: socket.socket, supervisor_pid: int) -> Newborn | None:
    """Serve until the supervisor closes the socket (None); returns a Newborn in each worker."""
    if not die_with_parent(supervisor_pid, signal.SIGKILL):
        return None
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    close_all_but({0, 1, 2, link.fileno()})
    while True:
        kind, fds = _receive(link)
        if not kind:
            return None
        newborn = _bear(link, fds, supervisor_pid)
        if newborn is not None:
            return newborn
        for fd in fds:
            os.close(fd)


def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    data, fds, _flags, _address = socket.recv_fds(link, 1, _FDS_MAX)
    return data, fds


def _bear(link: socket.socket, fds: list[int], supervisor_pid: int) -> Newborn | None:
    threads = count_threads()
    if threads != 1:
        link.send(msgspec.msgpack.encode(Reply(problem=f"the zygote has {threads} threads")))
        return None
    (go_read, go_write), (number_read, number_write) = os.pipe(), os.pipe()
    middle = os.fork()
    if middle == 0:
        worker = os.fork()
        if worker != 0:
            os.write(number_write, str(worker).encode())
            os._exit(0)
        return _begin(link, fds, (go_read, go_write), supervisor_pid)
    os.close(number_write)
    os.close(go_read)
    os.waitpid(middle, 0)  # from here on the supervisor is the worker's parent
    pid = int(os.read(number_read, 32) or b"0")
    with contextlib.suppress(BrokenPipeError):
        os.write(go_write, _GO)
    os.close(go_write)
    os.close(number_read)
    link.send(msgspec.msgpack.encode(Reply(pid=pid) if pid else Reply(problem="the worker could not be forked")))
    return None


def _begin(link: socket.socket, fds: list[int], go: tuple[int, int], supervisor_pid: int) -> Newborn:
    os.setsid()  # Ctrl-C and job control are the guardian's business
    os.close(go[1])
    if os.read(go[0], 1) != _GO or not die_with_parent(supervisor_pid, signal.SIGKILL):
        os._exit(1)
    link.close()
    close_all_but({0, 1, 2, *fds})
    if "numpy" in sys.modules:  # random and torch take care of themselves after a fork
        sys.modules["numpy"].random.seed()
    birth_fd, *rest = fds
    return Newborn(worker_main.read_birth(birth_fd), tuple(rest))


def close_all_but(keep: set[int]) -> None:
    """Close every other descriptor of this process."""
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)


def main(argv: list[str]) -> int:
    """``python -P -m closeranks.run.zygote SOCKET_FD SUPERVISOR_PID``: the successor of a zygote that died."""
    link = socket.socket(fileno=int(argv[0]))
    problem = preload()
    if problem:
        link.send(msgspec.msgpack.encode(Reply(problem=problem)))
        return 1
    gc.collect()
    gc.freeze()
    link.send(msgspec.msgpack.encode(Reply()))  # ready: until then the supervisor spawns
    newborn = _live(link, int(argv[1]))
    return 0 if newborn is None else worker_main.run(*newborn)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
