"""The rows of the drill matrix as data: each kind of fault, its model, and what is right in each phase. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from closeranks import faults
from closeranks.drill.expected import Expected, Phase, Row
from closeranks.drill.fault import Kind, Lasting, Moment
from closeranks.drill.nodes.faults import NodeKind
from closeranks.events import Rung

_WARM: Final = (Rung.SPARE, Rung.FORK)
_COLD: Final = (Rung.RESPAWN, Rung.COLD_RESTART)
_IN_PLACE: Final = (Rung.WAIT, Rung.RETRY, Rung.REGROUP, *_WARM)
_SEEN_S: Final = 1.0  # an end or an exception: the kernel or the process itself says so
_SILENT_S: Final = 7.0  # a silence: deadlines of the first steps are 5 s or more, and the suspect is asked
_WRONG_S: Final = 5.0  # a wrong value: at the next comparison
_LOOKED_S: Final = 3.0  # what is measured of a node: with --look-every 1s at the next look
_MISSED_S: Final = 7.0  # what is not told any more: when it was missing in three looks
_SAVED_S: Final = 5.0  # a save: at its end
_CONFIRMED_S: Final = 35.0  # at the end nobody waits but for an answer, and whoever copies its state cannot give it

_NO_STATE: Final = "not applicable: there is no state yet"
_NO_STEP: Final = "not applicable: it strikes what a step computes, and no step is open"
_ONLY_COLLECTIVE: Final = "not applicable: it strikes a collective"
_ONLY_LOADER: Final = "not applicable: it strikes what loads data, before the forward pass"
_WHERE_IT_BEGINS: Final = "not applicable: it lasts from its step on; counted where it begins, under forward"
_IN_SCRIPT: Final = "not applicable: in the training thread, counted under forward; the store is written when saving"
_ANY_MOMENT: Final = "not applicable: links are cut at any moment of a step; counted under collective"
_LATER_SAVE: Final = "not applicable: the store is not in use; seen at the next save, counted under saving"
_OVER_BEFORE: Final = "not applicable: the run is over before the next look at its node"

Phases = Mapping[Phase, Expected | str]


def _only(why_not: str, phases: Phases) -> Phases:
    """These phases; in the others there is nothing to drill."""
    return {phase: phases.get(phase, why_not) for phase in Phase}


def _everywhere(expected: Expected, but: Phases = {}) -> Phases:  # noqa: B006 - never changed
    """The same in all phases, but for some."""
    return {phase: but.get(phase, _amid(phase, expected)) for phase in Phase}


def _amid(phase: Phase, expected: Expected) -> Expected:
    """A recovery that widens keeps the diagnosis of its first loss, and has the time of two."""
    if phase is Phase.RECOVERING:
        return replace(expected, faults=(), said=(), rto_s=2 * expected.rto_s)
    return expected


def _disk(in_script: Expected, of_store: Expected) -> Phases:
    found = {Phase.FORWARD: in_script, Phase.SAVING: of_store, Phase.IDLE: of_store}
    return _only(_LATER_SAVE, {**found, Phase.COLLECTIVE: _IN_SCRIPT, Phase.OPTIMIZER: _IN_SCRIPT})


def _ends(fault: faults.Fault) -> Expected:
    return Expected(faults=(fault.name,), detect_s=_SEEN_S, rungs=_WARM)


def _stands(*names: str) -> Expected:
    return Expected(faults=names, detect_s=_SILENT_S, rungs=_WARM, rto_s=10.0)


def _cold(expected: Expected, *names: str) -> Expected:
    """Before the first step a loss starts the group anew."""
    slower_s = 15.0
    return replace(
        expected,
        faults=names or expected.faults,
        rungs=_COLD,
        rto_s=expected.rto_s + slower_s,
        detect_s=expected.detect_s if expected.detect_s <= _SEEN_S else slower_s,
    )


_KILLED, _FROZEN, _HELD = _ends(faults.KILLED), _stands(faults.FROZEN.name), _stands("process hung", "process frozen")
_NATIVE, _CRASHED, _HUNG = _ends(faults.NATIVE_CRASH), _ends(faults.CRASHED), _stands(faults.HUNG.name)
_UNANSWERED: Final = replace(_HUNG, detect_s=_CONFIRMED_S)
_LEFT: Final = replace(_ends(faults.LEFT_EARLY), rungs=_WARM)
_STOPPED: Final = Expected(detect_s=_SEEN_S, rungs=(Rung.STOP,), exit_codes=(1,))
_MISMATCH: Final = Expected(
    faults=(faults.MISMATCHED_COLLECTIVE.name,), detect_s=_SILENT_S, rungs=_IN_PLACE, rto_s=10.0
)
_SHORT: Final = replace(_MISMATCH, faults=(faults.MISMATCHED_COLLECTIVE.name, "shape mismatch"))
_WRONG: Final = Expected(
    faults=(faults.CORRUPT_REPLICA.name, "wrong result"),
    said=("transient", "persistent"),
    detect_s=_WRONG_S,
    rungs=_IN_PLACE,
    rto_s=10.0,
    maskable=True,
)
_NOT_FINITE: Final = replace(_WRONG, faults=(*_WRONG.faults, "non-finite loss", "bad numerics"), said=("finite",))
_DATA: Final = replace(_WRONG, faults=(), said=("batch", "sample"), maskable=False)
_STRAGGLER: Final = Expected(said=("computation", "slow device", "more work"), detect_s=_WRONG_S)
_FULL: Final = replace(_CRASHED, faults=(faults.DISK_FULL.name,), rungs=(*_WARM, Rung.REPLACE_NODE))
_BROKEN_DISK: Final = replace(_CRASHED, faults=("storage error",))
_UNSAVED: Final = Expected(said=("No space left",), detect_s=_SAVED_S, culprit=False, exit_codes=(0, 74))
# What a repeated call overcomes leaves nothing to tell.
_UNWRITTEN: Final = replace(_UNSAVED, said=("Input/output error",), maskable=True)
_TORN: Final = replace(_UNSAVED, said=("truncated", "expected", "digest"), maskable=True)
_NO_ROOM: Final = replace(_CRASHED, faults=("shared memory full",))
_CLOCK: Final = Expected(said=("clock",), detect_s=_LOOKED_S, culprit=False)
_METRICS: Final = Expected(said=("missing",), detect_s=_MISSED_S, culprit=False)
_DEVICE: Final = replace(_CRASHED, faults=("device memory error",))
_PARTITION: Final = Expected(
    faults=(faults.NETWORK_LOSS.name, faults.NODE_LOST.name),
    detect_s=10.0,
    rungs=(*_IN_PLACE, Rung.REPLACE_NODE, Rung.RESPAWN),
    rto_s=30.0,
)
# Transport repeats what is lost: steps take longer, and nobody's own time does. One recovery is too short to tell.
_LOSSES: Final = replace(_PARTITION, said=("out of reach", "longer in collectives"), detect_s=15.0, culprit=False)
_LOSSES_AMID: Final = replace(_LOSSES, faults=(), said=(), maskable=True, rto_s=2 * _LOSSES.rto_s)
_NOTHING: Final = Expected(detect_s=0.0, culprit=False)

_LOOKS: Final = ("--look-every", "1s")
# What is struck before the sum leaves finite numbers that all replicas share: only computing twice finds it.
_TWICE: Final = ("--recompute-share", "1")
_VALUES: Final = {Phase.START_UP: _NO_STATE}


def _row(name: str, kind: Kind | NodeKind | None, where: str, phases: Phases, **more: object) -> Row:
    return Row(name=name, kind=kind, where=where, phases=phases, **more)  # type: ignore[arg-type]


_PROCESS: Final = (
    _row("kill", Kind.KILL, "process", _everywhere(_KILLED, {Phase.START_UP: _cold(_KILLED)})),
    _row("freeze", Kind.FREEZE, "process", _everywhere(_FROZEN, {Phase.START_UP: _cold(_FROZEN)})),
    _row("segfault", Kind.SEGFAULT, "process", _everywhere(_NATIVE, {Phase.START_UP: _cold(_NATIVE)})),
    _row(
        "exception",
        Kind.EXCEPTION,
        "process",
        _everywhere(_CRASHED, {Phase.START_UP: _cold(_CRASHED, faults.START_UP_CRASH.name, faults.CRASHED.name)}),
    ),
    _row("held-gil", Kind.GIL, "process", _everywhere(_HELD, {Phase.START_UP: _cold(_HELD)})),
    _row("block", Kind.BLOCK, "process", _everywhere(_HUNG, {Phase.START_UP: _cold(_HUNG), Phase.IDLE: _UNANSWERED})),
    _row("early-exit", Kind.EXIT0, "process", _everywhere(_LEFT, {Phase.START_UP: _STOPPED})),
)
_GROUP: Final = (
    _row("skipped-collective", Kind.SKIP, "call", _only(_ONLY_COLLECTIVE, {Phase.COLLECTIVE: _MISMATCH})),
    _row("wrong-size", Kind.RESIZE, "call", _only(_ONLY_COLLECTIVE, {Phase.COLLECTIVE: _SHORT})),
    _row(
        "delay-15%",
        Kind.DRAG,
        "process",
        _only(_WHERE_IT_BEGINS, {Phase.FORWARD: _STRAGGLER}),
        lasting=Lasting.STUCK,
        steps=150,
    ),
    _row(
        "packet-loss",
        NodeKind.LOSSES,
        "link",
        _only(_ANY_MOMENT, {Phase.COLLECTIVE: _LOSSES, Phase.RECOVERING: _LOSSES_AMID}),
        lasting=Lasting.INTERMITTENT,
        for_s=20.0,
        percent=5,
        steps=120,
        calm_steps=50,
    ),
    _row(
        "partition",
        NodeKind.CUT_OFF,
        "link",
        _only(_ANY_MOMENT, {Phase.COLLECTIVE: _PARTITION, Phase.RECOVERING: _amid(Phase.RECOVERING, _PARTITION)}),
        for_s=12.0,
    ),
)
_DISKS: Final = (
    _row(
        "no-space",
        Kind.NO_SPACE,
        "a failing call",
        _disk(_FULL, _UNSAVED),
        lasting=Lasting.STUCK,
    ),
    _row(
        "io-error",
        Kind.IO_ERROR,
        "a failing call",
        _disk(_BROKEN_DISK, _UNWRITTEN),
        lasting=Lasting.INTERMITTENT,
    ),
    _row(
        "torn-write",
        Kind.TORN_WRITE,
        "a call that lies",
        _only(_LATER_SAVE, {Phase.SAVING: _TORN, Phase.IDLE: _TORN}),
        options=("--verify-every", "1s"),
    ),
    _row("shm-full", Kind.SHM_FULL, "a failing call", _only(_ONLY_LOADER, {Phase.FORWARD: _NO_ROOM})),
)
_CORRUPTION: Final = (
    _row(
        "nan",
        Kind.NAN,
        "gradient",
        _only(_NO_STEP, {Phase.FORWARD: _NOT_FINITE, Phase.COLLECTIVE: _NOT_FINITE, Phase.OPTIMIZER: _NOT_FINITE}),
        moments={Phase.COLLECTIVE: Moment.BACKWARD},
    ),
    _row("flip-weight", Kind.FLIP_WEIGHT, "weight", _everywhere(_WRONG, _VALUES), bits=1),
    _row("flip-3-bits", Kind.FLIP_WEIGHT, "weight", _everywhere(_WRONG, _VALUES), bits=3),
    _row(
        "flip-gradient",
        Kind.FLIP_GRADIENT,
        "gradient",
        _only(_NO_STEP, {Phase.COLLECTIVE: _WRONG, Phase.OPTIMIZER: _WRONG}),
        moments={Phase.COLLECTIVE: Moment.BACKWARD},
        bits=1,
        asks=_TWICE,
    ),
    _row(
        "stuck-gradient",
        Kind.FLIP_GRADIENT,
        "gradient",
        _only(_NO_STEP, {Phase.COLLECTIVE: _WRONG, Phase.OPTIMIZER: _WRONG}),
        moments={Phase.COLLECTIVE: Moment.BACKWARD},
        lasting=Lasting.STUCK,
        bits=1,
        asks=_TWICE,
    ),
    _row(
        "flip-activation",
        Kind.FLIP_ACTIVATION,
        "activation",
        _only(_NO_STEP, {Phase.FORWARD: _WRONG}),
        lasting=Lasting.INTERMITTENT,
        bits=1,
        asks=_TWICE,
    ),
    _row("flip-optimizer", Kind.FLIP_OPTIMIZER, "optimizer state", _everywhere(_WRONG, _VALUES), bits=1),
    _row("duplicate-batch", Kind.DUPLICATE_BATCH, "data", _only(_ONLY_LOADER, {Phase.FORWARD: _DATA})),
    _row("stale-batch", Kind.STALE_BATCH, "data", _only(_ONLY_LOADER, {Phase.FORWARD: _DATA})),
)
_NODE: Final = (
    _row(
        "clock-jump",
        Kind.CLOCK_JUMP,
        "clock",
        _everywhere(_CLOCK, {Phase.IDLE: _OVER_BEFORE}),
        options=_LOOKS,
        steps=150,
    ),
    _row(
        "lost-metrics",
        Kind.LOST_METRICS,
        "telemetry",
        _everywhere(_METRICS, {Phase.IDLE: _OVER_BEFORE}),
        options=_LOOKS,
        steps=300,
    ),
    _row(
        "accelerator-code",
        Kind.XID,
        "device",
        _everywhere(_DEVICE, {Phase.START_UP: _cold(_DEVICE), Phase.IDLE: _NO_STEP}),
    ),
)
_CONTROLS: Final = (
    _row("pause", Kind.PAUSE, "nothing", _everywhere(_NOTHING, {Phase.RECOVERING: _NOTHING}), control=True, for_s=1.0),
    _row("slow-once", Kind.PAUSE, "nothing", _only(_NO_STEP, {Phase.FORWARD: _NOTHING}), control=True, for_s=0.2),
    _row("slow-save", Kind.PAUSE, "nothing", _only(_LATER_SAVE, {Phase.SAVING: _NOTHING}), control=True, for_s=3.0),
    _row(
        "evaluation",
        Kind.SECTION,
        "nothing",
        _only("not applicable: it takes place between two steps; counted under forward", {Phase.FORWARD: _NOTHING}),
        control=True,
        for_s=4.0,
        moments={Phase.FORWARD: Moment.BETWEEN},
    ),
)
ROWS: Final = (*_PROCESS, *_GROUP, *_DISKS, *_CORRUPTION, *_NODE, *_CONTROLS)
