"""O2, O5, O9 and service levels: waits, costs and tails, all from the intended start.

TTFT is modelled (waits are real, prefill is computed), and says so.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chaos.judge.limit import at_most, downgraded, inconclusive, number, too_few
from chaos.judge.statistics import (
    Interval,
    Pairs,
    aa_floor,
    mean_interval,
    median_interval,
    pair_ttft,
    quantile_interval,
    quantile_ratio_interval,
    samples_to_bound,
)
from chaos.judge.verdict import Judgement, Verdict
from chaos.load.sample import Ending, answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.load.sample import Sample
    from chaos.systems.base import Answer, Limits

MEDIAN_MARGIN = 0.05
P99_MARGIN = 0.10
MIN_PAIRS = 30
MIN_SESSIONS = 8
P99_SAMPLES = 3_000
# Float noise of sums of durations; not a tolerance anybody could notice.
_EPSILON_S = 1e-6
# Each bound of a service level holds with 95 %.
_TWO_SIDED = 0.90


def judge_cache_wait(
    samples: Sequence[Sample],
    limits: Limits,
    *,
    allowance_s: float = 0.0,
    needed: int = 1,
) -> Judgement:
    """O2: no request waits for the cache longer than its deadline T + one poll.

    T is the smaller of the deadline the engine claims and the formula's for the whole
    prompt, so a deadline that was ignored or set too long is seen. `allowance_s` is the
    measured scheduling noise (see `scheduling_allowance_s`), at most one poll.
    """
    claim = "wait <= T + poll"
    allowance_s = min(max(allowance_s, 0.0), limits.poll_s)
    rows = answered(tuple(samples))
    if not rows:
        return inconclusive("O2", claim, "no request was answered")
    bounds = [_wait_limit_s(answer, limits) for _, answer in rows]
    waits = [answer.cache_wait_s for _, answer in rows]
    over = [wait - bound for wait, bound in zip(waits, bounds, strict=True)]
    broken = sum(excess > allowance_s + _EPSILON_S for excess in over)
    worst = int(np.argmax(over if broken else waits))
    words = [f"+ {number(allowance_s, 's')} measured scheduling"] * (allowance_s > 0)
    if broken:
        words.insert(0, f"{broken} requests over, first {_first(rows, over)}")
    judgement = at_most(
        "O2",
        claim,
        waits[worst],
        bounds[worst],
        samples=len(rows),
        unit="s",
        label="max",
        needed=needed,
        reason="; ".join(words),
        numbers={
            "broken": float(broken),
            "max_excess_s": max(over),
            "allowance_s": allowance_s,
            "max_wait_s": max(waits),
        },
    )
    judgement = _settled(judgement, broken=broken)
    hung = sum(sample.ending is Ending.HUNG for sample in samples)
    if hung and judgement.verdict is Verdict.PASS:
        return downgraded(judgement, f"the wait of {hung} hung requests is unknown")
    return judgement


def judge_cost_per_request(
    fault: Sequence[Sample],
    local_only: Sequence[Sample],
    limits: Limits,
    *,
    allowance_s: float = 0.0,
    needed: int = MIN_PAIRS,
) -> Judgement:
    """O5, first half: TTFT(fault) - TTFT(local-only) <= T + poll for every request."""
    claim = "cost <= T + poll over local-only, every request (TTFT modelled)"
    pairs = pair_ttft(fault, local_only)
    if not len(pairs):
        return inconclusive("O5", claim, "no request is in both arms")
    allowance_s = min(max(allowance_s, 0.0), limits.poll_s)
    lengths = {s.request.request_id: s.request.input_length for s in fault}
    bound = np.array([limits.deadline_s(lengths[name]) for name in pairs.ids])
    bound += limits.poll_s
    cost = pairs.left - pairs.right
    over = cost - bound
    broken = int((over > allowance_s + _EPSILON_S).sum())
    worst = int(np.argmax(over if broken else cost))
    words = [f"{broken} requests over, first {pairs.ids[worst]}"] * (broken > 0)
    words += [f"+ {number(allowance_s, 's')} measured scheduling"] * (allowance_s > 0)
    judgement = at_most(
        "O5",
        claim,
        float(cost[worst]),
        float(bound[worst]),
        samples=len(pairs),
        unit="s",
        label="max",
        needed=needed,
        reason="; ".join(words),
        numbers={
            "broken": float(broken),
            "max_excess_s": float(over.max()),
            "max_cost_s": float(cost.max()),
            "allowance_s": allowance_s,
        },
    )
    return _settled(judgement, broken=broken)


def judge_cost_after_detection(
    fault: Sequence[Sample],
    local_only: Sequence[Sample],
    *,
    detected_at_s: float,
    rng: np.random.Generator,
    floor_arms: tuple[Sequence[Sample], Sequence[Sample]] | None = None,
    margin: float = MEDIAN_MARGIN,
) -> list[Judgement]:
    """O5, second half: once the fault is detected it costs nothing over local-only.

    The paired median log-ratio of requests that were due after `detected_at_s` (clock
    of the fault arm), and the p99 ratio from 3,000 samples on. `floor_arms` are two
    equal runs for the A/A floor; without them it comes from swapping the arms.
    """
    after = [sample for sample in fault if sample.intended_s >= detected_at_s]
    pairs = pair_ttft(after, local_only)
    floor = pairs if floor_arms is None else pair_ttft(*floor_arms)
    return judge_ratio(
        "O5",
        "after detection as fast as local-only (TTFT modelled)",
        pairs,
        rng,
        margin=margin,
        floor=floor,
        floor_is_aa=floor_arms is not None,
    )


def judge_ratio(
    oracle: str,
    claim: str,
    pairs: Pairs,
    rng: np.random.Generator,
    *,
    margin: float = MEDIAN_MARGIN,
    floor: Pairs | None = None,
    floor_is_aa: bool = False,
) -> list[Judgement]:
    """The paired median, and the p99 where there are enough samples for one."""
    enough = len(pairs) >= P99_SAMPLES
    note = "" if enough else f"p99 not judged: n={len(pairs)} of {P99_SAMPLES:,}"
    judged = [
        _judge_median(oracle, claim, pairs, rng, margin, floor, floor_is_aa, note)
    ]
    if enough:
        tail = quantile_ratio_interval(pairs, 0.99, rng)
        judged.append(
            _by_interval(oracle, f"{claim}, p99", tail, P99_MARGIN, label="p99")
        )
    return judged


def judge_eviction_stall(
    evicting_s: Sequence[float],
    idle_s: Sequence[float],
    *,
    evicted: int,
    factor: float = 2.0,
) -> Judgement:
    """O9: lookup p99 while evicting <= `factor` times the p99 while idle, one run."""
    claim = f"lookup p99 while evicting <= {factor:g} x idle"
    samples = min(len(evicting_s), len(idle_s))
    short = too_few(samples, samples_to_bound(0.99))
    if short or evicted == 0:
        reason = short or "nothing was evicted"
        return inconclusive("O9", claim, reason, samples=samples)
    busy = quantile_interval(evicting_s, 0.99).estimate
    idle = quantile_interval(idle_s, 0.99).estimate
    return at_most(
        "O9",
        claim,
        busy,
        factor * idle,
        samples=samples,
        unit="s",
        label="p99",
        numbers={"idle_p99_s": idle, "evicted": float(evicted)},
    )


def judge_service_level(
    oracle: str,
    claim: str,
    values_s: Sequence[float],
    limit_s: float,
    *,
    quantile: float | None = None,
) -> Judgement:
    """An absolute latency level: the mean (quantile None) or a quantile under a limit.

    PASS when the upper bound of its interval is under the limit, FAIL when the lower
    one is over, INCONCLUSIVE between: how many samples it has decides.
    """
    if quantile is None:
        label, interval = "mean", mean_interval(values_s, confidence=_TWO_SIDED)
        needed = MIN_PAIRS
    else:
        label = f"p{100 * quantile:g}"
        interval = quantile_interval(values_s, quantile, confidence=_TWO_SIDED)
        needed = samples_to_bound(quantile)
    reason = too_few(len(values_s), needed)
    verdict = Verdict.INCONCLUSIVE if reason else _three_way(interval, limit_s)
    if verdict is Verdict.INCONCLUSIVE and not reason:
        reason = "the interval holds the limit, more samples decide"
    return Judgement(
        oracle=oracle,
        claim=claim,
        verdict=verdict,
        observed=f"{label} {number(interval.estimate, 's')} "
        f"[{number(interval.low, 's')}, {number(interval.high, 's')}]",
        threshold=number(limit_s, "s"),
        samples=len(values_s),
        reason=reason,
        numbers={
            "value": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "limit": limit_s,
        },
    )


def _judge_median(
    oracle: str,
    claim: str,
    pairs: Pairs,
    rng: np.random.Generator,
    margin: float,
    floor: Pairs | None,
    floor_is_aa: bool,
    note: str,
) -> Judgement:
    short = too_few(len(pairs), MIN_PAIRS)
    if not short and pairs.sessions < MIN_SESSIONS:
        short = f"{pairs.sessions} of the {MIN_SESSIONS} sessions needed"
    if short:
        return inconclusive(oracle, claim, short, samples=len(pairs))
    interval = median_interval(pairs.log_ratio, pairs.clusters, rng)
    source = pairs if floor is None or not len(floor) else floor
    noise = math.expm1(_floor(source, rng, aa=floor_is_aa and source is floor))
    word = "A/A floor" if floor_is_aa and source is floor else "A/A floor (by swapping)"
    reason = "; ".join(part for part in (f"{word} {100 * noise:.1f} %", note) if part)
    return _by_interval(
        oracle, claim, interval, margin, label="median", reason=reason, floor=noise
    )


def _floor(pairs: Pairs, rng: np.random.Generator, *, aa: bool) -> float:
    floor = aa_floor(pairs.log_ratio, pairs.clusters, rng)
    if aa:  # two equal runs: what they differ by is noise as well
        floor = max(floor, abs(float(np.median(pairs.log_ratio))))
    return floor


def _by_interval(
    oracle: str,
    claim: str,
    interval: Interval,
    margin: float,
    *,
    label: str,
    reason: str = "",
    floor: float = math.nan,
) -> Judgement:
    """A log-ratio interval against a relative margin, in per cent."""
    estimate, low, high = (
        math.expm1(value) for value in (interval.estimate, interval.low, interval.high)
    )
    numbers = {"ratio": estimate, "low": low, "high": high, "margin": margin}
    if math.isfinite(floor):
        numbers["aa_floor"] = floor
    verdict = _three_way(interval, math.log1p(margin))
    if verdict is Verdict.INCONCLUSIVE:
        times = _times_more(interval, math.log1p(margin))
        reason = "; ".join(
            part
            for part in (f"about {times * interval.samples:.0f} samples decide", reason)
            if part
        )
    return Judgement(
        oracle=oracle,
        claim=claim,
        verdict=verdict,
        observed=f"{label} {number(estimate, '%')} "
        f"[{number(low, '%')}, {number(high, '%')}]",
        threshold=number(margin, "%"),
        samples=interval.samples,
        reason=reason,
        numbers=numbers,
    )


def _times_more(interval: Interval, limit: float) -> float:
    """How many times the samples are needed: widths shrink with the square root."""
    width = (interval.high - interval.low) / 2
    distance = abs(limit - interval.estimate)
    if not math.isfinite(width) or distance <= width / 10:
        return 100.0
    return max(1.1, (width / distance) ** 2)


def _three_way(interval: Interval, limit: float) -> Verdict:
    if interval.high <= limit:
        return Verdict.PASS
    return Verdict.FAIL if interval.low > limit else Verdict.INCONCLUSIVE


def _wait_limit_s(answer: Answer, limits: Limits) -> float:
    formula_s = limits.deadline_s(answer.input_tokens)
    return min(answer.deadline_s, formula_s) + limits.poll_s


def _first(rows: Sequence[tuple[Sample, Answer]], over: Sequence[float]) -> str:
    return rows[int(np.argmax(over))][1].request_id


def _settled(judgement: Judgement, *, broken: int) -> Judgement:
    """The verdict by the number of broken requests: the law plus its allowance."""
    if broken or judgement.verdict is not Verdict.FAIL:
        return judgement
    return replace(judgement, verdict=Verdict.PASS)
