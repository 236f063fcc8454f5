"""From a relative rule and two arms to an effect with bounds, or the reason why not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chaos.canary.latencies import (
    LARGEST,
    most_unmeasured,
    oddity,
    ranked,
    unmeasured_share,
)
from chaos.canary.stats.effect import Effect
from chaos.canary.stats.means import mean_ratio, share_difference
from chaos.canary.stats.quantiles import bounded_quantile, quantile_ratio
from chaos.canary.stats.rates import rate_difference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chaos.canary.pairing import Pairing
    from chaos.canary.policy import Policy, RelativeRule
    from chaos.canary.samples import Samples
    from chaos.canary.stats.clusters import Clustering

_HIT_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why there is no effect; `skipped`: not measured anywhere, and not required."""

    reason: str
    rows: tuple[int, int] = (0, 0)
    skipped: bool = False


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The values to compare and their clusters, missing ones left out.

    Several rules of one metric share one of these, and what was sorted for one.
    """

    baseline: NDArray[np.float64]
    canary: NDArray[np.float64]
    baseline_clusters: tuple[Clustering, ...]
    canary_clusters: tuple[Clustering, ...]
    paired: bool

    @cached_property
    def ordered(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.sort(self.baseline), np.sort(self.canary)


def effect_of(
    rule: RelativeRule,
    policy: Policy,
    baseline: Samples,
    canary: Samples,
    pairing: Pairing,
    prepared: dict[str, Sides] | None = None,
) -> Effect | Refusal:
    """The effect of one rule on its own scale; larger is not yet worse.

    `prepared` is filled with what rules of the same metric share.
    """
    if rule.metric == "hit_rate":
        return _hit_rate(rule, policy, baseline, canary, pairing)
    if rule.metric == "error_rate":
        return _error_rate(rule, policy, baseline, canary, pairing)
    refused = _missing(rule, policy, baseline, canary, pairing)
    if refused:
        return refused
    prepared = {} if prepared is None else prepared
    sides = prepared.get(rule.metric)
    if sides is None:
        left, right = ranked(baseline, rule.metric), ranked(canary, rule.metric)
        sides = prepared[rule.metric] = _sides(left, right, pairing)
    few = _few(rule, sides)
    return few or _metric(rule, policy.alpha, sides)


def _metric(rule: RelativeRule, alpha: float, sides: Sides) -> Effect | Refusal:
    if rule.statistic == "paired":
        return _paired(rule, alpha, sides)
    if rule.statistic == "exceedance":
        return _exceedance(rule, alpha, sides)
    if rule.statistic == "mean":
        return _mean(rule, alpha, sides)
    assert rule.quantile is not None
    return quantile_ratio(
        sides.baseline,
        sides.canary,
        rule.quantile,
        alpha,
        baseline_clusters=sides.baseline_clusters,
        canary_clusters=sides.canary_clusters,
        paired=sides.paired,
        resolution=rule.resolution,
        ordered=sides.ordered,
    )


def _mean(rule: RelativeRule, alpha: float, sides: Sides) -> Effect | Refusal:
    if np.isinf(sides.baseline).any() or np.isinf(sides.canary).any():
        return Refusal(
            reason="failed requests have no value, so there is no mean",
            rows=(len(sides.baseline), len(sides.canary)),
        )
    return mean_ratio(
        sides.baseline,
        sides.canary,
        alpha,
        baseline_clusters=sides.baseline_clusters,
        canary_clusters=sides.canary_clusters,
        paired=sides.paired,
        resolution=rule.resolution,
    )


def _exceedance(rule: RelativeRule, alpha: float, sides: Sides) -> Effect | Refusal:
    assert rule.quantile is not None
    ordered = sides.ordered[0]
    at = min(len(ordered), math.ceil(rule.quantile * len(ordered)))
    threshold = rule.factor * max(float(ordered[at - 1]), rule.resolution)
    if not math.isfinite(threshold):
        reason = "so many requests of the baseline failed that it has no quantile"
        return Refusal(reason=reason, rows=(len(sides.baseline), len(sides.canary)))
    found = rate_difference(
        sides.baseline > threshold,
        sides.canary > threshold,
        alpha,
        baseline_clusters=sides.baseline_clusters,
        canary_clusters=sides.canary_clusters,
        paired=sides.paired,
    )
    return _with(found, threshold=threshold)


def _paired(rule: RelativeRule, alpha: float, sides: Sides) -> Effect | Refusal:
    if not sides.paired:
        return Refusal(reason="requests cannot be paired", skipped=True)
    rows = np.flatnonzero(np.isfinite(sides.baseline) | np.isfinite(sides.canary))
    left = np.maximum(sides.baseline[rows], rule.resolution)
    right = np.maximum(sides.canary[rows], rule.resolution)
    if len(rows) < rule.min_samples:
        reason = f"{len(rows)} pairs are fewer than {rule.min_samples}"
        return Refusal(reason=reason, rows=(len(rows), len(rows)))
    logs = np.log(right) - np.log(left)
    clusters = tuple(each.taken(rows) for each in sides.baseline_clusters)
    found = bounded_quantile(logs, 0.5, alpha, clusters)
    return Effect(
        estimate=found.bounds.estimate,
        low=found.bounds.low,
        high=found.bounds.high,
        alpha=alpha,
        ratio=True,
        baseline=float(np.median(left)),
        canary=float(np.median(right)),
        n_baseline=len(rows),
        n_canary=len(rows),
        design="paired",
        numbers={
            "clusters": float(found.spread.clusters),
            "effective": found.effective,
        },
    )


def _hit_rate(
    rule: RelativeRule,
    policy: Policy,
    baseline: Samples,
    canary: Samples,
    pairing: Pairing,
) -> Effect | Refusal:
    arms = [_tokens(each) for each in (baseline, canary)]
    known = [np.flatnonzero(~np.isnan(whole)) for _, whole in arms]
    sizes = len(known[0]), len(known[1])
    if not sizes[0] or not sizes[1]:
        skipped = not any(sizes) and not rule.required
        return Refusal(reason=_nowhere("hit tokens", sizes), skipped=skipped)
    shares = [1 - len(k) / len(w) for k, (_, w) in zip(known, arms, strict=True)]
    if abs(shares[0] - shares[1]) > policy.validity.max_unmeasured:
        return Refusal(reason=_uneven("hit tokens", shares), rows=sizes)
    for samples in (baseline, canary):
        if np.any(samples.hit_tokens > samples.prompt_tokens * (1 + _HIT_SLACK)):
            reason = f"the {samples.arm} reused more tokens than it was asked for"
            return Refusal(reason=reason, rows=sizes)
        if np.any(samples.hit_tokens < 0):
            return Refusal(reason=f"hits of the {samples.arm} are negative")
    if not np.any(baseline.hit_tokens > 0):
        reason = "the baseline reused nothing at all: its cache was not in use"
        return Refusal(reason=reason, rows=sizes)
    wholes = _sides(arms[0][1], arms[1][1], pairing)
    parts = _sides(arms[0][0], arms[1][0], pairing)
    few = _few(rule, wholes)
    return few or share_difference(
        (parts.baseline, wholes.baseline),
        (parts.canary, wholes.canary),
        policy.alpha,
        baseline_clusters=wholes.baseline_clusters,
        canary_clusters=wholes.canary_clusters,
        paired=wholes.paired,
    )


def _tokens(samples: Samples) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Hit and prompt tokens, NaN in both where either is not known."""
    known = np.isfinite(samples.hit_tokens) & (samples.prompt_tokens > 0)
    known &= samples.prompt_tokens < LARGEST
    return (
        np.where(known, samples.hit_tokens, np.nan),
        np.where(known, samples.prompt_tokens, np.nan),
    )


