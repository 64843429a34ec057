"""The parts of a job on several nodes that need no process."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace

import msgspec
import pytest

from closeranks.cluster import progress as cluster_progress
from closeranks.cluster.agreement import Agreement
from closeranks.cluster.announcing import NOWHERE, Announcer, Members
from closeranks.cluster.attendance import Attendee
from closeranks.cluster.candidate import Boot
from closeranks.cluster.known import Known
from closeranks.cluster.progress import Progress
from closeranks.cluster.sections import Sections, packed
from closeranks.cluster.steps import Signs, Steps
from closeranks.decide.protocol import (
    BeginTerm,
    GoOn,
    InterruptTerm,
    ProcEnded,
    ProcJoined,
    ProcPaused,
    ProcReady,
    ProcRegrouped,
    ProcRestored,
    ProcResumed,
    StartGroup,
    StartProc,
    StepDone,
)
from closeranks.decide.state import Stage
from closeranks.detect.progress import Bounds
from closeranks.events import StragglerNamed
from closeranks.nodes import words
from closeranks.nodes.words import Address, Beat, ClosedHere, Confirm, Confirmed, SeatSign
from closeranks.signs import Doing, Reading, Spent
from closeranks.vitals import Vitals, create_memfd

# --- what a supervisor knows of its processes -------------------------------------------------------------------


def stage(known: Known, proc: int) -> str:
    return next(k.stage for k in known.procs if k.proc == proc)


def trained(node: str = "n1") -> Known:
    """Seats 2 and 3 of four sit on n1 and train under term 1."""
    known = Known(node)
    known.told(StartGroup(term=1, procs=(1, 2, 3, 4), nodes=("n0", "n0", "n1", "n1")))
    for proc in (3, 4):
        known.hear(ProcJoined(proc=proc))
    known.told(BeginTerm(term=1, procs=(1, 2, 3, 4), incarnations=(1, 1, 1, 1)))
    for proc in (3, 4):
        known.hear(ProcRegrouped(proc=proc, term=1, groups="g"))
        known.hear(ProcRestored(proc=proc, term=1, step=-1, digest="d"))
    known.told(GoOn(term=1))
    for proc in (3, 4):
        known.hear(ProcReady(proc=proc, replicated=True, settled=True))
    return known


def paused(proc: int) -> ProcPaused:
    return ProcPaused(proc=proc, term=1, closed_step=7, intact=True, settled=True, digest="d")


def test_a_node_knows_its_own_processes_and_no_others():
    known = trained()
    assert [(k.proc, k.seat, k.incarnation, k.stage, k.looped) for k in known.procs] == [
        (3, 2, 1, Stage.LOOPING, True),
        (4, 3, 1, Stage.LOOPING, True),
    ]


def test_who_has_paused_is_not_interrupted_once_more_by_its_node():
    # It has nothing more to say: a new leader would wait for its pause for ever.
    known = trained()
    known.hear(paused(3))
    for proc in known.acting():
        known.interrupted(proc)
    assert (stage(known, 3), stage(known, 4)) == (Stage.PAUSED, Stage.INTERRUPTED)
    known.told(InterruptTerm(term=1, procs=(3, 4), reason=""))
    assert stage(known, 3) == Stage.PAUSED


def test_a_spare_that_takes_a_seat_resumes_and_an_end_is_remembered():
    known = trained()
    known.told(StartProc(proc=9, seat=None, incarnation=None, node="n1"))
    known.hear(ProcReady(proc=9, replicated=True, settled=True))
    known.hear(ProcEnded(proc=3, code=None, signal=9, crash=None, left_at_step=None))
    known.hear(paused(4))
    known.told(BeginTerm(term=2, procs=(1, 2, 9, 4), incarnations=(1, 1, 2, 1)))
    for proc in (9, 4):
        known.hear(ProcRegrouped(proc=proc, term=2, groups="g"))
        known.hear(ProcRestored(proc=proc, term=2, step=7, digest="d"))
    known.told(GoOn(term=2))
    assert stage(known, 4) == Stage.RESUMING
    known.hear(ProcResumed(proc=4, term=2))
    assert stage(known, 4) == Stage.LOOPING
    assert [(k.proc, k.seat, k.incarnation, k.term) for k in known.procs] == [(4, 3, 1, 2), (9, 2, 2, 2)]
    assert [fact.proc for fact in known.ended] == [3]


# --- steps of all nodes -----------------------------------------------------------------------------------------


def closed(*steps: int) -> tuple[ClosedHere, ...]:
    return tuple(ClosedHere(step=step, duration_s=0.1 * (step + 1)) for step in steps)


def test_a_step_is_done_when_the_last_node_has_closed_it_and_takes_as_long_as_the_slowest():
    steps = Steps()
    steps.begin({"n0", "n1"}, -1)
    assert steps.add("n0", closed(0, 1)) == ()
    assert steps.add("n9", closed(0)) == ()  # no seat is there
    done = steps.add("n1", (ClosedHere(step=0, duration_s=5.0, period_s=6.0),))
    assert done == (StepDone(step=0, duration_s=5.0, period_s=6.0),)
    assert [one.step for one in steps.add("n1", closed(1, 2))] == [1]
    assert steps.done == 1


def test_a_restore_plan_does_its_step_and_voids_what_came_after():
    steps = Steps()
    steps.begin({"n0", "n1"}, -1)
    steps.add("n0", closed(0, 1))
    assert [one.step for one in steps.begin({"n0", "n2"}, 0)] == [0]
    assert steps.begin({"n0", "n2"}, 0) == ()
    steps.add("n2", closed(1))
    assert steps.done == 0  # n0 has to close it again
    assert [one.step for one in steps.add("n0", closed(1))] == [1]


def test_a_step_that_a_fast_node_closed_long_ago_is_done_with_the_slow_one_and_each_of_many_once():
    steps = Steps()
    steps.begin({"n0", "n1", "n2"}, -1)
    ahead = tuple(ClosedHere(step=step, duration_s=1.0) for step in range(3))
    assert steps.add("n0", ahead) == ()
    assert steps.add("n1", ahead[:1]) == ()
    assert [done.step for done in steps.add("n2", ahead)] == [0]
    assert [done.step for done in steps.add("n1", ahead[1:])] == [1, 2]
    assert steps.add("n0", ahead) == ()
    steps.begin({"n0", "n2"}, 1)
    assert steps.add("n0", ahead) == ()
    assert [done.step for done in steps.add("n2", ahead)] == [2]


def test_a_new_coordinator_counts_on_from_what_all_have_closed():
    steps = Steps()
    steps.resume({"n0": 5, "n1": 7})
    assert steps.done == 5
    assert [one.step for one in steps.add("n0", closed(6))] == [6]


def sign(moved_ns: int) -> SeatSign:
    numbers = dict.fromkeys(Reading._fields, 0)
    reading = Reading(**{**numbers, "moved_ns": moved_ns, "doing": Doing.FORWARD})
    return SeatSign(proc=3, seat=2, asked=False, reading=reading)


def moves(signs: Signs) -> dict[int, int]:
    """By process: its last move in the coordinator's clock."""
    readings, behind_ns = signs.readings()
    assert behind_ns.keys() == readings.keys()
    return {proc: reading.moved_ns + behind_ns[proc] for proc, reading in readings.items()}


