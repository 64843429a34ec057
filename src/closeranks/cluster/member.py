"""A supervisor as one of several: it follows a leader, tells it what it sees, and carries out what it decides.

Its workers may act only while it holds a grant. Without one they are told to leave their attempt and wait, with all
they hold in memory; whoever does not is killed. Whoever leads meanwhile may count on that.
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from closeranks import messages
from closeranks.cluster import aside, sections
from closeranks.cluster.agreement import common
from closeranks.cluster.candidate_link import CandidateLink
from closeranks.cluster.identity import Identity, meeting_point
from closeranks.cluster.known import Known
from closeranks.cluster.questions import Questions
from closeranks.cluster.saving_circle import NodesCircle
from closeranks.cluster.term_stores import TermStores
from closeranks.decide import allegiance
from closeranks.decide.allegiance import Accepted, Allegiance, Order
from closeranks.decide.protocol import (
    Decision,
    EndRun,
    Fact,
    Isolate,
    LetNodeGo,
    NodeLeaves,
    Note,
    ProcEnded,
    StartGroup,
    StepDone,
    StopAsked,
    Tick,
)
from closeranks.detect.straggler import Step
from closeranks.events import CoordinatorFollowed, CoordinatorLost, NodeStarted
from closeranks.launch.outcome import NODE_ALONE, code_of_own_end
from closeranks.nodes import words
from closeranks.nodes.calling import Caller, Hearer, Missed
from closeranks.nodes.link import Connection, Ears, End
from closeranks.nodes.probes import Supervisor, answer_probes
from closeranks.probe.checks import Level, Subject, checked
from closeranks.run.beside import beside
from closeranks.run.births import Births
from closeranks.run.brain import settings_of
from closeranks.run.carry import Carry
from closeranks.run.context import Context
from closeranks.run.exits import Exits
from closeranks.run.options import OnTerm
from closeranks.run.watch import Watch
from closeranks.run.worker import Worker

_LOOK_S: Final = 0.05
_CHECKS_S: Final = 60.0
_MEMBERS_MAX_BEATS: Final = 64  # sent beats whose answer is awaited
_FAREWELL_S: Final = 30.0
_EXIT_USAGE: Final = 2  # as of a run that could not begin as it was asked for
_UNLED_S: Final = 30.0  # without an authority a leader that is gone so long is gone for good


class Parts(NamedTuple):
    """What a supervisor is made of, as far as its leader acts through it."""

    exits: Exits
    watch: Watch
    carry: Carry


def _closed_here(fact: StepDone, shown: Step) -> words.ClosedHere:
    return words.ClosedHere(
        step=fact.step,
        duration_s=fact.duration_s,
        loss=fact.loss,
        grad_norm=fact.grad_norm,
        own_s=dict(shown.own_s),
        period_s=shown.period_s,
        closed_ns=time.monotonic_ns() - int(fact.ago_s * 1e9),
    )


def _facts_of(worker: Worker) -> words.SeatFacts:
    return words.SeatFacts(proc=worker.proc, seat=worker.seat, facts=worker.facts or {})


def _stopped(asked: StopAsked, reason: str) -> EndRun:
    return EndRun(outcome="stopped", exit_code=128 + asked.signal, reason=reason, now=True)


class Member:
    """The controller of this node's context: facts go to the leader, and its decisions come from there."""

    def __init__(self, context: Context, identity: Identity) -> None:
        self._context = context
        self._identity = identity
        self._elected = meeting_point(context.options) is None
        self._known = Known(identity.node)
        self._allegiance = Allegiance()
        self._order = Order.INTERRUPT
        self._followed = 0  # epoch of the leader whose grant was last told
        self._connection: Connection | None = None
        self._welcome: words.Welcome | None = None
        self._beats: dict[int, float] = {}  # sent and not answered: number to time
        self._beat = 0
        self._granted_beat = 0  # newest whose grant has arrived, of the leader that is followed
        self._next_beat_s = 0.0
        self._closed: list[words.ClosedHere] = []
        self._closed_step = self._closed_everywhere = -1
        self._memo: tuple[int, int, bytes] = (0, 0, b"")
        self._stores = TermStores(identity.host)
        self._probes: Any = None
        self._led_s = time.monotonic()
        self._stop: list[Fact] = []
        self._candidate = CandidateLink(context, identity.boot, self._hear_candidate)
        draw = random.Random(identity.boot)  # noqa: S311 - for the jitter of calls
        self._caller = Caller(identity.keys, words.FromCoordinator, Hearer(self._up, self._missed), draw)
        self._missed_of: deque[str] = deque(maxlen=1)
        self._failed = ""  # why this node can take no workers: its checks at the start
        self._unwell = ""  # why it should get no new ones: its telemetry
        self.circle = NodesCircle(identity.node, self._say, lambda: self._order is Order.ACT)
        self.saved_step: Callable[[], int | None] = lambda: None  # newest that a restart of the group could use
        self.refusal: Callable[[], str] = lambda: ""  # why a run cannot begin with what this node has found
        self._questions = Questions(context, identity, self._say)
        self.circle.ask_for_lead = self._questions.life_of_committer
        self._said_last = ""  # by a candidate
        self._parts: Parts

    async def join(self, births: Births, exits: Exits, watch: Watch, carry: Carry) -> str:
        """Begin to look for a leader, who acts through these; the problem, "" when there is none."""
        self._parts = Parts(exits, watch, carry)
        births.open_store = self._stores.elsewhere
        here = words.Address(host=self._identity.host, port=0)
        try:
            own = Supervisor(self._identity.node, self._identity.boot)
            self._probes = await answer_probes(here, self._identity.keys, own)
        except OSError as error:
            return f"node {self._identity.node}: {error}; name another address with --interface"
        if await self._check():
            self._context.spawn(self._check_again())
        self._candidate.replace = self._elected
        self._candidate.probe_port = self._probes.address.port
        self._candidate.on_lost = self._candidate_lost
        self._note_start()
        try:
            self._candidate.start()
        except OSError as error:
            return f"node {self._identity.node}: its candidate for the lead cannot be started: {error}"
        self._context.spawn(self._look())
        return ""

    async def _check(self) -> bool:
        """Try this node: the leader seats nobody on one that says it failed. Whether only room or memory is short."""
        subject = Subject(folder=self._context.folder)
        try:
            found = await beside(lambda: checked(Level.START, subject), "checks", _CHECKS_S)
        except TimeoutError:
            self._failed = f"its checks have not ended within {_CHECKS_S:g} s"
            return False
        except OSError as error:
            self._failed = f"its checks cannot be made: {error.strerror}"
            return True
        if not (found.scarce and self._failed):  # else that is told already
            self._failed = found.failed
            self._context.note(found.event)
        return found.scarce

    async def _check_again(self) -> None:
        """There may be enough later."""
        short = True
        while short and self._context.ending is None:
            await asyncio.sleep(self._context.options.look_every_s)
            short = await self._check()
        self._say(self._report())

    def unwell(self, reason: str) -> None:
        """Telemetry speaks against this node, or ("") does so no longer: it should get no new work meanwhile."""
        self._unwell = reason
        self._say(self._report())

    def _note_start(self) -> None:
        identity, options = self._identity, self._context.options
        self._context.note(
            NodeStarted(
                rank=identity.rank,
                nodes=options.nnodes,
                slots=options.slots,
                boot=identity.boot,
                hostname=identity.hostname,
            )
        )

    async def close(self, ending: EndRun | None) -> None:
        """Workers have ended: take leave, and let a candidate that leads see to the others."""
        if self._connection is not None:
            self._connection.send(words.Farewell(reason="" if ending is None else ending.reason))
        self._caller.close("the run is over here")
        await self._candidate.finish(_FAREWELL_S)
        self._stores.close()

    async def fall_silent(self) -> None:
        """Nothing is left to do here: probes are not answered any more."""
        if self._probes is not None:
            await self._probes.close()

    # --- facts and decisions ------------------------------------------------------------------------------------

    def step(self, fact: Fact, now_s: float) -> tuple[Decision, ...]:  # noqa: ARG002 - the leader has its own clock
        """Tell the leader. Nothing is lost while there is none: a new one is told how things stand."""
        match fact:
            case Tick():
                return ()
            case StepDone():
                self._closed.append(_closed_here(fact, self._parts.watch.newest))
                self._closed_step = fact.step  # not the highest: a group may have begun with an older state
                return ()
            case StopAsked() if self._may_leave_alone(fact.signal):
                return self._ask_to_leave(fact)
            case StopAsked():
                self._stop.append(fact)  # a leader that comes later is told too
                if fact.now and self._context.ending is not None:  # the leader has no more to decide
                    return (replace(self._context.ending, now=True),)
                if fact.now and self._welcome is None:
                    return (_stopped(fact, "asked to stop, and there is no coordinator to ask"),)
        if isinstance(fact, ProcEnded) and self._closed:
            self._send_beat(time.monotonic())  # it had closed these steps before it ended
        self._known.hear(fact)
        self._say(words.Heard(fact=fact))
        return ()

    def _may_leave_alone(self, number: int) -> bool:
        """Whether this signal asks for this node alone. Without an authority the job ends with its coordinator."""
        wanted = self._context.options.on_term is OnTerm.LEAVE and number == signal.SIGTERM
        return wanted and (self._elected or self._identity.rank != 0)

    def _ask_to_leave(self, asked: StopAsked) -> tuple[Decision, ...]:
        """Others are to take the seats of this node; once they may, or at once, it ends."""
        if asked.now:
            return (_stopped(asked, "this node was told to leave, and did not wait for others"),)
        self._candidate.retire()
        leaves = NodeLeaves(node=self._identity.node, signal=asked.signal)
        self._stop.append(leaves)
        self._say(words.Heard(fact=leaves))
        return ()

    def _do(self, word: words.Do) -> None:
        if isinstance(word.decision, LetNodeGo):
            if word.decision.node == self._identity.node:
                told = StopAsked(signal=signal.SIGTERM, now=True)
                self._context.carry_out(_stopped(told, "this node was told to leave: others go on"))
            return
        if word.store is not None:
            self._stores.announced = word.store
        self._known.told(word.decision)
        self.circle.seated(word.places)
        if isinstance(word.decision, StartGroup):
            # Steps of another group say nothing about this one.
            self._closed, self._closed_step, self._closed_everywhere = [], -1, -1
        self._context.carry_out(word.decision)

    def _write_down(self, word: words.Notes) -> None:
        for seq, event in enumerate(word.events, word.stamp.seq):
            self._parts.carry.stamp = replace(word.stamp, seq=seq)
            self._context.carry_out(Note(event=event))

    def joined(self, worker: Worker) -> None:
        """A process joined: the leader compares it with those of other nodes."""
        self._say(_facts_of(worker))

    def _say(self, word: words.FromNode) -> None:
        if self._connection is not None and self._welcome is not None:
            self._connection.send(word)

    # --- the leader ---------------------------------------------------------------------------------------------

    def _hear_candidate(self, word: aside.FromCandidate) -> None:
        match word:
            case aside.LeaderSeen():
                self._caller.retarget(word.address, word.epoch)
            case aside.RunOver():
                # Told by the record, often before the leader's own word, which gives workers their time to end.
                end = EndRun(outcome=word.outcome, exit_code=word.exit_code, reason=word.reason)
                self._context.carry_out(end)
            case aside.Aloud() if word.line != self._said_last:  # candidates that end alike would say it for ever
                self._said_last = word.line
                self._context.say(word.line)

    def _candidate_lost(self, why: str) -> None:
        if self._identity.rank == 0:
            self._context.fail(
                f"the coordinator process was lost{why and f' ({why})'}, and without an authority nobody may take its "
                "place; give --authority or --store so that another node can"
            )

    def _up(self, connection: Connection, _epoch: int) -> Ears:
        self._connection, self._welcome = connection, None
        connection.send(self._introduction())
        return Ears(lambda word: self._hear(connection, word), lambda end: self._down(connection, end))

    def _down(self, connection: Connection, end: End) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if self._welcome is not None:
            self._welcome = None
            self._allegiance = allegiance.unlinked(self._allegiance)
            for asked in self._stop:  # it may have been said into this link, and lost with it
                if isinstance(asked, StopAsked) and asked.now:
                    ending = self._context.ending or _stopped(asked, "asked to stop, and the coordinator was lost")
                    self._context.carry_out(replace(ending, now=True))
            if self._context.ending is None:
                self._context.note(CoordinatorLost(epoch=self._allegiance.epoch, detail=str(end)))

    def _missed(self, missed: Missed) -> None:
        self._missed_of.append(missed.reason)

    def _introduction(self) -> words.Introduction:
        identity, context = self._identity, self._context
        return words.Introduction(
            run=identity.run,
            node=identity.node,
            boot=identity.boot,
            slots=context.options.slots,
            host=identity.host,
            probe_port=self._probes.address.port,
            domains=identity.domains,
            hostname=identity.hostname,
            common=common(context.options),
        )

    def _report(self) -> words.Report:
        epoch, seq, memo = self._memo
        return words.Report(
            procs=self._known.procs,
            ended=self._known.ended,
            closed_step=self._closed_step,
            closed_everywhere=self._closed_everywhere,
            memo=memo,
            memo_epoch=epoch,
            memo_seq=seq,
            failed="; ".join(filter(None, (self._failed, self._unwell))),
            saved_step=self.saved_step(),
        )

    def _hear(self, connection: Connection, word: words.FromCoordinator) -> None:
        if connection is not self._connection:
            return
        if isinstance(word, words.Welcome):
            self._welcomed(connection, word)
        elif isinstance(word, words.TurnedAway):
            self._turned_away(connection, word)
        elif self._welcome is not None:
            self._obey(word, self._welcome)

    def _welcomed(self, connection: Connection, word: words.Welcome) -> None:
        now_s = time.monotonic()
        self._allegiance, answer = allegiance.welcomed(self._allegiance, word.epoch, now_s)
        if not isinstance(answer, Accepted):
            connection.close(answer.reason)
            return
        self._welcome = word
        self._beats.clear()
        self._granted_beat = 0
        self._context.term = max(self._context.term, word.term)
        self._context.seats = self._known.size = len(word.places) or self._context.seats
        connection.send(self._report())
        for worker in self._context.living():
            if worker.facts is not None:
                connection.send(_facts_of(worker))
        for fact in self._stop:
            connection.send(words.Heard(fact=fact))
        if word.term == 0 and (refusal := self.refusal()):
            self.circle.end_run(refusal, _EXIT_USAGE)
        self.circle.back(word.places)
        self._send_beat(now_s)

    def _turned_away(self, connection: Connection, word: words.TurnedAway) -> None:
        connection.close("turned away")
        if word.final:
            self._context.fail(f"the coordinator does not take this node: {word.reason}", NODE_ALONE)

    def _obey(self, word: words.FromCoordinator, welcome: words.Welcome) -> None:
        match word:
            case words.Granted():
                self._granted(word, welcome)
            case words.ReportAgain():
                self._say(self._report())
            case words.Do():
                self._do(word)
            case words.Notes():
                self._write_down(word)
            case words.StopAt():
                for worker in self._members():
                    worker.send(messages.StopAfter(step=word.step))
            case words.Memo():
                self._memo = (welcome.epoch, word.seq, word.memo)
            case words.Dismissed():
                for proc in word.procs:
                    self._end(proc, "it was replaced while its node was out of reach")
            case _:
                self._answer(word)

    def _answer(self, word: words.FromCoordinator) -> None:
        match word:
            case words.OpenStore():
                address, problem = self._stores.open(word.term)
                self._say(words.TermStoreOpened(term=word.term, address=address, problem=problem))
            case words.Reach() | words.Probe() | words.Confirm():
                self._questions.take(word)
            case words.FromSaver():
                self.circle.hear(word)
            case words.StepClosedEverywhere():
                self.circle.closed_everywhere(word)
            case words.Committer():
                self._questions.committer = word

    def _end(self, proc: int, reason: str) -> None:
        self._parts.exits.isolate(Isolate(proc=proc, reason=reason, capture_stack=False))

    def _granted(self, word: words.Granted, welcome: words.Welcome) -> None:
        sent_s = self._beats.pop(word.number, None)
        if sent_s is not None:
            self._granted_beat = word.number
            self._closed_everywhere = word.closed_step
            if welcome.epoch != self._followed:
                self._followed = welcome.epoch
                self._context.note(CoordinatorFollowed(epoch=welcome.epoch, leader=welcome.leader))
            self._allegiance = allegiance.granted(self._allegiance, welcome.epoch, sent_s, word.lease_s)
            self._candidate.stand(welcome.epoch)
            self._led_s = time.monotonic()

    # --- the regular look ---------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while self._context.ending is None or self._context.living():
            await asyncio.sleep(_LOOK_S)
            now_s = time.monotonic()
            if self._welcome is not None and now_s >= self._next_beat_s:
                self._send_beat(now_s)
            self._lease()
            self._obey_standing(now_s)
            if self._context.ending is None and now_s - self._led_s > self._patience_s():
                self._give_up(now_s)

    def _patience_s(self) -> float:
        """How long this node waits for a word. While others can be elected, it ends for want of an authority only."""
        options = self._context.options
        if self._elected and not self._candidate.problem:
            return math.inf
        if self._allegiance.epoch:
            return options.node_patience_s if self._elected else min(_UNLED_S, options.node_patience_s)
        return settings_of(options).deadlines.nodes_s

    def _give_up(self, now_s: float) -> None:
        if self._elected:
            reason = f"no word from a coordinator for {now_s - self._led_s:.0f} s: {self._candidate.problem}"
            self._context.fail(reason, NODE_ALONE)
            return
        why = f" ({self._missed_of[0]})" if self._missed_of else ""
        self._context.fail(
            f"no word from the coordinator for {now_s - self._led_s:.0f} s{why}, and without an authority nobody may "
            "take its place; give --authority or --store so that another node can",
            code_of_own_end(self._context.options, 1),
        )

    def _send_beat(self, now_s: float) -> None:
        if self._connection is None or self._welcome is None:
            return
        self._beat += 1
        self._next_beat_s = now_s + self._welcome.beat_s
        self._beats[self._beat] = now_s
        while len(self._beats) > _MEMBERS_MAX_BEATS:
            del self._beats[next(iter(self._beats))]
        closed, self._closed = tuple(self._closed), []
        self._connection.send(
            words.Beat(
                number=self._beat,
                sent_ns=time.monotonic_ns(),
                granted=self._granted_beat,
                signs=self._parts.watch.signs(),
                closed=closed,
                open_step=self._parts.watch.newest_open_step(),
                quiet_s=self._parts.watch.quiet_s(now_s),
                spent=sections.packed(self._parts.watch.spent()),
            )
        )

    def _obey_standing(self, now_s: float) -> None:
        """Workers of a node that is not led must not act. At its start a node has none."""
        order = allegiance.standing(self._allegiance, now_s).order
        if order is Order.ACT:
            self._order = order
            return
        self._candidate.stand(0)
        if self._order is Order.ACT and self._context.ending is None:
            self._context.say(
                "closeranks: no word from a coordinator: this node's ranks pause, and keep what they hold"
            )
            self._interrupt()
        if order is Order.FENCE and self._order is not Order.FENCE:
            self._fence()
        self._order = order

    def _lease(self) -> None:
        """Workers hold to the grant by themselves: this process may be frozen when it runs out."""
        until_ns = max(1, int(max(0.0, self._allegiance.until_s) * 1e9))
        for worker in self._context.living():
            worker.page.lease(until_ns)

    def _interrupt(self) -> None:
        acting = self._known.acting()
        for worker in self._members():
            if worker.proc in acting:
                reason = "this node has no word from a coordinator"
                worker.send(messages.Interrupt(term=self._context.term, reason=reason))
                self._known.interrupted(worker.proc)

    def _fence(self) -> None:
        acting = self._known.acting()
        for worker in self._members():
            if worker.proc in acting:
                self._end(worker.proc, "it did not pause while its node was cut off")

    def _members(self) -> list[Any]:
        workers = self._context.workers
        return [w for p in self._context.members.values() if (w := workers.get(p)) is not None and w.alive]
