"""Absolute service levels of the canary, with bounds; the baseline is only shown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from chaos.canary.latencies import (
    most_unmeasured,
    oddity,
    ranked,
    unmeasured_share,
)
from chaos.canary.result import GateJudgement
from chaos.canary.stats.clusters import spread
from chaos.canary.stats.effect import Bounded, critical
from chaos.canary.stats.quantiles import bounded_quantile
from chaos.judge.statistics import samples_to_bound
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chaos.canary.policy import SloRule
    from chaos.canary.samples import Samples
    from chaos.canary.stats.clusters import Clustering

_MAX_GROWTH = 1000
_MIN_ROWS = 10


def judge_slo(
    rule: SloRule,
    baseline: Samples,
    canary: Samples,
    clusters: Sequence[Clustering],
    max_unmeasured: float,
) -> GateJudgement:
    """PASS when the upper bound is under the limit, FAIL when the lower is over it.

    `clusters` are those of all the canary's rows.
    """
    limit = rule.at_most * _time_scale(canary)
    values = ranked(canary, rule.metric)
    rows = np.flatnonzero(~np.isnan(values))
    known = values[rows]
    refused = _refused(rule, canary, len(known), max_unmeasured)
    if refused:
        return _judgement(rule, canary, limit, None, refused, len(known))
    taken = tuple(each.taken(rows) for each in clusters)
    bounds = _bounds(rule, known, taken)
    shown = _baseline(rule, baseline)
    return _judgement(rule, canary, limit, bounds, "", len(known), shown)


def _baseline(rule: SloRule, baseline: Samples) -> float | None:
    """The same figure of the baseline, only to be shown."""
    values = ranked(baseline, rule.metric)
    values = values[np.isfinite(values)]
    if oddity(baseline, rule.metric) or len(values) < _MIN_ROWS:
        return None
    if rule.quantile is None:
        return float(values.mean())
    return float(np.quantile(values, rule.quantile))


def _refused(rule: SloRule, canary: Samples, known: int, max_unmeasured: float) -> str:
    if known < _MIN_ROWS:
        return f"{rule.metric} was measured {known} times in the canary"
    beyond = None if rule.quantile is None else 1 - rule.quantile
    if unmeasured_share(canary, rule.metric) > most_unmeasured(max_unmeasured, beyond):
        share = unmeasured_share(canary, rule.metric)
        return f"{share:.1%} of the canary's requests have no {rule.metric}"
    return oddity(canary, rule.metric)


def _bounds(
    rule: SloRule, values: NDArray[np.float64], clusters: Sequence[Clustering]
) -> Bounded:
    alpha = 1 - rule.confidence
    if rule.quantile is not None:
        return bounded_quantile(values, rule.quantile, alpha, clusters).bounds
    if np.isinf(values).any():
        return Bounded(estimate=math.inf, low=-math.inf, high=math.inf)
    found = spread(values, clusters)
    half = critical(alpha, found.df) * math.sqrt(found.variance)
    mean = float(values.mean())
    return Bounded(estimate=mean, low=mean - half, high=mean + half, df=found.df)


def _judgement(
    rule: SloRule,
    canary: Samples,
    limit: float,
    bounds: Bounded | None,
    refused: str,
    rows: int,
    baseline: float | None = None,
) -> GateJudgement:
    verdict, reason, needs = Verdict.INCONCLUSIVE, refused, None
    if bounds is not None:
        verdict, reason, needs = _verdict(rule, limit, bounds, rows)
    scale = _time_scale(canary)
    scaled = "" if scale == 1 else f" ({rule.at_most:g} s at time scale {scale:g})"
    return GateJudgement(
        name=rule.name,
        family="slo",
        metric=rule.metric,
        verdict=verdict,
        limit=f"<= {limit:g} s{scaled}",
        reason=reason,
        baseline=baseline,
        canary=None if bounds is None else bounds.estimate,
        estimate=None if bounds is None else bounds.estimate,
        low=None if bounds is None else bounds.low,
        high=None if bounds is None else bounds.high,
        n_canary=rows,
        needs=needs,
    )


def _verdict(
    rule: SloRule, limit: float, bounds: Bounded, rows: int
) -> tuple[Verdict, str, int | None]:
    if bounds.high <= limit:
        return Verdict.PASS, f"upper bound {bounds.high:.4g} s is within", None
    if bounds.low > limit:
        return Verdict.FAIL, f"lower bound {bounds.low:.4g} s is over", None
    least = 0
    if rule.quantile is not None:
        least = samples_to_bound(rule.quantile, rule.confidence)
    if rows < least:
        reason = f"{rows} samples cannot bound this quantile, {least} can"
        return Verdict.INCONCLUSIVE, reason, least - rows
    gap = abs(limit - bounds.estimate)
    reach = bounds.high - bounds.estimate
    if bounds.estimate > limit:
        reach = bounds.estimate - bounds.low
    needs = _more(rows, reach, gap)
    reason = f"{bounds.low:.4g} .. {bounds.high:.4g} s holds the limit inside"
    return Verdict.INCONCLUSIVE, reason, needs


def _more(rows: int, reach: float, gap: float) -> int | None:
    """Samples still needed for bounds that do not reach the limit."""
    if not math.isfinite(reach) or gap <= 0 or reach / gap > math.sqrt(_MAX_GROWTH):
        return None
    return max(1, math.ceil(rows * (reach / gap) ** 2) - rows)


def _time_scale(samples: Samples) -> float:
    scale = samples.meta.get("time_scale", 1.0)
    good = isinstance(scale, int | float) and 0 < scale < math.inf
    return float(scale) if good else 1.0
