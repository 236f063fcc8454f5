"""Quantiles: coverage of their bounds, pairing, and values that are no number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chaos.canary.stats.clusters import clustering
from chaos.canary.stats.quantiles import bounded_quantile, quantile_ratio
from chaos.judge.statistics import quantile_interval, samples_to_bound


def test_bounds_of_independent_rows_are_those_of_order_statistics() -> None:
    values = np.random.default_rng(1).lognormal(0, 1, 2000)

    ours = bounded_quantile(values, 0.95, 0.025).bounds
    known = quantile_interval(values, 0.95, confidence=0.95)

    assert ours.estimate == known.estimate
    assert ours.low == pytest.approx(known.low, rel=0.02)
    assert ours.high == pytest.approx(known.high, rel=0.02)


@pytest.mark.parametrize("quantile", [0.5, 0.99])
@pytest.mark.parametrize("sessions", [1, 25])
def test_each_bound_misses_as_seldom_as_it_says(quantile, sessions) -> None:
    rng = np.random.default_rng(2)
    alpha, trials, missed = 0.05, 400, [0, 0]
    truth = math.exp(math.sqrt(0.5) * {0.5: 0.0, 0.99: 2.3263}[quantile])
    for _ in range(trials):
        codes = np.arange(3000) // sessions
        effect = rng.normal(0, 0.5, codes.max() + 1)
        values = np.exp(effect[codes] + rng.normal(0, 0.5, 3000))
        by = [clustering("session", codes)]
        bounds = bounded_quantile(values, quantile, alpha, by).bounds
        missed[0] += truth < bounds.low
        missed[1] += truth > bounds.high

    assert max(missed) / trials < alpha + 0.035


def test_bounds_are_infinite_where_samples_do_not_reach() -> None:
    rng = np.random.default_rng(3)
    least = samples_to_bound(0.99, 0.99)

    few = bounded_quantile(rng.random(least - 10), 0.99, 0.01).bounds
    enough = bounded_quantile(rng.random(least + 10), 0.99, 0.01).bounds

    assert math.isinf(few.high)
    assert math.isfinite(enough.high)


def test_pairs_share_noise_and_identical_arms_have_none() -> None:
    rng = np.random.default_rng(4)
    trace = rng.lognormal(0, 1, 4000)
    one, other = (trace * rng.lognormal(0, 0.1, 4000) for _ in range(2))

    paired = quantile_ratio(one, other, 0.9, 0.01, paired=True)
    apart = quantile_ratio(one, other, 0.9, 0.01)
    same = quantile_ratio(one, one, 0.9, 0.01, paired=True)

    assert paired.se < 0.6 * apart.se
    assert same.estimate == 0
    assert abs(same.low) + abs(same.high) < 0.1


def test_infinitely_slow_requests_are_ranked() -> None:
    values = np.random.default_rng(5).random(2000) + 1
    slow = np.where(np.arange(2000) % 10 == 0, np.inf, values)

    hurt = quantile_ratio(values, slow, 0.5, 0.01)
    gone = quantile_ratio(values, slow, 0.99, 0.01)

    assert 0 < hurt.estimate < math.inf
    assert gone.estimate == math.inf
    assert gone.p_above(0.1) == 1.0  # nothing can be said of how much: no FAIL by it
    assert not gone.high < 1


def test_times_below_the_resolution_are_equal() -> None:
    small = np.full(1000, 1e-9)

    effect = quantile_ratio(small, small * 50, 0.5, 0.01, resolution=1e-3)

    assert effect.estimate == 0
