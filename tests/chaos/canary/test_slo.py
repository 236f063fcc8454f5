"""Absolute service levels: both bounds, the time scale, and what is too few."""

from __future__ import annotations

import numpy as np
import pytest

from chaos.canary.gate import judge
from chaos.canary.policy import Policy, SloRule


def judged(arm_of, *, rule, rows=3000, values=None, time_scale=1.0, **fields):
    rng = np.random.default_rng(2)
    arms = []
    for name in ("baseline", "canary"):
        wait = rng.exponential(0.02, rows) if values is None else values(rng)
        meta = {"requests": rows, "time_scale": time_scale}
        metrics = {"ttft_s": rng.exponential(0.4, rows), "cache_wait_s": wait}
        arms.append(arm_of(name, rng, rows=rows, metrics=metrics, meta=meta, **fields))
    policy = Policy(name="t", slos=(rule,), validity={"max_lag_ratio": None})
    result = judge(policy, *arms)
    return result.of("slo")[0] if result.of("slo") else result


P99 = {"metric": "cache_wait_s", "quantile": 0.99}


@pytest.mark.parametrize(
    ("at_most", "verdict"),
    [(0.15, "PASS"), (0.0921, "INCONCLUSIVE"), (0.05, "FAIL")],
)
def test_bounds_of_a_quantile_decide(arm_of, at_most, verdict) -> None:
    # The p99 of an exponential of mean 0.02 is 0.0921.
    found = judged(arm_of, rule=SloRule(**P99, at_most=at_most))

    assert found.verdict.value == verdict
    assert found.low < 0.0921 < found.high


@pytest.mark.parametrize(
    ("at_most", "verdict"), [(0.03, "PASS"), (0.02, "INCONCLUSIVE"), (0.015, "FAIL")]
)
def test_bounds_of_a_mean_decide(arm_of, at_most, verdict) -> None:
    found = judged(arm_of, rule=SloRule(metric="cache_wait_s", at_most=at_most))

    assert found.verdict.value == verdict


def test_the_limit_is_in_the_systems_own_time(arm_of) -> None:
    found = judged(arm_of, rule=SloRule(**P99, at_most=0.15), time_scale=0.1)

    assert found.verdict.value == "FAIL"
    assert found.limit == "<= 0.015 s (0.15 s at time scale 0.1)"


def test_too_few_for_the_quantile_say_how_many(arm_of) -> None:
    found = judged(arm_of, rule=SloRule(**P99, at_most=10), rows=200)

    assert found.verdict.value == "INCONCLUSIVE"
    assert found.needs == 459 - 200


def test_hung_requests_are_over_every_limit(arm_of) -> None:
    def values(rng):
        return np.where(np.arange(3000) % 20 == 0, np.nan, rng.exponential(0.01, 3000))

    ok = np.arange(3000) % 20 != 0
    found = judged(arm_of, rule=SloRule(**P99, at_most=1), values=values, ok=ok)

    assert found.verdict.value != "PASS"


def test_missing_values_are_open(arm_of) -> None:
    def values(rng):
        return np.where(np.arange(3000) % 20 == 0, np.nan, rng.exponential(0.01, 3000))

    found = judged(arm_of, rule=SloRule(**P99, at_most=1), values=values)

    assert found.verdict.value == "INCONCLUSIVE"
    assert "no cache_wait_s" in found.reason


@pytest.mark.parametrize("required", [True, False])
def test_an_unmeasured_level_is_open_or_noted(arm_of, required) -> None:
    rule = SloRule(metric="other_s", quantile=0.99, at_most=1, required=required)

    found = judged(arm_of, rule=rule)

    if required:
        assert found.verdict.value == "INCONCLUSIVE"
    else:
        assert "other_s p99 was not judged" in found.notes[0]
