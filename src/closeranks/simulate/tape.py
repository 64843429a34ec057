"""Writes the journal of a virtual run in the form of a real one, byte for byte the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from closeranks.decide.protocol import ProcEnded
from closeranks.decide.state import State
from closeranks.events import (
    Account,
    AnyEvent,
    Category,
    CheckpointCommitted,
    PreflightDone,
    ProcessExited,
    ProcessJoined,
    ProcessReady,
    ProcessStarted,
    Record,
    RunEnded,
    RunStarted,
    SeatStalled,
    SnapshotTaken,
    StateLoaded,
    StepClosed,
    StoreOpened,
)
from closeranks.simulate.body import Body
from closeranks.simulate.saves import Restored

if TYPE_CHECKING:
    from closeranks.simulate.setup import Setup
    from closeranks.simulate.world import World

EPOCH_S: Final = 1_767_225_600.0  # virtual runs begin with the year 2026, UTC
_MONO_S: Final = 1_000.0


class Tape:
    """The journal of one run; ``write`` takes its lines."""

    def __init__(self, write: Callable[[bytes], object], *, run: str, command: tuple[str, ...], version: str) -> None:
        self._write = write
        self._run = run
        self._command = command
        self._version = version
        self._encoder = msgspec.json.Encoder()
        self._seq = 0
        self._term = 0
        self._saves, self._generation = 0, 0
        self._uncommitted: dict[int, int] = {}  # numbers of saves by their step

    def note(self, event: AnyEvent, at_s: float, term: int) -> None:
        """Write one record; times within events are moved to the clock of the journal."""
        self._term = max(self._term, term)
        record = Record(
            seq=self._seq,
            wall_s=EPOCH_S + at_s,
            mono_s=_MONO_S + at_s,
            run=self._run,
            node="virtual",
            term=self._term,
            event=_moved(event),
        )
        self._seq += 1
        self._write(self._encoder.encode(record) + b"\n")

    # --- a run --------------------------------------------------------------------------------------------------

    def begin(self, setup: Setup, at_s: float) -> None:
        """The first records."""
        settings = setup.settings
        versions = {"closeranks": self._version}
        started = RunStarted(
            command=self._command, seats=settings.seats, spares=settings.spares, pid=1, versions=versions
        )
        self.note(started, at_s, 0)
        self.note(PreflightDone(findings=()), at_s, 0)
        if setup.tiers:
            name = ", ".join(tier.name for tier in setup.tiers)
            self.note(StoreOpened(store=name, store_term=1, generations=0, newest_step=None), at_s, 0)

    def end(self, world: World, outcome: str, reason: str) -> None:
        """The last records."""
        for body in world.bodies.values():
            if not body.told_end:
                self._account(body, world.now_s)
                exited = ProcessExited(proc=body.number, seat=body.seat, signal=15, asked=True)
                self.note(exited, world.now_s, 0)
        code = {"completed": 0, "stopped": 143}.get(outcome, 1)
        self.note(RunEnded(outcome=outcome, exit_code=code, reason=reason), world.now_s, 0)

    # --- processes ----------------------------------------------------------------------------------------------

    def started(self, body: Body, at_s: float) -> None:
        """A process exists."""
        self.note(ProcessStarted(proc=body.number, pid=1000 + body.number, how="fork", seat=body.seat), at_s, 0)

    def joined(self, body: Body, at_s: float) -> None:
        """It called join."""
        self.note(ProcessJoined(proc=body.number, facts={}), at_s, 0)

    def ready(self, body: Body, at_s: float) -> None:
        """It is in its loop, or waits for a seat."""
        if body.seat is None:
            body.spend(Category.SPARE_IDLE, at_s)
        self.note(ProcessReady(proc=body.number, rehearsed=True), at_s, 0)

    def ended(self, body: Body, fact: ProcEnded, at_s: float) -> None:
        """It is gone."""
        self._account(body, at_s)
        asked = fact.code == 0
        exited = ProcessExited(proc=body.number, seat=body.seat, code=fact.code, signal=fact.signal, asked=asked)
        self.note(exited, at_s, 0)

    def _account(self, body: Body, at_s: float) -> None:
        body.spend(body.category, at_s)
        seconds = {category: spent_s for category, spent_s in body.seconds.items() if spent_s > 0}
        self.note(Account(proc=body.number, at_mono_s=at_s, seconds=seconds), at_s, 0)

    # --- training -----------------------------------------------------------------------------------------------

    def resumed(self, state: State, members: Iterable[Body], at_s: float) -> None:
        """Every member opens its attempt."""
        for body in members:
            stalled = body.trained or not body.original
            if stalled and state.incident is not None and body.seat is not None:
                since_s = body.stalled_since_s if body.trained else body.born_s
                event = SeatStalled(
                    incident=state.incident.number,
                    proc=body.number,
                    seat=body.seat,
                    since_mono_s=since_s,
                    until_mono_s=at_s,
                )
                self.note(event, at_s, 0)
            body.spend(Category.STALLED, at_s)
            body.trained = True

    def closed(self, step: int, began_s: float, at_s: float, *, repeated: bool) -> None:
        """Every seat closed a step."""
        event = StepClosed(step=step, began_mono_s=began_s, closed_mono_s=at_s, losses=(), repeated=repeated)
        self.note(event, at_s, 0)

    def trained(self, members: Iterable[Body], worked: tuple[float, float, float], at_s: float) -> None:
        """A stretch is over at that time: its useful, repeated and saving seconds."""
        spent = zip((Category.USEFUL, Category.REPEATED, Category.SNAPSHOT), worked, strict=True)
        more = dict(spent)
        for body in members:
            for category, seconds in more.items():
                body.seconds[category] = body.seconds.get(category, 0.0) + seconds
            body.category, body.since_s, body.stalled_since_s = Category.SHUT_DOWN, at_s, at_s

    def carried(self, members: Iterable[Body], repeated: bool, seconds: float) -> None:
        """The attempt that goes on under another pace has taken so much more than it would have under that pace."""
        category = Category.REPEATED if repeated else Category.USEFUL
        for body in members:
            body.seconds[category] = body.seconds.get(category, 0.0) + seconds

    def halted(self, members: Iterable[Body], open_s: float) -> None:
        """Training stands still; the attempt that was open for so long is lost."""
        for body in members:
            body.seconds[Category.STALLED] = body.seconds.get(Category.STALLED, 0.0) + open_s
            body.category, body.stalled_since_s = Category.STALLED, body.since_s - open_s

    # --- state that lasts ---------------------------------------------------------------------------------------

    def snapshot(self, step: int, pause_s: float, at_s: float) -> None:
        """The pause of training for a save is over."""
        self._saves += 1
        self._uncommitted[step] = self._saves
        self.note(SnapshotTaken(save=self._saves, step=step, image_bytes=0, pause_s=pause_s), at_s, 0)

    def saved(self, step: int, pause_s: float, taken_s: float, at_s: float) -> None:
        """A save became durable; its pause is told now if it was not."""
        if step not in self._uncommitted:
            self.snapshot(step, pause_s, taken_s)
        self._generation += 1
        committed = CheckpointCommitted(
            save=self._uncommitted.pop(step),
            step=step,
            generation=self._generation,
            written_bytes=0,
            reused_bytes=0,
            took_s=at_s - taken_s,
        )
        self.note(committed, at_s, 0)

    def loaded(self, found: Restored, took_s: float, at_s: float) -> None:
        """A new group holds saved state."""
        self.note(StateLoaded(step=found.step, source=found.tier, took_s=took_s), at_s, 0)


_MOVED = ("at_mono_s", "began_mono_s", "closed_mono_s", "since_mono_s", "until_mono_s")


def _moved(event: AnyEvent) -> AnyEvent:
    changes = {name: getattr(event, name) + _MONO_S for name in _MOVED if name in event.__struct_fields__}
    moved: AnyEvent = msgspec.structs.replace(event, **changes) if changes else event
    return moved
