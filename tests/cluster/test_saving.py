"""State that lasts on several nodes: who leads the saves, what savers say to each other, and whole runs."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from closeranks.checkpoint import keeper_messages as keeper
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.problems import Fenced
from closeranks.checkpoint.stores.opening import open_store
from closeranks.checkpoint.tiers import Tier, Tiers
from closeranks.cluster import saving_words
from closeranks.cluster.saving_circle import NodesCircle
from closeranks.cluster.saving_words import (
    AdoptAll,
    Back,
    Delivered,
    GiveUp,
    LeaveNow,
    LoadedHere,
    LoadPoint,
    Missed,
    PublishNow,
    Snap,
    Taken,
)
from closeranks.decide import saving
from closeranks.decide.protocol import EndRun, GroupLoaded
from closeranks.decide.restore_points import RestorePoint
from closeranks.decide.save_interval import EverySteps
from closeranks.drill.nodes.runs import AUTHORITY, NodesRun, NodesSpec
from closeranks.drill.nodes.stand import Stand
from closeranks.events import CheckpointCommitted, ProcessReady, StateLoaded, StepClosed, StoreOpened
from closeranks.nodes import words
from closeranks.nodes.probes import Life
from closeranks.run import saver, works
from closeranks.run.circle import Alone, Hearers, Role, role_of
from closeranks.run.last_save import EXIT_NOT_SAVED, LastSave
from closeranks.run.loading import Begin, Loading
from closeranks.run.saves import Saves
from closeranks.run.vault import Snapshot, Vault
from cluster.conftest import TOY
from situations.trial import Trial

PLACES = ("n0", "n1", "n0", "n1")


# --- roles and words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "places", "role"),
    [
        ("n0", PLACES, Role.LEAD),
        ("n1", PLACES, Role.FOLLOWER),
        ("n2", PLACES, Role.IDLE),
        ("n0", (), Role.IDLE),
        ("n2", ("n2", "n1"), Role.LEAD),
    ],
)
def test_the_node_of_seat_0_leads(node, places, role):
    assert role_of(node, places) is role


class Heard:
    """Collects what a circle tells."""

    def __init__(self) -> None:
        self.from_lead: list[saving_words.FromLead] = []
        self.to_lead: list[tuple[str, saving_words.ToLead]] = []
        self.terms = 0

    @property
    def hearers(self) -> Hearers:
        return Hearers(self.from_lead.append, lambda node, word: self.to_lead.append((node, word)), self.seated)

    def seated(self) -> None:
        self.terms += 1


class Relay:
    """A coordinator that does nothing but pass words on."""

    def __init__(self, *nodes: str) -> None:
        self.heard = {node: Heard() for node in nodes}
        self.circles = {node: NodesCircle(node, lambda word, n=node: self.pass_on(n, word), bool) for node in nodes}
        self.hopeless: list[words.Hopeless] = []
        for node, circle in self.circles.items():
            circle.attach(self.heard[node].hearers)

    def pass_on(self, sender: str, word: words.FromNode) -> None:
        if isinstance(word, words.Hopeless):
            self.hopeless.append(word)
            return
        assert isinstance(word, words.ToSavers)
        for node, circle in self.circles.items():
            if word.to in ("", node):
                circle.hear(words.FromSaver(node=sender, body=word.body))

    def seat(self, *places: str) -> None:
        for circle in self.circles.values():
            circle.seated(places)


def test_everybody_hears_the_lead_and_the_lead_hears_everybody():
    relay = Relay("n0", "n1", "n2")
    relay.seat("n0", "n1")
    relay.circles["n0"].tell_all(GiveUp(save=4))
    relay.circles["n1"].tell_lead(Taken(number=4))
    relay.circles["n0"].tell_lead(Taken(number=4))
    assert [heard.from_lead for heard in relay.heard.values()] == [[GiveUp(save=4)]] * 3
    assert relay.heard["n0"].to_lead == [("n1", Taken(number=4)), ("n0", Taken(number=4))]


def test_nobody_acts_on_words_of_a_node_that_does_not_lead_any_more():
    relay = Relay("n0", "n1", "n2")
    relay.seat("n0", "n1")
    for node in ("n1", "n2"):
        relay.circles[node].seated(("n2", "n1"))  # n0 is cut off and does not know
    relay.circles["n0"].tell_all(LeaveNow())
    assert [heard.from_lead for heard in relay.heard.values()] == [[LeaveNow()], [], []]
    relay.circles["n0"].back(("n2", "n1"))
    assert relay.circles["n0"].role is Role.IDLE
    assert not relay.heard["n2"].to_lead, "a node without seats has nothing to ask"
    relay.circles["n1"].back(("n2", "n1"))
    assert relay.heard["n2"].to_lead == [("n1", Back())]


def test_a_word_of_another_version_is_as_good_as_lost():
    relay = Relay("n0", "n1")
    relay.seat("n0", "n1")
    for body in (b"", b"\xc1", msgspec.msgpack.encode({"says": "Dance"}), msgspec.msgpack.encode({"says": "Snap"})):
        relay.circles["n1"].hear(words.FromSaver(node="n0", body=body))
    assert not relay.heard["n1"].from_lead


def test_the_end_of_the_job_is_asked_for_until_a_coordinator_hears_it():
    relay = Relay("n0")
    relay.circles["n0"].end_run("another run has taken the store over")
    relay.circles["n0"].back(("n0",))
    assert [word.reason for word in relay.hopeless] == ["another run has taken the store over"] * 2


def test_the_only_node_hears_itself_at_once():
    heard, failed = Heard(), []
    circle = Alone(lambda reason, code: failed.append((reason, code)))
    circle.attach(heard.hearers)
    circle.tell_all(LeaveNow())
    circle.tell_lead(Back())
    circle.end_run("no")
    assert (heard.from_lead, heard.to_lead, failed) == ([LeaveNow()], [("", Back())], [("no", 1)])


# --- the lead -------------------------------------------------------------------------------------------------------


class Circle:
    """Two nodes of two seats; keeps what the lead says."""

    several, node, role, led = True, "n0", Role.LEAD, True

    def __init__(self) -> None:
        self.nodes = frozenset({"n0", "n1"})
        self.said: list[Any] = []

    def attach(self, hearers: Hearers) -> None:
        del hearers

    def tell_all(self, word: saving_words.FromLead) -> None:
        self.said.append(word)

    def tell_lead(self, word: saving_words.ToLead) -> None:
        del word

    def end_run(self, reason: str, exit_code: int = 1) -> None:
        self.said.append((reason, exit_code))

    def last(self, kind: type[Any]) -> Any:
        return [word for word in self.said if isinstance(word, kind)][-1]


class Lead:
    """The lead's part with nobody around it."""

    def __init__(self, tiers: Tiers | None = None) -> None:
        self.circle = Circle()
        self.facts: list[Any] = []
        link = SimpleNamespace(ready=True, closed="", store_term=3)
        self.saver: Any = SimpleNamespace(link=link, problem="", durable_step=None, newest_of=lambda _: None)
        options = SimpleNamespace(grace_s=30.0, store="/nowhere")
        self.context: Any = SimpleNamespace(
            note=lambda _: None,
            say=lambda _: None,
            feed=self.facts.append,
            options=options,
            seats=4,
            stops=0,
            term=1,
        )
        settings = saving.Settings(every=EverySteps(steps=10))
        self.saves = Saves(self.context, self.saver, self.circle, settings, Tiers() if tiers is None else tiers)
        self.step = -1
        self.saves.begin(-1, durable=False)
        self.saves.newest_open_step = lambda: self.step + 1

    def close_steps(self, until: int, step_s: float = 0.1) -> None:
        while self.step < until:
            self.step += 1
            self.saves.step_done(self.step, step_s)

    def deliver(self, snap: Snap, *nodes: str, problem: str = "") -> None:
        for node in nodes:
            seats = (0, 2) if node == "n0" else (1, 3)
            word = Delivered(save=snap.save, seats=seats, image_bytes=10, pause_s=0.1, problem=problem)
            self.saves.delivered(node, word)


