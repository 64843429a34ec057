"""Numbers that look wrong: non-finite gradients, outliers, and the signatures of a training curve.

Norms and losses are heavy-tailed and drift over orders of magnitude, so both are judged by their logarithm against
the median of a window, in units of its median absolute deviation (MAD): neither moves when a few values are wild.
What a finding leads to is data (``RESPONSES``); only a replay may convict a device (``corruption.judge``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from closeranks.detect.corruption import Evidence, vote

OUTLIER_Z: Final = 8.0
WINDOW: Final = 128
WINDOW_LEAST: Final = 32
# A curve that is nearly constant would make any change an outlier: 8 units are then a factor of 1.8.
_MAD_LEAST: Final = 0.05
_NORMAL: Final = 0.6745  # MAD of a normal distribution with deviation 1
_NEAR: Final = 0.999 * math.exp(OUTLIER_Z * _MAD_LEAST / _NORMAL)  # so many medians are no outlier, whatever the MAD

_CALM_Z: Final = 4.0
_PLATEAU_STEPS: Final = 32
_FLAT_STEPS: Final = 64
_FLAT: Final = 1e-6
_BLOCK: Final = 64
_BLOCKS: Final = 4
_RISE_Z: Final = 1.0
_SCALE_FALL: Final = 2.0**-10
_UNAPPLIED_STEPS: Final = 16


class Signature(StrEnum):
    """Kinds of findings."""

    NON_FINITE = "non-finite"  # a seat's own gradients, before the reduction
    OUTLIER = "outlier"  # a seat's own gradient norm
    MISMATCH = "reduction mismatch"  # gradients that were reduced over all seats differ by seat
    SAME_DATA = "same data"  # two seats train on the same batch, or one on that of the step before
    SPOT_CHECK = "spot check"  # what was computed twice came out differently
    SPIKE_RECOVERED = "spike and recovery"
    SPIKE_PLATEAU = "spike and plateau"
    SLOW_DIVERGENCE = "slow divergence"
    FLAT_LINE = "flat line"
    SCALE_COLLAPSE = "loss-scale collapse"


class Action(StrEnum):
    """What can be done about a finding."""

    GO_ON = "go on and keep evidence"
    REPLAY = "pause and replay"
    SKIP = "skip the batch"
    COMPARE = "compare ranks"
    REBUILD = "rebuild the group"
    ROLL_BACK = "roll back"
    STOP = "stop"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What answers a signature."""

    action: Action
    then: Action = Action.GO_ON  # when the replay found the same: it is the data or the mathematics
    generations: int = 0  # to roll back
    lr_factor: float = 1.0  # for the learning rate after that
    skip_batches: bool = False  # whether the batches in which it began should be left out after that
    reason: str


RESPONSES: Final[Mapping[Signature, Response]] = MappingProxyType(
    {
        Signature.NON_FINITE: Response(
            action=Action.REPLAY,
            then=Action.SKIP,
            reason="one update with it makes every weight non-finite on every seat",
        ),
        Signature.OUTLIER: Response(
            action=Action.REPLAY, reason="rare batches have such gradients; a device that errs has them only once"
        ),
        Signature.MISMATCH: Response(
            action=Action.REPLAY,
            then=Action.REBUILD,
            reason="what all seats share was changed on its way or afterwards; new connections, if it repeats",
        ),
        Signature.SAME_DATA: Response(
            action=Action.REPLAY,
            reason="a loader that errs gives another batch when it is asked again; data may repeat",
        ),
        Signature.SPOT_CHECK: Response(
            action=Action.REPLAY, reason="a device that errs differs from others that compute the same, or from itself"
        ),
        Signature.SPIKE_RECOVERED: Response(action=Action.GO_ON, reason="training absorbed it"),
        Signature.SPIKE_PLATEAU: Response(
            action=Action.ROLL_BACK, generations=1, skip_batches=True, reason="the model was damaged by a few updates"
        ),
        Signature.SLOW_DIVERGENCE: Response(
            action=Action.ROLL_BACK, generations=2, lr_factor=0.5, reason="updates are too large for where the model is"
        ),
        Signature.FLAT_LINE: Response(
            action=Action.COMPARE, reason="nothing is learned: gradients vanish, or updates do not reach the model"
        ),
        Signature.SCALE_COLLAPSE: Response(
            action=Action.ROLL_BACK, generations=1, lr_factor=0.5, reason="every step overflows, none is applied"
        ),
    }
)


