"""Judges the relative family: PASS needs harmlessness shown, FAIL needs harm shown.

PASS: the upper bound of the harm (one-sided, at alpha) is below the limit. All rules
must pass, so no correction for their number is needed there. FAIL: the estimate is
above the limit, and harm above the smallest that counts (`min_effect` of the limit) is
shown at alpha after Holm's correction. Everything between is INCONCLUSIVE, with the
samples still needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chaos.canary.effects import Refusal, effect_of
from chaos.canary.result import GateJudgement
from chaos.canary.stats.clusters import distinct
from chaos.canary.stats.holm import holm
from chaos.canary.stats.sizes import detectable, samples_needed
from chaos.judge.statistics import samples_to_bound
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.canary.effects import Sides
    from chaos.canary.floor import NoiseFloor
    from chaos.canary.pairing import Pairing
    from chaos.canary.policy import Policy, RelativeRule
    from chaos.canary.samples import Samples
    from chaos.canary.stats.effect import Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One rule with its effect, turned so that larger is worse, and its noise."""

    rule: RelativeRule
    harm: Effect
    own_se: float
    floor_sd: float
    null: float
    doubt: str = ""
    """What forbids a decision although there is an effect."""

    @property
    def p_value(self) -> float:
        return 1.0 if self.doubt else self.harm.p_above(self.null)


def measure(
    policy: Policy,
    baseline: Samples,
    canary: Samples,
    pairing: Pairing,
    floor: NoiseFloor | None,
) -> list[tuple[RelativeRule, Measured | Refusal]]:
    """The effects of all relative rules, in the policy's order."""
    sessions = _few_sessions(policy, baseline, canary)
    found: list[tuple[RelativeRule, Measured | Refusal]] = []
    prepared: dict[str, Sides] = {}
    for rule in policy.relative:
        effect = effect_of(rule, policy, baseline, canary, pairing, prepared)
        if isinstance(effect, Refusal):
            found.append((rule, effect))
            continue
        harm = effect.mirrored() if rule.worse == "down" else effect
        sd = noise_sd(policy, rule, pairing, floor)
        found.append(
            (
                rule,
                Measured(
                    rule=rule,
                    harm=harm.widened(sd),
                    own_se=harm.se,
                    floor_sd=sd,
                    null=policy.min_effect * rule.limit,
                    doubt=sessions,
                ),
            )
        )
    return found


def judge_relative(
    policy: Policy, measured: Sequence[tuple[RelativeRule, Measured | Refusal]]
) -> tuple[tuple[GateJudgement, ...], tuple[str, ...]]:
    """The judgements of the family, and notes on rules that were not judged."""
    p_values = [m.p_value for _, m in measured if isinstance(m, Measured)]
    adjusted = iter(zip(p_values, holm(p_values), strict=True))
    judgements, notes = [], []
    for rule, each in measured:
        if isinstance(each, Measured):
            judgements.append(_judged(policy, each, *next(adjusted)))
        elif each.skipped:
            notes.append(f"{rule.name} was not judged: {each.reason}")
        else:
            judgements.append(_refused(rule, each))
    return tuple(judgements), tuple(notes)


def noise_sd(
    policy: Policy, rule: RelativeRule, pairing: Pairing, floor: NoiseFloor | None
) -> float:
    """Noise between equal arms that rows do not show: measured, or assumed of hosts.

    A floor that was measured for other rules says nothing of this one.
    """
    known = 0.0
    if floor is not None:
        known = floor.of(rule.name, ratio=rule.is_ratio)
        told = floor.default > 0 or isinstance(policy.noise_floor, float)
        if rule.name in floor.sd or told:
            return known
    if pairing.confounded_hosts is None or not rule.is_ratio:
        return known
    return max(known, policy.host_spread * math.sqrt(2 / pairing.confounded_hosts))


def limit_text(rule: RelativeRule) -> str:
    """`<= 1.1x`, `<= +0.05 pp`, `>= -0.75 pp`."""
    if rule.max_ratio is not None:
        if rule.worse == "down":
            return f">= {1 / rule.max_ratio:.4g}x"
        return f"<= {rule.max_ratio:g}x"
    sign = ">= -" if rule.worse == "down" else "<= +"
    return f"{sign}{rule.limit * 100:g} pp"


