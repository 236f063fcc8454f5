"""Whether anything may be concluded at all: whole arms, same mix, an unhurried client.

A doubt here makes what rests on the comparison INCONCLUSIVE, in both directions; only
invariants, which count events, still FAIL.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from chaos.canary.latencies import ranked
from chaos.canary.result import GateJudgement
from chaos.canary.stats.clusters import distinct
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chaos.canary.pairing import Pairing
    from chaos.canary.policy import Policy
    from chaos.canary.samples import Samples

_TOLD = 3
_SAME_ROWS = 30
_PART = "cache_wait_s"


def judge_validity(
    policy: Policy, baseline: Samples, canary: Samples, pairing: Pairing
) -> tuple[GateJudgement, ...]:
    """One judgement a check; a check that the policy switched off is not there."""
    rules = policy.validity
    rows = [
        _arm(baseline),
        _arm(canary),
        _different(baseline, canary),
        _alike(baseline, canary, pairing.paired),
        _sound(baseline, rules.max_baseline_errors),
        _span(baseline, canary, rules.min_span_ratio),
        _pairs(pairing, _most_unpaired(policy)),
        _mix(baseline, canary, rules.max_mix_distance),
        _lag(policy, baseline, canary),
        _clock(baseline, canary, rules.max_clock_skew_s),
    ]
    return tuple(row for row in rows if row is not None)


def _told(
    name: str, good: bool, limit: str, reason: str, **values: float | None
) -> GateJudgement:
    clean = {k: v for k, v in values.items() if v is not None and not math.isnan(v)}
    return GateJudgement(
        name=name,
        family="validity",
        metric=name,
        verdict=Verdict.PASS if good else Verdict.INCONCLUSIVE,
        limit=limit,
        reason=reason,
        baseline=clean.get("baseline"),
        canary=clean.get("canary"),
        estimate=clean.get("estimate"),
    )


def _arm(samples: Samples) -> GateJudgement:
    """An arm was measured to its end, and its records are in order."""
    found = list(_problems(samples))
    shown = "; ".join(found[:_TOLD])
    if len(found) > _TOLD:
        shown += f"; and {len(found) - _TOLD} more"
    return _told(
        f"{samples.arm} whole",
        not found,
        "complete, no problems",
        shown or f"{len(samples)} requests, complete",
    )


def _problems(samples: Samples) -> Iterator[str]:
    arm = samples.arm
    yield from (f"{arm}: {problem}" for problem in samples.problems)
    if not len(samples):
        yield f"the {arm} arm is empty"
    if not samples.complete:
        yield f"the {arm} was not measured to its end"
    promised = samples.meta.get("requests")
    if isinstance(promised, int) and promised != len(samples):
        yield f"the {arm} has {len(samples)} rows, its meta.json says {promised}"
    ids = samples.request
    if ids is not None and distinct(ids) != len(samples):
        yield f"the {arm} has request numbers that stand twice"
    scale = samples.meta.get("time_scale", 1.0)
    if not isinstance(scale, int | float) or not 0 < scale < math.inf:
        yield f"the time_scale of the {arm} is {scale!r}, no positive number"
    if np.any(samples.start_s < 0) or np.isinf(samples.start_s).any():
        yield f"the {arm} has requests that start before the load"


def _different(baseline: Samples, canary: Samples) -> GateJudgement | None:
    """Two measurements are never equal to the last bit; one read twice is."""
    names = sorted(set(baseline.metrics) & set(canary.metrics))
    times = [name for name in names if name.endswith("_s")]
    if min(len(baseline), len(canary)) < _SAME_ROWS or not times:
        return None
    same = all(
        np.array_equal(baseline.metrics[n], canary.metrics[n], equal_nan=True)
        for n in times
    ) and any(_fine(baseline.metrics[n]) for n in times)
    told = "the arms hold the same numbers to the last bit: one was read twice"
    return _told(
        "arms differ", not same, "two measurements", told if same else "they do"
    )


def _fine(values: NDArray[np.float64]) -> bool:
    """Not of buckets, where equal arms may well agree by chance."""
    known = values[~np.isnan(values)]
    return len(np.unique(known)) > max(_SAME_ROWS, len(known)) / 2


def _alike(baseline: Samples, canary: Samples, paired: bool) -> GateJudgement | None:
    """The arms were measured under one time scale, and pairs with one seed."""
    names = ("time_scale", "seed") if paired else ("time_scale",)
    values = [(n, baseline.meta.get(n), canary.meta.get(n)) for n in names]
    other = [f"{n} is {one!r} and {two!r}" for n, one, two in values if one != two]
    if all(one is None and two is None for _, one, two in values):
        return None
    return _told(
        "conditions", not other, "the same in both arms", "; ".join(other) or "same"
    )


def _sound(baseline: Samples, limit: float | None) -> GateJudgement | None:
    """A baseline that is broken itself is no measure: anything is as good as it."""
    if limit is None or not len(baseline):
        return None
    share = float((~baseline.ok).mean())
    return _told(
        "baseline sound",
        share <= limit,
        f"errors <= {limit:.3g}",
        f"{share:.2%} of the baseline's requests failed",
        baseline=share,
    )


def _span(
    baseline: Samples, canary: Samples, limit: float | None
) -> GateJudgement | None:
    """Both arms were under load for about as long; else one may have died."""
    spans = [_reach(each.start_s) for each in (baseline, canary)]
    if limit is None or math.isnan(spans[0] + spans[1]) or not max(spans) > 0:
        return None
    ratio = min(spans) / max(spans)
    shorter = baseline.arm if spans[0] < spans[1] else canary.arm
    good = ratio >= limit
    return _told(
        "span",
        good,
        f"shorter / longer >= {limit:g}",
        f"{spans[0]:.3g} s and {spans[1]:.3g} s"
        + ("" if good else f": did the {shorter} die?"),
        baseline=spans[0],
        canary=spans[1],
        estimate=ratio,
    )


def _reach(start_s: NDArray[np.float64]) -> float:
    """When the last request started."""
    known = start_s[np.isfinite(start_s)]
    return float(known.max()) if len(known) else math.nan


def _most_unpaired(policy: Policy) -> float:
    """A request that has no row may have failed: as few of those as may fail."""
    errors = [rule.limit for rule in policy.relative if rule.metric == "error_rate"]
    return min([policy.validity.max_unpaired, *errors])


def _pairs(pairing: Pairing, limit: float) -> GateJudgement | None:
    if not pairing.paired:
        return None
    good = pairing.unpaired_share <= limit and len(pairing.baseline) > 0
    return _told(
        "pairs",
        good,
        f"<= {limit:.3g} without a partner",
        f"{len(pairing.baseline)} pairs,"
        f" {pairing.unpaired_share:.2%} of the requests have no partner",
        estimate=pairing.unpaired_share,
    )


def _mix(
    baseline: Samples, canary: Samples, limit: float | None
) -> GateJudgement | None:
    """A change of the mix of requests looks like a change of speed."""
    if limit is None:
        return None
    name, allowed = "mix", f"distance <= {limit:g}"
    shares = [_shares(each) for each in (baseline, canary)]
    if not shares[0] or not shares[1]:
        reason = "requests have no classes; record them or set max_mix_distance: null"
        return _told(name, False, allowed, reason)
    classes = set(shares[0]) | set(shares[1])
    distance = sum(abs(shares[0].get(c, 0) - shares[1].get(c, 0)) for c in classes) / 2
    reason = f"class shares lie {distance:.3f} apart over {len(classes)} classes"
    return _told(name, distance <= limit, allowed, reason, estimate=distance)


def _shares(samples: Samples) -> dict[str, float]:
    known = samples.klass[samples.klass >= 0]
    codes, counts = np.unique(known, return_counts=True)
    names = samples.class_names
    return {
        (names[code] if code < len(names) else f"#{code}"): count / len(samples)
        for code, count in zip(codes, counts, strict=True)
    }


def _lag(policy: Policy, baseline: Samples, canary: Samples) -> GateJudgement | None:
    """The client was not the bottleneck: its lag is small beside what is judged."""
    limit = policy.validity.max_lag_ratio
    judged = _smallest_latency(policy, baseline)
    if limit is None or judged is None:
        return None
    name, allowed = "lag", f"p99 <= {limit:g} of {judged:.3g} s"
    lags = [_p99(each.lag_s) for each in (baseline, canary)]
    if math.isnan(lags[0] + lags[1]):
        reason = "the lag of the load was not recorded; or set max_lag_ratio: null"
        return _told(name, False, allowed, reason)
    good = max(lags) <= limit * judged
    reason = f"p99 {lags[0]:.2g} s and {lags[1]:.2g} s"
    reason += "" if good else ": the client was the bottleneck"
    return _told(name, good, allowed, reason, baseline=lags[0], canary=lags[1])


def _smallest_latency(policy: Policy, baseline: Samples) -> float | None:
    """The smallest typical latency that any rule judges, on the baseline.

    The wait for the cache is a part of a request, often a small one: the load is late
    or not beside whole requests, unless a rule asks for a quantile of it.
    """
    names = {r.metric for r in policy.relative} | {r.metric for r in policy.slos}
    if (_PART, "quantile") not in {(r.metric, r.statistic) for r in policy.relative}:
        names.discard(_PART)
    found = []
    for name in names:
        values = ranked(baseline, name)
        known = values[np.isfinite(values)]
        if name.endswith("_s") and len(known):
            found.append(float(np.median(known)))
    return min(found, default=None)


def _p99(values: NDArray[np.float64]) -> float:
    if not len(values) or not np.isfinite(values).all():
        return math.nan
    return float(np.quantile(np.abs(values), 0.99))


def _clock(
    baseline: Samples, canary: Samples, limit: float | None
) -> GateJudgement | None:
    """Clocks agree with each other and with themselves."""
    if limit is None:
        return None
    doubts = [d for each in (baseline, canary) for d in _clock_doubts(each, limit)]
    return _told(
        "clock", not doubts, f"skew <= {limit:g} s", "; ".join(doubts) or "no doubt"
    )


def _clock_doubts(samples: Samples, limit: float) -> Iterator[str]:
    """Skew that was recorded, and wall time that the requests contradict."""
    skew = samples.meta.get("clock_skew_s", 0.0)
    if not isinstance(skew, int | float):
        yield f"clock_skew_s of the {samples.arm} is {skew!r:.40}, no number"
    elif not abs(skew) <= limit:
        yield f"clocks of the {samples.arm} are {skew:g} s apart"
    start, end = samples.meta.get("started_at"), samples.meta.get("ended_at")
    if not isinstance(start, int | float) or not isinstance(end, int | float):
        return
    if not end >= start:
        yield f"the {samples.arm} ended {start - end:g} s before it started"
        return
    reach = _reach(samples.start_s)
    if reach > end - start + limit:
        yield (
            f"the {samples.arm} has requests {reach:.3g} s into a run that the"
            f" clock says took {end - start:.3g} s"
        )