def in_words(response: Response) -> str:
    """``roll back 2 generations, learning rate x 0.5``."""
    plural = "" if response.generations == 1 else "s"
    parts = [
        f"{response.action} {response.generations} generation{plural}"
        if response.generations
        else response.action.value
    ]
    parts += [f"learning rate x {response.lr_factor:g}"] if response.lr_factor != 1.0 else []
    parts += ["leave out the batches in which it began"] if response.skip_batches else []
    return ", ".join(parts)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that looks wrong; ``seats`` are those in which it shows."""

    signature: Signature
    seats: tuple[int, ...]
    detail: str


# --- outliers ---------------------------------------------------------------------------------------------------


def robust_z(value: float, window: Sequence[float]) -> float:
    """How far ``log(value)`` lies above the median of the window's logarithms, in robust deviations.

    0 while the window is too short to judge; all values are positive and finite.
    """
    if len(window) < WINDOW_LEAST:
        return 0.0
    logs = sorted(map(math.log, window))
    middle = _middle(logs)
    mad = _middle(sorted(abs(one - middle) for one in logs))
    return _NORMAL * (math.log(value) - middle) / max(mad, _MAD_LEAST)


def is_outlier(value: float, window: Sequence[float]) -> bool:
    """Whether ``robust_z`` exceeds ``OUTLIER_Z``; quick for what does not, which is nearly everything."""
    if len(window) >= WINDOW_LEAST and value <= _NEAR * _middle(sorted(window)):
        return False
    return robust_z(value, window) > OUTLIER_Z


def _middle(ascending: Sequence[float]) -> float:
    return ascending[len(ascending) // 2]


def remember(window: tuple[float, ...], value: float) -> tuple[float, ...]:
    """The window with the value, if it is one that has a logarithm."""
    return (*window, value)[-WINDOW:] if math.isfinite(value) and value > 0 else window


def largest_norm(evidence: Sequence[Evidence]) -> float:
    """Of all seats: it shows one seat's outlier however many seats there are, where a mean would dilute it."""
    return max((one.norm for one in evidence if math.isfinite(one.norm)), default=0.0)


def findings(evidence: Sequence[Evidence], norms: Sequence[float]) -> tuple[Finding, ...]:
    """What looks wrong in an attempt before it is applied; ``norms`` are those of the steps before it."""
    found = []
    bad = tuple(seat for seat, one in enumerate(evidence) if not one.finite)
    if bad:
        told = f"gradients of seats {list(bad)} are not finite before the reduction"
        found.append(Finding(signature=Signature.NON_FINITE, seats=bad, detail=told))
    largest = largest_norm(evidence)
    if largest > 0 and is_outlier(largest, norms):
        far = {
            seat: z
            for seat, one in enumerate(evidence)
            if math.isfinite(one.norm) and one.norm > 0 and (z := robust_z(one.norm, norms)) > OUTLIER_Z
        }
        told = ", ".join(f"seat {seat}: {evidence[seat].norm:.4g} (z {z:.1f})" for seat, z in far.items())
        found.append(Finding(signature=Signature.OUTLIER, seats=tuple(far), detail=f"gradient norms: {told}"))
    if all(one.reduced for one in evidence):
        counted = vote({seat: one.reduced for seat, one in enumerate(evidence)})
        if counted.outvoted:
            seats = counted.outvoted if counted.settled else ()
            told = f"reduced gradients of seats {list(counted.outvoted)} differ from those of {list(counted.majority)}"
            found.append(Finding(signature=Signature.MISMATCH, seats=seats, detail=told))
    return tuple(found)


def data_findings(evidence: Sequence[Evidence], before: Sequence[int]) -> tuple[Finding, ...]:
    """Batches that were trained on twice; ``before`` are those of the last step that was applied, by seat."""
    found = []
    by_batch: dict[int, list[int]] = {}
    for seat, one in enumerate(evidence):
        if one.batch:
            by_batch.setdefault(one.batch, []).append(seat)
    for seats in by_batch.values():
        if len(seats) > 1:
            told = f"seats {seats} train on the same batch"
            found.append(Finding(signature=Signature.SAME_DATA, seats=tuple(seats), detail=told))
    stale = tuple(
        seat
        for seat, (one, batch) in enumerate(zip(evidence, before, strict=False))
        if one.batch and one.batch == batch
    )
    if stale:
        told = f"seats {list(stale)} train on the batch of the step before"
        found.append(Finding(signature=Signature.SAME_DATA, seats=stale, detail=told))
    return tuple(found)


