"""Whether training is what it was before the failure: a few steps are watched after every recovery.

Losses and gradient norms of the steps before it give a band for each step after it. A step that was closed before has
the loss of that time to compare with; a later one the trend. The canary passes with a few steps in a row inside the
band, and fails if there are none for long. Step time alone never fails it: an older state would not be faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from closeranks.decide.pace import band as pace_band
from closeranks.detect.trend import theil_sen
from closeranks.events import CanaryFailed, CanaryPassed

KEPT_STEPS = 128
_TREND_STEPS = 32
_LEAST_STEPS = 5  # before that there is nothing to compare with
_SIGMAS_PER_MAD = 1.4826  # of a normal law
_LEAST_FACTOR = 2.0  # a gradient norm within this factor of the usual is no sign of anything


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a recovery has worked."""

    steps: int = 20  # that are watched at most
    streak: int = 3  # steps in a row in the band: it has worked
    sigmas: float = 8.0  # half the width of the band, in deviations of the losses from their trend ...
    relative: float = 0.25  # ... but at least so much of the loss itself

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("streak", 1), ("sigmas", 0), ("relative", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"canary.{name}: expected at least {least}, got {getattr(self, name)}")
        if self.streak > self.steps:
            raise ValueError(f"canary.streak: expected at most canary.steps ({self.steps}), got {self.streak}")


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was closed. None: nothing finite was reported."""

    step: int
    duration_s: float
    loss: float | None = None
    grad_norm: float | None = None


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """The steps since a recovery."""

    incident: int
    replicas: int  # seats whose digests were equal when they went on; 0: nothing was compared
    before_step: int  # state of this step and of later ones is not to be used again should it fail
    samples: tuple[Sample, ...] = ()
    streak: int = 0


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """The newest undisturbed steps, ascending, and what is watched now."""

    before: tuple[Sample, ...] = ()
    watched: Watched | None = None


def recovered(canary: Canary, watched: Watched) -> Canary:
    """An incident is over: watch what comes."""
    return replace(canary, watched=watched)


def disturbed(canary: Canary) -> Canary:
    """An incident opened: what was watched so far was neither good nor bad."""
    return replace(canary, watched=None)


def stepped(canary: Canary, sample: Sample, rules: Rules) -> tuple[Canary, CanaryPassed | CanaryFailed | None]:
    """A step was closed outside of incidents; the verdict, when there is one with it."""
    watched = canary.watched
    if watched is None:
        return Canary(before=_with(canary.before, (sample,))), None
    streak = watched.streak + 1 if _is_usual(canary.before, sample, rules) else 0
    watched = replace(watched, samples=(*watched.samples, sample), streak=streak)
    if streak >= rules.streak:
        passed = _passed(canary.before, watched, rules)
        return Canary(before=_with(canary.before, watched.samples)), passed
    if len(watched.samples) >= rules.steps:
        return replace(canary, watched=None), _failed(canary.before, watched, rules)
    return replace(canary, watched=watched), None


def loss_band(before: Sequence[Sample], step: int, rules: Rules) -> tuple[float, float] | None:
    """Where the loss of a step should lie; None: nothing is known about it.

    A loss that falls ever more slowly lies above its line: the band reaches from the line to the level of the newest
    steps, and beyond both.
    """
    known = [(s.step, s.loss) for s in before if s.loss is not None]
    if len(known) < _LEAST_STEPS or step < known[0][0]:
        return None
    recent = known[-_TREND_STEPS:]
    slope, last = theil_sen(recent)
    offset = last - slope * recent[-1][0]
    noise = _SIGMAS_PER_MAD * statistics.median(abs(loss - slope * at - offset) for at, loss in recent)
    then = dict(known).get(step)
    level = statistics.median(loss for _, loss in recent[-_LEAST_STEPS:])
    guesses = (then,) if then is not None else (offset + slope * step, level)
    half = max(rules.sigmas * noise, rules.relative * abs(then if then is not None else level))
    return min(guesses) - half, max(guesses) + half


def norm_band(before: Sequence[Sample], rules: Rules) -> tuple[float, float] | None:
    """Where gradient norms should lie, in terms of their logarithms; None: too few were reported."""
    logs = [math.log(s.grad_norm) for s in before if s.grad_norm is not None and s.grad_norm > 0]
    if len(logs) < _LEAST_STEPS:
        return None
    middle = statistics.median(logs)
    deviation = _SIGMAS_PER_MAD * statistics.median(abs(one - middle) for one in logs)
    half = max(rules.sigmas * deviation, math.log(_LEAST_FACTOR))
    return math.exp(middle - half), math.exp(middle + half)


def _with(before: tuple[Sample, ...], more: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """A step that was repeated replaces what was known of it and of all later ones."""
    first = more[0].step
    return (*(s for s in before if s.step < first), *more)[-KEPT_STEPS:]


def _is_usual(before: Sequence[Sample], sample: Sample, rules: Rules) -> bool:
    return _inside(sample.loss, loss_band(before, sample.step, rules)) and _inside(
        sample.grad_norm, norm_band(before, rules)
    )


def _inside(value: float | None, band: tuple[float, float] | None) -> bool:
    """What was reported before and is not any more (or is not finite) is outside."""
    return band is None or (value is not None and band[0] <= value <= band[1])


def _passed(before: Sequence[Sample], watched: Watched, rules: Rules) -> CanaryPassed:
    last = watched.samples[-1]
    return CanaryPassed(
        incident=watched.incident,
        step=last.step,
        back_after_steps=len(watched.samples) - watched.streak,
        replicas=watched.replicas,
        loss=last.loss,
        loss_band=loss_band(before, last.step, rules),
        grad_norm=last.grad_norm,
        norm_band=norm_band(before, rules),
        step_s=statistics.median(s.duration_s for s in watched.samples),
        step_band_s=_step_band_s(before),
    )


def _failed(before: Sequence[Sample], watched: Watched, rules: Rules) -> CanaryFailed:
    last = watched.samples[-1]
    band = loss_band(before, last.step, rules)
    strays = [("loss", last.loss, band), ("gradient norm", last.grad_norm, norm_band(before, rules))]
    told = "; ".join(_told(*stray) for stray in strays if not _inside(stray[1], stray[2]))
    steps = len(watched.samples)
    return CanaryFailed(
        incident=watched.incident,
        step=last.step,
        steps=steps,
        loss=last.loss,
        loss_band=band,
        grad_norm=last.grad_norm,
        norm_band=norm_band(before, rules),
        reason=f"{told or 'losses came and went'}, {steps} steps after the recovery",
    )


def _told(name: str, value: float | None, band: tuple[float, float] | None) -> str:
    low, high = band or (math.nan, math.nan)
    shown = "nothing finite" if value is None else f"{value:.4g}"
    return f"{name} {shown}, expected {low:.4g} to {high:.4g}"


def _step_band_s(before: Sequence[Sample]) -> tuple[float, float] | None:
    durations_s = tuple(s.duration_s for s in before)
    return pace_band(durations_s) if len(durations_s) >= _LEAST_STEPS else None
