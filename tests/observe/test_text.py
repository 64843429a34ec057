from typing import get_args

import pytest

from closeranks.events import (
    AnyEvent,
    BatchesSplitFiner,
    CanaryFailed,
    CanaryPassed,
    CheckpointCommitted,
    CheckpointsRetired,
    CheckpointVerified,
    CoordinatorBegan,
    CoordinatorFollowed,
    CoordinatorLost,
    CorruptionCleared,
    CorruptionSuspected,
    CurveSeen,
    DeadlineChanged,
    DrillBegan,
    DrillEnded,
    ErrorSeen,
    GroupsAbandoned,
    HookRan,
    IncidentOpened,
    IncidentWidened,
    NetworkSlow,
    NodeAccepted,
    NodeBlamed,
    NodeChecked,
    NodeGone,
    NodeQuarantined,
    NodeStarted,
    NodeUnwell,
    NodeWell,
    PersonNeeded,
    ProcessExited,
    ReplicaQuarantined,
    ReplicaReadmitted,
    RestorePlanned,
    RunEnded,
    RunResumed,
    RunStarted,
    SaveFailed,
    SaveIntervalChosen,
    SignalReceived,
    SnapshotTaken,
    StateLoaded,
    StepClosed,
    StepHeld,
    StepReplayed,
    StepSkipped,
    StoreOpened,
    StragglerEased,
    StragglerNamed,
    TierMissed,
    TierReached,
)
from closeranks.observe.text import Level, describe, level_of, log_line, one_line
from synthetic_journal import eventful_run

OTHERS = (
    SignalReceived(signal=15, meaning="end after this step"),
    DeadlineChanged(phase="backward", allowed_s=2.5, reason="slowest of 20 steps"),
    GroupsAbandoned(proc=3, seat=1, groups=2),
    IncidentWidened(incident=1, seats=(2,), summary="seat 2 too"),
    HookRan(incident=1, edge="opened", problem=""),
    StepHeld(step=5, attempt=1, findings=("gradients of seats [2] are not finite",), evidence=(), samples=(), seed=7),
    StepReplayed(step=5, verdict="transient", seats=(2,), then="apply", reason="nothing is odd in it"),
    StepSkipped(step=5, reason="the same again"),
    CurveSeen(step=90, signature="flat line", response="compare ranks", reason="nothing is learned"),
    StoreOpened(store="/ckpt", store_term=2, generations=3, newest_step=40),
    RunResumed(from_run="runs/a", store="/ckpt", step=40),
    SaveIntervalChosen(interval_s=60.0, reason="write time 2 s"),
    SnapshotTaken(save=1, step=50, image_bytes=1000, pause_s=0.01),
    CheckpointCommitted(save=1, step=50, generation=7, written_bytes=1000, reused_bytes=0, took_s=0.5),
    SaveFailed(step=60, problem="no space left"),
    TierReached(step=50, tier="peers", written_bytes=10, took_s=0.1),
    TierMissed(step=50, tier="disk", problem="no space left"),
    CheckpointsRetired(generations=(3, 4), freed_bytes=2000),
    CheckpointVerified(generation=7, held=True, detail="4 shards", took_s=0.2),
    StateLoaded(step=40, source="store", took_s=0.3),
    NodeStarted(rank=1, nodes=2, slots=2, boot="b1", hostname="h1"),
    CoordinatorBegan(reason="the first"),
    CoordinatorFollowed(epoch=1, leader="n0"),
    CoordinatorLost(epoch=1, detail="silent for 3 s"),
    NodeAccepted(node="n1", boot="b1", slots=2, domains={"rack": "r7"}),
    NodeGone(node="n1", boot="b1", detail="its supervisor refused a connection"),
    StragglerNamed(
        step=40,
        seats=(2,),
        scope="seat",
        where="seat 2",
        cause="data loading",
        slower=0.2,
        z=9.0,
        break_even_s=360.0,
        reason="data takes 30 ms a step, 10 ms elsewhere",
    ),
    StragglerEased(step=80, seats=(2,)),
    NetworkSlow(step=90, apart_s=0.4, usual_s=0.1),
    NodeChecked(level="quick", outcomes={"disk": "passed", "accelerator": "absent: no driver"}, took_s=0.5),
    NodeUnwell(sign="temperature", detail="it rises by 0.4 a minute", drain=True),
    NodeWell(sign="temperature"),
    CanaryPassed(
        incident=1,
        step=52,
        back_after_steps=2,
        replicas=4,
        loss=2.5,
        loss_band=(2.0, 3.0),
        grad_norm=1.0,
        norm_band=(0.5, 2.0),
        step_s=0.2,
        step_band_s=(0.1, 0.3),
    ),
    CanaryFailed(
        incident=1, step=70, steps=20, loss=None, loss_band=None, grad_norm=None, norm_band=None, reason="loss 9"
    ),
    CorruptionSuspected(source="numerics", detail="a loss of 1e9"),
    CorruptionCleared(source="numerics", detail="the replay agrees"),
    NodeBlamed(node="n1", host="h1", fault="native crash", unit="slot 1", incident=1),
    NodeQuarantined(node="n1", host="h1", hours=24.0, reason="native crash 3 times"),
    PersonNeeded(about="h1", reason="too many nodes are out"),
    BatchesSplitFiner(incident=1, finer=2),
    ReplicaQuarantined(replica="b", reason="it differs from two others"),
    ReplicaReadmitted(replica="b", reason="its known answers were right again"),
    DrillBegan(what="kill cache", for_s=30.0),
    DrillEnded(what="kill cache", reason="its time is over", struck=3, requests=40, errors=0, degraded=9),
)


