"""Kayenta's published judge (NetflixACAJudge-v1.0), to be measured beside our gate.

Written from its description, not its code: per metric a Mann-Whitney test with
tolerance 0.25 and confidence 0.98. A metric is High when the lower confidence bound of
the Hodges-Lehmann shift is above 0.25 times the estimate, and the ratio of means is at
least `allowedIncrease` (1.0); Low is mirrored. A metric fails in the direction that it
was configured for. The score is the weighted share of passing metrics; 95 passes and
75 is marginal, the thresholds of Spinnaker's guide. It reads one point a minute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TOLERANCE = 0.25
_Z = 2.3263478740408408
"""Two-sided 98 %."""
PASS_SCORE = 95.0
MARGINAL_SCORE = 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of both arms, one value a minute, and which direction is bad."""

    name: str
    baseline: NDArray[np.float64]
    canary: NDArray[np.float64]
    up_is_bad: bool = True


def judge(series: Sequence[Series]) -> str:
    """`Pass`, `Marginal` or `Fail`; each metric is a group of one, weights equal."""
    passed = sum(classify(each) == "Pass" for each in series)
    score = 100.0 * passed / len(series)
    if score >= PASS_SCORE:
        return "Pass"
    return "Marginal" if score >= MARGINAL_SCORE else "Fail"


def classify(series: Series) -> str:
    """`Pass`, `High` or `Low` (only the bad direction) for one metric."""
    left, right = (_clean(side) for side in (series.baseline, series.canary))
    if not len(left) or not len(right):
        return "Nodata"
    if np.array_equal(np.sort(left), np.sort(right)):
        return "Pass"
    estimate, low, high = hodges_lehmann(left, right)
    critical = abs(TOLERANCE * estimate)
    ratio = _mean_ratio(left, right)
    if series.up_is_bad and low > critical and (math.isnan(ratio) or ratio >= 1):
        return "High"
    if not series.up_is_bad and high < -critical and (math.isnan(ratio) or ratio <= 1):
        return "Low"
    return "Pass"


def hodges_lehmann(
    left: NDArray[np.float64], right: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Shift of `right` over `left` with bounds by the normal law of the rank sum."""
    shifts = np.sort(np.subtract.outer(right, left).ravel())
    n, m = len(left), len(right)
    reach = _Z * math.sqrt(n * m * (n + m + 1) / 12)
    at = max(1, math.floor(n * m / 2 - reach))
    return float(np.median(shifts)), float(shifts[at - 1]), float(shifts[-at])


def _clean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Its default for what is not a number: remove it."""
    return values[~np.isnan(values)]


def _mean_ratio(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Ratio of means, undefined when either is 0: the condition is skipped then."""
    means = float(left.mean()), float(right.mean())
    return math.nan if 0 in means else means[1] / means[0]
