"""A small supervisor for tests of the worker library: real processes, real gloo, a scripted protocol.

It plays the part of ``closeranks.run`` with just enough sense for one loss at a time, so that these tests fail for
reasons of ``train/`` alone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import multiprocessing.connection
import os
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from closeranks import messages, vitals
from tests.warm import context

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 90.0


def _worker(path: str, function: str, environment: dict[str, str], handles: dict[str, Any], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    err = os.fdopen(os.dup(out), "w")
    for name, handle in handles.items():
        environment[f"CLOSERANKS_{name}_FD"] = str(handle.detach())
    os.environ.update(environment)
    faulthandler.register(signal.SIGUSR2, file=err, all_threads=True)
    code = 0
    try:
        getattr(importlib.import_module(path), function)()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass
class Proc:
    """One worker process."""

    number: int
    process: Any
    link: socket.socket
    vitals_fd: int
    page_fd: int
    setup_fd: int
    log: Path
    decoder: messages.Decoder = field(default_factory=lambda: messages.Decoder(messages.WorkerMessage))
    said: list[Any] = field(default_factory=list)

    def send(self, message: Any, fds: tuple[int, ...] = ()) -> None:
        frame = messages.encode(message)
        if fds:
            socket.send_fds(self.link, [frame], list(fds))
        else:
            self.link.sendall(frame)

    def heard(self, kind: type, **fields: Any) -> list[Any]:
        return [m for m in self.said if isinstance(m, kind) and all(getattr(m, k) == v for k, v in fields.items())]


class Ranks:
    """N seats and their processes."""

    def __init__(self, function: str, size: int, folder: Path, **environment: str) -> None:
        self.function, self.size, self.folder = function, size, folder
        self.environment = environment
        self.procs: list[Proc] = []
        self.members: list[Proc] = []
        self.incarnations = [1] * size
        self.term = 0
        self.store: Any = None
        self.everyone: list[Proc] = []

    # --- processes ---------------------------------------------------------------------------------------------

    def start(self, seat: int | None, *, newcomer: bool = False, heir_of: Proc | None = None) -> Proc:
        ours, theirs = socket.socketpair()
        number = len(self.everyone) + 1
        fds = {
            "VITALS": vitals.create_memfd("vitals"),
            "PAGE": copy_of(heir_of.page_fd if heir_of else None),
            "SETUP": copy_of(heir_of.setup_fd if heir_of else None),
            "ARENA_0": os.memfd_create("arena-0"),
            "ARENA_1": os.memfd_create("arena-1"),
        }
        environment = {
            "CLOSERANKS_RUN_DIR": str(self.folder),
            "CLOSERANKS_PROC": str(number),
            "CLOSERANKS_SIZE": str(self.size),
            "CLOSERANKS_FINER": "1",
            **self.environment,
        }
        if seat is not None:
            environment |= {"CLOSERANKS_SEAT": str(seat), "CLOSERANKS_INCARNATION": str(self.incarnations[seat])}
        if newcomer:
            environment["CLOSERANKS_NEWCOMER"] = "1"
        handles = {name: multiprocessing.reduction.DupFd(fd) for name, fd in fds.items()}
        handles["CONTROL"] = multiprocessing.reduction.DupFd(theirs.fileno())
        log = self.folder / f"p{number}.log"
        module, _, function = self.function.rpartition(":")
        path = f"tests.train.{module or 'scripts'}"
        process = context().Process(target=_worker, args=(path, function, environment, handles, str(log)), daemon=True)
        process.start()
        theirs.close()
        proc = Proc(number, process, ours, fds["VITALS"], fds["PAGE"], fds["SETUP"], log)
        self.everyone.append(proc)
        return proc

    def start_all(self) -> None:
        self.members = [self.start(seat) for seat in range(self.size)]

    def kill(self, seat: int, how: int = signal.SIGKILL) -> Proc:
        proc = self.members[seat]
        os.kill(proc.process.pid, how)
        return proc

    # --- conversation ------------------------------------------------------------------------------------------

    def pump(self, wait_s: float = 0.05) -> None:
        links = {p.link: p for p in self.everyone if p.link.fileno() >= 0}
        for link in select.select(list(links), [], [], wait_s)[0]:
            proc = links[link]
            try:
                data = link.recv(65536)
            except OSError:
                data = b""
            if not data:
                link.close()
                continue
            proc.said += proc.decoder.feed(data)

    def wait_for(self, condition: Any, what: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline_s:
                self.dump_stacks()
                said = {p.number: [type(m).__name__ for m in p.said] for p in self.everyone}
                raise TimeoutError(f"{what}; heard {said}\n{self.logs()}")
            self.pump()

    def dump_stacks(self) -> None:
        """Into the logs: where everyone is. Whoever is stopped writes nothing."""
        for proc in self.everyone:
            if proc.process.is_alive():
                os.kill(proc.process.pid, signal.SIGUSR2)
        until_s = time.monotonic() + 2.0
        while time.monotonic() < until_s:
            self.pump()

    def wait_said(self, kind: type, procs: list[Proc] | None = None, **fields: Any) -> None:
        procs = self.members if procs is None else procs
        self.wait_for(
            lambda: all(p.heard(kind, **fields) for p in procs),
            f"{kind.__name__} {fields} from {[p.number for p in procs]}",
        )

    def wait_step(self, seat: int, step: int) -> None:
        page = vitals.Vitals(self.members[seat].vitals_fd)
        self.wait_for(lambda: page.read().closed_step >= step, f"step {step} of seat {seat}")
        page.close()

    def logs(self) -> str:
        return "\n".join(f"--- p{p.number}\n{p.log.read_text()}" for p in self.everyone if p.log.exists())

    # --- protocol ----------------------------------------------------------------------------------------------

    def begin_term(
        self, restore: messages.Restore | None = None, before_the_last: Callable[[], None] = lambda: None
    ) -> None:
        """``before_the_last`` is called when all members but one have their seats."""
        self.term += 1
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        port = listener.getsockname()[1]
        self.store = dist.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(),
            timeout=timedelta(seconds=30),
        )  # fmt: skip
        for seat, proc in enumerate(self.members):
            if seat == self.size - 1:
                before_the_last()
            handed = getattr(proc, "hand_over", ())
            message = messages.Seat(
                descriptors=len(handed), term=self.term, seat=seat, incarnation=self.incarnations[seat], size=self.size,
                store_host="127.0.0.1", store_port=port,
            )  # fmt: skip
            proc.send(message, handed)
            proc.hand_over = ()
        self.wait_said(messages.Regrouped, term=self.term)
        plan = restore or messages.Restore(term=self.term, step=-1, donor=None, receivers=())
        for proc in self.members:
            proc.send(plan)
        self.wait_said(messages.Restored, term=self.term)
        for proc in self.members:
            proc.send(messages.Go(term=self.term))

    def run_set_up(self) -> None:
        self.start_all()
        self.wait_said(messages.Joined)
        self.begin_term()

    def start_spare(self) -> Proc:
        return self.start(None)

    def replace(self, seat: int, lost: Proc, spare: Proc | None = None) -> None:
        """One whole recovery of one lost seat."""
        survivors = [p for s, p in enumerate(self.members) if s != seat]
        for proc in survivors:
            proc.send(messages.Interrupt(term=self.term, reason=f"seat {seat} lost"))
        if lost.process.is_alive():
            lost.process.kill()
        self.incarnations[seat] += 1
        if spare is None:
            spare = self.start(seat, newcomer=True, heir_of=lost)
        else:
            spare.hand_over = (copy_of(lost.page_fd), copy_of(lost.setup_fd))
        self.wait_said(messages.Paused, survivors, term=self.term)
        self.wait_for(lambda: spare.heard(messages.Ready) or spare.heard(messages.NeedsSeat), "newcomer ready")
        self.members[seat] = spare
        self.begin_term(self.plan(survivors, seat))

    def plan(self, survivors: list[Proc], seat: int) -> messages.Restore:
        paused = {self.members.index(p): p.heard(messages.Paused, term=self.term)[-1] for p in survivors}
        newest = max(p.closed_step for p in paused.values())
        donors = [s for s, p in paused.items() if p.closed_step == newest]
        assert len({paused[s].digest for s in donors}) == 1, "survivors disagree"
        receivers = tuple(s for s in range(self.size) if s == seat or s not in donors)
        return messages.Restore(term=self.term + 1, step=newest, donor=donors[0], receivers=receivers)

    def finish(self) -> None:
        self.wait_said(messages.Finished)
        for proc in self.everyone:
            with contextlib.suppress(OSError):
                proc.send(messages.Leave())
        for proc in self.members:
            proc.process.join(30)
            assert proc.process.exitcode == 0, self.logs()

    def finals(self) -> dict[int, tuple[str, str]]:
        found = {}
        for seat in range(self.size):
            import msgspec

            final = msgspec.json.decode((self.folder / "final" / f"seat{seat}.json").read_bytes())
            found[seat] = (final["digest"], final["local"])
        return found

    def losses(self) -> list[str]:
        page = vitals.Vitals(self.members[0].vitals_fd)
        _, marks = page.steps_since(0)
        page.close()
        return [m.loss.hex() for m in marks]

    def close(self) -> None:
        for proc in self.everyone:
            if proc.process.is_alive():
                proc.process.kill()
            proc.process.join(10)
            proc.link.close()


def copy_of(fd: int | None) -> int:
    """A new memfd with the content of ``fd``."""
    twin = os.memfd_create("copy")
    if fd is not None:
        size = os.fstat(fd).st_size
        os.ftruncate(twin, size)
        os.pwrite(twin, os.pread(fd, size, 0), 0)
    return twin