def test_a_snapshot_lies_ahead_of_every_seat_by_the_time_that_a_word_takes():
    lead = Lead()
    lead.close_steps(9)
    snap = lead.circle.last(Snap)
    asked_at = next(step for step in range(10) if snap.step == step + 1 + 5)
    assert asked_at < 10, "0.3 s are three steps, and two more: a seat may be a step ahead of what its page shows"


def test_a_seat_that_was_past_it_makes_the_lead_ask_farther_ahead():
    lead = Lead()
    lead.close_steps(9)
    first = lead.circle.last(Snap)
    lead.deliver(first, "n1", problem="seat 1 had closed step 15 when it was asked")
    assert lead.circle.last(GiveUp).save == first.save
    lead.close_steps(lead.step + 1)
    second = lead.circle.last(Snap)
    assert second.save != first.save
    assert second.step - (lead.step + 1) == 8, "twice 0.3 s"
    lead.deliver(second, "n0", "n1")
    lead.saves._hear(keeper.Freed(save=second.save))
    lead.saves._hear(_committed(second))
    lead.close_steps(lead.step + 20)
    assert lead.circle.last(Snap).step - lead.step <= 8, "what went well brings it back"


def _committed(snap: Snap) -> keeper.Committed:
    return keeper.Committed(
        save=snap.save, step=snap.step, generation=1, written_bytes=1, reused_bytes=0, seconds={"total": 0.1}
    )


