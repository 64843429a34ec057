"""After a recovery: training that is what it was passes, training that is not fails, and nothing else does."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.decide.canary import Canary, Rules, Sample, Watched, disturbed, loss_band, recovered, stepped
from closeranks.events import CanaryFailed, CanaryPassed

RULES = Rules()


def curve(step, seed=0, noise=0.02):
    """A loss that falls as losses do, with noise that is a function of the step."""
    return 2.0 + 3.0 * math.exp(-step / 300) + random.Random(seed * 100_003 + step).gauss(0.0, noise)


def sample(step, loss, norm=1.0):
    return Sample(step=step, duration_s=0.1, loss=loss, grad_norm=norm)


def trained(until=200, loss=curve):
    canary = Canary()
    for step in range(until):
        canary, verdict = stepped(canary, sample(step, loss(step)), RULES)
        assert verdict is None
    return canary


def after_recovery(canary, samples):
    canary = recovered(canary, Watched(incident=1, replicas=4, before_step=200))
    for one in samples:
        canary, verdict = stepped(canary, one, RULES)
        if verdict is not None:
            return canary, verdict
    return canary, None


def test_training_that_goes_on_as_before_passes_at_once_with_its_numbers():
    _, verdict = after_recovery(trained(), [sample(step, curve(step)) for step in range(200, 230)])
    assert isinstance(verdict, CanaryPassed)
    assert (verdict.step, verdict.back_after_steps, verdict.replicas) == (202, 0, 4)
    low, high = verdict.loss_band
    assert low < verdict.loss < high
    assert verdict.step_band_s is not None


def test_a_loss_that_comes_back_late_passes_and_says_after_how_many_steps():
    _, verdict = after_recovery(trained(), [sample(s, curve(s) + (5.0 if s < 207 else 0.0)) for s in range(200, 230)])
    assert isinstance(verdict, CanaryPassed)
    assert verdict.back_after_steps == 7


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda step: sample(step, curve(step) + 3.0), id="a loss that stays high"),
        pytest.param(lambda step: sample(step, None), id="a loss that is not finite"),
        pytest.param(lambda step: sample(step, 0.0), id="a loss that is gone"),
        pytest.param(lambda step: sample(step, curve(step), norm=50.0), id="gradients that are too large"),
        pytest.param(lambda step: sample(step, curve(step), norm=0.001), id="gradients that vanish"),
    ],
)
def test_training_that_is_not_what_it_was_fails_within_the_steps_that_are_watched(wrong):
    canary, verdict = after_recovery(trained(), [wrong(step) for step in range(200, 300)])
    assert isinstance(verdict, CanaryFailed)
    assert verdict.steps == RULES.steps
    assert canary.watched is None
    assert canary.before[-1].step == 199, "what was bad is not what later steps are compared with"


def test_a_repeated_step_is_compared_with_what_it_was():
    canary = trained(300, lambda step: 100.0 - step / 10)
    assert loss_band(canary.before, 180, RULES)[0] < 82.0 < loss_band(canary.before, 180, RULES)[1]
    _, verdict = after_recovery(canary, [sample(step, 100.0 - step / 10) for step in range(180, 200)])
    assert isinstance(verdict, CanaryPassed)


def test_a_step_older_than_all_that_is_known_has_nothing_to_be_compared_with():
    canary = trained(300)
    assert loss_band(canary.before, 20, RULES) is None
    _, verdict = after_recovery(canary, [sample(step, 4.9) for step in range(20, 40)])
    assert isinstance(verdict, CanaryPassed)
    assert verdict.loss_band is None


def test_a_script_that_reports_nothing_passes():
    canary = Canary()
    for step in range(50):
        canary, _ = stepped(canary, Sample(step=step, duration_s=0.1), RULES)
    silent = [Sample(step=step, duration_s=0.1) for step in range(50, 60)]
    _, verdict = after_recovery(canary, silent)
    assert isinstance(verdict, CanaryPassed)


def test_slow_steps_alone_never_fail_a_recovery():
    slow = [Sample(step=s, duration_s=9.0, loss=curve(s), grad_norm=1.0) for s in range(200, 230)]
    _, verdict = after_recovery(trained(), slow)
    assert isinstance(verdict, CanaryPassed)
    assert verdict.step_s > verdict.step_band_s[1]


def test_another_incident_ends_the_watch_without_a_verdict():
    canary = recovered(trained(), Watched(incident=1, replicas=4, before_step=200))
    canary, _ = stepped(canary, sample(200, 99.0), RULES)
    assert disturbed(canary).watched is None


@given(seed=st.integers(0, 10_000), back=st.integers(0, 60), noise=st.floats(0.0, 0.3), at=st.integers(20, 250))
def test_a_recovery_that_worked_is_never_undone(seed, back, noise, at):
    canary = trained(at, lambda step: curve(step, seed, noise))
    first = max(0, at - back)
    _, verdict = after_recovery(canary, [sample(s, curve(s, seed, noise)) for s in range(first, first + 25)])
    assert isinstance(verdict, CanaryPassed)


@pytest.mark.parametrize(("field", "value"), [("steps", 0), ("sigmas", -1.0), ("streak", 21)])
def test_rules_that_cannot_be_are_refused(field, value):
    with pytest.raises(ValueError, match=f"canary.{field}"):
        Rules(**{field: value})