def _judged(
    policy: Policy, measured: Measured, p_value: float, adjusted: float
) -> GateJudgement:
    rule, harm = measured.rule, measured.harm
    verdict, reason = _verdict(policy, measured, adjusted)
    needs = _needs(policy, measured) if verdict is Verdict.INCONCLUSIVE else None
    if verdict is Verdict.INCONCLUSIVE and not measured.doubt:
        reason += f"; {_remedy(measured, needs)}"
    down = rule.worse == "down"
    low, high = (-harm.high, -harm.low) if down else (harm.low, harm.high)
    seen = detectable(harm, measured.null)
    return GateJudgement(
        name=rule.name,
        family="relative",
        metric=rule.metric,
        verdict=verdict,
        limit=limit_text(rule),
        reason=reason,
        baseline=harm.baseline,
        canary=harm.canary,
        estimate=_shown(rule, -harm.estimate if down else harm.estimate),
        low=_shown(rule, low),
        high=_shown(rule, high),
        p_value=p_value,
        adjusted_p=adjusted,
        n_baseline=harm.n_baseline,
        n_canary=harm.n_canary,
        detectable=None if seen is None else _shown(rule, -seen if down else seen),
        needs=needs,
        design=harm.design,
        numbers={
            **harm.numbers,
            "scaled_estimate": harm.estimate,
            "own_se": measured.own_se,
            "floor_sd": measured.floor_sd,
        },
    )


def _verdict(
    policy: Policy, measured: Measured, adjusted: float
) -> tuple[Verdict, str]:
    rule, harm = measured.rule, measured.harm
    if measured.doubt:
        return Verdict.INCONCLUSIVE, measured.doubt
    seen = _told(rule, harm.estimate)
    if harm.high < rule.limit:
        return Verdict.PASS, f"{seen}, at most {_told(rule, harm.high)}"
    if adjusted <= policy.alpha and harm.estimate > rule.limit:
        least = _told(rule, harm.low)
        return Verdict.FAIL, f"{seen}, at least {least} (p {adjusted:.2g})"
    bounds = f"{_told(rule, harm.low)} .. {_told(rule, harm.high)}"
    return Verdict.INCONCLUSIVE, f"{seen}, could be {bounds}"


def _refused(rule: RelativeRule, refusal: Refusal) -> GateJudgement:
    rows = min(refusal.rows)
    few = 0 < rows < rule.min_samples
    return GateJudgement(
        name=rule.name,
        family="relative",
        metric=rule.metric,
        verdict=Verdict.INCONCLUSIVE,
        limit=limit_text(rule),
        reason=refusal.reason,
        n_baseline=refusal.rows[0],
        n_canary=refusal.rows[1],
        needs=rule.min_samples - rows if few else None,
    )


def _needs(policy: Policy, measured: Measured) -> int | None:
    """Samples an arm still needed; None when no number of them will do."""
    rule, harm = measured.rule, measured.harm
    if measured.doubt:
        return None
    rows = min(harm.n_baseline, harm.n_canary)
    wanted = samples_needed(
        harm, null=measured.null, limit=rule.limit, floor_sd=measured.floor_sd
    )
    unbounded = math.isinf(harm.low) or math.isinf(harm.high)
    if unbounded and math.isfinite(harm.estimate) and rule.quantile is not None:
        least = samples_to_bound(max(rule.quantile, 0.5), 1 - policy.alpha)
        wanted = max(2 * least, 2 * rows)
    return None if wanted is None else max(1, wanted - rows)


def _remedy(measured: Measured, needs: int | None) -> str:
    if needs is not None:
        return f"{needs} more samples an arm should decide"
    if measured.floor_sd > 0:
        return f"the noise between equal arms ({measured.floor_sd:.2g}) hides it"
    return "it is too near the limit for a number of samples to be named"


def _few_sessions(policy: Policy, baseline: Samples, canary: Samples) -> str:
    """Where sessions are known they must be enough to tell how they differ."""
    least = policy.validity.min_clusters
    for samples in (baseline, canary):
        if np.any(samples.session < 0):
            continue
        known = distinct(samples.session)
        if 0 < known < least:
            return (
                f"the {samples.arm} has {known} sessions,"
                f" fewer than {least}: their spread cannot be told"
            )
    return ""


def _shown(rule: RelativeRule, value: float) -> float:
    """On the reader's scale: a ratio, or a difference."""
    if not rule.is_ratio:
        return value
    return math.exp(value) if value < 700 else math.inf


def _told(rule: RelativeRule, harm: float) -> str:
    """A harm in words' numbers: `1.08x` or `+0.2 pp` worse."""
    if rule.is_ratio:
        factor = _shown(rule, -harm if rule.worse == "down" else harm)
        return f"{factor:.3g}x"
    value = -harm if rule.worse == "down" else harm
    return f"{value * 100:+.3g} pp"
