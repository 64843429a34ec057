"""Progress of the whole job, from the nodes' beats: steps that all seats closed, and who is stuck."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from closeranks.cluster.announcing import Members
from closeranks.cluster.steps import Signs, Steps
from closeranks.decide.protocol import Fact, GroupStuck, ProcStuck, StepDone
from closeranks.detect import progress, roll_call
from closeranks.detect.progress import Standstill, Suspect, Verdict
from closeranks.detect.straggler import Step
from closeranks.detect.straggler_cause import Place
from closeranks.events import AnyEvent, DeadlineChanged
from closeranks.nodes.words import Beat, Confirm, Confirmed
from closeranks.run.cadence import Cadence
from closeranks.run.doubts import how_it_does
from closeranks.run.stragglers import Stragglers


class _Part(msgspec.Struct):
    """What is known of a step that is not closed everywhere: grows with every node, so it is not copied for each."""

    own_s: dict[int, float] = {}
    period_s: float = 0.0
    closed_ns: int = 0  # CLOCK_MONOTONIC of the coordinator


class Progress:
    """Merges what nodes tell, and follows up suspicions: ``ask(node, word)`` has the node look at a process."""

    def __init__(self, bounds: progress.Bounds, ask: Callable[[str, Confirm], None], *, calls_roll: bool) -> None:
        """``calls_roll``: whoever shows vitals has a control thread until it ends."""
        self._steps = Steps()
        self._signs = Signs()
        self._watch = progress.Watch(bounds=bounds)
        self._roll = roll_call.Roll(bounds=bounds) if calls_roll else None
        self._answers: dict[int, roll_call.Answer] = {}  # by process, since the last look
        self._ask = ask
        self._nodes: tuple[str, ...] = ()  # by seat
        self._places: frozenset[str] = frozenset()  # the same nodes, each once
        self._seats: dict[int, int] = {}  # by process, under the newest term
        self._suspects: dict[int, Suspect] = {}
        self._open_steps: dict[str, int] = {}
        self._cadence = Cadence()
        self._notes: list[AnyEvent] = []
        self._quiet_s: dict[str, float] = {}  # by node
        self._closed: dict[int, _Part] = {}  # steps that are not closed everywhere
        self._sites: dict[int, Place] = {}  # by process; empty: not worked out for the newest term
        self.stragglers = Stragglers()
        self.domains_of: Callable[[str], Mapping[str, str]] = lambda _: {}

    @property
    def quiet_s(self) -> float:
        """How long no process of any node has printed anything: all that scripts without the library show."""
        return min((self._quiet_s.get(node, 0.0) for node in self._places), default=0.0)

    def heard_silence(self) -> None:
        """It was acted on."""
        self._quiet_s.clear()

    @property
    def open_step(self) -> int:
        """The highest step that a seat is known to have opened or to be about to."""
        return max(self._open_steps.values(), default=0)

    def knows_open_steps(self, present: Iterable[str]) -> bool:
        """Whether each of these nodes that has seats has told of its own since this leader began."""
        return self._places.intersection(present) <= self._open_steps.keys()

    @property
    def closed_step(self) -> int:
        """The newest step that every seat is known to have closed, -1: none."""
        return self._steps.done

    def steps_within(self, seconds: float) -> int:
        """How many steps the job usually does in that time, rounded up."""
        return int(self._cadence.steps_in(seconds)) + 1

    # --- terms --------------------------------------------------------------------------------------------------

    def begin(self, members: Members, *, fresh: bool) -> None:
        """A term is announced."""
        self._seat(members)
        self._forget_parts()
        if fresh:
            self._steps.begin(self._places, -1)
            self._open_steps.clear()
            self._quiet_s.clear()

    def settle(self, step: int) -> tuple[StepDone, ...]:
        """The members go on after this step."""
        self._forget_parts()
        return self._steps.begin(self._places, step)

    def resume(self, members: Members, closed: Mapping[str, int]) -> None:
        """A new coordinator finds members that train: ``closed`` is the newest step of each node's seats."""
        self._seat(members)
        self._steps.resume({node: closed.get(node, -1) for node in members.nodes})

    def _seat(self, members: Members) -> None:
        self._nodes, self._places = members.nodes, frozenset(members.nodes)
        self._seats = {proc: seat for seat, proc in enumerate(members.procs)}
        self._sites = {}
        self._signs.seat(self._seats)

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._signs.forget(node)
        self._open_steps.pop(node, None)

    # --- beats --------------------------------------------------------------------------------------------------

    def beat(self, node: str, boot: str, beat: Beat) -> tuple[StepDone, ...]:
        """A node's news; the steps that are closed everywhere by it."""
        now_ns = time.monotonic_ns()
        self._signs.take(node, boot, beat, now_ns)
        self._open_steps[node] = beat.open_step
        self._quiet_s[node] = beat.quiet_s
        self._gather(beat, now_ns)
        done = tuple(self._timed(one, now_ns) for one in self._steps.add(node, beat.closed))
        for one in done:
            self._cadence.add(one.period_s)
        if done:
            self._weigh(done)
        return done

    def _gather(self, beat: Beat, now_ns: int) -> None:
        for here in beat.closed:
            part = self._closed.setdefault(here.step, _Part())
            part.own_s.update(here.own_s)
            part.period_s = max(part.period_s, here.period_s)
            if here.closed_ns:
                part.closed_ns = max(part.closed_ns, now_ns - max(0, beat.sent_ns - here.closed_ns))

    def _timed(self, done: StepDone, now_ns: int) -> StepDone:
        """With the time since the last node closed it: a beat may have waited for longer than a step takes."""
        part = self._closed.get(done.step)
        if part is None or not part.closed_ns:
            return done
        return msgspec.structs.replace(done, ago_s=(now_ns - part.closed_ns) / 1e9)

    def _weigh(self, done: tuple[StepDone, ...]) -> None:
        """Whether somebody keeps the others waiting."""
        places = self._seated()
        spent = self._signs.sections()
        for one in done:
            whole = self._closed.pop(one.step, None)
            if whole is not None:
                step = Step(own_s=whole.own_s, spent=spent, period_s=whole.period_s)
                self._notes += self.stragglers.closed(one.step, step, places)
        self._closed = {number: part for number, part in self._closed.items() if number > done[-1].step}

    def _seated(self) -> Mapping[int, Place]:
        """Where each process sits: worked out once for a term, in which a node that comes back is the same."""
        if not self._sites:
            domains = {node: self.domains_of(node) for node in self._places}
            sites = ((proc, seat, self._nodes[seat]) for proc, seat in self._seats.items())
            self._sites = {proc: Place(seat=seat, node=node, domains=domains[node]) for proc, seat, node in sites}
        return self._sites

    def _forget_parts(self) -> None:
        self._closed.clear()
        self.stragglers.disturbed()

    def look(self, present: Iterable[str]) -> tuple[Fact, ...]:
        """Judge progress, while every node with a seat is heard: a silent one would look like stuck processes."""
        now_ns = time.monotonic_ns()
        frozen = self._hear_answers(now_ns)
        if not self._places.issubset(present):
            return frozen
        readings, behind_ns = self._signs.readings()
        self._watch, findings = progress.observe(self._watch, readings, now_ns, behind_ns)
        if self._roll is not None:
            self._roll, calls = roll_call.look(self._roll, readings, now_ns, behind_ns)
            for one in calls:
                self._ask(self._node_of(one.proc), Confirm(proc=one.proc, routine=True))
        return (*frozen, *self._follow(findings))

    def confirmed(self, word: Confirmed) -> tuple[Fact, ...]:
        """A node looked at a process."""
        if word.routine:
            self._answers[word.proc] = roll_call.Answer(answered=word.answered, busy=word.busy)
            return ()
        suspect = self._suspects.pop(word.proc, None)
        if suspect is None:
            return ()
        self._watch, verdict, findings = progress.confirm(
            self._watch, word.proc, answered=word.answered, busy=word.busy
        )
        facts = self._follow(findings)
        if verdict not in (Verdict.STUCK, Verdict.BLOCKED):
            return facts
        return (*facts, _stuck(suspect, roll_call.Answer(answered=word.answered, busy=word.busy)))

    def _hear_answers(self, now_ns: int) -> tuple[ProcStuck, ...]:
        answers, self._answers = self._answers, {}
        if self._roll is None:
            return ()
        self._roll, frozen = roll_call.heard(self._roll, answers, now_ns)
        return tuple(_stuck(one, answers[one.proc]) for one in frozen)

    def take_notes(self) -> list[AnyEvent]:
        """What is worth a record since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def _follow(self, findings: tuple[progress.Finding, ...]) -> tuple[Fact, ...]:
        facts: list[Fact] = []
        for finding in findings:
            match finding:
                case Suspect():
                    self._suspects[finding.proc] = finding
                    self._ask(self._node_of(finding.proc), Confirm(proc=finding.proc))
                case Standstill():
                    facts.append(GroupStuck(detail=finding.detail, suspects=finding.suspects))
                case DeadlineChanged():
                    self._notes.append(finding)
        return tuple(facts)

    def _node_of(self, proc: int) -> str:
        return self._nodes[self._seats[proc]]


def _stuck(found: Suspect | roll_call.Frozen, answer: roll_call.Answer) -> ProcStuck:
    detail = how_it_does(answered=answer.answered, busy=answer.busy)
    return ProcStuck(proc=found.proc, detail=detail, silent_s=found.silent_s, allowed_s=found.allowed_s)
