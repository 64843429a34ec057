"""The simulated world on several nodes: they come, die and fall silent, and the coordinator is replaced.

Each node knows of its processes what its supervisor would know, and no more reaches the coordinator. ``record`` is
what the register holds. The promises that hold between nodes are checked with every decision.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace
from world import Sim, World

from closeranks.decide import memo as memos
from closeranks.decide.adoption import Known, KnownNode, adopt
from closeranks.decide.controller import step
from closeranks.decide.protocol import (
    BeginTerm,
    ConfirmEnd,
    EndAfterStep,
    EndRun,
    GoOn,
    InterruptTerm,
    Isolate,
    KnownProc,
    LetLeave,
    LetNodeGo,
    NodeBack,
    NodeJoined,
    NodeLeaves,
    NodeLost,
    NodeSilent,
    Note,
    PlanRestore,
    ProcConfirmed,
    ProcEnded,
    ProcFinished,
    ProcJoined,
    ProcPaused,
    ProcReady,
    ProcRegrouped,
    ProcRestored,
    ProcResumed,
    StartGroup,
    StartProc,
    StopAsked,
)

_STAGE_AFTER = {
    ProcJoined: "joined",
    ProcPaused: "paused",
    ProcRegrouped: "regrouped",
    ProcRestored: "restored",
    ProcResumed: "looping",
    ProcFinished: "finished",
    ProcConfirmed: "confirmed",
}


@dataclass
class SimNode:
    """The truth about one node."""

    name: str
    slots: int
    domains: dict[str, str] = field(default_factory=dict)
    up: bool = True
    cut: bool = False  # no word passes between it and the coordinator
    told_lost: bool = False
    told_to_leave: bool = False  # by a signal; it says so to each coordinator
    heard_s: float = 0.0  # for the last time, if it is cut
    ended: list[ProcEnded] = field(default_factory=list)  # that nobody heard of


@dataclass
class Kept:
    """What a node's supervisor knows of a process."""

    seat: int | None
    incarnation: int | None
    term: int
    newcomer: bool
    stage: str = "started"
    looped: bool = False
    paused: ProcPaused | None = None
    groups: str = ""
    digest: str = ""
    restored_step: int = -1
    size: int = 0