def test_nothing_is_published_before_every_node_has_delivered_and_then_under_one_name():
    lead = Lead()
    lead.close_steps(9)
    snap = lead.circle.last(Snap)
    lead.deliver(snap, "n1")
    assert not [word for word in lead.circle.said if isinstance(word, PublishNow)]
    lead.deliver(snap, "n0")
    publish = lead.circle.last(PublishNow)
    assert (publish.save, publish.number, publish.world) == (snap.save, snap.save, 4)
    assert publish.attempt.startswith("t00000003-")
    assert publish.tiers == ("durable",), "on several nodes the lead says which"


def test_intervals_by_the_clock_are_judged_by_the_lead_alone():
    lead = Lead(Tiers(tiers=(Tier(name="durable", kind="durable", every_s=1000.0),)))
    tiers = []
    for _ in range(2):
        lead.close_steps(lead.step + 20)
        snap = lead.circle.last(Snap)
        lead.deliver(snap, "n0", "n1")
        tiers.append(lead.circle.last(PublishNow).tiers)
        lead.saves._hear(keeper.Freed(save=snap.save))
        lead.saves._hear(keeper.Kept(save=snap.save, step=snap.step, seconds={"total": 0.1}))
    assert tiers == [("durable",), ()]


def test_a_loss_gives_up_what_was_asked_for():
    lead = Lead()
    lead.close_steps(9)
    snap = lead.circle.last(Snap)
    lead.saves.loss_seen(cold=False)
    assert lead.circle.last(GiveUp).save == snap.save
    lead.deliver(snap, "n0", "n1")
    assert not [word for word in lead.circle.said if isinstance(word, PublishNow)], "it comes too late"


def test_what_waits_for_a_keeper_is_not_thrown_away_by_the_next_snapshot():
    lead = Lead()
    lead.close_steps(9)
    snap = lead.circle.last(Snap)
    lead.saver.link.ready = False
    lead.deliver(snap, "n0", "n1")
    lead.saves.let_leave(snap.step + 3)
    final = lead.circle.last(Snap)
    assert (final.final, final.unsaved) == (True, (snap.save,))
    lead.saver.link.ready = True
    lead.saves.ready()
    assert lead.circle.last(PublishNow).save == snap.save


def test_ranks_leave_when_the_last_state_is_copied_everywhere():
    lead = Lead()
    lead.close_steps(3)
    lead.saves.let_leave(3)
    snap = lead.circle.last(Snap)
    assert (snap.step, snap.final) == (3, True)
    lead.deliver(snap, "n0")
    assert LeaveNow() not in lead.circle.said
    lead.deliver(snap, "n1")
    assert lead.circle.said[-1] == LeaveNow()
    lead.saves.back("n1")
    assert lead.circle.said[-2:] == [LeaveNow(), LeaveNow()]


