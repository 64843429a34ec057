"""Bringing workers into the run: for a seat, as a spare, or a whole group."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from closeranks.decide.protocol import BeginTerm, Isolate, Origin, ProcEnded, StartGroup, StartProc
from closeranks.events import ProcessStarted
from closeranks.messages import Seat
from closeranks.run.birth import Birth, Channels, Meeting, Place, copy_memory, environment_of, open_channels
from closeranks.run.context import Context
from closeranks.run.ears import Ears
from closeranks.run.exits import Exits
from closeranks.run.links import Link
from closeranks.run.logs import TAIL_BYTES, Output
from closeranks.run.processes import Started
from closeranks.run.store import Store, open_store
from closeranks.run.worker import Worker
from closeranks.vitals import Vitals

_PREDECESSOR_S = 10.0  # the controller waits no longer for an isolation either


class _Estate(NamedTuple):
    """Shared memory of the last occupant of a seat: its local state, and the results of its set-up collectives."""

    page: int
    setup: int

    def close(self) -> None:
        for fd in self:
            os.close(fd)


class Births:
    """Starts workers and puts them into seats; keeps what a seat hands on to its next occupant."""

    def __init__(self, context: Context, ears: Ears, exits: Exits) -> None:
        self._context = context
        self._ears = ears
        self._exits = exits
        self._incarnations: Counter[int] = Counter()
        self._estates: dict[int, _Estate] = {}  # by seat
        self._slots: dict[int, int] = {}  # by process, on one node of several
        self._unborn: set[int] = set()  # processes that are being started
        self._homes: tuple[str, ...] = ()  # node by seat, when the group was started
        self.open_store: Callable[[], Store] = open_store

    # --- decisions ----------------------------------------------------------------------------------------------

    def start_group(self, decision: StartGroup) -> None:
        """Start every seat anew: what earlier occupants left to it is void."""
        context = self._context
        context.group += 1
        context.seats = len(decision.procs)
        self._open_store(decision.term)
        self._forget_seats()
        self._homes = homes = decision.nodes or (context.node.name,) * len(decision.procs)
        context.members = {
            seat: proc
            for seat, (proc, home) in enumerate(zip(decision.procs, homes, strict=True))
            if home == context.node.name
        }
        loads = decision.origin is not Origin.NOTHING
        for seat, proc in context.members.items():
            context.spawn(self._start(self._place(proc, seat, None)._replace(loads=loads, finer=decision.finer)))

    def start_proc(self, decision: StartProc) -> None:
        """Start one process of this node, for a seat once its last occupant is gone, or as a spare."""
        if decision.node != self._context.node.name:
            return
        place = self._place(decision.proc, decision.seat, decision.incarnation)
        place = place._replace(newcomer=decision.seat is not None, finer=decision.finer)
        self._context.spawn(self._start(place))

    def begin_term(self, decision: BeginTerm) -> None:
        """Tell the members of a term that this node has their places and the address where they meet."""
        context = self._context
        context.seats = len(decision.procs)
        store = self._open_store(decision.term)
        context.members = {seat: proc for seat, proc in enumerate(decision.procs) if proc in context.workers}
        for seat, proc in context.members.items():
            worker, incarnation = context.workers[proc], decision.incarnations[seat]
            self._incarnations[seat] = incarnation
            if not worker.alive:  # it died while the term was announced; whoever decides hears of that
                continue
            fds = self._seat(worker, seat, incarnation)
            worker.send(
                Seat(
                    descriptors=len(fds),
                    term=decision.term,
                    seat=seat,
                    incarnation=incarnation,
                    size=len(decision.procs),
                    store_host=store.host,
                    store_port=store.port,
                    finer=decision.finer,
                ),
                fds,
            )

    def close(self) -> None:
        """Forget all pages and drop the store."""
        self._forget_seats()
        if self._context.store is not None:
            self._context.store.close()
            self._context.store = None

    # --- seats --------------------------------------------------------------------------------------------------

    def _place(self, proc: int, seat: int | None, incarnation: int | None) -> Place:
        if seat is not None:
            incarnation = self._incarnations[seat] + 1 if incarnation is None else incarnation
            self._incarnations[seat] = incarnation
        context = self._context
        place = Place(proc, seat, incarnation, context.seats, context.term, context.group)
        return place if context.node.nodes == 1 else place._replace(local=self._slot(proc, seat))

    def _slot(self, proc: int, seat: int | None) -> int:
        """A process keeps its slot, and with it its accelerator; whoever follows it in its seat gets it next."""
        living = {worker.proc for worker in self._context.living()}
        self._slots = {number: slot for number, slot in self._slots.items() if number in living | self._unborn}
        heirs = [w for w in self._context.living() if seat is not None and w.seat == seat]
        going = {w.proc for w in heirs} | {w.proc for w in self._context.living() if w.asked}
        taken = {slot for number, slot in self._slots.items() if number not in going}
        wanted = [w.place.local for w in heirs if w.place.local is not None]
        slot = next(slot for slot in itertools.chain(wanted, itertools.count()) if slot not in taken)
        self._slots[proc] = slot
        self._unborn.add(proc)
        return slot

    def _seat(self, worker: Worker, seat: int, incarnation: int) -> tuple[int, ...]:
        """Put the worker into the seat; descriptors that it must be sent because it had no seat before."""
        fds: tuple[int, ...] = ()
        if worker.seat is None:
            self._inherit(seat, worker.channels)
            fds = (worker.channels.page, worker.channels.setup)
        worker.seat, worker.incarnation = seat, incarnation
        self._keep(seat, worker.channels)
        return fds

    def _inherit(self, seat: int, channels: Channels) -> None:
        """Copy what the last occupant left. A copy, for an old process that wakes up must not write into it."""
        estate = self._estates.get(seat)
        if estate is None:
            return
        try:
            copy_memory(estate.page, channels.page)
            copy_memory(estate.setup, channels.setup)
        except (OSError, ValueError) as error:
            self._context.say(f"closeranks: seat {seat}: its page was not handed on: {error}")

    def _keep(self, seat: int, channels: Channels) -> None:
        """From now on this is what the seat's next occupant gets, whatever becomes of the process."""
        page = os.dup(channels.page)
        try:
            new = _Estate(page, os.dup(channels.setup))
        except OSError:
            os.close(page)
            raise
        old = self._estates.pop(seat, None)
        self._estates[seat] = new
        if old is not None:
            old.close()

    def _forget_seats(self) -> None:
        for estate in self._estates.values():
            estate.close()
        self._estates.clear()

    def _open_store(self, term: int) -> Store:
        context = self._context
        store = context.store
        if store is None or term != context.term:
            if store is not None:
                store.close()
            store = context.store = self.open_store()
        context.term = term
        return store

    # --- processes ----------------------------------------------------------------------------------------------

    async def _start(self, place: Place) -> None:
        try:
            await self._bring_up(place)
        finally:
            self._unborn.discard(place.proc)

    async def _bring_up(self, place: Place) -> None:
        await self._vacate(place)
        if self._context.ending is not None:
            return
        if place.proc in self._context.unwanted:
            self._report_unborn(place.proc, None, signal.SIGKILL)
            return
        try:
            channels, started = await self._bear(place)
        except OSError as error:
            self._context.say(f"closeranks: p{place.proc} could not be started: {error}")
            self._report_unborn(place.proc, 1, None)
            return
        self._adopt(place, channels, started)

    async def _bear(self, place: Place) -> tuple[Channels, Started]:
        channels, theirs = open_channels(f"p{place.proc}")
        try:
            if place.seat is not None:
                self._inherit(place.seat, channels)
                self._keep(place.seat, channels)
            return channels, await self._context.starter.start(self._birth(place), theirs)
        except OSError:
            channels.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def _report_unborn(self, proc: int, code: int | None, number: int | None) -> None:
        self._context.feed(ProcEnded(proc=proc, code=code, signal=number, crash=None, left_at_step=None))

    async def _vacate(self, place: Place) -> None:
        """Wait until no earlier process can write into the page of the seat, or holds the accelerator of the slot."""
        before = [
            worker
            for worker in self._context.living()
            if (place.seat is not None and worker.seat == place.seat)
            or (place.local is not None and worker.place.local == place.local)
        ]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PREDECESSOR_S):
                for worker in before:
                    await worker.gone.wait()

    def _birth(self, place: Place) -> Birth:
        context = self._context
        run = {"CLOSERANKS_RUN_DIR": str(context.folder), "CLOSERANKS_RUN_ID": context.run}
        store = context.store
        meeting = Meeting(context.node.host, 0) if store is None else Meeting(store.host, store.port)
        return Birth(
            target=context.options.target,
            args=context.options.args,
            kind=context.options.kind,
            environment=environment_of(place, context.environment, run, meeting, context.node.among(self._homes)),
            parent_pid=os.getpid(),
            open_files=context.open_files,
        )

    def _adopt(self, place: Place, channels: Channels, started: Started) -> None:
        context = self._context

        def show(line: str) -> None:
            context.say(f"[{worker.name}] {line}")

        def output(fd: int, name: str, tail_bytes: int) -> Output:
            try:
                return Output(fd, context.folder / "logs" / name, show, tail_bytes)
            except OSError as error:  # a full disk must not end a training run
                context.say(f"closeranks: logs/{name}: {error.strerror}; what it would hold is only shown")
                return Output(fd, Path(os.devnull), show, tail_bytes)

        worker = Worker(
            place=place,
            started=started,
            channels=channels,
            page=Vitals(channels.vitals),
            link=Link(
                channels.control,
                lambda message: self._ears.hear(worker, message),
                lambda reason: self._exits.broken(worker, reason),
            ),
            stdout=output(channels.stdout, f"p{place.proc}.out", 0),
            stderr=output(channels.stderr, f"p{place.proc}.err", TAIL_BYTES),
            seat=place.seat,
            incarnation=place.incarnation,
        )
        context.workers[place.proc] = worker
        context.note(ProcessStarted(proc=place.proc, pid=started.pid, how=started.how, seat=place.seat))
        self._exits.watch(worker)
        if context.ending is not None:
            self._exits.dismiss(worker)
        elif place.proc in context.unwanted:
            self._exits.isolate(Isolate(proc=place.proc, reason="not wanted any more", capture_stack=False))