# --- the curve of the losses ------------------------------------------------------------------------------------


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of the losses: one number a step, positive."""

    calm: tuple[float, ...] = ()  # the newest losses outside of spikes
    spike_steps: int = 0  # since the spike began; 0: there is none
    spike: tuple[float, ...] = ()  # its losses
    blocks: tuple[float, ...] = ()  # medians of the last blocks
    block: tuple[float, ...] = ()  # the block that is filled now
    flat: bool = False  # the flat line was told
    top_scale: float = 0.0  # of the loss, ever
    collapsed: bool = False  # the collapse was told
    unapplied: int = 0  # steps in a row that closed without an update


def follow(curve: Curve, loss: float) -> tuple[Curve, Signature | None]:
    """Take the loss of a step; the signature that it completes, each told once."""
    if not (math.isfinite(loss) and loss > 0):
        return curve, None
    if curve.spike_steps:
        return _in_spike(curve, loss, robust_z(loss, curve.calm))
    if is_outlier(loss, curve.calm):
        return replace(curve, spike_steps=1, spike=(loss,)), None
    curve = replace(curve, calm=remember(curve.calm, loss), block=(*curve.block, loss))
    if _is_flat(curve):
        return (curve, None) if curve.flat else (replace(curve, flat=True), Signature.FLAT_LINE)
    if len(curve.block) < _BLOCK:
        return curve, None
    return _end_block(curve)


def _in_spike(curve: Curve, loss: float, z: float) -> tuple[Curve, Signature | None]:
    if z <= _CALM_Z:
        calm = remember(curve.calm, loss)
        return replace(curve, calm=calm, spike_steps=0, spike=()), Signature.SPIKE_RECOVERED
    spike = (*curve.spike, loss)
    if curve.spike_steps < _PLATEAU_STEPS:
        return replace(curve, spike_steps=curve.spike_steps + 1, spike=spike), None
    # From now on this is what is normal, so that it is told once.
    return Curve(calm=spike, top_scale=curve.top_scale), Signature.SPIKE_PLATEAU


def _is_flat(curve: Curve) -> bool:
    last = curve.calm[-_FLAT_STEPS:]
    return len(last) == _FLAT_STEPS and max(last) - min(last) <= _FLAT * max(last)


def _end_block(curve: Curve) -> tuple[Curve, Signature | None]:
    logs = sorted(map(math.log, curve.block))
    middle = _middle(logs)
    mad = max(_middle(sorted(abs(one - middle) for one in logs)), _MAD_LEAST)
    blocks = (*curve.blocks, middle)[-_BLOCKS:]
    rising = len(blocks) == _BLOCKS and all(a < b for a, b in itertools.pairwise(blocks))
    if rising and _NORMAL * (blocks[-1] - blocks[0]) / mad > _RISE_Z:
        return replace(curve, blocks=(), block=(), flat=False), Signature.SLOW_DIVERGENCE
    return replace(curve, blocks=blocks, block=(), flat=False), None


def follow_scale(curve: Curve, scale: float) -> tuple[Curve, Signature | None]:
    """Take the loss scale of a step that was applied."""
    curve = replace(curve, top_scale=max(curve.top_scale, scale), unapplied=0)
    return _scaled(curve, fallen=scale <= curve.top_scale * _SCALE_FALL)


def follow_unapplied(curve: Curve) -> tuple[Curve, Signature | None]:
    """Take a step that closed without an update, as under a scaler that found an overflow."""
    curve = replace(curve, unapplied=curve.unapplied + 1)
    return _scaled(curve, fallen=curve.unapplied >= _UNAPPLIED_STEPS)


def _scaled(curve: Curve, *, fallen: bool) -> tuple[Curve, Signature | None]:
    if fallen and not curve.collapsed:
        return replace(curve, collapsed=True), Signature.SCALE_COLLAPSE
    return replace(curve, collapsed=fallen), None
