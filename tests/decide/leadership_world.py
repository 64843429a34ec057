"""Nodes with clocks of their own, a register, and a network that loses, delays and cuts: all on one true clock.

A leader gives the seats of nodes to spare nodes by the rules of ``leases``. The world sees everything, and complains
when two workers of one seat may act at the same time, when two leaders hold the register's lease, or when an epoch is
not above all before it.
"""

import heapq
import itertools
import random
from dataclasses import dataclass, field

from closeranks.decide import allegiance as al
from closeranks.decide import leadership as le
from closeranks.decide.leases import NEVER_S, Clockwork, fenced_at, outnumbered, replacement_allowed

CLOCKWORK = Clockwork(lease_s=3.0, renew_s=1.0, fence_s=1.0, authority_grace_s=8.0)
BEAT_S, POLL_S, ANSWER_S, RESTART_S = 0.75, 0.5, 2.0, 0.4


@dataclass(frozen=True)
class Kept:
    """What the register holds: the part that leadership looks at, and who sits where."""

    seen: le.Seen = field(default_factory=le.Seen)
    leader: int = -1
    term: int = 0
    seats: tuple = ()  # supervisor's boot by seat
    nodes: tuple = ()  # node by seat


@dataclass
class Follower:
    """A supervisor, as its leader knows it."""

    node: int
    granted_s: float
    sent_s: dict = field(default_factory=dict)  # of grants, by beat
    heard_s: float = NEVER_S


class Coordinator:
    """What a leader keeps."""

    def __init__(self):
        self.followers = {}
        self.let_go_s = float("inf")
        self.doubtful = ()  # nodes of a term whose write is in doubt
        self.excluded = set()  # supervisors that such a term, or one whose write is under way, does without


class Candidate:
    def __init__(self, boot, rank):
        self.state = le.Candidacy(boot=boot, rank=rank, clockwork=CLOCKWORK)
        self.kept = Kept()
        self.coordinator = None
        self.retired = False
        self.asking = 0  # number of the open question to the register
        self.frozen_until = 0.0


class Node:
    """A machine: its clock, its supervisor, its candidate and at most one worker."""

    def __init__(self, rank, rate, offset):
        self.rank, self.rate, self.offset = rank, rate, offset
        self.births = itertools.count()
        self.down_until = 0.0
        self.start()

    def start(self):
        self.boot = f"s{self.rank}.{next(self.births)}"
        self.allegiance = al.Allegiance(clockwork=CLOCKWORK)
        self.leader = -1  # node of the leader that it follows
        self.worker = -1
        self.beat, self.sent, self.acknowledged = 0, {}, 0
        self.last_beat_s = NEVER_S
        self.gone = set()  # boots of own candidates that have ended
        self.candidate = Candidate(f"c{self.rank}.{next(self.births)}", self.rank)

    def clock(self, true_s):
        return self.offset + self.rate * true_s


