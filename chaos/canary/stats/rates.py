"""Rates of rare events: exact bounds of each arm, and the difference of the two.

Zero errors of 10,000 are no proof of a rate of zero, and 12 against 0 of 20,000 are
proof of harm; a mean ratio sees neither (spinnaker#5622). Each arm has Clopper-Pearson
bounds on the number of independent rows that its rows are worth; the difference is
combined from them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from chaos.canary.stats.clusters import spread
from chaos.canary.stats.effect import Bounded, Effect, between, critical

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from chaos.canary.stats.clusters import Clustering

_SMALLEST_P = 1e-12
_HALVINGS = 40


def rate_difference(
    baseline: NDArray[np.bool_],
    canary: NDArray[np.bool_],
    alpha: float,
    *,
    baseline_clusters: Sequence[Clustering] = (),
    canary_clusters: Sequence[Clustering] = (),
    paired: bool = False,
) -> Effect:
    """Rate of events in the canary minus that in the baseline.

    Rare events are as good as independent between arms even on the same trace, so
    pairing is used only when it shows a positive correlation.
    """
    arms = [
        _Arm(baseline, alpha, baseline_clusters),
        _Arm(canary, alpha, canary_clusters),
    ]
    correlation = _correlation(arms, baseline_clusters) if paired else 0.0

    def bounds(level: float) -> tuple[float, float, float]:
        return between(arms[0].bounds(level), arms[1].bounds(level), correlation)

    estimate, low, high = bounds(alpha)
    return Effect(
        estimate=estimate,
        low=low,
        high=high,
        alpha=alpha,
        ratio=False,
        baseline=arms[0].rate,
        canary=arms[1].rate,
        n_baseline=len(baseline),
        n_canary=len(canary),
        design="paired" if paired else "unpaired",
        exact_p=lambda null: _p_above(bounds, null),
        numbers={
            "events_baseline": float(baseline.sum()),
            "events_canary": float(canary.sum()),
            "effective_baseline": arms[0].effective,
            "effective_canary": arms[1].effective,
        },
    )


def exact_bounds(events: float, trials: float, alpha: float) -> tuple[float, float]:
    """Clopper-Pearson, each side at `alpha`; neither needs to be whole."""
    if trials <= 0:
        return 0.0, 1.0
    low, high = 0.0, 1.0
    if events > 0:
        low = float(special.betaincinv(events, trials - events + 1, alpha))
    if events < trials:
        high = float(special.betaincinv(events + 1, trials - events, 1 - alpha))
    return low, high


class _Arm:
    """One arm's events, and how many independent rows its rows are worth."""

    def __init__(
        self,
        events: NDArray[np.bool_],
        alpha: float,
        clusterings: Sequence[Clustering],
    ) -> None:
        self.scores = events.astype(np.float64)
        self.rate = float(self.scores.mean())
        self.spread = spread(self.scores, clusterings)
        self.effective = self._effective(alpha)

    def bounds(self, alpha: float) -> Bounded:
        low, high = exact_bounds(self.rate * self.effective, self.effective, alpha)
        return Bounded(estimate=self.rate, low=low, high=high)

    def _effective(self, alpha: float) -> float:
        rows = len(self.scores)
        independent = self.rate * (1 - self.rate) / max(1, rows - 1)
        variance = self.spread.variance
        if math.isinf(variance):
            return 0.0
        if independent <= 0 or variance <= independent:
            return float(rows)
        small = (critical(alpha) / critical(alpha, self.spread.df)) ** 2
        return min(float(rows), rows * independent / variance * small)


def _correlation(arms: Sequence[_Arm], clusterings: Sequence[Clustering]) -> float:
    one, other = (arm.spread.variance for arm in arms)
    if not (0 < one < math.inf and 0 < other < math.inf):
        return 0.0
    difference = spread(arms[1].scores - arms[0].scores, clusterings).variance
    found = (one + other - difference) / (2 * math.sqrt(one * other))
    return min(1.0, max(0.0, found))


def _p_above(
    bounds: Callable[[float], tuple[float, float, float]], null: float
) -> float:
    """The smallest level whose lower bound is above `null`, found by halving."""
    low, high = math.log(_SMALLEST_P), math.log(0.5)
    if bounds(0.5)[1] <= null:
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if bounds(math.exp(middle))[1] > null:
            high = middle
        else:
            low = middle
    return math.exp(high)
