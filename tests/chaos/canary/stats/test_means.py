"""Means and shares of sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chaos.canary.stats.clusters import clustering
from chaos.canary.stats.means import mean_ratio, share_difference


def test_one_more_call_a_request_is_seen() -> None:
    rng = np.random.default_rng(1)
    calls = rng.poisson(3, 2000).astype(float)

    effect = mean_ratio(calls, calls + 1, 0.01, paired=True)

    assert math.exp(effect.estimate) == pytest.approx(4 / 3, rel=0.02)
    assert effect.low > math.log(1.25)


def test_a_hit_rate_is_a_share_of_sums_not_a_mean_of_shares() -> None:
    whole = np.array([10.0, 1000.0])
    none, all_small = np.zeros(2), np.array([10.0, 0.0])

    effect = share_difference((none, whole), (all_small, whole), 0.01)

    assert effect.estimate == pytest.approx(10 / 1010)


def test_bounds_of_a_share_miss_as_seldom_as_they_say() -> None:
    rng = np.random.default_rng(2)
    missed = 0
    for _ in range(400):
        codes = np.arange(1500) // 10
        sides = []
        for drop in (0.0, 0.01):
            whole = rng.lognormal(7, 0.6, 1500)
            luck = rng.normal(0.6, 0.1, 150)[codes]
            share = luck + rng.normal(0, 0.05, 1500) - drop
            sides.append((share * whole, whole))
        by = [clustering("session", codes)]
        clusters = {"baseline_clusters": by, "canary_clusters": by}
        effect = share_difference(*sides, 0.05, **clusters)
        missed += effect.high < -0.01

    assert missed / 400 < 0.085


def test_pairs_cancel_what_both_arms_were_asked() -> None:
    rng = np.random.default_rng(3)
    whole = rng.lognormal(7, 1, 1000)
    share = rng.uniform(0, 1, 1000)
    left, right = ((share + rng.normal(0, 0.01, 1000)) * whole for _ in range(2))

    paired = share_difference((left, whole), (right, whole), 0.01, paired=True)
    apart = share_difference((left, whole), (right, whole), 0.01)

    assert paired.se < apart.se / 10
