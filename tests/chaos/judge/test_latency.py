from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.judge.latency import (
    judge_cache_wait,
    judge_cost_after_detection,
    judge_cost_per_request,
    judge_eviction_stall,
    judge_service_level,
)
from chaos.judge.statistics import seeded
from chaos.judge.verdict import Verdict
from chaos.load.sample import Ending
from chaos.report.document import line

RUNS = 200


def waits(fabricate, *seconds, **answer):
    return [
        fabricate.sample(f"r{i}", cache_wait_s=wait, **answer)
        for i, wait in enumerate(seconds)
    ]


# -- O2 ------------------------------------------------------------------------


def test_a_wait_up_to_deadline_and_poll_passes(fabricate):
    judged = judge_cache_wait(waits(fabricate, 0.0, 0.1, 0.22), fabricate.limits())

    assert judged.verdict is Verdict.PASS
    assert line(judged) == "O2 wait <= T + poll: max 0.220 s of 0.220 s (n=3) PASS"


def test_the_longest_wait_is_shown_unless_another_broke_the_law(fabricate):
    long = fabricate.sample("long", cache_wait_s=0.2)
    brief = fabricate.sample("brief", cache_wait_s=0.019, deadline_s=0.0)
    rogue = fabricate.sample("rogue", cache_wait_s=0.09, deadline_s=0.0)

    good = judge_cache_wait([brief, long], fabricate.limits())
    bad = judge_cache_wait([brief, long, rogue], fabricate.limits())

    assert (good.observed, good.threshold) == ("max 0.200 s", "0.220 s")
    assert (bad.observed, bad.threshold) == ("max 0.090 s", "0.020 s")


def test_one_wait_over_the_deadline_fails_and_is_named(fabricate):
    judged = judge_cache_wait(waits(fabricate, 0.1, 0.23, 0.1), fabricate.limits())

    assert judged.verdict is Verdict.FAIL
    assert "1 requests over, first r1" in judged.reason
    assert judged.numbers["broken"] == 1


def test_a_claimed_deadline_above_the_formula_does_not_help(fabricate):
    """Mutant: deadline ignored. The engine claims 30 s and waits 1 s."""
    samples = waits(fabricate, 1.0, deadline_s=30.0, tokens=1024)

    assert judge_cache_wait(samples, fabricate.limits()).verdict is Verdict.FAIL


def test_a_wait_without_a_deadline_is_a_wait_without_a_reason(fabricate):
    """Mutant: no prefetch was started (deadline 0), yet the request waited."""
    samples = waits(fabricate, 0.1, deadline_s=0.0)

    assert judge_cache_wait(samples, fabricate.limits()).verdict is Verdict.FAIL


def test_longer_prompts_may_wait_longer(fabricate):
    long = waits(fabricate, 0.29, deadline_s=0.28, tokens=8192)
    short = waits(fabricate, 0.29, deadline_s=0.28, tokens=512)

    assert judge_cache_wait(long, fabricate.limits()).verdict is Verdict.PASS
    assert judge_cache_wait(short, fabricate.limits()).verdict is Verdict.FAIL


def test_the_allowance_is_printed_and_bounded_by_one_poll(fabricate):
    limits = fabricate.limits()

    near = judge_cache_wait(waits(fabricate, 0.23), limits, allowance_s=0.012)
    far = judge_cache_wait(waits(fabricate, 0.25), limits, allowance_s=5.0)

    assert near.verdict is Verdict.PASS
    assert near.reason == "+ 0.012 s measured scheduling"
    assert far.verdict is Verdict.FAIL
    assert far.numbers["allowance_s"] == limits.poll_s


def test_hung_requests_have_an_unknown_wait(fabricate):
    samples = [*waits(fabricate, 0.1), fabricate.sample("x", ending=Ending.HUNG)]

    assert judge_cache_wait(samples, fabricate.limits()).verdict is Verdict.INCONCLUSIVE


def test_no_answer_tells_nothing_about_waits(fabricate):
    samples = [fabricate.sample("x", ending=Ending.HUNG)]

    assert judge_cache_wait(samples, fabricate.limits()).verdict is Verdict.INCONCLUSIVE


# -- O5, every request ------------------------------------------------------------


def test_a_request_may_cost_its_deadline_once(fabricate):
    local = fabricate.arm(1, requests=40)
    fault = [shifted(s, 0.2) for s in local]

    judged = judge_cost_per_request(fault, local, fabricate.limits())

    assert judged.verdict is Verdict.PASS
    assert judged.samples == 40


def test_one_request_that_costs_more_fails(fabricate):
    local = fabricate.arm(1, requests=40)
    fault = [local[0], shifted(local[1], 0.5), *local[2:]]

    judged = judge_cost_per_request(fault, local, fabricate.limits())

    assert judged.verdict is Verdict.FAIL
    assert "1 requests over, first r1" in judged.reason


def test_a_hung_request_costs_its_timeout(fabricate):
    local = fabricate.arm(1, requests=40)
    hung = fabricate.sample("r0", ending=Ending.HUNG, latency_s=10.0)

    judged = judge_cost_per_request([hung, *local[1:]], local, fabricate.limits())

    assert judged.verdict is Verdict.FAIL


def test_a_fast_failure_does_not_look_cheap(fabricate):
    failed = fabricate.sample("r0", ok=False, latency_s=3.0, ttft_s=0.0)

    assert failed.ttft_s == 3.0


def test_few_pairs_are_inconclusive_with_the_needed_number(fabricate):
    local = fabricate.arm(1, requests=5)

    judged = judge_cost_per_request(local, local, fabricate.limits())

    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.reason == "5 of the 30 samples needed"


