from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.detect.corruption import Evidence
from closeranks.detect.numerics import (
    OUTLIER_Z,
    RESPONSES,
    WINDOW_LEAST,
    Curve,
    Signature,
    findings,
    follow,
    follow_scale,
    follow_unapplied,
    in_words,
    is_outlier,
    remember,
    robust_z,
)

# Measured here, written down in docs/numerics.md; the seeds are fixed, so a change of the rule shows.
CURVES, STEPS_EACH = 4, 2500


def evidence(norm=1.0, *, finite=True, reduced=0):
    return Evidence(proc=1, finite=finite, norm=norm, fingerprint=7, reduced=reduced)


def heavy_tailed(seed, steps=STEPS_EACH, freedom=3):
    """Gradient norms that fall over the run, with Student's t noise on their logarithm; 3 is heavier than most."""
    draw = np.random.default_rng(seed)
    trend = 3.0 / (1.0 + np.arange(steps) / 300) ** 0.5
    return (trend * np.exp(0.12 * draw.standard_t(freedom, steps))).tolist()


def told(losses, curve=Curve()):  # noqa: B008 - a frozen value
    seen = []
    for loss in losses:
        curve, signature = follow(curve, loss)
        seen += [signature] if signature else []
    return seen


def noisy(level, count, seed=0, spread=0.03):
    return (level * np.exp(spread * np.random.default_rng(seed).standard_normal(count))).tolist()


def test_the_window_judges_nothing_before_it_is_long_enough():
    assert robust_z(1e9, [1.0] * (WINDOW_LEAST - 1)) == 0.0
    assert robust_z(1e9, [1.0] * WINDOW_LEAST) > OUTLIER_Z
    assert is_outlier(1e9, [1.0] * WINDOW_LEAST)
    assert not is_outlier(1e9, [1.0] * (WINDOW_LEAST - 1))


@given(st.lists(st.floats(1e-6, 1e6), min_size=WINDOW_LEAST, max_size=WINDOW_LEAST + 9), st.floats(1e-6, 1e9))
def test_the_quick_answer_about_an_outlier_is_that_of_the_robust_deviations(window, value):
    assert is_outlier(value, window) == (robust_z(value, window) > OUTLIER_Z)
    near = sorted(window)[len(window) // 2] * 1.8
    assert is_outlier(near, window) == (robust_z(near, window) > OUTLIER_Z)


def test_values_without_a_logarithm_are_not_remembered():
    assert remember((1.0,), 0.0) == remember((1.0,), float("nan")) == (1.0,)


@pytest.mark.parametrize(("freedom", "held"), [(3, 19), (5, 1), (30, 0)])
def test_on_heavy_tailed_norms_few_steps_of_ten_thousand_are_held_for_nothing(freedom, held):
    alarms = 0
    for seed in range(CURVES):
        window = ()
        for norm in heavy_tailed(seed, freedom=freedom):
            alarms += robust_z(norm, window) > OUTLIER_Z
            window = remember(window, norm)
    assert alarms == held


@pytest.mark.parametrize("factor", [30.0, 1e4, 1e20])
def test_a_norm_far_above_its_window_is_an_outlier_of_the_seat_that_has_it(factor):
    window = tuple(heavy_tailed(1, 128))
    found = findings([evidence(window[-1]), evidence(factor * window[-1]), evidence(window[-1])], window)
    assert [(one.signature, one.seats) for one in found] == [(Signature.OUTLIER, (1,))]


def test_a_seat_that_is_not_finite_is_named_and_no_outlier_is_made_of_it():
    found = findings([evidence(), evidence(float("nan"), finite=False)], (1.0,) * 64)
    assert [(one.signature, one.seats) for one in found] == [(Signature.NON_FINITE, (1,))]


def test_reduced_gradients_that_differ_name_the_minority_and_nobody_without_a_majority():
    three = findings([evidence(reduced=5), evidence(reduced=5), evidence(reduced=6)], ())
    two = findings([evidence(reduced=5), evidence(reduced=6)], ())
    assert (three[0].signature, three[0].seats) == (Signature.MISMATCH, (2,))
    assert (two[0].signature, two[0].seats) == (Signature.MISMATCH, ())


def test_a_spike_that_goes_away_and_one_that_stays_are_told_apart():
    calm = noisy(2.0, 100)
    assert told([*calm, *noisy(9.0, 5), *noisy(2.0, 50)]) == [Signature.SPIKE_RECOVERED]
    assert told([*calm, *noisy(9.0, 200)]) == [Signature.SPIKE_PLATEAU]


def test_a_loss_that_rises_slowly_is_a_divergence_long_before_it_is_a_spike():
    rising = [2.0 * 1.002**n * wiggle for n, wiggle in enumerate(noisy(1.0, 400))]
    assert told(rising)[0] is Signature.SLOW_DIVERGENCE


def test_a_loss_that_does_not_move_is_told_once():
    assert told([2.0] * 300) == [Signature.FLAT_LINE]


def test_ordinary_curves_have_no_signature():
    falling = [2.0 + 3.0 / (1 + n / 50) for n in range(2000)]
    assert told([a * b for a, b in zip(falling, noisy(1.0, 2000, seed=4), strict=True)]) == []


def test_heavy_tailed_losses_are_at_worst_spikes_that_recovered():
    seen = [one for seed in range(CURVES) for one in told(heavy_tailed(seed))]
    assert set(seen) <= {Signature.SPIKE_RECOVERED}


def test_a_loss_scale_that_collapses_or_never_lets_a_step_through_is_told_once():
    curve, seen = Curve(), []
    for scale in accumulate([65536.0] + [0.5] * 14, lambda a, b: a * b):
        curve, signature = follow_scale(curve, scale)
        seen.append(signature)
    assert seen.count(Signature.SCALE_COLLAPSE) == 1
    curve, seen = Curve(), []
    for _ in range(40):
        curve, signature = follow_unapplied(curve)
        seen.append(signature)
    assert seen.count(Signature.SCALE_COLLAPSE) == 1


def test_every_signature_has_a_response_in_words():
    assert set(RESPONSES) == set(Signature)
    assert in_words(RESPONSES[Signature.SLOW_DIVERGENCE]) == "roll back 2 generations, learning rate x 0.5"
