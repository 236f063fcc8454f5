"""Holm, the always-valid test, combined bounds and sample sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.canary.stats.effect import Bounded, Effect, between
from chaos.canary.stats.holm import holm
from chaos.canary.stats.sequential import always_valid_p
from chaos.canary.stats.sizes import detectable, samples_needed


def effect(estimate, se, rows=1000):
    reach = 2.3263478740408408 * se
    return Effect(
        estimate=estimate,
        low=estimate - reach,
        high=estimate + reach,
        alpha=0.01,
        ratio=True,
        baseline=1.0,
        canary=1.0,
        n_baseline=rows,
        n_canary=rows,
    )


def test_holm_of_a_known_example() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_makes_a_p_value_smaller_and_keeps_their_order(p_values) -> None:
    adjusted = holm(p_values)

    assert all(a >= p for a, p in zip(adjusted, p_values, strict=True))
    assert all(a <= 1 for a in adjusted)
    assert sorted(range(len(p_values)), key=lambda i: (p_values[i], i)) == sorted(
        range(len(p_values)), key=lambda i: (adjusted[i], p_values[i], i)
    )


def test_two_bounds_make_one_and_correlation_narrows_it() -> None:
    one = Bounded(estimate=1.0, low=0.7, high=1.3)
    other = Bounded(estimate=2.0, low=1.6, high=2.4)

    assert between(one, other) == pytest.approx((1.0, 0.5, 1.5))
    assert between(one, other, 1.0) == pytest.approx((1.0, 0.9, 1.1))


def test_an_infinite_estimate_bounds_nothing() -> None:
    one = Bounded(estimate=1.0, low=0.7, high=1.3)
    other = Bounded(estimate=math.inf, low=1.6, high=math.inf)

    assert between(one, other) == (math.inf, -math.inf, math.inf)


def test_looking_at_every_step_keeps_the_error_rate() -> None:
    rng = np.random.default_rng(1)
    alarms, naive = 0, 0
    for _ in range(400):
        sums = np.cumsum(rng.normal(0, 1, 2000))
        steps = np.arange(20, 2001, 20)
        means, ses = sums[steps - 1] / steps, 1 / np.sqrt(steps)
        pairs = list(zip(means, ses, strict=True))
        alarms += min(always_valid_p(m, s, 0.0, 0.1) for m, s in pairs) < 0.05
        naive += any(m / s > 1.645 for m, s in pairs)

    assert alarms / 400 < 0.06
    assert naive / 400 > 0.25


def test_harm_is_seen_by_the_always_valid_test() -> None:
    assert always_valid_p(0.5, 0.05, 0.05, 0.14) < 1e-6
    assert always_valid_p(0.01, 0.05, 0.05, 0.14) == 1.0
    assert always_valid_p(math.nan, 0.05, 0.05, 0.14) == 1.0
    assert always_valid_p(0.5, math.inf, 0.05, 0.14) == 1.0


def test_a_sharper_measurement_sees_smaller_changes() -> None:
    assert detectable(effect(0, 0.01), 0.0) == pytest.approx(0.0317, abs=1e-3)
    assert detectable(effect(0, 0.02), 0.03) == pytest.approx(0.0934, abs=1e-3)
    assert detectable(effect(0, math.inf), 0.0) is None


def test_needed_samples_grow_with_the_square_of_the_noise() -> None:
    def needed(se, floor=0.0, estimate=0.0):
        made = effect(estimate, se)
        return samples_needed(made, null=0.03, limit=0.1, floor_sd=floor)

    assert needed(0.05) == pytest.approx(2509, abs=5)
    assert needed(0.1) == pytest.approx(4 * 2509, abs=20)
    assert needed(0.05, floor=0.04) is None
    assert needed(0.05, estimate=0.1) is None
    assert needed(0.05, estimate=0.2) is not None
    assert needed(math.inf) is None
