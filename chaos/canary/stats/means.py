"""Means and shares of sums, linearised: their ratio and their difference of arms.

A hit rate is a ratio of sums (tokens reused over tokens asked for), never a mean of
rates; its noise comes from whole requests and sessions, not from single blocks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from chaos.canary.stats.clusters import Clustering, Spread, spread
from chaos.canary.stats.effect import Effect, critical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def mean_ratio(
    baseline: NDArray[np.float64],
    canary: NDArray[np.float64],
    alpha: float,
    *,
    baseline_clusters: Sequence[Clustering] = (),
    canary_clusters: Sequence[Clustering] = (),
    paired: bool = False,
    resolution: float = 1e-9,
) -> Effect:
    """log(mean(canary) / mean(baseline)), by the delta method."""
    means = [max(float(np.mean(side)), resolution) for side in (baseline, canary)]
    scores = [side / mean for side, mean in zip((baseline, canary), means, strict=True)]
    found = _joint(scores[0], scores[1], baseline_clusters, canary_clusters, paired)
    return _effect(
        math.log(means[1] / means[0]), found, means, scores, alpha, paired, ratio=True
    )


def share_difference(
    baseline: tuple[NDArray[np.float64], NDArray[np.float64]],
    canary: tuple[NDArray[np.float64], NDArray[np.float64]],
    alpha: float,
    *,
    baseline_clusters: Sequence[Clustering] = (),
    canary_clusters: Sequence[Clustering] = (),
    paired: bool = False,
) -> Effect:
    """sum(part)/sum(whole) of the canary minus that of the baseline.

    Each arm is (parts, wholes), row by row. The scores are the linearised residuals.
    """
    shares, scores = [], []
    for part, whole in (baseline, canary):
        share = float(part.sum() / whole.sum())
        shares.append(share)
        scores.append((part - share * whole) / whole.mean())
    found = _joint(scores[0], scores[1], baseline_clusters, canary_clusters, paired)
    return _effect(
        shares[1] - shares[0], found, shares, scores, alpha, paired, ratio=False
    )


def _joint(
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    left_clusters: Sequence[Clustering],
    right_clusters: Sequence[Clustering],
    paired: bool,
) -> Spread:
    """The spread of the difference: of paired rows, or of two independent arms."""
    if paired:
        return spread(right - left, left_clusters)
    one, other = spread(left, left_clusters), spread(right, right_clusters)
    total = one.variance + other.variance
    if not 0 < total < math.inf:
        return one if one.variance >= other.variance else other
    terms = one.variance**2 / one.df + other.variance**2 / other.df
    return Spread(
        variance=total,
        df=total**2 / terms,
        clusters=min(one.clusters, other.clusters),
        by=one.by,
    )


def _effect(
    estimate: float,
    found: Spread,
    values: Sequence[float],
    scores: Sequence[NDArray[np.float64]],
    alpha: float,
    paired: bool,
    *,
    ratio: bool,
) -> Effect:
    half = critical(alpha, found.df) * math.sqrt(found.variance)
    return Effect(
        estimate=estimate,
        low=estimate - half,
        high=estimate + half,
        alpha=alpha,
        ratio=ratio,
        baseline=values[0],
        canary=values[1],
        n_baseline=len(scores[0]),
        n_canary=len(scores[1]),
        df=found.df,
        design="paired" if paired else "unpaired",
        numbers={"clusters": float(found.clusters)},
    )