def test_ranks_do_not_wait_for_a_step_beyond_the_end_when_the_end_is_saved():
    # The last step was saved as any other; a loss after it took so long that the next save was asked for.
    lead = Lead()
    lead.close_steps(9, step_s=0.01)
    last = lead.circle.last(Snap)
    lead.close_steps(last.step, step_s=0.01)
    lead.deliver(last, "n0", "n1")
    lead.saves._hear(keeper.Freed(save=last.save))
    lead.saves._hear(_committed(last))
    beyond = lead.circle.last(Snap)
    assert beyond.step > last.step
    lead.saves.let_leave(last.step)
    assert lead.circle.said[-2:] == [GiveUp(save=beyond.save), LeaveNow()]


@pytest.mark.parametrize("closed", ["", "5 keepers were lost"])
def test_ranks_do_not_leave_while_the_last_state_waits_for_a_keeper(closed):
    # A lead that had just taken over: the loop ended, and with it the run, before its keeper had opened the store.
    lead = Lead()
    lead.close_steps(3)
    lead.saver.link.ready = False
    lead.saves.let_leave(3)
    lead.deliver(lead.circle.last(Snap), "n0", "n1")
    assert LeaveNow() not in lead.circle.said
    lead.saver.link.ready, lead.saver.link.closed = not closed, closed
    lead.saves.ready()
    assert [type(word) for word in lead.circle.said if isinstance(word, PublishNow | LeaveNow)] == (
        [LeaveNow] if closed else [PublishNow, LeaveNow]
    )


def test_a_snapshot_of_which_a_node_may_not_have_heard_is_asked_for_again():
    lead = Lead()
    lead.close_steps(9)
    lost = lead.circle.last(Snap)
    lead.deliver(lost, "n0")
    lead.saves.back("n0")
    assert lead.circle.last(Snap) == lost, "it has delivered"
    lead.saves.back("n1")
    assert lead.circle.last(GiveUp).save == lost.save
    lead.close_steps(lead.step + 1)
    assert lead.circle.last(Snap).save > lost.save


class Disowned:
    """In the place of the store: which writers were said not to come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writers: list[list[int]] = []
        monkeypatch.setattr(works.Works, "_say_in_store", self._say)

    def _say(self, attempt: str, writers: list[int], problem: str) -> None:
        assert attempt
        assert problem
        self.writers.append(sorted(writers))


@pytest.fixture
def disowned(monkeypatch: pytest.MonkeyPatch) -> Disowned:
    return Disowned(monkeypatch)


def _publishing() -> Lead:
    lead = Lead()
    lead.close_steps(9)
    lead.deliver(lead.circle.last(Snap), "n0", "n1")
    return lead


def test_nobody_waits_for_the_part_of_a_node_that_is_lost(disowned):
    lead = _publishing()
    lead.circle.nodes = frozenset({"n0", "n2"})
    lead.saves.seated()
    assert disowned.writers == [[1, 3]]


def test_nobody_waits_for_the_part_of_a_node_that_did_not_hear_of_the_save(disowned):
    lead = _publishing()
    number = lead.circle.last(PublishNow).number
    lead.saves.taken("n0", Taken(number=number))
    lead.saves._works.look(float("inf"))
    assert disowned.writers == [[1, 3]]


def test_a_part_that_is_lost_costs_the_save_and_not_the_run(disowned):
    lead = _publishing()
    number = lead.circle.last(PublishNow).number
    lead.saves.missed("n1", Missed(number=number, problem="the keeper was killed"))
    assert disowned.writers == [[1, 3]], "the lead's own keeper will find it there"
    lead.saves.missed("n0", Missed(number=number, problem="writer 1: the keeper was killed"))
    assert disowned.writers == [[1, 3], [0, 2]], "and so will those of the other nodes"
    assert "killed" in lead.circle.last(saving_words.Trouble).problem


def test_a_lead_that_was_another_node_uses_numbers_of_its_own():
    lead = Lead()
    lead.context.term = 7
    lead.saves.reset()
    lead.close_steps(9)
    assert lead.circle.last(Snap).save > 7 << 20


# --- every node -----------------------------------------------------------------------------------------------------


def test_images_that_nobody_will_save_hold_no_arena():
    vault = Vault()
    for save, published in ((1, True), (2, False), (3, False)):
        vault._snapshots[save] = Snapshot(save=save, step=save, procs={0: (5, 0)}, published=published)
    vault.drop_unpublished({3})
    assert [vault.get(save) is not None for save in (1, 2, 3)] == [True, False, True]


def test_ranks_do_not_wait_for_ever_for_a_lead_that_is_gone():
    left: list[bool] = []
    end = LastSave()
    end.let_leave(lambda: left.append(True), 11)
    assert not end.look(0.0)
    assert "did not say" in end.look(float("inf"))
    assert left == [True]
    ending = EndRun(outcome="completed", exit_code=0, reason="done")
    assert end.judge(ending, 10, "the store is full").exit_code == EXIT_NOT_SAVED
    assert end.judge(ending, 11, "").exit_code == 0


class Keeper:
    """In the place of a follower's keeper: it ends when the attempt that it waits for cannot be committed any more."""

    ready, closed, store_term = True, "", 3

    def __init__(self, settled: asyncio.Event) -> None:
        self._settled = settled

    def publish(self, message: keeper.Publish, fds: list[int]) -> None:
        del message, fds

    async def finish(self, patience_s: float) -> None:
        await asyncio.wait_for(self._settled.wait(), patience_s)


