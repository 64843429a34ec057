"""A made-up run, told by the journals of several nodes whose clocks have nothing to do with each other."""

import random
from dataclasses import dataclass, field

import msgspec

from closeranks.events import (
    CoordinatorBegan,
    Decided,
    Diagnosed,
    ErrorSeen,
    IncidentClosed,
    IncidentOpened,
    IncidentWidened,
    NodeAccepted,
    NodeGone,
    NodeStarted,
    NormalAgain,
    PhaseBegan,
    PreflightDone,
    ProcessExited,
    ProcessSeated,
    ProcessStarted,
    Record,
    RestorePlanned,
    RunEnded,
    Stamp,
    StepClosed,
    TermBegan,
)
from closeranks.observe.merge import NodeJournal
from synthetic_journal import MONO_S, WALL_S

DECISIONS = (
    *(Decided, Diagnosed, ErrorSeen, IncidentClosed, IncidentOpened, IncidentWidened, NormalAgain, PhaseBegan),
    *(PreflightDone, ProcessSeated, RestorePlanned, RunEnded, TermBegan, NodeAccepted, NodeGone, CoordinatorBegan),
)


@dataclass
class Node:
    """Seats of the first layout, and a clock: ``mono = base + (true - MONO_S) * (1 + drift)``."""

    name: str
    seats: tuple[int, ...] = ()
    base_s: float = 0.0
    drift: float = 0.0
    wall_error_s: float = 0.0
    cut_s: tuple[float, float] = (0.0, 0.0)  # true times between which it hears no decision
    dies_s: float = float("inf")  # true time of its last record
    records: list = field(default_factory=list)

    def mono_s(self, true_s):
        return self.base_s + (true_s - MONO_S) * (1 + self.drift)

    def write(self, true_s, record, event, stamp=None):
        if true_s > self.dies_s:
            return
        self.records.append(
            Record(
                seq=len(self.records),
                wall_s=WALL_S + true_s - MONO_S + self.wall_error_s,
                mono_s=self.mono_s(true_s),
                run="job-1",
                node=self.name,
                term=record.term,
                event=event,
                stamp=stamp,
            )
        )

    def in_own_time(self, event):
        changes = {
            name: self.mono_s(getattr(event, name)) for name in event.__struct_fields__ if name.endswith("_mono_s")
        }
        if hasattr(event, "seconds"):
            changes["seconds"] = {category: s * (1 + self.drift) for category, s in event.seconds.items()}
        return msgspec.structs.replace(event, **changes) if changes else event

    def journal(self):
        self.records.sort(key=lambda record: record.mono_s)
        records = tuple(msgspec.structs.replace(record, seq=seq) for seq, record in enumerate(self.records))
        return NodeJournal(source=f"{self.name}/journal.jsonl", records=records)


def split(records, nodes, leaders=(("n0", 0.0),), seed=0):
    """Give each node its part of a run on one; ``leaders``: node and the true time of its first decision.

    Spares live on the nodes without seats.
    """
    by_name = {node.name: node for node in nodes}
    noise = random.Random(seed)
    teller = _Teller(nodes, [(by_name[name], since_s) for name, since_s in leaders], noise)
    first = records[0]
    for rank, node in enumerate(nodes):
        spares = 0 if node.seats else first.event.spares
        node.write(first.mono_s, first, msgspec.structs.replace(first.event, spares=spares))
        started = NodeStarted(rank=rank, nodes=len(nodes), slots=2, boot=f"boot-{node.name}", hostname=f"host-{rank}")
        node.write(first.mono_s + 0.001, first, started)
    teller.decide(first, CoordinatorBegan(reason="the first"), first.mono_s + 0.01)
    for number, node in enumerate(nodes):
        accepted = NodeAccepted(node=node.name, boot=f"boot-{node.name}", slots=2, domains={})
        teller.decide(first, accepted, first.mono_s + 0.02 + number / 1000)
    for record in records[1:]:
        teller.tell(record)
    return [node.journal() for node in nodes]


class _Teller:
    def __init__(self, nodes, leaders, noise):
        self.nodes, self.leaders, self.noise = nodes, leaders, noise
        self.epoch, self.seq = 1, 0
        self.home, self.members = {}, ()

    def tell(self, record):
        event, at_s = record.event, record.mono_s
        if self.epoch < len(self.leaders) and at_s >= self.leaders[self.epoch][1]:
            self.epoch, self.seq = self.epoch + 1, 0
            self.decide(record, CoordinatorBegan(reason="the one before was silent"), at_s)
        if isinstance(event, DECISIONS):
            if isinstance(event, TermBegan):
                self.members = event.members
                event = msgspec.structs.replace(event, nodes=tuple(self.home[proc].name for proc in event.members))
            self.decide(record, event, at_s)
        elif isinstance(event, StepClosed):
            self._tell_step(record)
        else:
            if isinstance(event, ProcessStarted):
                self.home[event.proc] = self._home_of(event.seat)
            node = self.home.get(event.proc, self.nodes[0])
            node.write(at_s, record, node.in_own_time(event))

    def decide(self, record, event, at_s):
        leader, _ = self.leaders[self.epoch - 1]
        stamp = Stamp(epoch=self.epoch, seq=self.seq, node=leader.name, at_mono_s=leader.mono_s(at_s))
        self.seq += 1
        for node in self.nodes:
            way_s = 0.0001 if node is leader else self.noise.choice((0.0002, 0.0004, 0.0011, 0.0003, 0.9))
            if not node.cut_s[0] <= at_s < node.cut_s[1]:
                node.write(at_s + way_s, record, leader.in_own_time(event), stamp)

    def _tell_step(self, record):
        """Each node closes a little before the last one does, and writes it down when it looks the next time."""
        event = record.event
        homes = {}
        for seat, proc in enumerate(self.members):
            homes.setdefault(self.home[proc].name, []).append(seat)
        for number, node in enumerate(node for node in self.nodes if node.name in homes):
            seats = homes[node.name]
            part = msgspec.structs.replace(
                event,
                began_mono_s=node.mono_s(event.began_mono_s + 0.0005 * number),
                closed_mono_s=node.mono_s(event.closed_mono_s - 0.0005 * (len(homes) - 1 - number)),
                losses=tuple(loss if seat in seats else None for seat, loss in enumerate(event.losses)),
                seats=tuple(seats),
            )
            node.write(record.mono_s + self.noise.uniform(0, 0.03), record, part)

    def _home_of(self, seat):
        return next(node for node in self.nodes if (seat in node.seats if seat is not None else not node.seats))


def lose_node(tape, seat, node):
    """Like ``tape.lose``, but the whole node of the seat falls silent; returns the true time of that."""
    victim, before = tape.workers[seat].proc, len(tape.records)
    died_s = tape.now_s + 0.02
    tape.lose(seat, "kill")
    kept = []
    for record in tape.records[before:]:
        ended = isinstance(record.event, ProcessExited) or type(record.event).__name__ == "Account"
        if not (ended and record.event.proc == victim):
            kept.append(record)
        if isinstance(record.event, IncidentOpened):
            gone = NodeGone(node=node, boot=f"boot-{node}", detail="its supervisor refused a connection")
            kept.append(msgspec.structs.replace(record, event=gone))
    tape.records[before:] = kept
    return died_s
