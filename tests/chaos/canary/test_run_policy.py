"""The policy of live runs over made-up arms: what it lets pass, and what it stops."""

from __future__ import annotations

import numpy as np
import pytest

from chaos.canary.gate import judge
from chaos.canary.run_policy import policy_for
from chaos.canary.samples import Columns

ROWS, BLOCK, SESSIONS = 360, 15, 60
FAULT_ROWS = 70


def arm(label, seed, **change):
    """One arm as a live run leaves it; `change` is what a bad build does."""
    dice = np.random.default_rng(seed)
    shared = np.random.default_rng(99)  # the trace: the same in both arms
    prompt = shared.integers(1024, 4097, ROWS)
    base = 0.03 + shared.lognormal(-2.6, 0.5, ROWS)
    hit = np.round(prompt * shared.uniform(0.3, 0.9, ROWS))
    rows = ROWS + FAULT_ROWS
    metrics = {
        name: np.full(rows, np.nan)
        for name in ("ttft_s", "lookup_ms", "rpcs", "stores", "fault_ttft_s")
    }
    metrics["fault_waited"] = np.full(rows, np.nan)
    noise = dice.lognormal(0, 0.05, ROWS)
    metrics["ttft_s"][:ROWS] = base * noise * change.get("ttft", 1.0)
    lookup = dice.lognormal(0.3, 0.25, ROWS // BLOCK) + change.get("lookup_ms", 0.0)
    metrics["lookup_ms"][:ROWS:BLOCK] = lookup
    rpcs = 3.2 + change.get("rpcs", 0.0) + dice.normal(0, 0.03, ROWS // BLOCK)
    metrics["rpcs"][:ROWS:BLOCK] = rpcs
    metrics["stores"][:ROWS] = shared.integers(0, 2, ROWS) * change.get("stores", 1)
    late = slice(ROWS + FAULT_ROWS // 2, rows)
    waited = dice.random(FAULT_ROWS // 2) < change.get("waiting", 0.0)
    metrics["fault_waited"][late] = np.where(waited, 0.9, 0.01)
    metrics["fault_ttft_s"][ROWS:] = 0.15 * dice.lognormal(0, 0.1, FAULT_ROWS)
    tokens = np.full(rows, np.nan)
    tokens[:ROWS] = np.maximum(0, hit - prompt * change.get("lost", 0.0))
    prompts = np.full(rows, np.nan)
    prompts[:ROWS] = prompt
    counters = dict.fromkeys(
        policy_for({"refimpl"}, played=True, drilled=True).invariants, 0
    )
    at = np.arange(rows) * 0.07
    return Columns(
        arm=label,
        ok=np.ones(rows, bool),
        metrics=metrics,
        request=np.arange(rows),
        sessions=[f"s{i % SESSIONS}" for i in range(rows)],
        hosts=[f"engine-{i % 2}" for i in range(rows)],
        classes=["4k"] * rows,
        start_s=at,
        hit_tokens=tokens,
        prompt_tokens=prompts,
        lag_s=np.abs(dice.normal(0, 0.001, rows)),
        counters={**counters, **change.get("counters", {})},
        complete=True,
        meta={"requests": rows, "started_at": 1.0, "ended_at": 60.0},
    ).samples()


def verdict(seed=1, **change):
    policy = policy_for({"refimpl"}, played=True, drilled=True)
    baseline, canary = arm("baseline", seed), arm("canary", seed + 500, **change)
    return judge(policy, baseline, canary)


def stopped_by(result):
    return {each.metric for each in result.judgements if each.verdict.value == "FAIL"}


def test_equal_arms_are_never_stopped_and_mostly_pass():
    results = [verdict(seed) for seed in range(20)]

    verdicts = [result.verdict.value for result in results]
    assert "FAIL" not in verdicts
    assert verdicts.count("PASS") >= 15
    assert all(r.extend_by for r in results if r.verdict.value == "INCONCLUSIVE")


@pytest.mark.parametrize(
    ("change", "metric"),
    [
        ({"lookup_ms": 2.8}, "lookup_ms"),
        ({"rpcs": 1.0}, "rpcs"),
        ({"stores": 3}, "stores"),
        ({"lost": 0.2}, "hit_rate"),
        ({"ttft": 1.25}, "ttft_s"),
        ({"waiting": 0.95}, "fault_waited"),
    ],
)
def test_a_bad_build_is_stopped_by_what_shows_it(change, metric):
    result = verdict(**change)

    assert result.verdict.value == "FAIL"
    assert metric in stopped_by(result)


@pytest.mark.parametrize("counter", ["wrong_bytes", "late_reuse", "open_breakers"])
def test_one_event_is_one_too_many(counter):
    assert stopped_by(verdict(counters={counter: 1})) == {counter}


def test_what_was_asked_for_and_not_counted_never_passes():
    policy = policy_for({"refimpl"}, played=True, drilled=True)
    baseline, canary = arm("baseline", 1), arm("canary", 2)
    del canary.counters["late_pages"]

    assert judge(policy, baseline, canary).verdict.value == "INCONCLUSIVE"


def test_mooncake_is_not_asked_for_what_only_our_master_counts():
    policy = policy_for({"mooncake"}, played=False, drilled=False)
    baseline, canary = arm("baseline", 1), arm("canary", 501)
    for each in (baseline, canary):
        for name in ("rpcs", "lookup_ms", "stores"):
            del each.metrics[name]

    assert judge(policy, baseline, canary).verdict.value == "PASS"
