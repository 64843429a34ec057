"""The nodes' part of ``links.py``: so many supervisors in one process, each with a socket and beats of its own.

They play the whole of their part: they take the seats that the coordinator gives them, train, and close a step with
every beat. Reads the coordinator's address from standard input; prints a line of JSON when all seats train, and
one more, with what went wrong until then, when standard input is closed. What they are told to write down
is taken and left unread, and what is told to all of them is read once.
"""

from __future__ import annotations

import asyncio
import functools
import json
import operator
import os
import random
import resource
import sys
import time
from typing import Any, get_args

import msgspec

from closeranks import frames
from closeranks.cluster.sections import packed
from closeranks.decide.protocol import (
    BeginTerm,
    Decision,
    Fact,
    GoOn,
    PlanRestore,
    ProcJoined,
    ProcReady,
    ProcRegrouped,
    ProcRestored,
    ProcResumed,
    StartGroup,
    StartProc,
)
from closeranks.nodes import words
from closeranks.nodes.calling import Caller, Hearer, Missed
from closeranks.nodes.handshake import Keys
from closeranks.nodes.link import Connection, Ears, End
from closeranks.nodes.probes import Supervisor, answer_probes
from closeranks.nodes.words import (
    Address,
    Beat,
    ClosedHere,
    Confirm,
    Confirmed,
    Do,
    FromCoordinator,
    Granted,
    Heard,
    Introduction,
    OpenStore,
    Reach,
    Reached,
    Report,
    SeatFacts,
    SeatSign,
    TermStoreOpened,
    Welcome,
)
from closeranks.signs import Doing, Reading, Spent

SEATS = 8
LOCAL = "127.0.0.1"
STORE_PORT = 2  # nobody meets there: no rank is real
STEP_S = 0.9
OWN_S = 0.6  # of a step, before its last collective


class Notes(msgspec.Struct, frozen=True, tag="Notes", tag_field="word"):
    """As in ``words.py``, left unread."""

    events: msgspec.Raw
    stamp: msgspec.Raw


KINDS = functools.reduce(
    operator.or_, (Notes, *(kind for kind in get_args(FromCoordinator) if kind is not words.Notes))
)
LONG_BYTES = 1024


class ReadOnce:
    """Reads once what all nodes are told alike: on machines of their own they would do it side by side."""

    def __init__(self, kinds: Any) -> None:
        self._read = msgspec.msgpack.Decoder(kinds).decode
        self._read_once = functools.lru_cache(maxsize=32)(self._read)

    def decode(self, body: bytes) -> Any:
        """The word in it."""
        return self._read_once(body) if len(body) > LONG_BYTES else self._read(body)


shared: Any = functools.cache(ReadOnce)
frames._decoder_of = shared  # noqa: SLF001 -- what a supervisor has no use for is not offered


class Layout:
    """The seats of every node under the newest start of the group, by process."""

    def __init__(self) -> None:
        self._of: StartGroup | None = None
        self._seats: dict[str, dict[int, int]] = {}

    def seats(self, decision: StartGroup, node: str) -> dict[int, int]:
        """Those of this node."""
        if self._of is not decision:
            self._of, self._seats = decision, {}
            for seat, (proc, place) in enumerate(zip(decision.procs, decision.nodes, strict=True)):
                self._seats.setdefault(place, {})[proc] = seat
        return self._seats.get(node, {})


LAYOUT = Layout()


