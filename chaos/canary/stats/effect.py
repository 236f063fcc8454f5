"""A difference between two arms with its bounds, and how two bounded arms make one.

Two arms' own bounds are combined by the method of variance estimates recovery (Zou
and Donner 2008): it keeps their asymmetry, which matters for tails and for rare
events, and it takes the correlation that pairing brings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """One arm's value between two one-sided bounds."""

    estimate: float
    low: float
    high: float
    df: float = math.inf
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Canary over baseline: a log ratio (`ratio`) or a difference.

    `low` and `high` are one-sided bounds at `alpha` each.
    """

    estimate: float
    low: float
    high: float
    alpha: float
    ratio: bool
    baseline: float
    canary: float
    n_baseline: int
    n_canary: int
    df: float = math.inf
    design: str = "unpaired"
    exact_p: Callable[[float], float] | None = None
    """P of "no larger than this", where there is something better than normal."""
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def se(self) -> float:
        """The standard error that the lower bound stands for."""
        return (self.estimate - self.low) / critical(self.alpha, self.df)

    @property
    def se_high(self) -> float:
        """The standard error that the upper bound stands for."""
        return (self.high - self.estimate) / critical(self.alpha, self.df)

    def p_above(self, null: float) -> float:
        """P-value of "the effect is no larger than `null`"; 1 when it cannot be had."""
        if not self.estimate > null:
            return 1.0
        if math.isinf(self.low):
            return 1.0
        if self.exact_p is not None:
            return self.exact_p(null)
        if self.se == 0 or math.isinf(self.estimate):
            return 0.0
        return float(stats.t.sf((self.estimate - null) / self.se, self.df))

    def mirrored(self) -> Effect:
        """The same seen from the other side, so that up is worse."""
        return replace(
            self, estimate=-self.estimate, low=-self.high, high=-self.low, exact_p=None
        )

    def widened(self, sd: float) -> Effect:
        """With a further, independent source of noise: what equal arms differ by."""
        if sd <= 0 or math.isnan(self.estimate):
            return self
        far = critical(self.alpha, self.df) * sd
        return replace(
            self,
            low=self.estimate - math.hypot(self.estimate - self.low, far),
            high=self.estimate + math.hypot(self.high - self.estimate, far),
            exact_p=None,
        )


@lru_cache(maxsize=4096)
def critical(alpha: float, df: float = math.inf) -> float:
    """The one-sided critical value of Student's t, the normal one for infinite df."""
    if math.isinf(df):
        return float(stats.norm.isf(alpha))
    return float(stats.t.isf(alpha, df))


def between(
    baseline: Bounded, canary: Bounded, correlation: float = 0.0
) -> tuple[float, float, float]:
    """Canary minus baseline: estimate, low, high."""
    estimate = canary.estimate - baseline.estimate
    if not math.isfinite(estimate):
        return estimate, -math.inf, math.inf
    down = _recovered(
        canary.estimate - canary.low, baseline.high - baseline.estimate, correlation
    )
    up = _recovered(
        canary.high - canary.estimate, baseline.estimate - baseline.low, correlation
    )
    return estimate, estimate - down, estimate + up


def _recovered(one: float, other: float, correlation: float) -> float:
    if math.isinf(one) or math.isinf(other) or math.isnan(one + other):
        return math.inf
    squared = one * one + other * other - 2 * correlation * one * other
    return math.sqrt(max(0.0, squared))
