from __future__ import annotations

import math

import numpy as np
import pytest

from chaos.judge.statistics import (
    aa_floor,
    mean_interval,
    median_interval,
    pair_ttft,
    quantile_interval,
    quantile_ratio_interval,
    samples_to_bound,
    seeded,
)
from chaos.load.sample import Ending

RUNS = 200


def clustered(rng, *, sessions=32, per_session=10, between=0.05, within=0.05):
    """Log-ratios with true median 0: noise per session and per request."""
    clusters = np.repeat(np.arange(sessions), per_session)
    bias = rng.normal(0, between, sessions)
    return bias[clusters] + rng.normal(0, within, len(clusters)), clusters


def test_interval_excludes_the_truth_in_at_most_seven_per_cent_of_aa_runs():
    misses = 0
    for seed in range(RUNS):
        rng = seeded(seed)
        values, clusters = clustered(rng)
        interval = median_interval(values, clusters, rng, replicates=400)
        misses += not interval.low <= 0 <= interval.high

    assert misses <= 0.07 * RUNS


def test_requests_as_clusters_would_lie():
    """The reason for whole sessions: with requests as clusters A/A alarms for real."""
    misses = 0
    for seed in range(RUNS):
        rng = seeded(seed)
        values, _ = clustered(rng)
        alone = np.arange(len(values))
        interval = median_interval(values, alone, rng, replicates=200)
        misses += not interval.low <= 0 <= interval.high

    assert misses > 0.2 * RUNS


def test_median_interval_finds_a_real_shift():
    rng = seeded(1)
    values, clusters = clustered(rng, sessions=64)

    interval = median_interval(values + 0.1, clusters, rng)

    assert interval.low > 0.05
    assert interval.estimate == pytest.approx(0.1, abs=0.03)
    assert (interval.samples, interval.clusters) == (640, 64)


def test_bootstrap_medians_are_medians_of_the_resampled_values():
    """Against the plain way: concatenate the drawn clusters, take the median."""
    values = np.array([1.0, 2.0, 3.0, 10.0, 20.0, 30.0])
    clusters = np.array([0, 0, 0, 1, 1, 1])

    interval = median_interval(
        values, clusters, seeded(3), confidence=0.98, replicates=4000
    )

    widen = (interval.high - 6.5) / (20 - 6.5)
    assert widen == pytest.approx((6.5 - interval.low) / (6.5 - 2))
    assert interval.estimate == 6.5
    assert widen > 1


def test_one_cluster_bounds_nothing():
    interval = median_interval(np.ones(50), np.zeros(50, dtype=int), seeded(0))

    assert (interval.low, interval.high) == (-math.inf, math.inf)


def test_no_values_bound_nothing():
    interval = median_interval(np.array([]), np.array([], dtype=int), seeded(0))

    assert interval.samples == 0
    assert math.isnan(interval.estimate)


def test_one_seed_is_one_interval():
    values, clusters = clustered(seeded(5))

    first = median_interval(values, clusters, seeded(9))

    assert first == median_interval(values, clusters, seeded(9))


def test_floor_grows_with_the_noise_and_ignores_a_shift():
    values, clusters = clustered(seeded(5))

    floor = aa_floor(values, clusters, seeded(1))

    assert floor == pytest.approx(aa_floor(values + 0.5, clusters, seeded(1)))
    assert 0 < floor < 0.1
    assert aa_floor(3 * values, clusters, seeded(1)) == pytest.approx(3 * floor)


@pytest.mark.parametrize(("quantile", "needed"), [(0.95, 59), (0.99, 299)])
def test_samples_that_bound_a_tail(quantile, needed):
    assert samples_to_bound(quantile) == needed


def test_quantile_bounds_hold_the_truth():
    truth = -math.log(0.1)
    held = 0
    for seed in range(RUNS):
        values = seeded(seed).exponential(1.0, 400)
        interval = quantile_interval(values, 0.9)
        held += interval.low <= truth <= interval.high

    assert held >= 0.93 * RUNS


def test_a_tail_that_the_samples_do_not_reach_is_unbounded():
    assert quantile_interval(np.arange(100.0), 0.99).high == math.inf
    assert quantile_interval(np.arange(1000.0), 0.99).high < math.inf
    assert quantile_interval([], 0.5).high == math.inf


def test_mean_interval_narrows_with_samples():
    wide, narrow = (mean_interval(seeded(1).normal(5, 1, n)) for n in (30, 3000))

    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)
    assert narrow.low < 5 < narrow.high
    assert mean_interval([1.0]).high == math.inf


def test_pairing_is_by_request_id_and_leaves_out_what_one_arm_lacks(fabricate):
    left = [fabricate.sample(f"r{i}", session=f"s{i % 2}", ttft_s=2.0) for i in (1, 2)]
    right = [
        fabricate.sample("r3"),
        fabricate.sample("r2", ttft_s=1.0),
        fabricate.sample("r1", ending=Ending.SHED),
    ]

    pairs = pair_ttft(left, right)

    assert pairs.ids == ("r2",)
    assert pairs.log_ratio == pytest.approx([math.log(2)])


def test_quantile_ratio_sees_a_tail_that_the_median_does_not(fabricate):
    left = fabricate.arm(1, requests=4000, sessions=80)
    right = fabricate.arm(1, requests=4000, sessions=80)
    slow = [
        fabricate.sample(
            s.request.request_id, session=s.request.session, ttft_s=5 * s.ttft_s
        )
        if i % 50 == 0
        else s
        for i, s in enumerate(left)
    ]

    pairs = pair_ttft(slow, right)
    interval = quantile_ratio_interval(pairs, 0.99, seeded(1), replicates=100)

    assert np.median(pairs.log_ratio) == 0
    assert interval.estimate > math.log(1.1)