class Node:
    """A supervisor as far as the coordinator can see it."""

    def __init__(self, rank: int, keys: Keys, probe_port: int) -> None:
        self.missed = 0
        self.trains = asyncio.Event()
        self._rank = rank
        self._probe_port = probe_port
        self._beat_s = 1.0
        self._number = self._granted = 0
        self._term = 1
        self._step = -1
        self._seats: dict[int, int] = {}  # by process
        self._draw = random.Random(rank)
        self.caller = Caller(keys, KINDS, Hearer(self._up, self._miss), self._draw)

    def _up(self, connection: Connection, _epoch: int) -> Ears:
        me = Introduction(
            run="bench",
            node=f"n{self._rank}",
            boot=f"{self._rank:016x}",
            slots=SEATS,
            host=LOCAL,
            probe_port=self._probe_port,
            domains={"rack": f"r{self._rank // 16}"},
            hostname=f"node-{self._rank}",
        )
        connection.send(me)
        return Ears(lambda word: self._hear(connection, word), self._down)

    def _hear(self, connection: Connection, word: Any) -> None:
        match word:
            case Welcome():
                self._beat_s = word.beat_s
                connection.send(Report(procs=(), ended=(), closed_step=-1))
                # Nodes start at any moment of the interval.
                asyncio.get_running_loop().call_later(self._draw.uniform(0, self._beat_s), self._beat, connection)
            case Granted():
                self._granted = word.number
            case OpenStore():
                connection.send(TermStoreOpened(term=word.term, address=Address(host=LOCAL, port=STORE_PORT)))
            case Reach():
                connection.send(Reached(nonce=word.nonce))
            case Confirm():
                connection.send(Confirmed(proc=word.proc, answered=True, busy=False, routine=word.routine))
            case Do():
                self._carry_out(connection, word.decision)

    def _carry_out(self, connection: Connection, decision: Decision) -> None:
        match decision:
            case StartGroup():
                self._seats = LAYOUT.seats(decision, f"n{self._rank}")
                for proc, seat in self._seats.items():
                    connection.send(Heard(fact=ProcJoined(proc=proc)))
                    connection.send(SeatFacts(proc=proc, seat=seat, facts={"torch": "2.13.0"}))
            case StartProc():
                sys.stderr.write(f"n{self._rank}: {decision}\n")
            case BeginTerm():
                self._term = decision.term
                self._tell(connection, lambda proc: ProcRegrouped(proc=proc, term=self._term, groups="g"))
            case PlanRestore():
                step = decision.step
                self._tell(connection, lambda proc: ProcRestored(proc=proc, term=self._term, step=step, digest="d"))
            case GoOn():
                self._tell(connection, lambda proc: ProcReady(proc=proc, replicated=True, settled=True))
                self._tell(connection, lambda proc: ProcResumed(proc=proc, term=self._term))
                self.trains.set()

    def _tell(self, connection: Connection, fact_of: Any) -> None:
        for proc in self._seats:
            fact: Fact = fact_of(proc)
            connection.send(Heard(fact=fact))

    def _beat(self, connection: Connection) -> None:
        if not connection.is_open:
            return
        self._number += 1
        closed: tuple[ClosedHere, ...] = ()
        if self.trains.is_set():
            self._step += 1
            own_s = {proc: self._draw.gauss(OWN_S, OWN_S / 50) for proc in self._seats}
            closed = (ClosedHere(step=self._step, duration_s=STEP_S, own_s=own_s, period_s=self._beat_s),)
        beat = Beat(
            number=self._number,
            sent_ns=time.monotonic_ns(),
            granted=self._granted,
            signs=self._signs(),
            closed=closed,
            open_step=self._step + 1,
            spent=packed(dict.fromkeys(self._seats, self._spent())),
        )
        connection.send(beat)
        asyncio.get_running_loop().call_later(self._beat_s, self._beat, connection)

    def _signs(self) -> tuple[SeatSign, ...]:
        step = self._step + 1
        reading = Reading(
            moved_ns=time.monotonic_ns() - 12_300_000,
            doing=Doing.FORWARD if self.trains.is_set() else Doing.STARTING,
            term=self._term,
            step=step,
            attempt=step + 7,
            closed_step=step - 1,
            entered=40 * step,
            returned=40 * step,
            operation=5,
            operation_bytes=26_214_400,
            section_hash=0,
            own_ns=187_000_000,
            loss=2.7183,
            grad_norm=1.4142,
            rehearsed_ns=310_000_000,
        )
        return tuple(SeatSign(proc=proc, seat=seat, asked=False, reading=reading) for proc, seat in self._seats.items())

    def _spent(self) -> Spent:
        step = self._step + 1
        return Spent(step, {"data": 0.05 * step, "forward": 0.2 * step, "backward": 0.4 * step})

    def _down(self, _end: End) -> None:
        self.missed += 1

    def _miss(self, _missed: Missed) -> None:
        self.missed += 1


async def main(count: int) -> None:
    """Call, train, and end when told."""
    keys = Keys(os.environ["CLOSERANKS_TOKEN"])
    listener = await answer_probes(Address(host=LOCAL, port=0), keys, Supervisor("n0", "0"))
    nodes = [Node(rank, keys, listener.address.port) for rank in range(count)]
    host, port = json.loads(await asyncio.to_thread(sys.stdin.readline))
    for node in nodes:
        node.caller.retarget(Address(host=host, port=port), 1)
    for node in nodes:
        await node.trains.wait()
    print(json.dumps(count * SEATS), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(sum(node.missed for node in nodes)), flush=True)
    os._exit(0)  # the coordinator is to see all of them go at once, and is killed next


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(main(int(sys.argv[1])))