@dataclass
class NodeWorld(World):
    """One run on several nodes; ``node(name)`` says who is where."""

    lost_after_s: float = 1.5  # from the death of a node until it is declared lost
    leaderless: bool = False
    hosts: dict[str, str] = field(default_factory=dict)  # by node; without one a node has no history

    def __post_init__(self) -> None:
        super().__post_init__()
        self.doers[LetNodeGo] = self.do_let_node_go
        self.wanted = self.settings
        self.nodes: dict[str, SimNode] = {}
        self.where: dict[int, str] = {}
        self.kept: dict[int, Kept] = {}
        self.record = {"term": 0, "members": (), "places": (), "incarnations": (), "incidents": 0}
        self.memo: bytes = b""
        self.named: dict[tuple[int, int], int] = {}  # process by seat and incarnation
        self.epoch = 1
        self.crash_after: int | None = None  # decisions that are still carried out by this coordinator
        self.numbers = 1
        self.let_go: list[str] = []

    # --- nodes --------------------------------------------------------------------------------------------------

    def with_nodes(self, *names: str, slots: int = 2, domains: dict[str, dict[str, str]] | None = None) -> NodeWorld:
        for name in names:
            self.at(self.now_s, lambda name=name: self.join(name, slots, (domains or {}).get(name, {})))
        return self

    def join(self, name: str, slots: int = 2, domains: dict[str, str] | None = None) -> None:
        if name in self.nodes:
            if self.nodes[name].up or self.leaderless:
                return
            self.declare_lost(self.nodes[name])  # whatever an earlier boot of the node ran is gone
        self.nodes[name] = SimNode(name=name, slots=slots, domains=domains or {})
        self.feed(NodeJoined(node=name, slots=slots, domains=domains or {}, host=self.hosts.get(name, "")))

    def die(self, name: str) -> None:
        """The machine is gone; its peers notice, later it is declared lost."""
        node = self.nodes[name]
        if not node.up:
            return
        node.up, node.cut, node.heard_s = False, True, self.now_s
        terms = {sim.term for sim in self._here(name) if sim.alive}
        for sim in self._here(name):
            sim.alive = False
        for term in terms & {self.going}:
            self._poison(term)
        self.after(self.lost_after_s, lambda: self.declare_lost(node))

    def leave(self, name: str) -> None:
        """The node is told to leave, and stays until it may."""
        self.nodes[name].told_to_leave = True
        self._say_who_leaves(self.nodes[name])

    def _say_who_leaves(self, node: SimNode) -> None:
        if node.told_to_leave and node.up and not node.cut:
            self.feed(NodeLeaves(node=node.name, signal=15))

    def do_let_node_go(self, decision: LetNodeGo) -> None:
        node = self.nodes[decision.node]
        assert node.told_to_leave
        if self.decided(decision) and node.up and not node.cut:
            self.let_go.append(decision.node)
            lost_after_s, self.lost_after_s = self.lost_after_s, 0.05  # it says farewell
            self.die(decision.node)
            self.lost_after_s = lost_after_s

    def declare_lost(self, node: SimNode) -> None:
        if node.told_lost or self.nodes[node.name] is not node:
            return
        if self.leaderless:
            self.after(1.0, lambda: self.declare_lost(node))
            return
        node.up, node.cut, node.told_lost = False, True, True
        for sim in self._here(node.name):
            sim.alive, sim.told_end = False, True
        waited_s = self.now_s - node.heard_s if node.heard_s else 0.0
        self.feed(NodeLost(node=node.name, detail="it does not answer", waited_s=waited_s))

    def silence(self, name: str, for_s: float, lost_after_s: float = 5.0) -> None:
        """Nothing passes between the node and the coordinator for a while; its supervisor interrupts its workers."""
        node = self.nodes[name]
        if not node.up or node.cut:
            return
        node.cut, node.heard_s = True, self.now_s
        self.after(1.0, lambda: self.feed(NodeSilent(node=name, detail="no beat")) if node.cut else None)
        self.after(3.0, lambda: self._leave_alone(node))
        if for_s < lost_after_s:
            self.after(max(for_s, 1.3), lambda: self.back(node))
        else:
            self.after(lost_after_s, lambda: self.declare_lost(node))

    def _leave_alone(self, node: SimNode) -> None:
        if not (node.cut and node.up):
            return
        for sim in self._here(node.name):
            kept = self.kept[sim.number]
            if sim.alive and sim.frozen and sim.seat is not None:
                self.after(1.0, lambda sim=sim: self.kill(sim.number))
            if sim.acts and not sim.paused and kept.stage not in ("started", "joined", "warm"):
                peers = self._members(sim.term)
                self._pause(sim, sim.term)
                for peer in peers:
                    self.after(0.02, lambda peer=peer, term=sim.term: self._notice(peer, term))

    def back(self, node: SimNode) -> None:
        if not (node.cut and node.up):
            return
        if self.leaderless:
            node.cut = False
            return
        node.cut = False
        if node.name in self.state.nodes:
            if not self.state.nodes[
                node.name
            ].silent:  # back before anybody missed it: what it was told is lost all the same
                self.feed(NodeSilent(node=node.name, detail="it called anew"))
            self.feed(NodeBack(node=node.name, procs=self._report(node), ended=self._tell_ended(node)))
            self._say_who_leaves(node)

    def _here(self, name: str) -> list[Sim]:
        return [sim for sim in self.procs.values() if self.where[sim.number] == name]

    def _report(self, node: SimNode) -> tuple[KnownProc, ...]:
        return tuple(
            KnownProc(proc=s.number, replicated=True, settled=True, **vars(self.kept[s.number]))
            for s in self._here(node.name)
            if s.alive
        )

    def _tell_ended(self, node: SimNode) -> tuple[ProcEnded, ...]:
        for sim in self._here(node.name):
            sim.told_end = sim.told_end or not sim.alive
        ended, node.ended = tuple(node.ended), []
        return ended

    # --- words that pass, or do not -----------------------------------------------------------------------------

    def hears(self, number: int) -> bool:
        node = self.nodes[self.where[number]]
        return node.up and not node.cut and not self.leaderless

    def feed(self, fact: object) -> None:
        number = getattr(fact, "proc", None)
        if number in self.procs:
            self._keep(number, fact)
            if not self.hears(number):
                return
        if self.leaderless:
            return  # the next coordinator sees for itself
        if self.ended is not None and not isinstance(fact, StopAsked):
            return
        self.facts.append((fact, self.now_s))
        self.state, decisions = step(self.state, fact, self.now_s)
        self._keep_memo()
        self.carry_out(decisions)

    def _keep(self, number: int, fact: object) -> None:
        kept = self.kept[number]
        if kept.stage == "paused" and isinstance(fact, ProcReady | ProcResumed):
            return  # sent off before; no process says so after it has paused
        if isinstance(fact, ProcReady):
            kept.stage = "looping" if kept.stage == "building" else "warm"
        else:
            kept.stage = _STAGE_AFTER.get(type(fact), kept.stage)
        kept.looped = kept.looped or kept.stage in ("looping", "finished")
        if isinstance(fact, ProcPaused):
            kept.paused = fact
        if isinstance(fact, ProcRegrouped):
            kept.groups = fact.groups
        if isinstance(fact, ProcRestored):
            kept.digest, kept.restored_step = fact.digest, fact.step

    def _tell_end(self, sim: Sim, fact: ProcEnded) -> None:
        if self.hears(sim.number):
            sim.told_end = True
        else:
            self.nodes[self.where[sim.number]].ended.append(fact)
        self.feed(fact)

    def _suspect(self, sim: Sim) -> None:
        if self.hears(sim.number):
            super()._suspect(sim)
        elif sim.alive and sim.frozen:
            self.after(1.0, lambda: self._suspect(sim))

    def _check(self, decision: object) -> None:
        super()._check(decision)
        if isinstance(decision, StartGroup):
            assert len(decision.nodes) == len(decision.procs)
            self._check_size(decision)
            for number, name in zip(decision.procs, decision.nodes, strict=True):
                self._check_start(number, name)
        if isinstance(decision, StartProc):
            self._check_start(decision.proc, decision.node)
        if isinstance(decision, BeginTerm):
            for seat, number in enumerate(decision.procs):
                self._check_name(seat, decision.incarnations[seat], number)
                assert self.state.places[seat] == self.where[number]
                assert self.kept[number].size == len(decision.procs), f"p{number} is of another world"
            for name, seats in Counter(self.where[n] for n in decision.procs).items():
                assert seats <= self.nodes[name].slots, f"{name} has {seats} seats"

    def _check_size(self, decision: StartGroup) -> None:
        seats, each = len(decision.procs), self.wanted.seats // self.wanted.nodes_needed
        full = sum(node.open and node.slots >= each for node in self.state.nodes.values())
        assert seats == min(full * each, self.wanted.seats) or not self.wanted.nodes_min or seats == self.wanted.seats
        assert seats == self.wanted.seats or seats >= self.wanted.nodes_min * each > 0

    def _check_start(self, number: int, name: str) -> None:
        assert name in self.state.nodes, f"{name} is not there"
        assert self.state.nodes[name].open, f"{name} is silent, or leaves"
        assert number >= self.numbers, f"p{number} was given before"
        self.numbers = number + 1

    def _check_name(self, seat: int, incarnation: int, number: int) -> None:
        assert self.named.setdefault((seat, incarnation), number) == number, f"s{seat}.{incarnation} is used twice"

    # --- carrying out, as far as it is heard ---------------------------------------------------------------------

    def decided(self, decision: object) -> bool:
        """The coordinator lives on after this decision; the register is written before a term is announced."""
        if isinstance(decision, StartGroup | BeginTerm):
            incarnations = getattr(decision, "incarnations", self.state.incarnations)
            self.record |= {
                "term": decision.term,
                "members": decision.procs,
                "places": self.state.places,
                "incarnations": tuple(map(max, incarnations, self.state.incarnations)),
            }
        if self.crash_after is not None:
            if self.crash_after == 0:
                self.crash()
                return False
            self.crash_after -= 1
        return not self.leaderless

    def do_start_group(self, decision: StartGroup) -> None:
        for number, name in zip(decision.procs, decision.nodes, strict=True):
            self.where[number] = name
        self.settings = replace(self.wanted, seats=len(decision.procs))
        if self.decided(decision):
            super().do_start_group(decision)
        else:
            self._never_started(decision.procs)

    def do_start_proc(self, decision: StartProc) -> None:
        self.where[decision.proc] = decision.node
        if self.decided(decision) and self.hears(decision.proc):
            super().do_start_proc(decision)
        else:
            self._never_started((decision.proc,), decision.seat)

    def _never_started(self, numbers: tuple[int, ...], seat: int | None = None) -> None:
        for number in numbers:
            self.procs[number] = Sim(number=number, seat=None, incarnation=None, original=False, alive=False)
            self.kept[number] = Kept(seat=seat, incarnation=None, term=0, newcomer=True, size=self.settings.seats)

    def _start(self, number: int, seat: int | None, incarnation: int | None, *, original: bool) -> None:
        incarnation = self.state.incarnations[seat] if original and seat is not None else incarnation
        self.kept[number] = Kept(
            seat=seat,
            incarnation=incarnation,
            term=self.state.term + (not original),
            newcomer=not original,
            size=self.settings.seats,
        )
        if self.hears(number):
            if seat is not None:
                self._check_name(seat, incarnation, number)
            super()._start(number, seat, incarnation, original=original)
        else:
            self._never_started((number,), seat)

    def do_begin_term(self, decision: BeginTerm) -> None:
        if not self.decided(decision):
            return
        for seat, number in enumerate(decision.procs):
            if self.hears(number):
                sim, kept = self.procs[number], self.kept[number]
                sim.seat, sim.term, sim.paused = seat, decision.term, False
                kept.seat, kept.term, kept.stage = seat, decision.term, "seated"
                kept.incarnation = decision.incarnations[seat]
        self.after(0.02, lambda: self._connect(decision.term))

    def do_plan_restore(self, decision: PlanRestore) -> None:
        if self.decided(decision) and all(self.hears(s.number) for s in self._members(decision.term)):
            super().do_plan_restore(decision)

    def do_go_on(self, decision: GoOn) -> None:
        if not self.decided(decision):
            return
        told = [s for s in self._members(decision.term) if self.hears(s.number)]
        for sim in told:
            self.kept[sim.number].stage = "resuming" if sim.ready else "building"
        if len(told) == self.settings.seats:
            super().do_go_on(decision)
            return
        for sim in told:  # they open an attempt, and hang in its first collective
            if sim.ready:
                self.after(0.01, lambda sim=sim: self._say(sim, ProcResumed(proc=sim.number, term=decision.term)))

    def do_interrupt_term(self, decision: InterruptTerm) -> None:
        heard = tuple(n for n in decision.procs if self.hears(n)) if self.decided(decision) else ()
        for number in heard:
            self.kept[number].stage = "interrupted"
        if heard:
            self.going = None if self.going == decision.term else self.going
            super().do_interrupt_term(InterruptTerm(term=decision.term, procs=heard, reason=decision.reason))

    def do_isolate(self, decision: Isolate) -> None:
        if self.decided(decision) and self.hears(decision.proc):
            super().do_isolate(decision)

    def do_end_after_step(self, decision: EndAfterStep) -> None:
        if self.decided(decision):
            super().do_end_after_step(decision)

    def do_confirm_end(self, decision: ConfirmEnd) -> None:
        if self.decided(decision):
            for sim in self._members(decision.term):
                if self.hears(sim.number):
                    fact = ProcConfirmed(proc=sim.number, term=decision.term, digest="")
                    self.after(0.05, lambda sim=sim, fact=fact: self._say(sim, fact))

    def do_let_leave(self, decision: LetLeave) -> None:
        if self.decided(decision):
            for sim in self.procs.values():
                if sim.alive and self.hears(sim.number):
                    self.after(0.1, lambda sim=sim: self.exit(sim.number, code=0))

    # --- the coordinator ----------------------------------------------------------------------------------------

    def _keep_memo(self) -> None:
        if self.leaderless:
            return
        self.record["incidents"] = self.state.next_incident - 1
        self.memo = memos.encode(memos.memo_of(self.state, self.now_s))

    def crash(self, for_s: float = 1.0) -> None:
        if self.leaderless or self.ended is not None:
            return
        self.leaderless, self.crash_after = True, None
        self.after(for_s, self.succeed)

    def succeed(self) -> None:
        self.leaderless = False
        self.epoch += 1
        connected = [node for node in self.nodes.values() if node.up and not node.cut]
        if not connected:
            self.leaderless = True
            self.ended = EndRun(outcome="failed", exit_code=1, reason="no node is left to decide anything")
            return
        for node in self.nodes.values():
            if node.cut:  # the new coordinator has to find out for itself
                node.told_lost = False
                for sim in self._here(node.name):
                    sim.told_end = False
                self.after(5.0, lambda node=node: self.declare_lost(node) if node.cut else None)
        known = Known(
            leader=connected[0].name,
            reason="the last one does not answer",
            next_proc=max(self.procs, default=0) + 1000,
            nodes=tuple(
                KnownNode(
                    name=node.name,
                    slots=node.slots,
                    domains=node.domains,
                    procs=self._report(node),
                    ended=self._tell_ended(node),
                    closed_step=self.steps_done[-1] if self.steps_done else -1,
                )
                for node in connected
            ),
            memo=memos.decode(self.memo) if self.memo else None,
            saved_step=self.saved_step if self.tells_of_saves else None,
            stored_step=self.saved_step,
            **self.record,
        )
        self.facts.append((known, self.now_s))
        self.state, decisions = adopt(self.wanted, known, self.now_s)
        self._keep_memo()
        self.carry_out(decisions)
        for node in connected:
            self._say_who_leaves(node)

    def carry_out(self, decisions: tuple) -> None:
        for decision in decisions:
            self.decisions.append((self.now_s, decision))
            self.decision_hook(decision)
            if not isinstance(decision, Note):
                self._check(decision)
                self.doers[type(decision)](decision)