def test_a_delayed_beat_does_not_look_like_a_move():
    signs = Signs()
    signs.seat({3: 2})
    signs.take("n1", "b", Beat(number=1, sent_ns=1_000, signs=(sign(900),)), now_ns=50_000)
    assert moves(signs) == {3: 49_900}
    signs.take("n1", "b", Beat(number=2, sent_ns=2_000, signs=(sign(900),)), now_ns=99_000)
    assert moves(signs) == {3: 49_900}


def test_only_processes_that_sit_where_the_newest_term_put_them_are_judged():
    signs = Signs()
    signs.seat({3: 2})
    signs.take("n1", "b", Beat(number=1, sent_ns=1_000, signs=(sign(900),)), now_ns=50_000)
    signs.seat({4: 2})
    assert moves(signs) == {}  # its seat was given to another process
    signs.seat({3: 2})
    assert moves(signs) == {3: 49_900}
    signs.take("n1", "b", Beat(number=2, sent_ns=2_000), now_ns=99_000)
    assert moves(signs) == {}  # it has ended
    signs.take("n1", "c", Beat(number=1, sent_ns=1_000, signs=(sign(900),)), now_ns=70_000)
    assert moves(signs) == {3: 69_900}  # another supervisor, by another clock
    signs.forget("n1")
    assert moves(signs) == {}


# --- preflight --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("torch", "fatal"), [("2.13", ""), ("2.12", "torch differs: 2.13 on seat 0, 2.12 on seat 1")])
def test_seats_of_different_nodes_are_compared_when_the_last_has_joined(torch, fatal):
    agreement = Agreement()
    agreement.begin((1, 2))
    assert agreement.take(words.SeatFacts(proc=1, seat=0, facts={"torch": "2.13"})) is None
    assert agreement.take(words.SeatFacts(proc=7, seat=None, facts={"torch": "1.0"})) is None  # a spare
    done = agreement.take(words.SeatFacts(proc=2, seat=1, facts={"torch": torch}))
    assert done is not None and done.fatal == fatal
    assert done.event.findings == ((fatal,) if fatal else ())


