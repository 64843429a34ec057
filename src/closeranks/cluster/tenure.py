"""The lead, sought and held: the process around ``decide/leadership.py`` and its one record in the register."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from closeranks.authority.outage import Outage
from closeranks.authority.record import Record, decode, encode
from closeranks.authority.register import NOTHING, Register, RegisterError
from closeranks.decide import leadership
from closeranks.decide.leadership import (
    Around,
    Ballot,
    Candidacy,
    Contend,
    Follow,
    Lead,
    Over,
    Renew,
    Seen,
    StepDown,
)
from closeranks.nodes.words import Address

_POLL_S: Final = 0.5  # between looks at a record that somebody else renews
_HEARD_S: Final = 0.25  # between decisions of a leader, whose right may rest on what it heard last
_RETRY_S: Final = 0.25  # after the authority did not answer
# Process numbers that a new leader takes for itself: a hundred restarts of ten thousand seats do not use them up.
PROCS_AHEAD: Final = 1_000_000


class Deposed(Exception):
    """The record is no longer ours to write: somebody else leads, or the lease ran out."""


class Seat(NamedTuple):
    """Where this candidate would lead from."""

    node: str
    address: Address
    probe_port: int  # of the supervisor there


class Tenure:
    """Seeks the lead and holds it. ``on_choice`` is called from the loop with what was decided, and must not wait."""

    def __init__(
        self,
        register: Register,
        candidacy: Candidacy,
        seat: Seat,
        around: Callable[[float], Around],
        on_choice: Callable[[leadership.Choice], None],
    ) -> None:
        self.record = Record()
        self.nodes_in_doubt: tuple[str, ...] = ()  # of a term whose write may have taken place
        self.outage = Outage()  # of the authority
        self._register = register
        self._candidacy = candidacy
        self._seat = seat
        self._around = around
        self._on_choice = on_choice
        self._held = NOTHING
        self._writing = asyncio.Lock()
        self._woken = asyncio.Event()
        self._renewal: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether this candidate leads."""
        return self._candidacy.reign is not None

    @property
    def epoch(self) -> int:
        """The own epoch; 0 while it does not lead."""
        reign = self._candidacy.reign
        return 0 if reign is None else reign.epoch

    @property
    def predecessor_s(self) -> float:
        """No earlier leader began a successful write after this."""
        reign = self._candidacy.reign
        return 0.0 if reign is None else reign.predecessor_s

    def grantable_s(self, heard_s: float) -> float:
        """How long a grant sent now may last; 0: there must be none. ``heard_s``: as in ``Around``."""
        return leadership.grantable_s(self._candidacy, time.monotonic(), heard_s)

    @property
    def admits(self) -> bool:
        """Whether supervisors that never followed this leader may join."""
        return leadership.admits(self._candidacy, time.monotonic())

    def wake(self) -> None:
        """Something changed that the decision depends on."""
        self._woken.set()

    async def run(self) -> None:
        """Until the run is over."""
        await self._read()
        while True:
            if self._renewal is not None and self._renewal.done():
                self._renewal.result()  # raises what nobody else would hear of
            self._candidacy, choice = leadership.decide(self._candidacy, self._around(time.monotonic()))
            self._on_choice(choice)
            match choice:
                case Contend(ballot=ballot):
                    changes = {"node": self._seat.node, "boot": self._candidacy.boot} | self._place()
                    await self._bid(ballot, changes)
                case Renew(ballot=ballot):
                    # Beside the loop: while the authority does not answer, the lead depends on who is heard.
                    self._renewal = asyncio.create_task(self._bid(ballot, {}))
                case Lead(again_s=again_s):
                    await self._rest(min(_HEARD_S, again_s - time.monotonic()))
                case StepDown():
                    await self._read()
                case Over():
                    return
                case Follow(again_s=again_s) | leadership.Wait(again_s=again_s):
                    await self._rest(min(_POLL_S, again_s - time.monotonic()))
                    await self._read()

    async def put(self, **changes: Any) -> None:
        """Write fields of the record, as the leader. Returns once they are there, however long the authority is out.

        Raises:
            Deposed: we lead no longer; the fields were not written, or were overwritten by the new leader's.
        """
        self.nodes_in_doubt = tuple(changes.get("nodes", ()))
        while True:
            async with self._writing:
                if not self.leads:
                    raise Deposed
                if not self._candidacy.writing:
                    self._candidacy, ballot = leadership.attempt(self._candidacy, time.monotonic())
                    if await self._write(ballot, changes):
                        self.nodes_in_doubt = ()
                        self.wake()
                        return
            self.wake()
            await asyncio.sleep(_RETRY_S)

    async def release(self) -> None:
        """Lead no longer, and say so. If the authority does not answer, others take over when the lease runs out."""
        while self.leads:
            async with self._writing:
                if not self._candidacy.writing:
                    self._candidacy, ballot = leadership.release(self._candidacy, time.monotonic())
                    await self._write(ballot, {"released": True})
            self.wake()
            await asyncio.sleep(_RETRY_S)

    def _place(self) -> dict[str, Any]:
        address = self._seat.address
        return {
            "released": False,
            "host": address.host,
            "port": address.port,
            "probe_port": self._seat.probe_port,
            "procs_reserved": self.record.procs_reserved + PROCS_AHEAD,
        }

    async def _bid(self, ballot: Ballot, changes: dict[str, Any]) -> None:
        async with self._writing:
            await self._write(ballot, changes)
        self.wake()

    async def _write(self, ballot: Ballot, changes: dict[str, Any]) -> bool:
        """Whether the register holds it now."""
        record = msgspec.structs.replace(self.record, epoch=ballot.epoch, beat=ballot.beat, **changes)
        value, begun_s = encode(record), time.monotonic()
        try:
            held = await self._register.write(value, self._held)
            self._take(held.value, held.version, ours=record if held.value == value else None)
        except BaseException as error:  # whoever stops waiting for the answer is left in doubt like anybody else
            self._candidacy = leadership.unanswered(self._candidacy)
            if not isinstance(error, RegisterError):
                raise
            self.outage.failed(str(error), begun_s)
            return False
        self._candidacy = leadership.wrote(self._candidacy, self._seen(), time.monotonic())
        return held.value == value

    async def _read(self) -> None:
        begun_s = time.monotonic()
        try:
            held = await self._register.read()
            self._take(held.value, held.version)
        except RegisterError as error:
            self.outage.failed(str(error), begun_s)
            await asyncio.sleep(_RETRY_S)
            return
        self._candidacy = leadership.observed(self._candidacy, self._seen(), time.monotonic())

    def _take(self, value: bytes, version: str, ours: Record | None = None) -> None:
        """``ours``: what the value says, where that is known: it names each of thousands of seats.

        Raises:
            RegisterError: it says nothing; what was held before stays.
        """
        if ours is not None or value != self._held.value:
            self.record = decode(value) if ours is None else ours
        self.outage.answered()
        self._held = NOTHING._replace(value=value, version=version)

    def _seen(self) -> Seen:
        record = self.record
        return Seen(
            epoch=record.epoch,
            beat=record.beat,
            boot=record.boot,
            ended=bool(record.ended),
            released=record.released,
        )

    async def _rest(self, seconds: float) -> None:
        self._woken.clear()
        try:
            await asyncio.wait_for(self._woken.wait(), max(0.0, min(seconds, _POLL_S)))
        except TimeoutError:
            return
