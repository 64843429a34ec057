"""What a training script holds of closeranks: join, protect, steps."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import platform
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

import closeranks.vitals as vitals_page
from closeranks import messages
from closeranks.decide.suspicion import OFF, Guard, guard_of
from closeranks.drill import inject
from closeranks.events import Category
from closeranks.signs import Doing
from closeranks.train import group, setup_record
from closeranks.train.alone import LastingAlone, lasting_alone
from closeranks.train.batches import Batches
from closeranks.train.control import Control
from closeranks.train.held import HeldAttempts
from closeranks.train.keeping import Keeping
from closeranks.train.poison import PeerLost
from closeranks.train.protected import Protected
from closeranks.train.randomness import Randomness
from closeranks.train.rehearsal import Rehearsal
from closeranks.train.seat_page import SeatPage
from closeranks.train.steps import Loop, Step
from closeranks.train.timers import Timers, watch_garbage
from closeranks.train.undo import UndoArea
from closeranks.train.untyped import dist
from closeranks.train.world import Attempt, World
from closeranks.vitals import Field, Vitals

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_TIMEOUT = timedelta(minutes=30)
_LEASE_LOOK_S = 0.01
# Members of an enumeration are slow to look up, and these are wanted in every step; so are words 6 and 8 of the vitals,
# Field.DOING and Field.STEP.
_OPEN, _APPLYING = Attempt.OPEN, Attempt.APPLYING
_DOING_STARTING, _DOING_APPLYING = int(Doing.STARTING), int(Doing.APPLYING)


class _Environment(msgspec.Struct, frozen=True):
    """What the supervisor told this process in its environment."""

    control_fd: int
    vitals_fd: int
    page_fd: int
    setup_fd: int
    arenas: tuple[int, int]
    size: int
    seat: int | None
    newcomer: bool
    loads: bool
    finer: int
    run_dir: str
    proc: int

    @staticmethod
    def read() -> _Environment | None:
        if "CLOSERANKS_CONTROL_FD" not in os.environ:
            return None

        def number(name: str) -> int:
            return int(os.environ[f"CLOSERANKS_{name}"])

        seat = os.environ.get("CLOSERANKS_SEAT")
        return _Environment(
            control_fd=number("CONTROL_FD"),
            vitals_fd=number("VITALS_FD"),
            page_fd=number("PAGE_FD"),
            setup_fd=number("SETUP_FD"),
            arenas=(number("ARENA_0_FD"), number("ARENA_1_FD")),
            size=number("SIZE"),
            seat=int(seat) if seat else None,
            newcomer=os.environ.get("CLOSERANKS_NEWCOMER") == "1" or not seat,
            loads=os.environ.get("CLOSERANKS_LOADS") == "1",
            finer=number("FINER"),
            run_dir=os.environ["CLOSERANKS_RUN_DIR"],
            proc=number("PROC"),
        )


_current: Job | None = None


def join(
    *, seed: int = 0, randomness: bool = True, timeout: timedelta = DEFAULT_TIMEOUT, guard: Guard | str = OFF
) -> Job:
    """Take part in the job: call it instead of ``init_process_group``, once, before the model is built.

    Under ``closeranks run`` the process becomes a supervised member; under torchrun it trains without supervision;
    under plain ``python`` it is a world of one.

    Args:
        seed: of everything that closeranks makes a function of (seed, step, seat).
        randomness: False leaves the random generators to the script, and with them the promise that a repeated
            step draws the same numbers in a replacement.
        timeout: of a collective, as in ``init_process_group``.
        guard: how attempts are watched before they are applied: "off", "basic", "full", or a ``Guard``.

    Raises:
        ValueError: there is no such guard; nothing was changed.
        RuntimeError: called twice, or a process group exists already; nothing was changed.
    """
    global _current  # noqa: PLW0603 - torch.distributed has one default group, so there is one job
    if _current is not None:
        raise RuntimeError("closeranks.join() was called before in this process; use the job that it returned")
    if dist.is_initialized():
        raise RuntimeError("closeranks.join() takes the place of init_process_group(); remove that call")
    environment = _Environment.read()
    job = Job(environment, Randomness(seed, managed=randomness), guard_of(guard))
    if environment is not None:
        job._join_supervised(environment, timeout)
    else:
        _join_alone(timeout)
        job.alone = lasting_alone(job)
    _current = job
    return job


def _join_alone(timeout: timedelta) -> None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)


class Job:
    """One member of the job. Made by ``join``."""

    def __init__(self, environment: _Environment | None, randomness: Randomness, guard: Guard) -> None:
        self.protected = Protected()
        self.randomness = randomness
        self.batches: Batches | None = None
        self.control: Control | None = None
        self.page: SeatPage | None = None
        self.keeping: Keeping | None = None
        self.alone: LastingAlone | None = None  # without a supervisor
        self.newcomer = environment is not None and environment.newcomer
        self.loads = environment is not None and environment.loads
        self.save_problem: str | None = None  # why the newest save did not become durable, if it did not
        self._environment = environment
        self._finer = 1 if environment is None else environment.finer
        self._told_finer = 0
        self._pending_seat: messages.Seat | None = None
        self._striker: inject.Striker | None = None
        self._looping = False
        if environment is None:
            fd = vitals_page.create_memfd("closeranks-vitals")
            size, seat = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
            self.world = World(size, seat, Vitals(fd))
            os.close(fd)
        else:
            self.world = World(environment.size, environment.seat, Vitals(environment.vitals_fd))
        self.world.vitals.begin(Category.START_UP)
        self.timers = Timers(self.world.vitals.sections)
        self.undo = UndoArea(self.protected, randomness)
        self.held = HeldAttempts(self, guard, 0 if environment is None else environment.proc)
        self._loop = Loop(self)
        self._hook = register_optimizer_step_pre_hook(self._before_apply)

    # --- what users call ---------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's rank; a spare waits here until it is seated."""
        return self.world.rank_for_user()

    @property
    def size(self) -> int:
        """Number of seats."""
        return self.world.size

    @property
    def device(self) -> torch.device:
        """The accelerator of this seat, or the CPU."""
        if torch.cuda.is_available():
            local = os.environ.get("LOCAL_RANK")
            return torch.device("cuda", self.rank if local is None else int(local))
        return torch.device("cpu")

    def protect(self, *, local: dict[str, Any] | None = None, **objects: Any) -> None:
        """Name the state that must survive: modules, optimizers, schedulers, scalers, anything with ``state_dict``.

        Args:
            local: state that differs by seat (loader positions, hook residuals); a successor inherits its seat's.
            objects: state that is equal on all seats. ``batches`` names the data that ``step.batch`` comes from.

        Raises:
            NotProtectable: names the first leaf that is neither tensor, numpy array nor JSON; objects named before
                it are protected.
        """
        for name, value in objects.items():
            self.protected.add(name, value)
            if isinstance(value, Batches):
                self.batches = value
        for name, value in (local or {}).items():
            self.protected.add(name, value, local=True)

    def steps(self, until: int) -> Iterator[Step]:
        """Yield the steps that are still to do; ends when step ``until - 1`` is closed on every seat.

        After a loss the same step is yielded again. Nobody leaves before the last step is closed everywhere.
        """
        return self._loop.run(until)

    @property
    def stopping(self) -> bool:
        """Whether the run was told to end early: keep what you want to keep after the loop."""
        return self.control is not None and self.control.stop_after is not None

    def accumulation(self, parts: int) -> int:
        """Into how many parts to split a batch: ``parts``, and more where the memory for these was exhausted.

        For ``step.micro_batches(job.accumulation(parts))``. Calling it allows the supervisor to answer exhausted
        memory with parts of half the size, twice as many; the accumulated gradient is the same but for rounding.

        Raises:
            ValueError: ``parts`` is below 1.
        """
        if parts < 1:
            raise ValueError(f"job.accumulation({parts}): expected at least 1")
        share = 0 if self.batches is None else self.batches.global_batch // self.size
        finer = max(1, share // parts)  # a part holds at least one sample
        if self.control is not None and finer != self._told_finer:
            self._told_finer = finer
            self.control.send(messages.Splits(finer=finer))
        return parts * min(self._finer, finer)

    def timer(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Time an operation; p50 and p99 of each seat go to the journal."""
        return self.timers.measure(name)

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Work outside the step block (evaluation, saving): it has a deadline of its own and may use collectives.

        If a member is lost meanwhile, the section ends early on the others and training goes on with the next step.
        """
        label = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
        if name.startswith(("save", "snapshot", "checkpoint")):
            self.world.vitals.spend(Category.SNAPSHOT)
        try:
            with self.world.vitals.section(label or 1), self.world.own.apart():
                yield
        except PeerLost:
            if self.world.poison is None:
                raise
        finally:
            if self._looping:
                self.world.vitals.spend(Category.USEFUL)

    # --- joining -----------------------------------------------------------------------------------------------

    def _join_supervised(self, environment: _Environment, timeout: timedelta) -> None:
        world = self.world
        self.control = Control(environment.control_fd, world)
        self.page = SeatPage(environment.page_fd, self.protected, self.randomness)
        self.keeping = Keeping(environment.arenas, self.protected, self.randomness)
        world.on_poison = lambda term, detail: self.require_control().send(messages.Poisoned(term=term, detail=detail))
        world.on_backward = self._on_backward
        world.on_gradients = self.held.show
        world.wait_for_seat = self._wait_for_seat
        self.control.start()
        self._arm()
        watch_garbage(self.timers)
        self.control.send(messages.Joined(facts=_facts()))
        group.register(lambda: self.world)
        world.setup = setup_record.read(environment.setup_fd) if self.newcomer else setup_record.Recorder()
        try:
            if not self.newcomer:
                world.regroup(self._loop._await_seat())
            dist.init_process_group(
                group.BACKEND, store=dist.HashStore(), rank=world.seat or 0, world_size=world.size, timeout=timeout
            )
            if not self.newcomer:
                self._settle_first_term()
        except PeerLost:
            self._loop.await_restart()
            raise

    def _settle_first_term(self) -> None:
        control, term = self.require_control(), self.world.term
        control.send(messages.Regrouped(term=term, groups=self.world.groups_digest()))
        plan = self._loop._await(messages.Restore, term)
        control.send(messages.Restored(term=term, step=plan.step, digest=""))
        self._loop._await(messages.Go, term)

    def _arm(self) -> None:
        self._striker = inject.from_environment()
        if self._striker is None:
            return
        self._striker.announce = lambda fault, step, moment: self.require_control().send(
            messages.Injected(fault=fault, step=step, moment=moment)
        )
        self._striker.at("start-up", -1)
        self.world.on_launched = self._strike_in_collective
        self.world.tamper = self._tamper

    def _tamper(self, operation: str, launch: inject.Launch) -> inject.Launch | None:
        words = self.world.vitals.words
        within = self.world.attempt is Attempt.OPEN and words[Field.DOING] != Doing.STARTING
        if self._striker is None or not within:
            return launch
        return self._striker.tampered(words[Field.STEP], operation, launch)

    def own_s(self) -> float:
        """Seconds of the newest closed step until it last waited for others."""
        return self.world.vitals.own_ns / 1e9

    def _strike_in_collective(self) -> None:
        words = self.world.vitals.words
        if self.world.attempt is Attempt.OPEN and words[Field.DOING] != Doing.STARTING:  # no rehearsal
            self.strike("collective", words[Field.STEP])

    def strike(self, moment: str, step: int, *, rehearsal: bool = False) -> None:
        """A moment at which an armed drill may strike."""
        if self._striker is not None and not rehearsal:
            self._striker.at(moment, step)

    def require_control(self) -> Control:
        """The control connection.

        Raises:
            RuntimeError: this process is not supervised.
        """
        if self.control is None:
            raise RuntimeError("this process has no supervisor")
        return self.control

    def require_keeping(self) -> Keeping:
        """The worker's half of saving.

        Raises:
            RuntimeError: this process is not supervised.
        """
        if self.keeping is None:
            raise RuntimeError("this process has no supervisor")
        return self.keeping

    # --- hooks into the attempt --------------------------------------------------------------------------------

    def _before_apply(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        world = self.world
        if world.attempt is not _OPEN:
            return
        world.raise_if_poisoned()
        self.held.settle(optimizer)
        while not world.vitals.may_act:  # our node is cut off, or its supervisor is frozen: another may sit here soon
            time.sleep(_LEASE_LOOK_S)
            world.raise_if_poisoned()
        world.attempt = _APPLYING
        world.applied_ns = now_ns = time.monotonic_ns()
        world.own.begin(now_ns)
        words = world.vitals.words
        if words[6] != _DOING_STARTING:
            words[6] = _DOING_APPLYING
            self.strike("apply", words[8])

    def _on_backward(self) -> None:
        step = self.world.vitals.words[8]
        if self.page is not None:
            self.page.write(step)
        self.strike("backward", step)

    # --- set-up and seats --------------------------------------------------------------------------------------

    def begin_loop(self) -> None:
        """The script reached its loop."""
        self._looping = True
        if self._striker is not None:
            self._striker.watch(self)

    def rehearsal_steps(self) -> int:
        """Steps until DDP's buckets have their final layout, which decides low bits of the sums; 0 without DDP.

        Buckets are rebuilt at the second forward, with a static graph at the third.
        """
        if self.world.size == 1:
            return 0
        found = self.protected.ddp_parts()
        found = found or [part for part in gc.get_objects() if isinstance(part, DistributedDataParallel)]
        return 0 if not found else 3 if any(part.static_graph for part in found) else 2

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Steps whose traces are wiped: buckets get their final layout, caches and kernels are warm."""
        environment = self._environment
        log = Path(environment.run_dir) / "logs" / f"p{environment.proc}.rehearsal.log" if environment else None
        rehearsal = Rehearsal(self.protected, self.randomness)
        with rehearsal.output_to(log):
            yield
        rehearsal.wipe()

    def end_setup(self, *, rehearsed: bool) -> None:
        """The set-up is over: keep its record for successors, tell the supervisor that we can be seated."""
        self.protected.look_for_parts()
        self.timers.forget()
        setup, self.world.setup = self.world.setup, None
        complete = True
        if isinstance(setup, setup_record.Recorder) and self._environment is not None:
            complete = setup.complete
            setup.write(self._environment.setup_fd)
            self.require_control().send(messages.SetupRecord(record=b"" if complete else None))
        self.require_control().send(
            messages.Ready(rehearsed=rehearsed, replicated=complete and not self.protected.sharded)
        )

    def take_pending_seat(self) -> messages.Seat | None:
        """The seat that was given while the script still ran, if any."""
        seat, self._pending_seat = self._pending_seat, None
        return seat

    def _wait_for_seat(self) -> int:
        """A spare's script asked for its rank."""
        control = self.require_control()
        self.world.vitals.spend(Category.SPARE_IDLE)
        self.world.vitals.move(Doing.WAITING)
        control.send(messages.NeedsSeat())
        seat: messages.Seat = self._loop._await_seat()
        self.world.vitals.spend(Category.STALLED)
        self.world.vitals.move(Doing.STARTING)
        self._pending_seat = seat
        self.take_seat(seat)
        self.world.seat = seat.seat
        os.environ["RANK"] = str(seat.seat)
        os.environ.setdefault("LOCAL_RANK", str(seat.seat))  # on one node of several it has had its slot from the start
        return seat.seat

    def take_seat(self, seat: messages.Seat) -> None:
        """Adopt what came with a seat: the predecessor's page and set-up record, and how finely batches are split."""
        self._finer = seat.finer
        if self._striker is not None:
            self._striker.seated(seat.seat, seat.incarnation)
        descriptors = self.require_control().take_descriptors(seat)
        if descriptors:
            page_fd, setup_fd = descriptors
            self.page = SeatPage(page_fd, self.protected, self.randomness)
            if not self._looping:
                self.world.setup = setup_record.read(setup_fd)

    def write_final(self, step: int) -> None:
        """Leave the digests of the final state in the run folder, which drills compare. The run is complete without."""
        if self._environment is None:
            return
        final = {
            "step": step,
            "digest": self.protected.digest(),
            "local": self.page.digest() if self.page is not None else "",
        }
        path = Path(self._environment.run_dir) / "final" / f"seat{self.world.seat}.json"
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
                out.write(msgspec.json.encode(final))
        except OSError as error:
            sys.stderr.write(f"closeranks: {path}: {error.strerror}; the run is complete, no drill can compare it\n")


def _facts() -> dict[str, str]:
    """What preflight compares over the ranks."""
    script = Path(sys.argv[0])
    facts = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "script": hashlib.blake2b(script.read_bytes(), digest_size=16).hexdigest() if script.is_file() else "",
        "host": platform.node(),
    }
    if torch.cuda.is_available():
        facts["cuda"] = str(torch.version.cuda)
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return facts