# --- announcing a term ------------------------------------------------------------------------------------------


class Wire:
    """Stands for the connections: what is said to which node, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, object]] = []

    def attendee(self, node: str) -> Attendee:
        wire = self

        class Line:
            def send(self, word: object) -> None:
                wire.said.append((node, word))

        found = Attendee(node=node, boot=node)
        found.connection = Line()  # type: ignore[assignment]
        return found


MEMBERS = Members(3, (1, 2), ("n0", "n1"), (1, 1))
TERM = BeginTerm(term=3, procs=(1, 2), incarnations=(1, 1))


def announce(allowed: bool, reached: str = "", opened: str = "") -> tuple[Address | None, list[str], list[str]]:
    """Play the nodes; the address, what was asked of whom, and the complaints."""
    wire, complaints = Wire(), []

    async def record(_members: Members) -> bool:
        return allowed

    async def play() -> Address | None:
        nodes = {node: wire.attendee(node) for node in ("n0", "n1")}
        announcer = Announcer(record, nodes.get, lambda _term, problem: complaints.append(problem))
        work = asyncio.ensure_future(announcer.prepare(TERM, MEMBERS))
        while not work.done():
            await asyncio.sleep(0)
            for _, word in wire.said:
                if isinstance(word, words.OpenStore):
                    address = Address(host="h", port=9)
                    announcer.store_opened(words.TermStoreOpened(term=word.term, address=address, problem=opened))
                elif isinstance(word, words.Reach):
                    announcer.reached(words.Reached(nonce=word.nonce, problem=reached))
        return work.result()

    address = asyncio.run(play())
    return address, [f"{node} {type(word).__name__}" for node, word in wire.said], complaints


def test_a_term_that_the_authority_refuses_is_never_announced():
    assert announce(allowed=False) == (None, [], [])


def test_a_term_meets_in_the_store_of_its_first_node_which_another_node_has_reached():
    address, asked, complaints = announce(allowed=True)
    assert (address, asked, complaints) == (Address(host="h", port=9), ["n0 OpenStore", "n1 Reach"], [])


def test_a_store_that_cannot_be_reached_or_had_is_complained_of():
    _, _, complaints = announce(allowed=True, reached="no route")
    assert complaints == ["n1 cannot reach the store of n0 at h:9: no route"]
    _, asked, complaints = announce(allowed=True, opened="no such address")
    assert (asked, complaints) == (["n0 OpenStore"], ["n0: no such address"])


def test_without_its_first_node_a_term_meets_nowhere():
    async def record(_members: Members) -> bool:
        return True

    async def play() -> Address | None:
        return await Announcer(record, lambda _: None, lambda *_: None).prepare(TERM, MEMBERS)

    assert asyncio.run(play()) == NOWHERE


# --- the lease of a worker ---------------------------------------------------------------------------------------


def test_a_worker_begins_no_update_after_its_lease_though_nobody_tells_it():
    fd = create_memfd("vitals")
    page = Vitals(fd)
    assert page.may_act  # on one node there is no lease
    page.lease(time.monotonic_ns() + 10**12)
    assert page.may_act
    page.lease(time.monotonic_ns())
    assert not page.may_act
    page.close()
    os.close(fd)


# --- candidates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "ended"), [("a.0", True), ("a.1", True), ("a.2", False), ("a.3", False), ("b.0", False), ("", False)]
)
def test_only_earlier_candidates_of_the_same_supervisor_are_known_to_have_ended(other, ended):
    assert Boot("a", 2).outlived(other) is ended


# --- who keeps the others waiting -------------------------------------------------------------------------------


def test_a_slow_node_is_named_from_what_the_nodes_beats_carry():
    progress = Progress(Bounds(), lambda _node, _word: None, calls_roll=True)
    progress.domains_of = lambda node: {"rack": f"r{node[1]}"}
    progress.begin(Members(1, (1, 2, 3, 4), ("n0", "n0", "n1", "n1"), (1, 1, 1, 1)), fresh=True)
    for step in range(30):
        for node, procs in (("n0", (1, 2)), ("n1", (3, 4))):
            slow_s = 0.05 if node == "n1" else 0.0
            signs = tuple(
                SeatSign(
                    proc=proc,
                    seat=proc - 1,
                    asked=False,
                    reading=sign(step).reading,
                )
                for proc in procs
            )
            told = step if node == "n0" else step - step % 4  # what one tells of may be older than what another does
            of_each = {"data": (0.1 + slow_s) * told, "forward": 0.1 * told}
            spent = packed({proc: Spent(told, of_each) for proc in procs})
            own_s = {proc: 0.2 + slow_s + (step + proc) % 3 * 0.001 for proc in procs}
            closed = ClosedHere(step=step, duration_s=0.3, own_s=own_s, period_s=0.3)
            beat = Beat(number=step, sent_ns=step, signs=signs, closed=(closed,), spent=spent)
            progress.beat(node, "boot", beat)
    (named,) = progress.take_notes()
    assert isinstance(named, StragglerNamed)
    assert (named.seats, named.scope, named.where, named.cause) == ((2, 3), "node", "n1", "data loading")


def test_a_step_was_closed_when_the_last_node_closed_it_and_not_when_its_beat_came(monkeypatch):
    """Clocks of nodes have nothing in common: what counts is how long each beat had been in the making."""
    progress = Progress(Bounds(), lambda _node, _word: None, calls_roll=True)
    progress.begin(Members(1, (1, 2), ("n0", "n1"), (1, 1)), fresh=True)
    now_ns, done = 10**12, []
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    for node, sent_ns, waited_ns in (("n0", 7 * 10**9, 10**8), ("n1", 3 * 10**15, 7 * 10**8)):
        closed = ClosedHere(step=0, duration_s=0.3, closed_ns=sent_ns - waited_ns)
        done += progress.beat(node, "boot", Beat(number=1, sent_ns=sent_ns, closed=(closed,)))
        now_ns += 2 * 10**8
    assert [one.ago_s for one in done] == [pytest.approx(0.3)]  # n0 told of it 0.2 s ago, and had done so 0.1 s before


def test_seconds_in_operations_that_cannot_be_read_are_those_of_their_node_alone():
    sections = Sections([packed({1: Spent(4, {"data": 0.5})}), msgspec.Raw(b"\x81\x01\x02"), packed({2: Spent(0, {})})])
    assert dict(sections) == {1: Spent(4, {"data": 0.5}), 2: Spent(0, {})}


# --- who is frozen ----------------------------------------------------------------------------------------------


def test_a_frozen_seat_is_found_by_what_its_node_says_whatever_the_seat_was_doing(monkeypatch):
    now_ns, asked = 10**9, []
    monkeypatch.setattr(cluster_progress, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    progress = Progress(Bounds(), lambda node, word: asked.append((node, word)), calls_roll=True)
    progress.begin(Members(1, (1,), ("n0",), (1,)), fresh=True)
    reading = sign(3).reading._replace(doing=Doing.RECOVERING, moved_ns=now_ns)
    signs = (SeatSign(proc=1, seat=0, asked=False, reading=reading),)
    progress.beat("n0", "boot", Beat(number=1, sent_ns=now_ns, signs=signs))
    facts = []
    for _ in range(120):  # looks 50 ms apart
        now_ns += 50_000_000
        before = len(asked)
        facts += progress.look(("n0",))
        for _, word in asked[before:]:
            confirmed = Confirmed(proc=word.proc, answered=False, busy=False, routine=word.routine)
            assert progress.confirmed(confirmed) == ()
    assert asked == [("n0", Confirm(proc=1, routine=True))] * 2
    (stuck,) = facts
    assert (stuck.proc, stuck.detail) == (1, "its control thread does not answer, it is idle")


def test_a_seat_that_others_wait_for_is_found_although_the_first_answer_is_lost_with_a_link(monkeypatch):
    """It was asked once and never again; the roll call was no help, for a control thread that answers is alive."""
    now_ns, asked, facts = 10**9, [], []
    monkeypatch.setattr(cluster_progress, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    progress = Progress(Bounds(), lambda node, word: asked.append((node, word)), calls_roll=True)
    progress.begin(Members(1, (1, 2), ("n0", "n1"), (1, 1)), fresh=True)
    idle = sign(3).reading._replace(doing=Doing.FORWARD, moved_ns=now_ns, rehearsed_ns=10**8)
    waits = idle._replace(doing=Doing.BACKWARD, entered=idle.returned + 1)
    for seat, reading in enumerate((waits, idle)):
        signs = (SeatSign(proc=seat + 1, seat=seat, asked=False, reading=reading),)
        progress.beat(f"n{seat}", "boot", Beat(number=1, sent_ns=now_ns, signs=signs))
    lost = False
    for _ in range(240):  # looks 50 ms apart
        now_ns += 50_000_000
        before = len(asked)
        facts += progress.look(("n0", "n1"))
        for _, word in asked[before:]:
            if not word.routine and not lost:
                lost = True
            else:
                answer = Confirmed(proc=word.proc, answered=True, busy=False, routine=word.routine)
                facts += progress.confirmed(answer)
    assert [node for node, word in asked if not word.routine] == ["n1", "n1"]
    (stuck,) = facts
    assert (stuck.proc, stuck.detail) == (2, "its control thread answers, it is idle")
