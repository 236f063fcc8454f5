from __future__ import annotations

import pytest

from chaos.faults.base import Evidence, Receipt
from chaos.judge.limit import at_most, none_of
from chaos.judge.validity import (
    gated,
    judge_evidence,
    judge_generator,
    judge_leases,
    scheduling_allowance_s,
    validity_of,
)
from chaos.judge.verdict import Verdict
from chaos.load.sample import Ending, LoadRun


def run_of(fabricate, *, lags, shed=0):
    samples = [fabricate.sample(f"r{i}", lag_s=lag) for i, lag in enumerate(lags)]
    samples += [fabricate.sample(f"x{i}", ending=Ending.SHED) for i in range(shed)]
    return LoadRun(samples=tuple(samples), lag_s=tuple(lags))


def receipt(effect=1.0, residual=""):
    evidence = None if effect is None else Evidence(measure="gone", effect=effect)
    return Receipt(
        fault_id="f1",
        kind="kill",
        target="store-1",
        evidence=evidence,
        residual=residual,
    )


TIMING = at_most("O2", "wait", 0.1, 0.3, samples=40, unit="s")
BROKEN_TIMING = at_most("O2", "wait", 0.4, 0.3, samples=40, unit="s")
COUNTER = none_of("O1", "bytes", 0, of=40, what="wrong")
BROKEN_COUNTER = none_of("O1", "bytes", 1, of=40, what="wrong")


def test_a_prompt_generator_is_valid(fabricate):
    validity = validity_of(run_of(fabricate, lags=[0.001] * 200), 0.3)

    assert validity.problem == ""
    assert judge_generator(validity).verdict is Verdict.PASS
    assert gated(TIMING, validity=validity) is TIMING


def test_lag_of_a_tenth_of_the_threshold_makes_timing_inconclusive(fabricate):
    lags = [0.001] * 190 + [0.031] * 10
    validity = validity_of(run_of(fabricate, lags=lags), 0.3)

    assert "lagged 0.031 s (p99), 0.030 s allowed" in validity.problem
    assert judge_generator(validity).verdict is Verdict.INCONCLUSIVE
    for judged in (TIMING, BROKEN_TIMING):
        assert gated(judged, validity=validity).verdict is Verdict.INCONCLUSIVE


def test_a_lagging_generator_does_not_excuse_a_counter(fabricate):
    validity = validity_of(run_of(fabricate, lags=[1.0] * 200), 0.3)

    assert gated(COUNTER, validity=validity).verdict is Verdict.PASS
    assert gated(BROKEN_COUNTER, validity=validity).verdict is Verdict.FAIL


def test_shedding_more_than_one_per_cent_is_not_achieved(fabricate):
    good = run_of(fabricate, lags=[0.0] * 199, shed=1)
    bad = run_of(fabricate, lags=[0.0] * 190, shed=10)

    assert validity_of(good, 0.3).problem == ""
    assert "achieved 95.0 %" in validity_of(bad, 0.3).problem
    assert "achieved 95.0 %" in validity_of([good, bad], 0.3).problem


def test_no_run_and_no_request_are_not_valid(fabricate):
    assert validity_of([], 0.3).problem == "no request was sent"
    assert validity_of(LoadRun(samples=(), lag_s=()), 0.3).problem


def test_a_fault_without_effect_cannot_pass_and_cannot_excuse():
    idle = [receipt(effect=0.0)]

    passed = gated(COUNTER, receipts=idle)

    assert passed.verdict is Verdict.INCONCLUSIVE
    assert passed.reason == "no effect of kill store-1"
    assert gated(BROKEN_COUNTER, receipts=idle).verdict is Verdict.FAIL
    assert gated(COUNTER, receipts=[receipt()]) is COUNTER


@pytest.mark.parametrize(
    ("receipts", "verdict"),
    [
        ([receipt()], Verdict.PASS),
        ([receipt(), receipt(effect=None)], Verdict.INCONCLUSIVE),
        ([], Verdict.INCONCLUSIVE),
        ([receipt(residual="pid 7 is stopped")], Verdict.FAIL),
    ],
)
def test_evidence_is_judged(receipts, verdict):
    assert judge_evidence(receipts).verdict is verdict


def test_allowance_is_measured_and_never_more_than_a_poll(fabricate):
    limits = fabricate.limits(poll_s=0.02)

    assert scheduling_allowance_s(run_of(fabricate, lags=[0.003]), limits) == 0.003
    assert scheduling_allowance_s(run_of(fabricate, lags=[0.5]), limits) == 0.02
    assert scheduling_allowance_s(LoadRun(samples=(), lag_s=()), limits) == 0


def test_a_host_that_lost_its_lease_makes_every_pass_a_guess():
    held = judge_leases([], hosts=3)
    lost = judge_leases(["h1: no answer for 30 s"], hosts=3)

    assert held.verdict is Verdict.PASS
    assert lost.verdict is Verdict.INCONCLUSIVE
    assert "h1: no answer for 30 s" in lost.reason