@pytest.mark.parametrize(
    ("lives", "given_up"),
    [
        ([Life.GONE], True),
        ([Life.ALIVE, Life.UNKNOWN, Life.ALIVE, Life.GONE], True),
        ([Life.ALIVE, Life.UNKNOWN, Life.UNKNOWN, Life.UNKNOWN, Life.UNKNOWN], True),
        ([Life.ALIVE, Life.UNKNOWN, Life.ALIVE], False),
    ],
)
def test_at_the_end_a_follower_waits_for_the_lead_while_it_lives_and_not_for_the_deadline_of_the_save(
    monkeypatch, lives, given_up
):
    """The lead's node may die in its last commit, when no coordinator is left that would tell."""
    told: list[tuple[str, list[int]]] = []
    clock = itertools.count()
    settled, answers = asyncio.Event(), deque(lives)

    def say(_url: str, attempt: str, writers: list[int], problem: str) -> None:
        assert "lost" in problem
        told.append((attempt, sorted(writers)))
        loop.call_soon_threadsafe(settled.set)

    async def life() -> Life:
        life = answers.popleft()
        if not answers and not given_up:
            settled.set()  # it has committed
        return life

    async def follow() -> EndRun:
        circle = Circle()
        circle.role, circle.life_of_lead = Role.FOLLOWER, life
        context: Any = SimpleNamespace(library=True, term=1, options=SimpleNamespace(grace_s=1.0), living=list)
        config: Any = SimpleNamespace(store="/nowhere")
        saver_of = saver.Saver(context, Vault(), config, circle)
        saver_of._role, saver_of.link = Role.FOLLOWER, Keeper(settled)
        images = {1: SimpleNamespace(fd=0)}
        saver_of._publish(
            PublishNow(save=1, number=7, attempt="t1", world=2, tiers=None),
            SimpleNamespace(images=images, step=3, data_position=None),
        )
        return await asyncio.wait_for(saver_of.finish(EndRun(outcome="completed", exit_code=0, reason="done")), 30)

    monkeypatch.setattr(saver, "disown", say)
    monkeypatch.setattr(saver, "_ASK_S", 0.0)
    monkeypatch.setattr(saver, "_LEAD_S", 3.0)
    monkeypatch.setattr(saver, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(follow())
    finally:
        loop.close()
    assert told == ([("t1", [1])] if given_up else [])


def test_at_the_end_images_that_wait_for_a_keeper_are_handed_to_it_before_it_may_end(monkeypatch):
    monkeypatch.setattr(saver, "_LOOK_S", 0.0)
    did: list[object] = []

    class Late(Keeper):
        ready = False

        def publish(self, message: keeper.Publish, fds: list[int]) -> None:
            super().publish(message, fds)
            did.append(message.save)

        async def finish(self, patience_s: float) -> None:
            self._settled.set()
            await super().finish(patience_s)
            did.append("end")

    async def end() -> None:
        options = SimpleNamespace(grace_s=1.0)
        context: Any = SimpleNamespace(library=False, term=1, options=options, living=list)
        config: Any = SimpleNamespace(store="/nowhere")
        late = saver.Saver(context, Vault(), config, Circle())
        late._role, late.link = Role.LEAD, Late(asyncio.Event())
        late._waiting.append(PublishNow(save=1, number=7, attempt="t1", world=2, tiers=None))
        whole = SimpleNamespace(complete=True, published=False, images={}, step=3, data_position=None)
        monkeypatch.setattr(late._vault, "get", lambda _: whole)
        ended = asyncio.ensure_future(late.finish(EndRun(outcome="completed", exit_code=0, reason="done")))
        await asyncio.sleep(0)
        late.link.ready = True
        late._keeper_changed()
        await ended

    asyncio.run(end())
    assert did == [7, "end"]


class Group:
    """The lead's part in a group that begins with saved state."""

    def __init__(self, *points: RestorePoint) -> None:
        self.circle = Circle()
        self.facts: list[Any] = []
        self.begun: list[RestorePoint] = []
        context: Any = SimpleNamespace(feed=self.facts.append, options=SimpleNamespace(store="/store"))
        self.loading = Loading(context, Vault(), self.circle, Begin(self.begun.append, lambda _: None))
        self.loading.begin(points)

    def answer(self, node: str, step: int, *problems: str, generation: int | None = None) -> None:
        self.loading.heard(node, LoadedHere(step=step, generation=generation or step, problems=problems))


def _point(step: int) -> RestorePoint:
    return RestorePoint(step=step, in_memory=False, generation=step)


def test_all_nodes_adopt_what_all_nodes_could_read():
    group = Group(_point(9), _point(5))
    group.answer("n0", 9)
    group.answer("n1", 9, "seat 1: the digest differs")
    assert group.circle.said[-1] == LoadPoint(step=5, generation=5)
    group.answer("n1", 9)  # late, of the state that was given up
    group.answer("n0", 5)
    assert not group.facts
    group.answer("n1", 5)
    assert group.facts == [GroupLoaded(step=5)]
    assert group.begun == [_point(5)]
    adopt = group.circle.last(AdoptAll)
    assert (adopt.step, adopt.durable) == (5, True)
    assert "the digest differs" in adopt.passed_over[0]


def test_a_node_that_was_out_of_reach_is_told_again_what_to_load():
    group = Group(_point(9))
    group.loading.again()
    assert group.circle.said == [LoadPoint(step=9, generation=9)] * 2


def test_a_job_whose_saved_state_cannot_be_used_ends_everywhere():
    group = Group(_point(9))
    group.answer("n0", 9)
    group.answer("n1", 9, "seat 1: no such object")
    reason, code = group.circle.said[-1]
    assert code == 1
    assert "no such object" in reason


# --- whole runs -----------------------------------------------------------------------------------------------------

STEPS, STEP_MS, HOLD = 36, 120, 26  # a save is asked for some steps ahead
WITHIN_S = 90.0  # on a busy machine; nothing waits for it to pass


@pytest.fixture
def nodes(tmp_path):
    """Starts the toy on two nodes with a store; ends what is left of it."""
    runs: deque[NodesRun] = deque()

    def start(*options: str, spare_nodes: int = 0, hold: bool = True) -> NodesRun:
        environment = (("TOY_HOLD", f"{HOLD}:{tmp_path / 'go'}"),) if hold else ()
        store = ("--store", str(tmp_path / "store"), "--save-every", "3", *options)
        spec = NodesSpec((TOY, str(STEPS), str(STEP_MS)), 2, spare_nodes, 1, "store", store, environment)
        run = NodesRun(spec, Stand((*spec.nodes, AUTHORITY)).__enter__(), tmp_path / f"run{len(runs)}")
        runs.append(run)
        run.start()
        return run

    yield start
    for run in runs:
        run.stand.__exit__()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The final states of the same world on one node that saves nothing."""
    trial = Trial(tmp_path_factory.mktemp("undisturbed"), "--nproc-per-node", "2", TOY, str(STEPS), str(STEP_MS))
    try:
        ended = trial.end()
    finally:
        trial.clean_up()
    assert ended.code == 0, ended.output
    return ended.finals


def seen(run: NodesRun, kind: type[Any]) -> list[Any]:
    return [record.event for record in run.all_records() if isinstance(record.event, kind)]


def saves_at(records) -> list[int]:
    """The steps that a node, as the lead, made durable."""
    return [record.event.step for record in records if isinstance(record.event, CheckpointCommitted)]


def hold_with_a_save(run: NodesRun) -> None:
    """Both seats sit before HOLD, and some state is durable."""
    held = run.wait_for(
        lambda: seen(run, CheckpointCommitted) and max((s.step for s in seen(run, StepClosed)), default=-1) >= HOLD - 1,
        WITHIN_S,
    )
    assert held, [one.output for one in run.finish().runs]


def end(run: NodesRun):
    run.wait_for(lambda: not run.running(), WITHIN_S)
    evidence = run.finish()
    living = [one for one in evidence.runs if not one.ended_by_drill]
    assert [one.exit_code for one in living] == [0] * len(living), [one.output for one in living]
    assert evidence.left == ()
    return evidence


def events(evidence, kind: type[Any]) -> list[Any]:
    return [record.event for one in evidence.runs for record in one.records if isinstance(record.event, kind)]


def finals(evidence) -> dict:
    return {seat: final for one in evidence.runs for seat, final in one.finals.items()}


@pytest.mark.process
@pytest.mark.timeout(300)
def test_nodes_that_are_all_killed_go_on_bit_for_bit(nodes, undisturbed, tmp_path):
    first = nodes()
    hold_with_a_save(first)
    told = max(event.step for event in seen(first, CheckpointCommitted))
    for node in first.spec.nodes:
        first.stand.kill(node)
    newest = CommitLog(open_store(str(tmp_path / "store"))).refresh().newest().manifest.step  # one may have followed
    assert newest >= told
    evidence = end(nodes("--resume", "auto", hold=False))
    assert {event.step for event in events(evidence, StateLoaded)} == {newest}, "on both nodes"
    assert min(event.step for event in events(evidence, StepClosed)) == newest + 1
    assert finals(evidence) == undisturbed
    history = CommitLog(open_store(str(tmp_path / "store"))).refresh()
    assert (history.newest().manifest.step, history.newest().manifest.world) == (STEPS - 1, 2)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_another_node_leads_the_saves_when_the_one_that_did_is_lost(nodes, undisturbed, tmp_path):
    run = nodes(spare_nodes=1)
    hold_with_a_save(run)
    assert run.wait_for(lambda: len({event.proc for event in seen(run, ProcessReady)}) == 3, WITHIN_S), "a spare waits"
    lead, *others = sorted(run.spec.nodes, key=lambda node: -len(saves_at(run.records(node))))
    run.stand.kill(lead)
    run.node_ended(lead)
    (tmp_path / "go").touch()
    evidence = end(run)
    saved = {one.node: saves_at(one.records) for one in evidence.runs}
    assert saved[lead]
    assert sum(bool(saved[node]) for node in others) == 1, "one leads, though both have seats"
    assert max(step for node in others for step in saved[node]) == STEPS - 1
    assert max(event.store_term for event in events(evidence, StoreOpened)) == 2
    assert {seat: final for seat, final in finals(evidence).items() if final.step == STEPS - 1} == undisturbed
    with pytest.raises(Fenced, match="has claimed term 2"):
        CommitLog(open_store(str(tmp_path / "store"))).require(1)


def test_the_words_between_savers_are_read_as_they_were_written():
    for word in (
        Snap(save=1, step=2, final=False),
        PublishNow(save=1, number=2, attempt="t", world=3, tiers=None),
        AdoptAll(step=3, durable=True, passed_over=("a",)),
        LoadedHere(step=1, generation=None),
    ):
        assert saving_words.decode(saving_words.encode(word)) == word
