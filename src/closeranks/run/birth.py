"""What a new worker process is told, and the descriptors that it is given."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from closeranks import vitals
from closeranks.run.options import Target

# Descriptors of a worker, in the order in which they travel, and the variables that name them to it.
CONTROL, STDOUT, STDERR, VITALS, PAGE, SETUP, STACKS, ARENA_0, ARENA_1 = range(9)
_VARIABLES = {
    CONTROL: "CLOSERANKS_CONTROL_FD",
    VITALS: "CLOSERANKS_VITALS_FD",
    PAGE: "CLOSERANKS_PAGE_FD",
    SETUP: "CLOSERANKS_SETUP_FD",
    STACKS: "CLOSERANKS_STACKS_FD",
    ARENA_0: "CLOSERANKS_ARENA_0_FD",
    ARENA_1: "CLOSERANKS_ARENA_1_FD",
}
# Never taken over from the environment in which the run was started, perhaps by another run.
_STALE = frozenset({"RANK", "LOCAL_RANK", "ROLE_RANK", *_VARIABLES.values()}) | {
    f"CLOSERANKS_{name}" for name in ("SEAT", "INCARNATION", "NEWCOMER", "LOADS")
}

PAGE_BYTES_MAX = 2**30


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker begins: the script, its arguments, and its whole environment."""

    target: str
    args: tuple[str, ...]
    kind: Target
    environment: dict[str, str]
    parent_pid: int  # the supervisor; the worker ends with it
    open_files: int = 0  # the user's own soft limit, where the supervisor raised it for itself; 0: as it is


class Node(NamedTuple):
    """This node among those of the job."""

    name: str = ""  # "" where there is no other
    rank: int = 0
    nodes: int = 1  # that hold seats
    host: str = "127.0.0.1"  # under which the others reach it

    def among(self, homes: Sequence[str]) -> Node:
        """This node in a group whose seats are on these nodes, by seat: nodes that have none do not count."""
        nodes = tuple(dict.fromkeys(homes))
        if self.name not in nodes:
            return self
        return self._replace(rank=nodes.index(self.name), nodes=len(nodes))


class Meeting(NamedTuple):
    """Where the processes of a term meet."""

    host: str
    port: int


class Place(NamedTuple):
    """Where a new process stands in the job; a spare has no seat yet."""

    proc: int
    seat: int | None
    incarnation: int | None
    size: int
    term: int
    group: int  # groups started before this one from nothing, torchrun's restart count
    newcomer: bool = False  # it joins a group that is already training, instead of starting with it
    loads: bool = False  # before its loop it is told which saved state to begin with
    finer: int = 1  # so many times finer than the script means to, batches are split
    local: int | None = None  # its slot on one node of several; on a single node a seat has its own


def environment_of(
    place: Place, user: Mapping[str, str], run: Mapping[str, str], meeting: Meeting, node: Node
) -> dict[str, str]:
    """The variables of a worker: the user's own, those of torchrun, and ours.

    ``run`` names the run: CLOSERANKS_RUN_DIR and CLOSERANKS_RUN_ID.
    """
    size = str(place.size)
    ours = {
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": str(place.size // node.nodes),
        "GROUP_RANK": str(node.rank),
        "GROUP_WORLD_SIZE": str(node.nodes),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": meeting.host,
        "MASTER_PORT": str(meeting.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": run["CLOSERANKS_RUN_ID"],
        "TORCHELASTIC_RESTART_COUNT": str(place.group),
        "CLOSERANKS_PROC": str(place.proc),
        "CLOSERANKS_SIZE": size,
        "CLOSERANKS_TERM": str(place.term),
        "CLOSERANKS_HOST": node.host,
        "CLOSERANKS_FINER": str(place.finer),
        **run,
    }
    if place.seat is not None:
        ours |= {name: str(place.seat) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK", "CLOSERANKS_SEAT")}
        ours["CLOSERANKS_INCARNATION"] = str(place.incarnation)
    if place.local is not None:
        ours["LOCAL_RANK"] = str(place.local)
    if place.newcomer:
        ours["CLOSERANKS_NEWCOMER"] = "1"
    if place.loads:
        ours["CLOSERANKS_LOADS"] = "1"
    if place.size > 1:
        ours |= {} if "OMP_NUM_THREADS" in user else {"OMP_NUM_THREADS": "1"}
    return {name: value for name, value in user.items() if name not in _STALE} | ours


def name_descriptors(fds: tuple[int, ...]) -> dict[str, str]:
    """The variables that tell a worker the numbers of its descriptors."""
    return {variable: str(fds[index]) for index, variable in _VARIABLES.items()}


class Channels(NamedTuple):
    """The supervisor's side of a worker's descriptors. ``close`` is for when the process is gone for good."""

    control: socket.socket
    stdout: int
    stderr: int
    vitals: int
    page: int
    setup: int
    stacks: int
    arena_0: int  # images of its part of the state
    arena_1: int

    def close(self) -> None:
        """Close all of them."""
        self.control.close()
        for fd in self[1:]:
            os.close(fd)


def open_channels(name: str) -> tuple[Channels, tuple[int, ...]]:
    """Our ends (non-blocking where they are read) and the worker's, which the caller closes after the start.

    Raises:
        OSError: there can be no more open files; none of these is left open.
    """
    with contextlib.ExitStack() as opened:

        def held(fd: int) -> int:
            opened.callback(os.close, fd)
            return fd

        ours, theirs = socket.socketpair()
        opened.callback(ours.close)
        ours.setblocking(False)
        control = held(theirs.detach())
        out_read, out_write = map(held, os.pipe())
        err_read, err_write = map(held, os.pipe())
        os.set_blocking(out_read, False)
        os.set_blocking(err_read, False)
        vital = held(vitals.create_memfd(f"closeranks-{name}-vitals"))
        parts = ("page", "setup", "stacks", "arena-0", "arena-1")
        shared = (vital, *(held(os.memfd_create(f"closeranks-{name}-{part}")) for part in parts))
        # Both sides use the shared memory through one open file: only its mapping matters, never its position.
        worker = (control, out_write, err_write, *(held(os.dup(fd)) for fd in shared))
        opened.pop_all()
        return Channels(ours, out_read, err_read, *shared), worker


def copy_memory(source: int, target: int, *, bound_bytes: int = PAGE_BYTES_MAX) -> int:
    """Copy one memfd into an empty other one; the number of bytes.

    Raises:
        ValueError: the source is larger than the bound; nothing was copied.
    """
    size = os.fstat(source).st_size
    if size > bound_bytes:
        raise ValueError(f"page of {size} bytes, at most {bound_bytes} are handed to a successor")
    os.ftruncate(target, size)
    os.lseek(target, 0, os.SEEK_SET)
    done = 0
    while done < size:
        copied = os.sendfile(target, source, done, size - done)
        if copied == 0:  # the source was cut short meanwhile
            break
        done += copied
    return done
