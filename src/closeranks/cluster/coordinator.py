"""The coordinator: what the leading candidate does while it leads.

It runs the controller for the whole job: nodes tell it facts, and it tells all of them every decision, in one order.
What it knows can be learned again from the record and from what the nodes report; it may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from closeranks.cluster.absence import Absences
from closeranks.cluster.admission import Admission, House, refusal
from closeranks.cluster.agreement import Said, common
from closeranks.cluster.announcing import NOWHERE, Announcer, Members
from closeranks.cluster.attendance import Attendee
from closeranks.cluster.comparing import Comparing
from closeranks.cluster.identity import Identity
from closeranks.cluster.leader_vigil import Gone
from closeranks.cluster.mind import Mind
from closeranks.cluster.progress import Progress
from closeranks.cluster.rhythm import Rhythm, rhythm_of
from closeranks.cluster.saved import newest_in_store
from closeranks.cluster.telling import Telling
from closeranks.cluster.tenure import Deposed, Tenure
from closeranks.decide.protocol import (
    BeginTerm,
    Decision,
    EndAfterStep,
    EndRun,
    Fact,
    GroupLoaded,
    Isolate,
    NodeLost,
    NodeSilent,
    Note,
    PlanRestore,
    ProcStuck,
    StartGroup,
    StartProc,
    StateSaved,
    StepDone,
    TermPoisoned,
    Tick,
)
from closeranks.events import AnyEvent, CoordinatorBegan, IncidentClosed, NodeGone, Stamp
from closeranks.frames import encode
from closeranks.nodes import words
from closeranks.nodes.link import Connection, Ears, End
from closeranks.run.brain import bounds_of
from closeranks.run.options import RunOptions, Target

_ENDING_S: Final = 20.0  # beyond the grace period of the nodes
_GATHERING_S: Final = 1.5  # nodes that hear of a new leader have reported by then; later ones come back
_RECORD_END_S: Final = 3.0
_BEATS_S: Final = 2.0  # a node that is heard has beaten by then
_STOP_AHEAD_S: Final = 1.0  # a step so far ahead is not closed anywhere when the nodes hear of it
_STEPS_IN_FLIGHT: Final = 2


class Coordinator:
    """One term of leadership. ``run`` returns when the run is over and raises ``Deposed`` when it leads no longer."""

    def __init__(self, tenure: Tenure, identity: Identity, options: RunOptions, reason: str) -> None:
        self._tenure = tenure
        self._identity = identity
        self._options = options
        self._reason = reason
        self._epoch = tenure.epoch
        self._house = House(identity.run, Said(identity.node, common(options)))
        self._attendees: dict[str, Attendee] = {}
        self._mind = Mind(options, tenure)
        self._telling = Telling(self._attendees, self._stamp, self._mind.new_memo)
        self.absences = Absences(self._attendees, tenure, (identity, options), self._lost)
        self.absences.has_room, self.absences.has_room_for_all = self._mind.has_room, self._mind.has_room_for_all
        self.absences.dispensable = self._mind.dispensable
        self.absences.silent, self.absences.back = self._silent, self._back
        self.absences.expect(tenure.record)
        self._progress = Progress(bounds_of(options), self._ask, calls_roll=options.kind is not Target.COMMAND)
        self._progress.domains_of = self._domains_of
        self._admission = Admission(tenure, self._mind, self._telling, self._feed)
        self._announcer = Announcer(self._record, self._attendees.get, self._complain)
        self._decisions: asyncio.Queue[Decision] = asyncio.Queue()
        end, found = self._decisions.put_nowait, tenure.record.members
        self._comparing = Comparing(self._attendees, self._telling, end, found)
        self._losses: asyncio.Queue[NodeLost] = asyncio.Queue()
        self._early: list[Fact] = []  # facts that came before the controller was whole
        self._over = asyncio.Event()
        self._arrived = asyncio.Event()  # a node reported before the controller was whole
        self._beaten = asyncio.Event()  # since it was last cleared a node has told of its steps
        self._stop_at: words.StopAt | None = None  # said to all, and to whoever calls anew
        self._ending: EndRun | None = None
        self.unrecorded: EndRun | None = None  # the run is over, and the authority does not know that yet
        self.gone: Gone | None = None  # the leader before us, if it was seen to end, with all that its node ran

    async def run(self) -> None:
        """Lead until the run is over.

        Raises:
            Deposed: somebody else leads, or nobody does.
        """
        async with asyncio.TaskGroup() as group:
            works = (self._carry(), self._look(), self._take_up(), self._bury())
            tasks = [group.create_task(work) for work in works]
            await self._over.wait()
            for task in tasks:
                task.cancel()

    @property
    def ending(self) -> EndRun:
        """How the run ended; there when ``run`` has returned."""
        if self._ending is None:
            raise AssertionError("the run goes on")
        return self._ending

    def let_go(self) -> None:
        """We lead no longer: every node has to look for somebody else."""
        self.absences.let_go()
        for attendee in self._attendees.values():
            attendee.part("this coordinator leads no longer")

    # --- nodes --------------------------------------------------------------------------------------------------

    def hear(self, connection: Connection) -> Ears:
        """A node called."""
        caller: list[Attendee] = []

        def on_word(word: words.FromNode) -> None:
            if isinstance(word, words.Introduction):
                attendee = self._introduced(connection, word)
                if attendee is not None:
                    caller.append(attendee)
            elif caller and caller[-1].connection is connection:
                self._hear(caller[-1], word)

        def on_closed(end: End) -> None:
            if caller and caller[-1].connection is connection:
                caller[-1].connection = None
                self.absences.hung_up(caller[-1], end)

        return Ears(on_word, on_closed)

    def _introduced(self, connection: Connection, word: words.Introduction) -> Attendee | None:
        known = self._attendees.get(word.node)
        refused = refusal(self._house, word, known, admits=self._tenure.admits)
        if refused is not None:
            connection.send(words.TurnedAway(reason=refused.reason, final=refused.final))
            if known is not None:
                known.succeeded |= refused.succeeds
            return None
        if known is not None:  # back before its old connection was missed: what was sent over that one may be lost
            self._silent(known, "it called anew")
        attendee = known or Attendee(node=word.node, boot=word.boot)
        attendee.boot, attendee.introduction, attendee.connection = word.boot, word, connection
        attendee.report = None
        self._attendees[word.node] = attendee
        beat_s = self._rhythm().beat_s
        self.absences.heard(attendee, beat_s)
        leader, record = self._identity.node, self._tenure.record
        connection.send(
            words.Welcome(epoch=self._epoch, leader=leader, beat_s=beat_s, term=record.term, places=record.nodes)
        )
        if self._stop_at is not None:
            connection.send(self._stop_at)
        for note in self._telling.take_unheard():
            connection.send(note)
        return attendee

    def _rhythm(self) -> Rhythm:
        return rhythm_of(max(len(self._attendees), self._options.nnodes))

    def _hear(self, attendee: Attendee, word: words.FromNode) -> None:
        match word:
            case words.Beat():
                self._beat(attendee, word)
            case words.Heard():
                self._fact(attendee, word.fact)
            case words.Report():
                self._reported(attendee, word)
            case words.SeatFacts():
                self._comparing.take(attendee, word)
            case words.ToSavers():
                self._pass_on(attendee, word)
            case words.Hopeless():
                self._decisions.put_nowait(EndRun(outcome="failed", exit_code=word.exit_code, reason=word.reason))
            case words.Farewell():
                self.absences.said_farewell(attendee, word.reason)
            case _:
                self._answered(attendee, word)

    def _answered(self, attendee: Attendee, word: words.FromNode) -> None:
        match word:
            case words.TermStoreOpened():
                self._announcer.store_opened(word)
            case words.Reached():
                self._announcer.reached(word)
            case words.Probed():
                self.absences.probed(attendee, word)
            case words.Confirmed():
                self._feed_all(self._progress.confirmed(word))

    def _beat(self, attendee: Attendee, word: words.Beat) -> None:
        """A node that is not fenced may act for another while."""
        if attendee.report is None:
            return
        lease_s = self._tenure.grantable_s(self.absences.heard_s())
        self.absences.beat(attendee, word, granted=lease_s > 0)
        if lease_s > 0:
            attendee.send(words.Granted(number=word.number, lease_s=lease_s, closed_step=self._progress.closed_step))
        if attendee.admitted:
            done = self._progress.beat(attendee.node, attendee.boot, word)
            self._beaten.set()
            self._feed_all(done)
            self._tell_first(done)

    def _tell_first(self, done: tuple[StepDone, ...]) -> None:
        """The node of the first seat decides when the state is saved."""
        first = self._attendees.get(next(iter(self._tenure.record.nodes), ""))
        if first is not None and done:
            self._telling.tell()  # what these steps led to comes before a save of them
            for one in done:
                first.send(words.StepClosedEverywhere(step=one.step, period_s=one.period_s))

    def _pass_on(self, sender: Attendee, word: words.ToSavers) -> None:
        heard = encode(words.FromSaver(node=sender.node, body=word.body))
        for attendee in self._attendees.values():
            if word.to in ("", attendee.node):
                attendee.send_frames(heard)

    def _reported(self, attendee: Attendee, word: words.Report) -> None:
        attendee.report = word
        attendee.compared |= bool(word.procs)  # it was taken by an earlier leader
        self.absences.reported(attendee)
        if self._mind.whole:
            self._admission.count_with(attendee)
        else:
            self._arrived.set()

    def _lost(self, attendee: Attendee, reason: str, hopeless: str) -> None:
        """It is certain that nothing of this node acts any more."""
        self._attendees.pop(attendee.node, None)
        self._progress.forget(attendee.node)
        attendee.part(f"given up: {reason}")
        self._telling.note(NodeGone(node=attendee.node, boot=attendee.boot, detail=reason))
        waited_s = 0.0 if attendee.gone_s is None else time.monotonic() - attendee.gone_s
        self._losses.put_nowait(NodeLost(node=attendee.node, detail=reason, hopeless=hopeless, waited_s=waited_s))

    async def _bury(self) -> None:
        """Tell the controller of nodes that are lost: one of them may have saved state and not lived to say so."""
        while True:
            loss = await self._losses.get()
            if not self._mind.whole:  # a successor that gathers reports: it will count with the nodes of the record
                self._early.append(loss)
                continue
            if self._mind.knows_of_no_save and (saved := await newest_in_store(self._options)) is not None:
                self._feed(StateSaved(step=saved))
            self._feed(loss)

    def _silent(self, attendee: Attendee, reason: str) -> None:
        """Nothing is heard of it."""
        if attendee.admitted and not attendee.silent:
            attendee.silent = True
            self._feed(NodeSilent(node=attendee.node, detail=reason))

    def _back(self, attendee: Attendee) -> None:
        """Its beats were late, its connection never ended: what it was told has reached it."""
        if attendee.admitted and attendee.silent:
            attendee.silent = False
            connection = attendee.connection
            if connection is not None:
                connection.send(words.ReportAgain())

    # --- the controller -----------------------------------------------------------------------------------------

    def _fact(self, attendee: Attendee, fact: Fact) -> None:
        if self._mind.whole:
            self._feed(fact)
        elif attendee.report is not None:
            self._early.append(fact)

    def _feed_all(self, facts: tuple[Fact, ...]) -> None:
        for fact in facts:
            self._feed(fact)

    def _feed(self, fact: Fact) -> None:
        if self._ending is not None or not self._mind.whole:
            return
        if isinstance(fact, GroupLoaded):
            self._progress.settle(fact.step)  # what the group begins with was closed long ago
        self._decide_all(self._mind.step(fact))

    def _decide_all(self, decisions: tuple[Decision, ...]) -> None:
        if decisions:
            self._telling.owe_memo()
        for noted, several in itertools.groupby(decisions, lambda decision: isinstance(decision, Note)):
            if noted:
                self._note_all(decision.event for decision in several if isinstance(decision, Note))
            else:
                for decision in several:
                    self._decisions.put_nowait(decision)

    def _note_all(self, events: Iterable[AnyEvent]) -> None:
        told = list(events)
        self._telling.note(*told)
        for event in told:
            if isinstance(event, IncidentClosed):
                self._progress.stragglers.recovered(event.first_step_s)

    async def _take_up(self) -> None:
        """Begin the run, or go on with what is there."""
        if self._tenure.record.term == 0:
            self._decide_all(self._mind.begin())
            self._telling.note(CoordinatorBegan(reason=self._reason))
            for attendee in list(self._attendees.values()):
                self._admission.count_with(attendee)
        else:
            await self._adopt()
        early, self._early = self._early, []
        self._feed_all(tuple(early))

    async def _adopt(self) -> None:
        """Go on where an earlier coordinator ended; nodes that still hear another one come when they let go of it."""
        record = self._tenure.record
        _, stored = await asyncio.gather(self._hear_reports(), newest_in_store(self._options))
        reported = [(a, a.report) for a in self._attendees.values() if a.report is not None]
        taken = [(a, report) for a, report in reported if not report.failed or self._admission.works(a)]
        present, closed = [a for a, _ in taken], {a.node: report.closed_step for a, report in taken}
        members = Members(record.term, record.members, record.nodes, record.incarnations)
        self._progress.resume(members, closed)
        decisions = self._mind.adopt(present, self._reason, stored_step=stored)
        for attendee in self._attendees.values():
            # Those that are not present are silent in the controller's eyes, or lost, if they were given up already.
            attendee.admitted = attendee.node in self._mind.state.nodes
            attendee.silent = attendee.admitted and attendee not in present
            if attendee.admitted and not attendee.silent:
                self._admission.note_accepted(attendee)
        self._decide_all(decisions)
        for attendee in list(self._attendees.values()):
            if attendee.report is not None and attendee.report.failed:
                self._admission.count_with(attendee)
            if self.gone is not None and self._has_ended(attendee):
                self.absences.prove_ended(attendee, self.gone.reason)

    def _has_ended(self, attendee: Attendee) -> bool:
        """Whether it is the supervisor that was seen to end; a later one of its node has introduced itself."""
        gone = None if self.gone is None else self.gone.supervisor
        return gone is not None and gone.node == attendee.node and attendee.boot in ("", gone.boot)

    async def _hear_reports(self) -> None:
        """From those that hear of a new leader, and of whom others know: also from nodes that only hold spares."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GATHERING_S):
                while any(a.report is None for a in self._attendees.values()) or not self._all_are_there():
                    self._arrived.clear()
                    await self._arrived.wait()

    def _all_are_there(self) -> bool:
        reports = [a.report for a in self._attendees.values() if a.report is not None]
        return self._mind.nodes_known_to(reports) <= self._attendees.keys()

    # --- decisions ----------------------------------------------------------------------------------------------

    async def _carry(self) -> None:
        """One at a time and in their order: what follows an announcement must not overtake it."""
        while True:
            decided = deque([await self._decisions.get()])
            while not self._decisions.empty():
                decided.append(self._decisions.get_nowait())
            self._telling.tell()  # the memo precedes also what one of them writes into the record
            while decided:
                await self._carry_next(decided)

    async def _carry_next(self, decided: deque[Decision]) -> None:
        match decided.popleft():
            case StartGroup() | BeginTerm() as decision:
                await self._announce(decision)
            case EndAfterStep():
                await self._hear_open_steps()
                ahead = self._progress.steps_within(_STOP_AHEAD_S) + _STEPS_IN_FLIGHT
                self._stop_at = words.StopAt(step=self._progress.open_step + ahead)
                self._telling.tell(self._stop_at)
            case EndRun() as decision:
                await self._end(decision)
            case StartProc() | Isolate() as decision:  # there may be one for each of thousands of seats
                alike: list[Decision] = [decision]
                while decided and isinstance(decided[0], StartProc | Isolate):
                    alike.append(decided.popleft())
                self._telling.tell(*(words.Do(decision=one) for one in alike))
            case decision:
                if isinstance(decision, PlanRestore):
                    self._feed_all(self._progress.settle(decision.step))
                self._telling.tell(words.Do(decision=decision))

    async def _hear_open_steps(self) -> None:
        """A leader that has only just taken over learns from the next beats which steps are open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEATS_S):
                while not self._progress.knows_open_steps(self.absences.present()):
                    self._beaten.clear()
                    await self._beaten.wait()

    async def _announce(self, decision: StartGroup | BeginTerm) -> None:
        members = self._mind.members_of(decision)
        if isinstance(decision, StartGroup):
            self._comparing.begin(decision.procs)
            self._stop_at = None
        address = await self._announcer.prepare(decision, members)
        if address is None:
            raise Deposed
        self._progress.begin(members, fresh=isinstance(decision, StartGroup))
        self._telling.tell(words.Do(decision=decision, store=address, places=members.nodes))
        if address == NOWHERE and isinstance(decision, BeginTerm):
            self._feed(TermPoisoned(proc=decision.procs[0], term=decision.term, detail="the term has no store"))

    async def _record(self, members: Members) -> bool:
        try:
            await self._tenure.put(
                term=members.term,
                members=members.procs,
                nodes=members.nodes,
                boots=self._boots_of(members.nodes),
                incarnations=members.incarnations,
            )
        except Deposed:
            return False
        return True

    def _boots_of(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """The supervisors on which the term's members are: no later process of such a node speaks for them."""
        before = self._tenure.record.boots
        known = {node: self._attendees.get(node) for node in dict.fromkeys(nodes)}
        return {node: before.get(node, "") if one is None else one.boot for node, one in known.items()}

    async def _end(self, decision: EndRun) -> None:
        """Nobody takes over any more; then every node ends its part, and those that are out of reach find out."""
        first = self._ending is None
        self._ending = decision
        if first:
            try:
                async with asyncio.timeout(_RECORD_END_S):
                    await self._tenure.put(ended=decision.outcome, exit_code=decision.exit_code, reason=decision.reason)
            except TimeoutError:
                self.unrecorded = decision
        self._telling.tell(self._committer())
        self._telling.tell(words.Do(decision=decision))

    def _committer(self) -> words.Committer:
        node = next(iter(self._tenure.record.nodes), "")
        lead = self._attendees.get(node)
        introduction = None if lead is None else lead.introduction
        if lead is None or introduction is None:
            return words.Committer(node=node, boot="", address=None)
        address = words.Address(host=introduction.host, port=introduction.probe_port)
        return words.Committer(node=node, boot=lead.boot, address=address)

    def _complain(self, term: int, problem: str) -> None:
        """A term that was announced all the same: its members will not meet."""
        self._feed(TermPoisoned(proc=self._mind.first_member(), term=term, detail=problem))

    # --- questions -----------------------------------------------------------------------------------------------

    def _stamp(self, seq: int) -> Stamp:
        return Stamp(epoch=self._epoch, seq=seq, node=self._identity.node, at_mono_s=time.monotonic())

    def _domains_of(self, node: str) -> Mapping[str, str]:
        attendee = self._attendees.get(node)
        return {} if attendee is None or attendee.introduction is None else attendee.introduction.domains

    def _ask(self, node: str, word: words.Confirm) -> None:
        attendee = self._attendees.get(node)
        if attendee is not None:
            attendee.send(word)

    # --- the regular look ---------------------------------------------------------------------------------------

    async def _look(self) -> None:
        next_tick_s, next_look_s, last_s = 0.0, 0.0, time.monotonic()
        ending_s: float | None = None
        while True:
            rhythm = self._rhythm()
            await asyncio.sleep(rhythm.look_s)
            now_s = time.monotonic()
            late_s, last_s = max(0.0, now_s - last_s - 2 * rhythm.look_s), now_s
            if self._ending is not None:
                ending_s = ending_s or now_s + self._options.grace_s + _ENDING_S
                if now_s > ending_s or not any(a.connection is not None for a in self._attendees.values()):
                    self._over.set()
                continue
            self.absences.look(now_s, late_s)
            if not self._mind.whole:
                continue
            if now_s >= next_look_s:
                next_look_s = now_s + rhythm.vitals_s - rhythm.look_s / 2  # not later for want of a moment
                self._feed_all(self._progress.look(self.absences.present()))
                self._telling.note(*self._progress.take_notes())
            if now_s >= next_tick_s:
                next_tick_s = now_s + rhythm.tick_s
                self._feed(Tick())
                self._telling.refresh_memo(now_s)
                self._hear_silence()

    def _hear_silence(self) -> None:
        """Without vitals the only sign of life is output."""
        silent_s, allowed_s = self._progress.quiet_s, self._options.silence_s
        if self._mind.state.library or silent_s <= allowed_s:
            return
        self._progress.heard_silence()
        detail = f"no process printed anything for {silent_s:.1f} s, {allowed_s:g} s are allowed (--silence)"
        proc = self._mind.first_member()
        self._feed(ProcStuck(proc=proc, detail=detail, silent_s=silent_s, allowed_s=allowed_s))
