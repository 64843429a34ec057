"""A record of the journal as one line of a log."""

from __future__ import annotations

import signal
import time
from enum import IntEnum

from closeranks.events import (
    Account,
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
    Decided,
    Diagnosed,
    DrillBegan,
    DrillEnded,
    ErrorSeen,
    FaultInjected,
    GroupsAbandoned,
    HookRan,
    IncidentClosed,
    IncidentOpened,
    IncidentWidened,
    NetworkSlow,
    NodeAccepted,
    NodeBlamed,
    NodeGone,
    NodeQuarantined,
    NodeStarted,
    NodeUnwell,
    NormalAgain,
    PersonNeeded,
    PhaseBegan,
    PreflightDone,
    ProcessExited,
    ProcessFailed,
    ProcessJoined,
    ProcessReady,
    ProcessSeated,
    ProcessStarted,
    Record,
    ReplicaQuarantined,
    ReplicaReadmitted,
    RestorePlanned,
    RunEnded,
    RunResumed,
    RunStarted,
    SaveFailed,
    SaveIntervalChosen,
    SeatStalled,
    SignalReceived,
    SnapshotTaken,
    StackCaptured,
    StateLoaded,
    StepClosed,
    StepHeld,
    StepReplayed,
    StepSkipped,
    StoreOpened,
    StragglerNamed,
    TermBegan,
    TierMissed,
    TierReached,
    TimerSummary,
)
from closeranks.observe.health import describe_health


class Level(IntEnum):
    """How much a reader wants to see a record."""

    DETAIL = 0  # every step, every account: too many for a console
    NOTE = 1
    TROUBLE = 2


_DETAILS = (
    Account,
    StepClosed,
    TimerSummary,
    SeatStalled,
    DeadlineChanged,
    ProcessJoined,
    PhaseBegan,
    SnapshotTaken,
    TierReached,
)
_TROUBLES = (
    ErrorSeen,
    ProcessFailed,
    IncidentOpened,
    IncidentWidened,
    FaultInjected,
    StepHeld,
    StepReplayed,
    StepSkipped,
    CurveSeen,
    SignalReceived,
    SaveFailed,
    TierMissed,
    CoordinatorLost,
    NodeGone,
    StragglerNamed,
    NetworkSlow,
    NodeUnwell,
    CanaryFailed,
    CorruptionSuspected,
    NodeQuarantined,
    ReplicaQuarantined,
    PersonNeeded,
)


def level_of(event: AnyEvent) -> Level:
    """Where the event belongs."""
    if isinstance(event, _TROUBLES):
        return Level.TROUBLE
    return Level.DETAIL if isinstance(event, _DETAILS) else Level.NOTE


def log_line(record: Record) -> str:
    """Local time, term and what happened; always one line."""
    clock = time.strftime("%H:%M:%S", time.localtime(record.wall_s))
    milliseconds = int(record.wall_s % 1 * 1000)
    return f"{clock}.{milliseconds:03d} t{record.term} {one_line(describe(record.event))}"


