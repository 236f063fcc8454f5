from __future__ import annotations

import math

import pytest

from chaos.judge.recovery import (
    hit_rate,
    judge_recovery,
    judge_slow_start,
    recovered_at_s,
)
from chaos.judge.verdict import Verdict


def history(fabricate, *, back_at_s, count=100):
    """Half the prompt is reused, nothing between 1 s and `back_at_s`."""
    return [
        fabricate.sample(
            f"r{i}", at_s=i * 0.1, l3=0 if 1 <= i * 0.1 < back_at_s else 512
        )
        for i in range(count)
    ]


def judged(samples, budget_s=3.0, **fields):
    fields = {"former": 0.5, "healed_at_s": 2.0, "window": 10, **fields}
    return judge_recovery("O7", samples, budget_s=budget_s, **fields)


def test_recovery_within_its_budget_passes(fabricate):
    samples = history(fabricate, back_at_s=3.0)

    assert recovered_at_s(samples, former=0.5, window=10, from_s=2) == pytest.approx(
        3.8
    )
    assert judged(samples).verdict is Verdict.PASS


@pytest.mark.parametrize("back_at_s", [6.0, math.inf])
def test_recovery_late_or_never_fails(fabricate, back_at_s):
    assert judged(history(fabricate, back_at_s=back_at_s)).verdict is Verdict.FAIL


def test_without_a_former_rate_or_samples_nothing_is_known(fabricate):
    samples = history(fabricate, back_at_s=3.0)

    assert judged(samples, former=math.nan).verdict is Verdict.INCONCLUSIVE
    assert judged(samples, former=0.0).verdict is Verdict.INCONCLUSIVE
    assert judged(samples, healed_at_s=9.5).verdict is Verdict.INCONCLUSIVE


def test_hit_rate_is_by_tokens(fabricate):
    samples = [fabricate.sample("a", l3=512), fabricate.sample("b", tokens=3072, l3=0)]

    assert hit_rate(samples) == 512 / 4096
    assert math.isnan(hit_rate([]))


def test_a_newcomer_that_attracts_all_writes_fails():
    fair = {"a": 90, "b": 110, "new": 100}
    herd = {"a": 10, "b": 10, "new": 280}

    assert judge_slow_start(fair, newcomer="new").verdict is Verdict.PASS
    assert judge_slow_start(herd, newcomer="new").verdict is Verdict.FAIL
    assert judge_slow_start({}, newcomer="new").verdict is Verdict.INCONCLUSIVE
