"""What is missing, broken or cut short never passes: property tests of the gate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.canary.gate import abort_early, judge
from chaos.canary.policy import default_policy, load_policy, parse_policy
from chaos.canary.run_policy import policy_for
from chaos.canary.samples import Columns
from chaos.judge.verdict import Verdict

ROWS = 10_000
GOOD = {"wrong_bytes": 0, "hangs": 0, "residual_faults": 0}
FAST = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def sound():
    """Two arms that pass, so that whatever is broken in them makes the difference."""
    from numpy.random import default_rng

    arms = [_arm(name, default_rng(seed)) for seed, name in enumerate(_NAMES)]
    assert judge(default_policy(), *arms).verdict is Verdict.PASS
    return arms


_NAMES = ("baseline", "canary")


def _arm(name, rng, rows=ROWS):
    prompt = np.random.default_rng(9).normal(0, 0.5, rows)
    tokens = np.round(2000 * np.exp(prompt)) + 1
    return Columns(
        arm=name,
        ok=np.ones(rows, bool),
        request=np.arange(rows),
        sessions=[f"s-{i % 500}" for i in range(rows)],
        classes=["4k" if i % 3 else "16k" for i in range(rows)],
        start_s=np.arange(rows) * 0.05,
        metrics={"ttft_s": 0.4 * np.exp(prompt + rng.normal(0, 0.1, rows))},
        hit_tokens=tokens * np.clip(rng.normal(0.6, 0.02, rows), 0, 1),
        prompt_tokens=tokens,
        lag_s=np.full(rows, 0.0004),
        counters=GOOD,
        complete=True,
        meta={"requests": rows, "seed": 1, "started_at": 0.0, "ended_at": 600.0},
    ).samples()


def cut(samples, rows):
    """The first rows of an arm, as a recorder leaves them that died."""

    def first(column):
        return None if column is None else column[:rows]

    return replace(
        samples,
        request=first(samples.request),
        session=first(samples.session),
        host=first(samples.host),
        klass=first(samples.klass),
        start_s=first(samples.start_s),
        ok=first(samples.ok),
        metrics={k: first(v) for k, v in samples.metrics.items()},
        hit_tokens=first(samples.hit_tokens),
        prompt_tokens=first(samples.prompt_tokens),
        lag_s=first(samples.lag_s),
    )


def judged(arms, which, samples):
    both = list(arms)
    both[which] = samples
    return judge(default_policy(), *both)


ARM = st.sampled_from([0, 1])


@FAST
@given(which=ARM, rows=st.integers(0, ROWS - 1), says_so=st.booleans())
def test_an_arm_that_died_is_never_passed(sound, which, rows, says_so) -> None:
    dead = cut(sound[which], rows)
    if says_so:
        dead = replace(dead, complete=False, meta={**dead.meta, "requests": rows})

    result = judged(sound, which, dead)

    assert result.verdict is Verdict.INCONCLUSIVE


@FAST
@given(which=ARM, share=st.floats(0.1, 1.0), seed=st.integers(0, 99))
def test_missing_values_are_never_passed(sound, which, share, seed) -> None:
    holes = np.random.default_rng(seed).random(ROWS) < share
    ttft = np.where(holes, np.nan, sound[which].metrics["ttft_s"])

    result = judged(sound, which, replace(sound[which], metrics={"ttft_s": ttft}))

    assert result.verdict is not Verdict.PASS


@FAST
@given(
    which=ARM,
    value=st.sampled_from([np.inf, -np.inf, -1.0, -1e300]),
    at=st.integers(0, ROWS - 1),
)
def test_one_impossible_value_is_never_passed(sound, which, value, at) -> None:
    ttft = sound[which].metrics["ttft_s"].copy()
    ttft[at] = value

    result = judged(sound, which, replace(sound[which], metrics={"ttft_s": ttft}))

    assert result.verdict is not Verdict.PASS


@FAST
@given(
    which=ARM,
    column=st.sampled_from(["hit_tokens", "prompt_tokens", "lag_s"]),
    value=st.sampled_from([np.nan, np.inf, -5.0]),
)
def test_a_broken_column_is_never_passed(sound, which, column, value) -> None:
    broken = replace(sound[which], **{column: np.full(ROWS, value)})

    assert judged(sound, which, broken).verdict is not Verdict.PASS


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", sorted(GOOD))
@pytest.mark.parametrize("value", [None, -1])
def test_a_counter_that_nobody_read_is_open(sound, which, name, value) -> None:
    counters = {k: v for k, v in GOOD.items() if k != name}
    if value is not None:
        counters[name] = value

    result = judged(sound, which, replace(sound[which], counters=counters))

    assert result.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("name", sorted(GOOD))
def test_one_counted_event_in_the_canary_fails(sound, name) -> None:
    result = judged(sound, 1, replace(sound[1], counters=GOOD | {name: 1}))

    assert result.verdict is Verdict.FAIL
    assert result.exit_code == (5 if name == "residual_faults" else 1)


def test_an_arm_that_ended_in_a_hang_convicts_only_the_canary(sound) -> None:
    """A hang ends a measurement: that of the baseline says nothing of the canary."""
    hung = {"complete": False, "counters": GOOD | {"hangs": 1}}
    slower = replace(sound[1], metrics={"ttft_s": 3 * sound[1].metrics["ttft_s"]})

    assert judged(sound, 1, replace(sound[1], **hung)).verdict is Verdict.FAIL
    baseline = replace(sound[0], **hung)
    found = judged((sound[0], slower), 0, baseline)
    assert found.verdict is Verdict.INCONCLUSIVE


def test_a_broken_baseline_clears_nobody(sound) -> None:
    result = judged(sound, 0, replace(sound[0], counters=GOOD | {"wrong_bytes": 3}))

    assert result.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "change",
    [
        {"problems": ("requests.jsonl ends within a line",)},
        {"complete": False},
        {"meta": {"requests": ROWS + 1, "seed": 1}},
        {"meta": {"requests": ROWS, "seed": 2}},
        {"meta": {"requests": ROWS, "seed": 1, "time_scale": 0.1}},
        {"meta": {"requests": ROWS, "seed": 1, "time_scale": "fast"}},
        {"meta": {"requests": ROWS, "seed": 1, "clock_skew_s": 7.0}},
        {"meta": {"requests": ROWS, "seed": 1, "clock_skew_s": float("nan")}},
        {"meta": {"requests": ROWS, "seed": 1, "clock_skew_s": "999"}},
        {"meta": {"requests": ROWS, "seed": 1, "started_at": 9.0, "ended_at": 1.0}},
        {"meta": {"requests": ROWS, "seed": 1, "started_at": 0.0, "ended_at": 60.0}},
        {"request": np.zeros(ROWS, dtype=np.int64)},
        {"request": np.arange(ROWS) + ROWS},
        {"start_s": np.full(ROWS, -1.0)},
        {"lag_s": np.full(ROWS, 0.5)},
        {"klass": np.zeros(ROWS, dtype=np.int64)},
        {"klass": np.full(ROWS, -1)},
        {"ok": np.zeros(ROWS, dtype=bool)},
        {"metrics": {}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_doubtful_arm_is_never_passed(sound, which, change) -> None:
    result = judged(sound, which, replace(sound[which], **change))

    if not (which == 1 and "ok" in change):
        assert result.verdict is Verdict.INCONCLUSIVE
    assert result.verdict is not Verdict.PASS


def test_one_arm_read_twice_is_no_comparison(sound) -> None:
    result = judged(sound, 1, replace(sound[0], arm="canary"))

    assert result.verdict is Verdict.INCONCLUSIVE
    assert any("read twice" in each.reason for each in result.judgements)


@pytest.mark.parametrize("which", [0, 1])
def test_an_empty_arm_is_open(sound, which) -> None:
    empty = Columns(
        arm=_NAMES[which], ok=[], counters=GOOD, complete=True, meta={"requests": 0}
    ).samples()

    assert judged(sound, which, empty).verdict is Verdict.INCONCLUSIVE


def test_a_doubt_takes_back_a_fail_as_well(sound) -> None:
    slow = {"ttft_s": sound[1].metrics["ttft_s"] * 2}
    late = replace(sound[1], metrics=slow, lag_s=np.full(ROWS, 0.5))

    result = judged(sound, 1, late)
    (p99,) = [each for each in result.judgements if each.name == "ttft_s p99"]

    assert result.verdict is Verdict.INCONCLUSIVE
    assert "would be FAIL" in p99.reason
    assert "bottleneck" in p99.reason


def policy_of(rules):
    head = "schema: canary.policy/1\nname: x\n"
    return parse_policy(head + rules)


def test_a_policy_of_which_nothing_was_measured_clears_nobody(sound) -> None:
    """Checks of validity are no judgement of the canary."""
    rule = "relative:\n  - {metric: tpot_s, quantile: 0.5, max_ratio: 1.05"
    policy = policy_of(rule + ", required: false}\n")

    result = judge(policy, *sound)

    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.exit_code == 3
    assert any("was measured in either arm" in e.reason for e in result.judgements)


@pytest.mark.parametrize(
    "rules",
    [
        "slos:\n  - {metric: ttft_s, quantile: 0.9, at_most: 100s}\n",
        "slos:\n  - {metric: ttft_s, at_most: 100s}\n",
        "relative:\n  - {metric: ttft_s, statistic: paired, max_ratio: 1.05}\n",
        "relative:\n  - {metric: ttft_s, statistic: mean, max_ratio: 1.05}\n",
    ],
)
def test_a_late_client_clears_nobody_whatever_the_statistic(sound, rules) -> None:
    policy = policy_of(rules)
    late = replace(sound[1], lag_s=np.full(ROWS, 60.0))

    assert judge(policy, *sound).verdict is Verdict.PASS
    assert judge(policy, sound[0], late).verdict is Verdict.INCONCLUSIVE


def test_a_late_client_clears_nobody_of_a_live_run() -> None:
    policy = policy_for({"refimpl"}, played=False, drilled=False)
    arms = [_arm(name, np.random.default_rng(at)) for at, name in enumerate(_NAMES)]
    late = [replace(arm, lag_s=np.full(ROWS, 60.0)) for arm in arms]

    result = judge(policy, *late)

    assert "lag" in {e.name for e in result.judgements if e.verdict is not Verdict.PASS}


@pytest.mark.parametrize("which", [0, 1])
def test_requests_that_are_not_there_may_have_failed(sound, which) -> None:
    """0.9 % without a row, where 0.05 % may fail more."""
    rows = ROWS - 90
    short = cut(sound[which], rows)
    short = replace(short, meta={**short.meta, "requests": rows})

    result = judged(sound, which, short)

    assert result.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "rules",
    [
        "slos:\n  - {metric: ttft_s, quantile: 0.99, at_most: 100s}\n",
        "relative:\n  - {metric: ttft_s, quantile: 0.99, max_ratio: 1.5}\n",
        "relative:\n  - {metric: ttft_s, statistic: exceedance, quantile: 0.99,"
        " max_delta: 0.02}\n",
    ],
)
def test_the_slowest_requests_are_not_left_out(sound, rules) -> None:
    """The 0.9 % that are slowest have no value: a p99 would not see them."""
    policy = policy_of(rules)
    ttft = sound[1].metrics["ttft_s"].copy()
    ttft[np.argsort(ttft)[-90:]] = np.nan

    assert judge(policy, *sound).verdict is Verdict.PASS
    blind = replace(sound[1], metrics={"ttft_s": ttft})
    assert judge(policy, sound[0], blind).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "rules",
    [
        "slos:\n  - {metric: ttft_s, quantile: 0.9, at_most: 100s}\n",
        "relative:\n  - {metric: ttft_s, quantile: 0.5, max_ratio: 1.5}\n",
        "relative:\n  - {metric: ttft_s, statistic: paired, max_ratio: 1.5}\n",
        "relative:\n  - {metric: ttft_s, statistic: mean, max_ratio: 1.5}\n",
    ],
)
def test_a_build_that_fails_at_once_is_no_fast_one(sound, rules) -> None:
    """Its failures have a latency, and a short one; no rule asks for errors."""
    quick = {"ttft_s": sound[1].metrics["ttft_s"] / 2}
    failing = replace(sound[1], metrics=quick, ok=np.arange(ROWS) % 4 == 0)

    assert judge(policy_of(rules), *sound).verdict is Verdict.PASS
    assert judge(policy_of(rules), sound[0], failing).verdict is not Verdict.PASS


ODD = (np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-300, 1e300, 5e-324)


def _garbage(name, rng, rows):
    """Columns of anything, some of it impossible."""

    def column():
        values = rng.lognormal(-1, 2, rows)
        odd = rng.random(rows) < rng.choice([0, 0.02, 0.5, 1])
        return np.where(odd, rng.choice(ODD, rows), values)

    return Columns(
        arm=name,
        ok=rng.random(rows) < rng.choice([0, 0.5, 0.99, 1]),
        request=rng.choice([None, 1]) and rng.permutation(rows + 3)[:rows],
        sessions=[f"s{i % 20}" for i in range(rows)] if rng.random() < 0.5 else None,
        hosts=[f"{name}-{i % 3}" for i in range(rows)] if rng.random() < 0.5 else None,
        classes=["a"] * rows if rng.random() < 0.8 else None,
        start_s=column(),
        metrics={m: column() for m in ("ttft_s", "tpot_s", "rpcs", "cache_wait_s")},
        hit_tokens=column(),
        prompt_tokens=column(),
        lag_s=column(),
        counters=GOOD if rng.random() < 0.8 else {},
        complete=True,
        meta={"requests": rows, "started_at": 0, "ended_at": rng.choice(ODD)},
    ).samples()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(0, 400))
def test_garbage_is_judged_without_an_error_and_never_passed(seed, rows) -> None:
    rng = np.random.default_rng(seed)
    arms = [_garbage(name, rng, rows) for name in _NAMES]

    result = judge(POLICY, *arms)

    assert result.verdict is not Verdict.PASS
    json.dumps(result.to_document(), allow_nan=False)
    abort_early(POLICY, *arms)


POLICY = load_policy(Path(__file__).parents[3] / "suites" / "canary" / "article.yaml")