def _error_rate(
    rule: RelativeRule,
    policy: Policy,
    baseline: Samples,
    canary: Samples,
    pairing: Pairing,
) -> Effect | Refusal:
    sides = _sides(
        (~baseline.ok).astype(np.float64), (~canary.ok).astype(np.float64), pairing
    )
    few = _few(rule, sides)
    return few or rate_difference(
        sides.baseline > 0,
        sides.canary > 0,
        policy.alpha,
        baseline_clusters=sides.baseline_clusters,
        canary_clusters=sides.canary_clusters,
        paired=sides.paired,
    )


def _missing(
    rule: RelativeRule,
    policy: Policy,
    baseline: Samples,
    canary: Samples,
    pairing: Pairing,
) -> Refusal | None:
    """What forbids comparing this metric at all."""
    name = rule.metric
    there = [each.measured(name) for each in (baseline, canary)]
    if not any(there):
        reason = f"{name} was not measured in either arm"
        return Refusal(reason=reason, skipped=not rule.required)
    if rule.statistic == "paired" and not pairing.paired:
        reason = "requests cannot be paired"
        return Refusal(reason=reason, skipped=not rule.required)
    if not all(there):
        return Refusal(reason=_nowhere(name, (int(there[0]), int(there[1]))))
    shares = [unmeasured_share(each, name) for each in (baseline, canary)]
    allowed = most_unmeasured(policy.validity.max_unmeasured, _beyond(rule))
    if abs(shares[0] - shares[1]) > allowed:
        return Refusal(reason=_uneven(name, shares))
    odd = oddity(baseline, name) or oddity(canary, name)
    return Refusal(reason=odd) if odd else None


def _beyond(rule: RelativeRule) -> float | None:
    """The share of the requests that decides; None where all of them do."""
    if rule.statistic == "exceedance":
        return rule.limit
    return None if rule.quantile is None else 1 - rule.quantile


def _nowhere(what: str, counts: Sequence[int]) -> str:
    if not any(counts):
        return f"{what} were measured in neither arm"
    arm = "baseline" if not counts[0] else "canary"
    return f"{what} was not measured in the {arm}, but in the other arm"


def _uneven(what: str, shares: Sequence[float]) -> str:
    return (
        f"{what} is missing in {shares[0]:.1%} of the baseline's rows and in"
        f" {shares[1]:.1%} of the canary's: what is missing may be what differs"
    )


def _sides(
    baseline: NDArray[np.float64], canary: NDArray[np.float64], pairing: Pairing
) -> Sides:
    left, right = baseline[pairing.baseline], canary[pairing.canary]
    keep = [~np.isnan(left), ~np.isnan(right)]
    if pairing.paired:
        keep = [keep[0] & keep[1]] * 2
    rows = [np.flatnonzero(each) for each in keep]
    return Sides(
        baseline=left[rows[0]],
        canary=right[rows[1]],
        baseline_clusters=tuple(c.taken(rows[0]) for c in pairing.baseline_clusters),
        canary_clusters=tuple(c.taken(rows[1]) for c in pairing.canary_clusters),
        paired=pairing.paired,
    )


def _few(rule: RelativeRule, sides: Sides) -> Refusal | None:
    rows = len(sides.baseline), len(sides.canary)
    if min(rows) >= rule.min_samples:
        return None
    reason = f"{min(rows)} samples an arm are fewer than {rule.min_samples}"
    return Refusal(reason=reason, rows=rows)


def _with(effect: Effect, **numbers: float) -> Effect:
    return replace(effect, numbers={**effect.numbers, **numbers})