def one_line(text: str) -> str:
    """The text without line breaks and control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in text)


def counted(number: int, thing: str) -> str:
    """``1 seat``, ``2 seats``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def signal_name(number: int) -> str:
    """``SIGKILL``; the number of one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_ended(exited: ProcessExited) -> str:
    """``with code 1`` or ``by SIGKILL``."""
    return f"with code {exited.code}" if exited.signal is None else f"by {signal_name(exited.signal)}"


def describe(event: AnyEvent) -> str:
    """What happened, in words."""
    parts = (
        *(_describe_life, _describe_nodes, describe_health, _describe_trouble, _describe_recovery),
        *(_describe_doubts, _describe_state),
    )
    return next((told for part in parts if (told := part(event))), type(event).__name__)


def _describe_life(event: AnyEvent) -> str:
    match event:
        case RunStarted():
            sizes = f"{counted(event.seats, 'seat')}, {counted(event.spares, 'spare')}"
            return f"run started: {' '.join(event.command)}, {sizes}"
        case PreflightDone():
            return f"preflight: {'; '.join(event.findings) or 'all agree'}"
        case SignalReceived():
            return f"{signal_name(event.signal)}: {event.meaning}"
        case RunEnded():
            return f"run {event.outcome} with exit code {event.exit_code}: {event.reason}"
        case ProcessStarted():
            place = "as a spare" if event.seat is None else f"for seat {event.seat}"
            return f"p{event.proc} started {place} ({event.how}, pid {event.pid})"
        case ProcessJoined():
            return f"p{event.proc} joined"
        case ProcessReady():
            return f"p{event.proc} is ready{' and rehearsed' if event.rehearsed else ''}"
        case ProcessSeated():
            return f"p{event.proc} is s{event.seat}.{event.incarnation}"
        case ProcessExited():
            return f"p{event.proc} ended {how_ended(event)}{', as asked' if event.asked else ''}"
        case Account():
            spent = ", ".join(f"{category} {seconds:.1f} s" for category, seconds in event.seconds.items())
            return f"p{event.proc} spent {spent}"
        case StepClosed():
            again = " again" if event.repeated else ""
            return f"step {event.step} closed{again} in {event.closed_mono_s - event.began_mono_s:.3f} s"
        case TimerSummary():
            return f"seat {event.seat} {event.name}: p50 {event.p50_s:.4g} s, p99 {event.p99_s:.4g} s of {event.count}"
    return ""


def _describe_nodes(event: AnyEvent) -> str:
    match event:
        case NodeStarted():
            return f"node {event.rank} of {event.nodes} started on {event.hostname}: {counted(event.slots, 'slot')}"
        case CoordinatorBegan():
            return f"coordinator began: {event.reason}"
        case CoordinatorFollowed():
            return f"following the coordinator on {event.leader}, epoch {event.epoch}"
        case CoordinatorLost():
            return f"the coordinator of epoch {event.epoch} is not heard any more: {event.detail}"
        case NodeAccepted():
            places = ", ".join(f"{level} {name}" for level, name in event.domains.items())
            return f"node {event.node} accepted: {counted(event.slots, 'slot')}{f', {places}' if places else ''}"
        case NodeGone():
            return f"node {event.node} is gone: {event.detail}"
    return ""


def _describe_trouble(event: AnyEvent) -> str:
    match event:
        case ProcessFailed():
            step = f", step {event.step}" if event.step >= 0 else ""
            return f"p{event.proc} failed at {event.where}{step}: {event.error}: {event.message}"
        case ErrorSeen():
            who = "" if event.proc is None else f"p{event.proc}: "
            silent = "" if event.silent_s is None else f" (silent {event.silent_s:.2f} s)"
            return f"{event.detector}: {who}{event.detail}{silent}"
        case DeadlineChanged():
            return f"deadline of {event.phase} is now {event.allowed_s:.2f} s: {event.reason}"
        case StackCaptured():
            return f"stacks of p{event.proc} in {event.path}: it was at {event.summary}"
        case FaultInjected():
            place = "" if event.seat is None else f" in seat {event.seat}"
            return f"drill: {event.fault}{place} at step {event.step}, {event.moment}"
        case StepHeld():
            return f"step {event.step} held in attempt {event.attempt}: {'; '.join(event.findings)}"
        case StepReplayed():
            return f"step {event.step} replayed: {event.verdict}, {event.then}: {event.reason}"
        case StepSkipped():
            return f"step {event.step} closed without its update: {event.reason}"
        case CurveSeen():
            return f"{event.signature} at step {event.step}: {event.response}; {event.reason}"
        case IncidentOpened():
            return f"incident {event.incident} opened: {event.summary}"
        case IncidentWidened():
            return f"incident {event.incident} widened: {event.summary}"
        case HookRan():
            return f"hook of incident {event.incident} ({event.edge}): {event.problem or 'started'}"
    return ""


def _describe_recovery(event: AnyEvent) -> str:
    match event:
        case Diagnosed():
            return f"incident {event.incident}: diagnosed as {event.fault} (confidence {event.confidence:.2f})"
        case Decided():
            return f"incident {event.incident}: {event.rung}, term {event.term}: {event.reason}"
        case PhaseBegan():
            return f"incident {event.incident}: {event.phase}"
        case TermBegan():
            return f"term {event.term} began with {', '.join(f'p{proc}' for proc in event.members)}"
        case RestorePlanned():
            return f"going on after step {event.step}: {event.reason}" if event.step >= 0 else event.reason
        case GroupsAbandoned():
            return f"p{event.proc} keeps {counted(event.groups, 'group')} that nothing can wake until it ends"
        case SeatStalled():
            return f"seat {event.seat} was stalled for {event.until_mono_s - event.since_mono_s:.2f} s"
        case IncidentClosed():
            after = "" if event.first_step_s is None else f", first new step after {event.first_step_s:.2f} s"
            lost = f"at least {event.steps_lost}" if event.at_least else str(event.steps_lost)
            return f"incident {event.incident} {event.outcome}{after}, steps lost: {lost}"
        case NormalAgain():
            return f"incident {event.incident}: step time is normal again after {event.after_s:.2f} s"
        case BatchesSplitFiner():
            return f"incident {event.incident}: memory was exhausted, batches are split {event.finer} times finer"
        case CanaryPassed() | CanaryFailed():
            return f"incident {event.incident}: {canary_text(event)}"
    return ""


def canary_text(event: CanaryPassed | CanaryFailed) -> str:
    """What came of the steps that were watched after a recovery, with its numbers."""
    if isinstance(event, CanaryFailed):
        return f"canary failed at step {event.step}: {event.reason}"
    when = "at once" if event.back_after_steps == 0 else f"after {counted(event.back_after_steps, 'step')}"
    parts = [f"training is what it was before, {when}"]
    if event.loss is not None:
        parts.append(f"loss {event.loss:.4g}{_between(event.loss_band)}")
    if event.grad_norm is not None:
        parts.append(f"gradient norm {event.grad_norm:.4g}{_between(event.norm_band)}")
    parts.append(f"step {event.step_s:.3g} s{_between(event.step_band_s)}")
    if event.replicas:
        parts.append(f"digests equal on {counted(event.replicas, 'seat')}")
    return f"canary passed at step {event.step}: {', '.join(parts)}"


def _between(band: tuple[float, float] | None) -> str:
    return "" if band is None else f" (band {band[0]:.4g} to {band[1]:.4g})"


def _describe_doubts(event: AnyEvent) -> str:
    match event:
        case CorruptionSuspected():
            return f"the state may hold wrong values ({event.source}): {event.detail}; saves are not trusted until then"
        case CorruptionCleared():
            return f"saves are trusted again ({event.source}): {event.detail}"
        case NodeBlamed():
            where = f", {event.unit}" if event.unit else ""
            return f"incident {event.incident}: {event.fault} counts against {event.host}{where}"
        case NodeQuarantined():
            return f"{event.host} is kept out for {event.hours:.3g} h: {event.reason}"
        case PersonNeeded():
            return f"a person is needed about {event.about}: {event.reason}"
        case ReplicaQuarantined():
            return f"replica {event.replica} is quarantined: {event.reason}"
        case ReplicaReadmitted():
            return f"replica {event.replica} is asked again: {event.reason}"
        case DrillBegan():
            return f"a drill begins: {event.what}, for {event.for_s:g} s"
        case DrillEnded():
            met = f"{event.requests} requests, {event.errors} errors, {event.degraded} degraded"
            return f"the drill is over ({event.reason}): {event.what}; struck {event.struck} calls; {met}"
    return ""


def _describe_state(event: AnyEvent) -> str:
    match event:
        case StoreOpened():
            newest = "empty" if event.newest_step is None else f"newest step {event.newest_step}"
            return f"store {event.store}: {counted(event.generations, 'generation')}, {newest}, term {event.store_term}"
        case RunResumed():
            place = "from the beginning" if event.step is None else f"after step {event.step}"
            return f"goes on {place}, where {event.from_run} ended"
        case SaveIntervalChosen():
            return f"state is saved every {event.interval_s:.4g} s: {event.reason}"
        case SnapshotTaken():
            return f"snapshot of step {event.step}: {event.image_bytes:,} bytes, training paused {event.pause_s:.3f} s"
        case CheckpointCommitted():
            reused = f", {event.reused_bytes:,} reused" if event.reused_bytes else ""
            size = f"{event.written_bytes:,} bytes written{reused}"
            return f"step {event.step} is durable as generation {event.generation}: {size}, {event.took_s:.2f} s"
        case SaveFailed():
            return f"SAVE FAILED: step {event.step} is not durable: {event.problem}"
        case TierReached():
            weaker = f"; {event.problem}" if event.problem else ""
            return (
                f"step {event.step} reached {event.tier}: {event.written_bytes:,} bytes, {event.took_s:.2f} s{weaker}"
            )
        case TierMissed():
            return f"step {event.step} did not reach {event.tier}: {event.problem}"
        case CheckpointsRetired():
            numbers = ", ".join(map(str, event.generations))
            return f"given up by the retention: generations {numbers} ({event.freed_bytes:,} bytes)"
        case CheckpointVerified():
            verdict = "verified" if event.held else "NOT RESTORABLE"
            return f"generation {event.generation} {verdict} in {event.took_s:.2f} s: {event.detail}"
        case StateLoaded():
            passed = f"; passed over: {'; '.join(event.passed_over)}" if event.passed_over else ""
            return f"state after step {event.step} loaded from {event.source} in {event.took_s:.2f} s{passed}"
    return ""