class World:
    def __init__(self, seed, nodes, seats):
        self.random = random.Random(seed)
        self.now = 0.0
        self.queue, self.order = [], itertools.count()
        self.kept, self.version, self.outage = Kept(), 0, False
        self.cut = set()  # (from, to); the register is -1
        self.epochs = []
        self.seats = seats
        self.nodes = [Node(rank, self.random.uniform(0.99, 1.01), self.random.uniform(0, 1e4)) for rank in range(nodes)]
        self.numbers = itertools.count(1)
        for node in self.nodes:
            self.after(self.random.uniform(0, 0.5), self.supervise, node)
            self.after(self.random.uniform(0, 0.5), self.candidate_turn, node, node.candidate)

    # --- time and messages ------------------------------------------------------------------------------------

    def after(self, seconds, do, *arguments):
        heapq.heappush(self.queue, (self.now + seconds, next(self.order), do, arguments))

    def run(self, until):
        while self.queue and self.queue[0][0] <= until:
            self.now, _, do, arguments = heapq.heappop(self.queue)
            do(*arguments)
            self.check()
        self.now = until

    def carry(self, source, target, do, *arguments):
        """A message: lost where the way is cut when it is sent or when it would arrive."""
        if (source, target) in self.cut or self.random.random() < 0.02:
            return
        delay = self.random.expovariate(40) if self.random.random() < 0.95 else self.random.uniform(0, 4)
        self.after(delay, self.arrive, source, target, do, arguments)

    def arrive(self, source, target, do, arguments):
        if (source, target) not in self.cut:
            do(*arguments)

    # --- the register ----------------------------------------------------------------------------------------

    def ask(self, node, candidate, write=None):
        number = candidate.asking = next(self.numbers)
        if not self.outage:
            self.carry(node.rank, -1, self.serve, node, candidate, number, write)
        self.after(ANSWER_S, self.give_up, node, candidate, number, write)

    def serve(self, node, candidate, number, write):
        if self.outage:
            return
        if write is not None and write[1] == self.version:
            self.kept, self.version = write[0], self.version + 1
            self.epochs.append(self.kept.seen.epoch)
        self.carry(-1, node.rank, self.answered, node, candidate, number, write, self.kept, self.version)

    def answered(self, node, candidate, number, write, kept, version):
        if candidate is not node.candidate or candidate.asking != number:
            return
        if self.now < candidate.frozen_until:
            self.after(candidate.frozen_until - self.now, self.answered, node, candidate, number, write, kept, version)
            return
        candidate.asking, candidate.kept, candidate.version = 0, kept, version
        tell = le.observed if write is None else le.wrote
        candidate.state = tell(candidate.state, kept.seen, node.clock(self.now))
        if candidate.coordinator is not None and not candidate.state.attempts:
            candidate.coordinator.doubtful = ()
            candidate.coordinator.excluded.clear()
        self.candidate_step(node, candidate)

    def give_up(self, node, candidate, number, write):
        if candidate is node.candidate and candidate.asking == number:
            candidate.asking = 0
            if write is not None:
                candidate.state = le.unanswered(candidate.state)
                if candidate.coordinator is not None:
                    candidate.coordinator.doubtful += write[0].nodes

    # --- candidates and coordinators ---------------------------------------------------------------------------

    def candidate_turn(self, node, candidate):
        if candidate is not node.candidate:
            return
        away_s = max(candidate.frozen_until, node.down_until) - self.now
        if away_s <= 0:
            self.candidate_step(node, candidate)
            if candidate.asking == 0 and candidate.state.reign is None:
                self.ask(node, candidate)
        self.after(max(POLL_S, away_s), self.candidate_turn, node, candidate)

    def heard_s(self, candidate):
        coordinator = candidate.coordinator
        if coordinator is None or not candidate.kept.nodes:
            return NEVER_S
        heard = {f.node: f.heard_s for f in coordinator.followers.values()}
        return min(heard.get(one, NEVER_S) for one in {*candidate.kept.nodes, *coordinator.doubtful})

    def candidate_step(self, node, candidate):
        now_s, coordinator = node.clock(self.now), candidate.coordinator
        last = set(candidate.kept.nodes)
        reached = len(last & {f.node for f in coordinator.followers.values()}) if coordinator else 0
        around = le.Around(
            now_s=now_s,
            led=al.led(node.allegiance, now_s),
            leader_ended=candidate.kept.seen.boot in node.gone,
            retired=candidate.retired,
            heard_s=self.heard_s(candidate),
            outnumbered=outnumbered(nodes=len(last), reached=reached),
        )
        candidate.state, choice = le.decide(candidate.state, around)
        match choice:
            case le.Contend(ballot=ballot) | le.Renew(ballot=ballot):
                self.write(node, candidate, ballot)
            case le.StepDown():
                candidate.coordinator = None
            case _:
                if candidate.state.reign is not None:
                    candidate.coordinator = candidate.coordinator or Coordinator()
                    self.lead(node, candidate)

    def write(self, node, candidate, ballot, **changes):
        seen = le.Seen(epoch=ballot.epoch, beat=ballot.beat, boot=candidate.state.boot)
        kept = candidate.kept
        new = Kept(seen, node.rank, kept.term, kept.seats, kept.nodes)
        for name, value in changes.items():
            object.__setattr__(new, name, value)
        self.ask(node, candidate, (new, candidate.version))
        return new, candidate.version

    def lead(self, node, candidate):
        """Give seats to nodes that have none where that is allowed."""
        coordinator, kept, now_s = candidate.coordinator, candidate.kept, node.clock(self.now)
        if kept.seen.boot != candidate.state.boot or candidate.state.writing:
            return
        fresh_s = now_s - CLOCKWORK.lease_s
        idle = [b for b, f in coordinator.followers.items() if b not in kept.seats and f.granted_s > fresh_s]
        seats = list(kept.seats) or [""] * self.seats
        places = list(kept.nodes) or [-1] * self.seats
        for seat, boot in enumerate(seats):
            if idle and now_s >= self.free_from(candidate, seat, boot):
                coordinator.followers.pop(boot, None)
                coordinator.excluded.add(boot)
                seats[seat] = idle.pop(0)
                places[seat] = coordinator.followers[seats[seat]].node
        if "" not in seats and tuple(seats) != kept.seats:
            candidate.state, ballot = le.attempt(candidate.state, now_s)
            changes = {"term": kept.term + 1, "seats": tuple(seats), "nodes": tuple(places)}
            self.write(node, candidate, ballot, **changes)

    def free_from(self, candidate, seat, boot):
        """From when on, by the leader's clock, this seat's worker cannot act."""
        coordinator, kept = candidate.coordinator, candidate.kept
        if not boot:
            return NEVER_S
        follower = coordinator.followers.get(boot)
        if follower is not None:
            return fenced_at(follower.granted_s, CLOCKWORK)
        place = kept.nodes[seat]
        if place in {f.node for f in coordinator.followers.values()}:
            return NEVER_S  # its supervisor was started again: what it ran has ended with it
        last = set(kept.nodes)
        return replacement_allowed(
            nodes=len(last),
            reached=len(last & {f.node for f in coordinator.followers.values()}),
            predecessor_s=candidate.state.reign.predecessor_s,
            let_go_s=coordinator.let_go_s,
            clockwork=CLOCKWORK,
        ).from_s

    # --- supervisors -----------------------------------------------------------------------------------------

    def supervise(self, node):
        self.after(BEAT_S, self.supervise, node)
        if self.now < node.down_until:
            return
        now_s = node.clock(self.now)
        self.fence(node)
        seen = node.candidate.kept
        higher = seen.seen.epoch > node.allegiance.epoch or not node.allegiance.linked
        if seen.leader >= 0 and higher and seen.seen.epoch >= node.allegiance.epoch:
            self.carry(node.rank, seen.leader, self.introduced, seen.leader, node, node.boot)
        if node.allegiance.linked:
            node.beat += 1
            node.sent[node.beat] = node.last_beat_s = now_s
            beat = (node.leader, node, node.boot, node.allegiance.epoch, node.beat, node.acknowledged)
            self.carry(node.rank, node.leader, self.beaten, *beat)
            if node.beat - node.acknowledged > 2 * CLOCKWORK.lease_s / BEAT_S:
                node.allegiance = al.unlinked(node.allegiance)

    def fence(self, node):
        if al.standing(node.allegiance, node.clock(self.now)).order is al.Order.FENCE:
            node.worker = -1

    def leading(self, rank, epoch=None):
        """The candidate of that node if it leads, under that epoch if one is given, and is awake."""
        node = self.nodes[rank]
        candidate = node.candidate
        if self.now < max(node.down_until, candidate.frozen_until) or candidate.coordinator is None:
            return None
        reign = candidate.state.reign
        return candidate if reign is not None and epoch in (None, reign.epoch) else None

    def introduced(self, rank, node, boot):
        candidate = self.leading(rank)
        if candidate is None or boot != node.boot:
            return
        known = boot in candidate.coordinator.followers
        if known or le.admits(candidate.state, self.nodes[rank].clock(self.now)):
            self.carry(rank, node.rank, self.welcomed, node, boot, rank, candidate.state.reign.epoch)

    def welcomed(self, node, boot, rank, epoch):
        if boot != node.boot:
            return
        now_s, before = node.clock(self.now), node.allegiance.epoch
        node.allegiance, answer = al.welcomed(node.allegiance, epoch, now_s)
        if isinstance(answer, al.Accepted):
            age_s = now_s - node.last_beat_s if before not in (0, epoch) else 0.0
            node.leader, node.sent, node.acknowledged = rank, {}, node.beat
            self.carry(node.rank, rank, self.reported, rank, node, boot, epoch, node.worker, age_s)

    def reported(self, rank, node, boot, epoch, worker, age_s):
        candidate = self.leading(rank, epoch)
        if candidate is None or boot != node.boot:
            return
        coordinator, kept, now_s = candidate.coordinator, candidate.kept, self.nodes[rank].clock(self.now)
        if boot in coordinator.excluded:
            return
        if worker >= 0 and kept.seats[worker] != boot:
            self.carry(rank, node.rank, self.dismissed, node, boot, epoch)
            return
        if node.rank in kept.nodes:
            coordinator.let_go_s = min(coordinator.let_go_s, now_s - age_s)
        for old in [b for b, f in coordinator.followers.items() if f.node == node.rank and b != boot]:
            del coordinator.followers[old]
        if boot not in coordinator.followers:
            coordinator.followers[boot] = Follower(node.rank, now_s)

    def dismissed(self, node, boot, epoch):
        if boot == node.boot and node.allegiance.epoch == epoch:
            node.worker = -1
            self.carry(node.rank, node.leader, self.reported, node.leader, node, boot, epoch, -1, 0.0)

    def beaten(self, rank, node, boot, epoch, number, acknowledged):
        candidate = self.leading(rank, epoch)
        follower = candidate and candidate.coordinator.followers.get(boot)
        if not follower:
            return
        now_s = self.nodes[rank].clock(self.now)
        follower.heard_s = max(follower.heard_s, follower.sent_s.get(acknowledged, NEVER_S))
        lease_s = le.grantable_s(candidate.state, now_s, self.heard_s(candidate))
        if lease_s > 0:
            follower.granted_s = follower.sent_s[number] = now_s
            seat = candidate.kept.seats.index(boot) if boot in candidate.kept.seats else -1
            self.carry(rank, node.rank, self.granted, node, boot, epoch, number, lease_s, seat)

    def granted(self, node, boot, epoch, number, lease_s, seat):
        if boot == node.boot and epoch == node.allegiance.epoch and number in node.sent:
            self.fence(node)  # a timer of its own does so in time
            node.allegiance = al.granted(node.allegiance, epoch, node.sent[number], lease_s)
            node.acknowledged = max(node.acknowledged, number)
            if al.led(node.allegiance, node.clock(self.now)):
                node.worker = max(node.worker, seat)

    # --- faults ------------------------------------------------------------------------------------------------

    def kill_candidate(self, rank):
        node = self.nodes[rank]
        node.gone.add(node.candidate.state.boot)
        node.candidate = Candidate(f"c{rank}.{next(node.births)}", rank)
        self.after(RESTART_S, self.candidate_turn, node, node.candidate)

    def kill_node(self, rank, down_s):
        node = self.nodes[rank]
        node.start()
        node.down_until = self.now + down_s
        self.after(0.0, self.candidate_turn, node, node.candidate)

    def release_lead(self, rank):
        """The candidate gives the lead up, if it has it: first it stops granting, then it says so."""
        node = self.nodes[rank]
        candidate = node.candidate
        others = any(not other.candidate.retired for other in self.nodes if other is not node)
        if others and candidate.state.reign is not None and not candidate.state.writing and candidate.asking == 0:
            candidate.coordinator, candidate.retired = None, True
            candidate.state, ballot = le.release(candidate.state, node.clock(self.now))
            seen = le.Seen(epoch=ballot.epoch, beat=ballot.beat, boot=candidate.state.boot, released=True)
            self.write(node, candidate, ballot, seen=seen)

    def cancel_put(self, rank):
        """The leader begins a write of its own and stops waiting for the answer: the write takes place, or not."""
        node = self.nodes[rank]
        candidate = node.candidate
        if candidate.state.reign is not None and not candidate.state.writing and candidate.asking == 0:
            candidate.state, ballot = le.attempt(candidate.state, node.clock(self.now))
            write = self.write(node, candidate, ballot)
            self.give_up(node, candidate, candidate.asking, write)

    def freeze_candidate(self, rank, seconds):
        self.nodes[rank].candidate.frozen_until = self.now + seconds

    # --- what must hold ----------------------------------------------------------------------------------------

    def acting(self, node):
        """Whether its worker may act at this moment, at the worst: it does not pause and lives until it is killed."""
        return node.worker >= 0 and al.standing(node.allegiance, node.clock(self.now)).order is not al.Order.FENCE

    def check(self):
        acting = [node.worker for node in self.nodes if self.acting(node)]
        assert len(acting) == len(set(acting)), f"{self.now:.3f} s: two workers act in one seat: {acting}"
        leading = [n.rank for n in self.nodes if le.admits(n.candidate.state, n.clock(self.now))]
        assert len(leading) <= 1, f"{self.now:.3f} s: nodes {leading} hold the register's lease at the same time"
        assert self.epochs == sorted(self.epochs), f"epochs went back: {self.epochs}"

    def settled(self):
        """The node that leads, if all nodes that are up hold valid grants of it and every seat acts; else -1."""
        epochs = {n.allegiance.epoch for n in self.nodes}
        led = all(al.led(n.allegiance, n.clock(self.now)) for n in self.nodes)
        whole = sum(map(self.acting, self.nodes)) == self.seats
        return self.kept.leader if led and whole and epochs == {self.kept.seen.epoch} else -1
