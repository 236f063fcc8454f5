"""The gate: harm is stopped, equal arms pass when there is enough, doubt is said."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from chaos.canary.floor import NoiseFloor
from chaos.canary.gate import abort_early, judge
from chaos.canary.policy import Policy, RelativeRule, default_policy
from chaos.judge.verdict import Verdict

PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def named(result, name):
    (found,) = [each for each in result.judgements if each.name == name]
    return found


def policy(*rules, **fields):
    return Policy(
        name="test",
        relative=tuple(RelativeRule.model_validate(rule) for rule in rules),
        **fields,
    )


P99 = {"metric": "ttft_s", "quantile": 0.99, "max_ratio": 1.16}
PAIRED = {"metric": "ttft_s", "statistic": "paired", "max_ratio": 1.05}
ERRORS = {"metric": "error_rate", "max_delta": 0.0005}
HITS = {"metric": "hit_rate", "max_delta": 0.008}
TAIL = {
    "metric": "ttft_s",
    "statistic": "exceedance",
    "quantile": 0.99,
    "max_delta": 0.003,
}


@pytest.mark.parametrize("paired", [False, True])
def test_equal_arms_of_ten_thousand_pass(arm_of, rng, paired: bool) -> None:
    arms = [arm_of(n, rng, rows=10_000, paired=paired) for n in ("baseline", "canary")]

    result = judge(default_policy(), *arms)

    assert [j.reason for j in result.judgements if j.verdict is not PASS] == []
    assert result.verdict is PASS
    assert result.exit_code == 0


def test_a_slower_canary_fails_and_says_by_how_much(arm_of, rng) -> None:
    result = judge(
        default_policy(),
        arm_of("baseline", rng, rows=10_000),
        arm_of("canary", rng, rows=10_000, scale=1.3),
    )
    found = named(result, "ttft_s p99")

    assert result.verdict is FAIL
    assert result.exit_code == 1
    assert found.verdict is FAIL
    assert found.low < 1.3 < found.high
    assert found.low > 1.0
    assert found.adjusted_p >= found.p_value
    assert found.design == "unpaired"


def test_tail_alone_is_caught_by_the_exceedance_rule(arm_of, rng) -> None:
    baseline = arm_of("baseline", rng, rows=10_000)
    canary = arm_of("canary", rng, rows=10_000)
    ttft = canary.metrics["ttft_s"].copy()
    ttft[rng.random(10_000) < 0.008] *= 20
    canary = replace(canary, metrics={"ttft_s": ttft})

    result = judge(policy(P99, TAIL), baseline, canary)

    assert named(result, "ttft_s over 1.5x p99").verdict is FAIL


def test_median_and_mean_of_errors_do_not_hide_twelve_of_twenty_thousand(
    arm_of, rng
) -> None:
    arms = [arm_of(n, rng, rows=20_000) for n in ("baseline", "canary")]
    ok = arms[1].ok.copy()
    ok[::1667] = False
    arms[1] = replace(arms[1], ok=ok)

    result = judge(policy(ERRORS), *arms)

    assert named(result, "error_rate").verdict is FAIL
    assert named(result, "error_rate").p_value < 0.01


def test_fewer_hits_fail_and_the_estimate_is_negative(arm_of, rng) -> None:
    result = judge(
        policy(HITS),
        arm_of("baseline", rng, rows=5000, paired=True),
        arm_of("canary", rng, rows=5000, paired=True, hit=0.58),
    )
    found = named(result, "hit_rate")

    assert found.verdict is FAIL
    assert found.estimate == pytest.approx(-0.02, abs=0.002)
    assert found.low < found.estimate < found.high < 0
    assert found.limit == ">= -0.8 pp"


def test_more_hits_are_no_harm(arm_of, rng) -> None:
    result = judge(
        policy(HITS),
        arm_of("baseline", rng, paired=True),
        arm_of("canary", rng, paired=True, hit=0.8),
    )

    assert result.verdict is PASS


def test_pairs_tell_more_than_arms_that_were_asked_different_things(
    arm_of, rng
) -> None:
    rule = {"metric": "ttft_s", "quantile": 0.5, "max_ratio": 1.05}

    def width(paired):
        arms = [
            arm_of(n, rng, paired=paired, trace_seed=5 if paired else seed)
            for n, seed in (("baseline", 1), ("canary", 2))
        ]
        found = named(judge(policy(rule), *arms), "ttft_s p50")
        return math.log(found.high / found.low)

    assert width(paired=True) < 0.75 * width(paired=False)


def test_too_few_samples_are_open_and_say_how_many_are_needed(arm_of, rng) -> None:
    arms = [arm_of(n, rng, rows=300) for n in ("baseline", "canary")]

    result = judge(policy(P99, on_inconclusive="extend"), *arms)

    assert result.verdict is OPEN
    assert named(result, "ttft_s p99").needs >= 459
    assert result.extend_by == named(result, "ttft_s p99").needs
    assert result.exit_code == 3


def test_needed_samples_do_decide(arm_of) -> None:
    rule = {"metric": "ttft_s", "quantile": 0.5, "max_ratio": 1.05}
    asked, decided = 0, 0
    for trial in range(15):
        rng = np.random.default_rng([4, trial])
        arms = [arm_of(n, rng, rows=600) for n in ("baseline", "canary")]
        needs = named(judge(policy(rule), *arms), "ttft_s p50").needs
        if needs is None or needs > 10_000:
            continue
        more = [arm_of(n, rng, rows=600 + needs) for n in ("baseline", "canary")]
        asked += 1
        decided += judge(policy(rule), *more).verdict is not OPEN

    assert asked >= 8
    assert decided / asked > 0.6


def test_below_min_samples_nothing_is_judged(arm_of, rng) -> None:
    arms = [arm_of(n, rng, rows=60, paired=True) for n in ("baseline", "canary")]

    found = named(judge(policy(PAIRED), *arms), "ttft_s paired")

    assert (found.verdict, found.needs) == (OPEN, 40)


def test_optional_rules_are_noted_and_required_ones_open(arm_of, rng) -> None:
    arms = [arm_of(n, rng) for n in ("baseline", "canary")]
    tpot = {"metric": "tpot_s", "quantile": 0.5, "max_ratio": 1.05}

    optional = judge(policy(tpot | {"required": False}, HITS), *arms)
    required = judge(policy(tpot), *arms)

    assert [j.metric for j in optional.of("relative")] == ["hit_rate"]
    assert "tpot_s p50 was not judged" in optional.notes[0]
    assert required.verdict is OPEN


def test_a_metric_of_one_arm_alone_is_open_even_when_optional(arm_of, rng) -> None:
    baseline, canary = (arm_of(n, rng) for n in ("baseline", "canary"))
    more = {"ttft_s": baseline.metrics["ttft_s"], "tpot_s": np.full(3000, 0.01)}
    rule = {"metric": "tpot_s", "quantile": 0.5, "max_ratio": 1.05, "required": False}

    result = judge(policy(rule), replace(baseline, metrics=more), canary)

    assert result.verdict is OPEN


def test_failing_fast_is_not_being_fast(arm_of, rng) -> None:
    baseline = arm_of("baseline", rng, rows=5000)
    canary = arm_of("canary", rng, rows=5000)
    slow = np.argsort(canary.metrics["ttft_s"])[-500:]
    ttft, ok = canary.metrics["ttft_s"].copy(), canary.ok.copy()
    ttft[slow], ok[slow] = np.nan, False
    canary = replace(canary, metrics={"ttft_s": ttft}, ok=ok)

    result = judge(policy(P99, ERRORS), baseline, canary)

    assert named(result, "ttft_s p99").verdict is not PASS
    assert named(result, "error_rate").verdict is FAIL


def test_calls_of_a_failed_request_are_missing_and_not_infinite(arm_of, rng) -> None:
    rule = {"metric": "rpcs", "statistic": "mean", "max_ratio": 1.1}
    arms = []
    for name in ("baseline", "canary"):
        ok = np.arange(3000) != 7
        metrics = {"rpcs": np.where(ok, rng.poisson(9, 3000), np.nan)}
        arms.append(arm_of(name, rng, ok=ok, metrics=metrics))

    assert judge(policy(rule, validity={"max_lag_ratio": None}), *arms).verdict is PASS


def test_clustered_sessions_widen_the_interval(arm_of, rng) -> None:
    def arm(name, sessions):
        effect = rng.normal(0, 0.3, 40)
        of = np.arange(4000) % 40
        ttft = 0.4 * np.exp(effect[of] + rng.normal(0, 0.2, 4000))
        names = [f"s-{i}" for i in of] if sessions else None
        return arm_of(
            name, rng, rows=4000, metrics={"ttft_s": ttft}, sessions=names, start_s=None
        )

    def width(sessions):
        arms = [arm(name, sessions) for name in ("baseline", "canary")]
        rule = {"metric": "ttft_s", "quantile": 0.5, "max_ratio": 1.05}
        found = named(judge(policy(rule), *arms), "ttft_s p50")
        return math.log(found.high / found.low)

    assert width(sessions=True) > 4 * width(sessions=False)


def test_few_sessions_cannot_tell_their_spread(arm_of, rng) -> None:
    names = [f"s-{i % 3}" for i in range(3000)]
    arms = [arm_of(n, rng, sessions=names) for n in ("baseline", "canary")]

    result = judge(policy(P99), *arms)

    assert result.verdict is OPEN
    assert "3 sessions" in named(result, "ttft_s p99").reason


def test_arms_on_hosts_of_their_own_are_given_the_spread_of_hosts(arm_of, rng) -> None:
    arms = [
        arm_of(n, rng, rows=10_000, hosts=[f"host-of-{n}"] * 10_000)
        for n in ("baseline", "canary")
    ]

    result = judge(policy(P99), *arms)
    with_floor = judge(policy(P99), *arms, floor=NoiseFloor(default=0.001))

    assert result.verdict is OPEN
    assert "hosts of its own" in result.notes[-1]
    assert with_floor.verdict is PASS


def test_the_floor_is_used_and_shown(arm_of, rng) -> None:
    arms = [arm_of(n, rng, rows=10_000) for n in ("baseline", "canary")]
    floor = NoiseFloor(sd={"ttft_s p99": 0.2})

    result = judge(policy(P99), *arms, floor=floor)

    assert result.verdict is OPEN
    assert result.floor == {"ttft_s p99": 0.2}
    assert "noise between equal arms" in named(result, "ttft_s p99").reason


def test_a_floor_of_other_rules_does_not_take_the_doubt_about_hosts(
    arm_of, rng
) -> None:
    """Each arm has one host of its own, and the floor was measured for TPOT only."""
    arms = [
        arm_of(n, rng, rows=10_000, hosts=[f"host-of-{n}"] * 10_000)
        for n in ("baseline", "canary")
    ]
    floors = [NoiseFloor(sd={f"{m} p99": 0.001}, runs=9) for m in ("ttft_s", "tpot_s")]

    verdicts = [judge(policy(P99), *arms, floor=floor).verdict for floor in floors]

    assert verdicts == [PASS, OPEN]


def test_a_floor_file_that_was_not_read_is_open(arm_of, rng) -> None:
    arms = [arm_of(n, rng, rows=10_000) for n in ("baseline", "canary")]

    result = judge(policy(P99, noise_floor="floor.json"), *arms)

    assert result.verdict is OPEN
    assert named(result, "noise floor").verdict is OPEN


def test_holm_counts_the_rules_of_the_family(arm_of, rng) -> None:
    baseline, canary = (arm_of(n, rng, rows=2000) for n in ("baseline", "canary"))
    canary = replace(canary, metrics={"ttft_s": canary.metrics["ttft_s"] * 1.2})

    alone = named(judge(policy(P99), baseline, canary), "ttft_s p99")
    among = named(judge(policy(P99, HITS, ERRORS), baseline, canary), "ttft_s p99")

    assert alone.adjusted_p == alone.p_value == among.p_value
    assert among.adjusted_p == pytest.approx(3 * among.p_value)


def test_the_verdict_is_the_same_each_time(arm_of, rng) -> None:
    arms = [arm_of(n, rng, paired=True) for n in ("baseline", "canary")]

    documents = [judge(default_policy(), *arms).to_document() for _ in range(2)]

    assert documents[0] == documents[1]


def test_abort_stops_harm_and_not_equal_arms(arm_of, rng) -> None:
    baseline = arm_of("baseline", rng, complete=False)
    worse = arm_of("canary", rng, scale=1.5, complete=False)
    equal = arm_of("canary", rng, complete=False)

    stopped = abort_early(default_policy(), baseline, worse)

    assert stopped is not None
    assert (stopped.verdict, stopped.aborted_early) == (FAIL, True)
    assert abort_early(default_policy(), baseline, equal) is None


def test_abort_at_the_first_wrong_byte(arm_of, rng) -> None:
    baseline = arm_of("baseline", rng, rows=20)
    canary = arm_of("canary", rng, rows=20, counters={"wrong_bytes": 1})

    stopped = abort_early(default_policy(), baseline, canary)

    assert stopped is not None
    assert stopped.judgements[0].name == "wrong_bytes"


def test_abort_that_is_switched_off_only_counts_events(arm_of, rng) -> None:
    asked = policy(P99, early_abort={"enabled": False})
    arms = arm_of("baseline", rng), arm_of("canary", rng, scale=3)

    assert abort_early(asked, *arms) is None


def test_abort_of_empty_arms_goes_on(arm_of, rng) -> None:
    arms = [arm_of(n, rng, rows=0) for n in ("baseline", "canary")]

    assert abort_early(default_policy(), *arms) is None


@pytest.mark.slow
def test_peeking_twelve_times_raises_few_false_alarms(arm_of) -> None:
    alarms = 0
    for trial in range(60):
        rng = np.random.default_rng([3, trial])
        whole = [arm_of(n, rng, rows=2400) for n in ("baseline", "canary")]
        for look in range(1, 13):
            rows = 200 * look
            arms = [
                arm_of(
                    each.arm,
                    rng,
                    rows=rows,
                    metrics={"ttft_s": each.metrics["ttft_s"][:rows]},
                )
                for each in whole
            ]
            if abort_early(policy(P99, PAIRED), *arms):
                alarms += 1
                break

    assert alarms <= 2
