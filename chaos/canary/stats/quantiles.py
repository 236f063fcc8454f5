"""Quantiles of one arm and their ratio between two, without assuming a distribution.

The bounds are order statistics: which rank bounds the quantile follows from a binomial
law, with the number of rows replaced by the number of independent rows they are worth
(Woodruff 1952; Korn and Graubard 1998 for the effective size). A failed request
without a value is infinitely slow: it is ranked, never dropped, so that failing fast
does not look like being fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from chaos.canary.stats.clusters import spread
from chaos.canary.stats.effect import Bounded, Effect, between, critical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chaos.canary.stats.clusters import Clustering, Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedQuantile:
    """A quantile of one arm, its bounds, and which rows lie above it (scores)."""

    bounds: Bounded
    scores: NDArray[np.float64]
    spread: Spread
    effective: float


def bounded_quantile(
    values: NDArray[np.float64],
    quantile: float,
    alpha: float,
    clusterings: Sequence[Clustering] = (),
    ordered: NDArray[np.float64] | None = None,
) -> RankedQuantile:
    """One arm's quantile with a one-sided bound at `alpha` on each side.

    `ordered` are the same values sorted, where the caller has them already.
    """
    rows = len(values)
    ordered = np.sort(values) if ordered is None else ordered
    estimate = float(ordered[min(rows, max(1, math.ceil(quantile * rows))) - 1])
    scores = (values > estimate).astype(np.float64)
    found = spread(scores, clusterings)
    effective = _effective(found, float(scores.mean()), rows, alpha)
    below, above = _shares(int(effective), quantile, alpha)
    low_rank, high_rank = math.floor(below * rows), math.ceil(above * rows) + 1
    return RankedQuantile(
        bounds=Bounded(
            estimate=estimate,
            low=float(ordered[low_rank - 1]) if low_rank >= 1 else -math.inf,
            high=float(ordered[high_rank - 1]) if high_rank <= rows else math.inf,
            df=found.df,
        ),
        scores=scores,
        spread=found,
        effective=effective,
    )


def quantile_ratio(
    baseline: NDArray[np.float64],
    canary: NDArray[np.float64],
    quantile: float,
    alpha: float,
    *,
    baseline_clusters: Sequence[Clustering] = (),
    canary_clusters: Sequence[Clustering] = (),
    paired: bool = False,
    resolution: float = 1e-6,
    ordered: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
) -> Effect:
    """log(q(canary) / q(baseline)); paired rows stand at the same place in both.

    Values below `resolution` count as it: ratios of clock artefacts mean nothing.
    """
    ordered = ordered or (np.sort(baseline), np.sort(canary))
    left, right = (
        bounded_quantile(
            np.maximum(values, resolution),
            quantile,
            alpha,
            clusters,
            np.maximum(in_order, resolution),
        )
        for values, in_order, clusters in (
            (baseline, ordered[0], baseline_clusters),
            (canary, ordered[1], canary_clusters),
        )
    )
    correlation = _correlation(left, right, baseline_clusters) if paired else 0.0
    estimate, low, high = between(
        _logs(left.bounds, resolution), _logs(right.bounds, resolution), correlation
    )
    return Effect(
        estimate=estimate,
        low=low,
        high=high,
        alpha=alpha,
        ratio=True,
        baseline=left.bounds.estimate,
        canary=right.bounds.estimate,
        n_baseline=len(baseline),
        n_canary=len(canary),
        design="paired" if paired else "unpaired",
        numbers={
            "clusters_baseline": float(left.spread.clusters),
            "clusters_canary": float(right.spread.clusters),
            "effective_baseline": left.effective,
            "effective_canary": right.effective,
            "correlation": correlation,
        },
    )


def _logs(bounds: Bounded, resolution: float) -> Bounded:
    """The same on a log scale; below the resolution nothing is known."""
    low = bounds.low if bounds.low > resolution else resolution
    return Bounded(
        estimate=math.log(bounds.estimate),
        low=math.log(low) if bounds.low > -math.inf else -math.inf,
        high=math.log(bounds.high),
        df=bounds.df,
    )


def _effective(found: Spread, share: float, rows: int, alpha: float) -> float:
    """Independent rows that these are worth; fewer for few clusters, never more."""
    if math.isinf(found.variance):
        return 0.0
    independent = share * (1 - share) / (rows - 1)
    if found.variance <= 0 or found.variance <= independent:
        return float(rows)
    small = (critical(alpha) / critical(alpha, found.df)) ** 2
    return min(float(rows), rows * independent / found.variance * small)


@lru_cache(maxsize=4096)
def _shares(effective: int, quantile: float, alpha: float) -> tuple[float, float]:
    """Between which shares of the sorted rows the quantile lies."""
    if effective < 1:
        return -1.0, 2.0
    below = float(stats.binom.ppf(alpha, effective, quantile))
    above = float(stats.binom.ppf(1 - alpha, effective, quantile))
    if below < 1:
        below = -float(effective)
    if above + 1 > effective:
        above = 2.0 * effective
    return below / effective, above / effective


def _correlation(
    left: RankedQuantile, right: RankedQuantile, clusterings: Sequence[Clustering]
) -> float:
    """How much of the noise both arms share, from the variance of the difference."""
    both = left.spread.variance, right.spread.variance
    if not (0 < both[0] < math.inf and 0 < both[1] < math.inf):
        return 0.0
    difference = spread(right.scores - left.scores, clusterings).variance
    found = (both[0] + both[1] - difference) / (2 * math.sqrt(both[0] * both[1]))
    return min(1.0, max(-1.0, found))