def test_arms_of_different_traces_have_no_pairs(fabricate):
    other = [fabricate.sample("z")]
    judged = judge_cost_per_request(other, fabricate.arm(1), fabricate.limits())

    assert judged.verdict is Verdict.INCONCLUSIVE


# -- O5, after detection ----------------------------------------------------------


def after(fault, local, seed=1, **fields):
    fields = {"detected_at_s": 0.0, "rng": seeded(seed), **fields}
    return judge_cost_after_detection(fault, local, **fields)


def test_equal_arms_never_fail_and_their_interval_holds_zero(fabricate):
    failures = alarms = 0
    for seed in range(RUNS):
        fault = fabricate.arm(2 * seed, requests=96)
        local = fabricate.arm(2 * seed + 1, requests=96)
        (judged,) = after(fault, local, seed)
        failures += judged.verdict is Verdict.FAIL
        alarms += not judged.numbers["low"] <= 0 <= judged.numbers["high"]

    assert failures == 0
    assert alarms <= 0.07 * RUNS


def test_equal_arms_with_little_noise_pass(fabricate):
    (judged,) = after(fabricate.arm(1, noise=0.02), fabricate.arm(2, noise=0.02))

    assert judged.verdict is Verdict.PASS
    assert "A/A floor (by swapping)" in judged.reason
    assert "p99 not judged: n=320 of 3,000" in judged.reason


@pytest.mark.parametrize("factor", [1.15, 1.5, 3.0])
def test_a_slower_arm_fails(fabricate, factor):
    fault = fabricate.arm(1, factor=factor, noise=0.02)

    (judged,) = after(fault, fabricate.arm(2, noise=0.02))

    assert judged.verdict is Verdict.FAIL


def test_on_the_margin_is_inconclusive_and_says_how_many_samples_decide(fabricate):
    fault = fabricate.arm(1, factor=1.05, noise=0.05, requests=64)

    (judged,) = after(fault, fabricate.arm(2, requests=64))

    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "samples decide" in judged.reason


def test_what_came_before_detection_is_not_judged(fabricate):
    local = fabricate.arm(2, noise=0.02)
    slow = fabricate.arm(1, factor=5.0, noise=0.02)
    fine = fabricate.arm(1, noise=0.02)
    mixed = [s if s.intended_s < 8 else fine[i] for i, s in enumerate(slow)]

    (early,), (late,) = after(mixed, local), after(mixed, local, detected_at_s=8.0)

    assert early.verdict is not Verdict.PASS
    assert late.verdict is Verdict.PASS
    assert late.samples == 160


def test_few_sessions_are_inconclusive(fabricate):
    arm = fabricate.arm(1, sessions=4)

    (judged,) = after(arm, arm)

    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.reason == "4 of the 8 sessions needed"


def test_floor_arms_give_a_measured_floor(fabricate):
    arms = [fabricate.arm(seed, noise=0.02) for seed in range(4)]

    (judged,) = after(arms[0], arms[1], floor_arms=(arms[2], arms[3]))

    assert judged.reason.startswith("A/A floor 1.1 %;")
    assert 0 < judged.numbers["aa_floor"] < 0.05


def test_p99_is_judged_from_three_thousand_samples(fabricate):
    local = fabricate.arm(1, requests=3000, sessions=60, noise=0.01)
    fault = [shifted(s, 5.0) if i % 37 == 0 else s for i, s in enumerate(local)]

    median, tail = after(fault, local)

    assert median.verdict is Verdict.PASS
    assert tail.verdict is Verdict.FAIL
    assert "p99" in tail.claim


# -- O9 and service levels ----------------------------------------------------------


def test_eviction_may_double_the_tail_and_no_more():
    idle = [0.001] * 300

    fine = judge_eviction_stall([0.0019] * 300, idle, evicted=5)
    stalled = judge_eviction_stall([0.0019] * 290 + [0.1] * 10, idle, evicted=5)

    assert fine.verdict is Verdict.PASS
    assert stalled.verdict is Verdict.FAIL


def test_eviction_that_did_not_happen_proves_nothing():
    idle = [0.001] * 300

    for judged in (
        judge_eviction_stall(idle, idle, evicted=0),
        judge_eviction_stall(idle[:298], idle, evicted=5),
    ):
        assert judged.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.04, Verdict.PASS), (0.06, Verdict.FAIL)]
)
def test_mean_and_quantile_service_levels(value, verdict):
    noise = seeded(1).normal(0, 0.002, 300)
    values = [value + float(x) for x in noise]

    mean = judge_service_level("SLO", "mean", values, 0.05)
    tail = judge_service_level("SLO", "p95", values, 0.05, quantile=0.95)

    assert mean.verdict is tail.verdict is verdict


def test_a_service_level_between_its_bounds_is_inconclusive():
    values = [float(x) for x in seeded(1).normal(0.05, 0.01, 40)]

    judged = judge_service_level("SLO", "mean", values, 0.05)

    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "more samples decide" in judged.reason


def test_a_tail_needs_its_samples():
    few, enough = (
        judge_service_level("SLO", "p99", [0.001] * n, 0.05, quantile=0.99)
        for n in (298, 299)
    )

    assert few.reason == "298 of the 299 samples needed"
    assert enough.verdict is Verdict.PASS


def shifted(sample, seconds):
    answer = replace(
        sample.answer, ttft_modelled_s=sample.answer.ttft_modelled_s + seconds
    )
    return replace(sample, answer=answer, done_s=sample.done_s + seconds)
