"""Rates of rare events: exact bounds, and differences that are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from chaos.canary.stats.clusters import clustering
from chaos.canary.stats.rates import exact_bounds, rate_difference


def events(count, rows):
    return np.arange(rows) < count


@pytest.mark.parametrize(("count", "rows"), [(0, 1000), (7, 300), (300, 300)])
def test_exact_bounds_are_clopper_pearson(count, rows) -> None:
    known = stats.binomtest(count, rows).proportion_ci(0.98, method="exact")

    assert exact_bounds(count, rows, 0.01) == pytest.approx((known.low, known.high))


def test_no_trials_know_nothing() -> None:
    assert exact_bounds(0, 0, 0.01) == (0.0, 1.0)


def test_zero_of_ten_thousand_is_no_proof_of_zero() -> None:
    effect = rate_difference(events(0, 10_000), events(0, 10_000), 0.01)

    assert effect.estimate == 0
    assert effect.high == pytest.approx(4.6e-4, rel=0.01)


def test_twelve_against_none_is_proof_of_harm() -> None:
    effect = rate_difference(events(0, 20_000), events(12, 20_000), 0.01)
    fisher = stats.fisher_exact([[12, 19_988], [0, 20_000]], alternative="greater")

    assert effect.p_above(0.0) < 0.001
    assert effect.p_above(0.0) == pytest.approx(fisher.pvalue, rel=1.0)
    assert effect.p_above(0.01) == 1.0


def test_errors_of_one_session_are_worth_less() -> None:
    codes = np.arange(4000) // 100
    by = [clustering("session", codes)]
    burst, spread_out = events(40, 4000), np.arange(4000) % 100 == 0
    none = events(0, 4000)

    def p_value(bad):
        clusters = {"baseline_clusters": by, "canary_clusters": by}
        return rate_difference(none, bad, 0.01, **clusters).p_above(0.0)

    assert p_value(burst) > 100 * p_value(spread_out)


def test_upper_bound_misses_as_seldom_as_it_says() -> None:
    rng = np.random.default_rng(1)
    truth, missed, trials = 0.0006, 0, 500
    for _ in range(trials):
        left, right = rng.random(10_000) < 0.001, rng.random(10_000) < 0.001 + truth
        missed += rate_difference(left, right, 0.05).high < truth

    assert missed / trials < 0.07