def every_kind():
    run = eventful_run().end()
    return {type(event): event for event in (*(record.event for record in run.records), *OTHERS)}


def test_every_kind_of_event_is_described_in_words():
    events = every_kind()
    assert set(events) == set(get_args(AnyEvent))
    for kind, event in events.items():
        assert describe(event) != kind.__name__


def test_a_start_of_a_group_does_not_speak_of_a_step_before_the_first():
    plan = RestorePlanned(term=1, step=-1, donor=None, receivers=(), outvoted=(), reason="the group is new")
    assert describe(plan) == "the group is new"


def test_a_line_has_time_term_and_words():
    record = eventful_run().end().records[-1]
    _, term, words = log_line(record).split(" ", 2)
    assert (term, words) == (
        "t4",
        "run completed with exit code 0: every seat closed the last step",
    )


def test_control_characters_of_a_message_cannot_reach_the_terminal():
    assert one_line("a\nb\x1b[31mc\r\u202ed") == "a b [31mc  d"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ProcessExited(proc=3, seat=1, signal=9, asked=True), "p3 ended by SIGKILL, as asked"),
        (
            ErrorSeen(detector="progress", seat=1, proc=3, detail="in backward", silent_s=1.5),
            "progress: p3: in backward (silent 1.50 s)",
        ),
        (SignalReceived(signal=150, meaning="x"), "signal 150: x"),
        (RunStarted(command=("t.py",), seats=1, spares=2, pid=1, versions={}), "run started: t.py, 1 seat, 2 spares"),
        (
            RestorePlanned(term=1, step=-1, donor=None, receivers=(), outvoted=(), reason="a new run"),
            "a new run",
        ),
        (ErrorSeen(detector="exit", seat=None, proc=None, detail="gone"), "exit: gone"),
        (
            NodeStarted(rank=2, nodes=2, slots=1, boot="b2", hostname="h2"),
            "node 2 of 2 started on h2: 1 slot",
        ),
        (NodeAccepted(node="n1", boot="b1", slots=2, domains={}), "node n1 accepted: 2 slots"),
    ],
)
def test_words_fit_what_is_known(event, text):
    assert describe(event) == text


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (StepClosed(step=1, began_mono_s=0, closed_mono_s=1, losses=()), Level.DETAIL),
        (RunEnded(outcome="failed", exit_code=1, reason="x"), Level.NOTE),
        (IncidentOpened(incident=1, seats=(), summary="x"), Level.TROUBLE),
    ],
)
def test_steps_are_details_and_incidents_are_trouble(event, level):
    assert level_of(event) is level


def test_a_failed_save_is_told_loudly():
    failed = SaveFailed(step=60, problem="no space left")
    assert level_of(failed) is Level.TROUBLE
    assert "SAVE FAILED: step 60 is not durable" in describe(failed)
