"""The gate: two measured arms and a policy in, a three-valued verdict out. Pure.

The verdict is the worst of all judgements, and nothing judged is INCONCLUSIVE. When a
validity check is open, what rests on the comparison is INCONCLUSIVE too, whichever way
it went: a client that is the bottleneck can neither clear nor convict. Counters of the
invariants are events that happened, so they FAIL in any case.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chaos.canary.floor import NoiseFloor
from chaos.canary.invariants import judge_invariant
from chaos.canary.pairing import clusters_of, pair
from chaos.canary.relative import Measured, judge_relative, measure
from chaos.canary.result import GateJudgement, GateResult, worst
from chaos.canary.slo import judge_slo
from chaos.canary.stats.effect import critical
from chaos.canary.stats.sequential import always_valid_p
from chaos.canary.validity import judge_validity
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from chaos.canary.pairing import Pairing
    from chaos.canary.policy import Policy
    from chaos.canary.samples import Samples

# The sequential test takes estimates as normal: not with fewer rows an arm than this,
# nor with fewer beyond the quantile.
_MIN_ROWS = 50
_MIN_TAIL = 20


def judge(
    policy: Policy,
    baseline: Samples,
    canary: Samples,
    *,
    rng: np.random.Generator | None = None,
    floor: NoiseFloor | None = None,
    seed: int | None = None,
) -> GateResult:
    """The verdict of `policy` over two arms that were measured to their end.

    Args:
        policy: what is asked.
        baseline: the arm to compare with.
        canary: the arm that is judged.
        rng: not drawn from: every interval is analytic, so a verdict over the same
            rows is the same verdict. Kept so that callers need not know that.
        floor: the noise floor of earlier A/A runs; `floor_of` reads the policy's.
        seed: of the run, to be shown.
    """
    del rng
    floor = _floor(policy, floor)
    pairing = pair(baseline, canary)
    valid = judge_validity(policy, baseline, canary, pairing)
    valid = (*valid, *_floor_there(policy, floor))
    invariants = tuple(
        judge_invariant(name, baseline, canary) for name in policy.invariants
    )
    compared, notes = _compared(policy, baseline, canary, pairing, floor)
    valid = (*valid, *_anything(policy, compared))
    doubts = [row for row in valid if row.verdict is not Verdict.PASS]
    if doubts:
        compared = tuple(_doubted(row, doubts[0]) for row in compared)
    judgements = (*invariants, *valid, *compared)
    return GateResult(
        verdict=worst(judgements),
        judgements=judgements,
        on_inconclusive=policy.on_inconclusive,
        extend_by=_extend_by(judgements),
        floor=_used_floor(compared),
        notes=(*notes, *_host_note(policy, pairing, floor)),
        policy_name=policy.name,
        seed=seed,
        arms=_metas(baseline, canary),
    )


def abort_early(
    policy: Policy,
    baseline: Samples,
    canary: Samples,
    *,
    floor: NoiseFloor | None = None,
    seed: int | None = None,
) -> GateResult | None:
    """A FAIL before the planned end, or None: go on. Look as often as you like.

    A counted invariant fails at once. Relative harm fails by a test whose chance of a
    false alarm over all looks together is `early_abort.alpha`. It never passes: that
    is for the planned end. Arms need not be `complete` here.
    """
    broken = tuple(
        each
        for name in policy.invariants
        if (each := judge_invariant(name, baseline, canary)).verdict is Verdict.FAIL
    )
    harmed = () if broken else _harmed(policy, baseline, canary, floor)
    if not broken and not harmed:
        return None
    return GateResult(
        verdict=Verdict.FAIL,
        judgements=(*broken, *harmed),
        on_inconclusive=policy.on_inconclusive,
        notes=("stopped before the planned end: harm was shown",),
        policy_name=policy.name,
        seed=seed,
        aborted_early=True,
        arms=_metas(baseline, canary),
    )


def _harmed(
    policy: Policy, baseline: Samples, canary: Samples, floor: NoiseFloor | None
) -> tuple[GateJudgement, ...]:
    """Relative rules whose harm the always-valid test has shown."""
    spend = policy.early_abort
    if not spend.enabled or not len(baseline) or not len(canary):
        return ()
    pairing = pair(baseline, canary)
    measured = measure(policy, baseline, canary, pairing, _floor(policy, floor))
    level = spend.alpha / max(1, len(policy.relative))
    shown = []
    for rule, each in measured:
        if isinstance(each, Measured) and _sequential_p(each) <= level:
            ((judged,), _) = judge_relative(policy, [(rule, each)])
            p_value = _sequential_p(each)
            shown.append(
                replace(
                    judged,
                    verdict=Verdict.FAIL,
                    p_value=p_value,
                    adjusted_p=min(1.0, p_value * len(policy.relative)),
                    needs=None,
                )
            )
    return tuple(shown)


def _sequential_p(measured: Measured) -> float:
    """Valid at every look; 1 while there are too few rows, or the harm is allowed."""
    rule, harm = measured.rule, measured.harm
    rows = min(harm.n_baseline, harm.n_canary)
    tail = rows if rule.quantile is None else rows * (1 - rule.quantile)
    small = rows < _MIN_ROWS or (rule.statistic == "quantile" and tail < _MIN_TAIL)
    if measured.doubt or small or not harm.estimate > rule.limit:
        return 1.0
    # Few clusters: the reach of Student's t, taken as if it were the normal's.
    se = (harm.estimate - harm.low) / critical(harm.alpha)
    return always_valid_p(harm.estimate, se, measured.null, rule.limit)


def _compared(
    policy: Policy,
    baseline: Samples,
    canary: Samples,
    pairing: Pairing,
    floor: NoiseFloor | None,
) -> tuple[tuple[GateJudgement, ...], tuple[str, ...]]:
    """Service levels and relative rules, and notes on those not judged."""
    levels, notes = [], []
    clusters = clusters_of(canary)
    for rule in policy.slos:
        there = baseline.measured(rule.metric) or canary.measured(rule.metric)
        if rule.required or there:
            missing = policy.validity.max_unmeasured
            levels.append(judge_slo(rule, baseline, canary, clusters, missing))
        else:
            notes.append(f"{rule.name} was not judged: measured in neither arm")
    measured = measure(policy, baseline, canary, pairing, floor)
    relative, more = judge_relative(policy, measured)
    return (*levels, *relative), (*notes, *more)


def _doubted(judgement: GateJudgement, doubt: GateJudgement) -> GateJudgement:
    """The same, INCONCLUSIVE because of a validity check that is open."""
    was = judgement.verdict
    if was is Verdict.INCONCLUSIVE:
        return judgement
    reason = f"would be {was.value} ({judgement.reason}), but {doubt.name}:"
    return replace(
        judgement,
        verdict=Verdict.INCONCLUSIVE,
        reason=f"{reason} {doubt.reason}",
        needs=None,
    )


def _extend_by(judgements: tuple[GateJudgement, ...]) -> int | None:
    """The samples that would decide everything open; None if something cannot."""
    if any(each.verdict is Verdict.FAIL for each in judgements):
        return None
    needs = [e.needs for e in judgements if e.verdict is Verdict.INCONCLUSIVE]
    known = [need for need in needs if need is not None]
    return max(known) if known and len(known) == len(needs) else None


def _floor(policy: Policy, floor: NoiseFloor | None) -> NoiseFloor | None:
    if floor is None and isinstance(policy.noise_floor, float):
        return NoiseFloor(default=policy.noise_floor, source="policy")
    return floor


def _floor_there(policy: Policy, floor: NoiseFloor | None) -> tuple[GateJudgement, ...]:
    """A policy that names a floor file is not judged without it."""
    if not isinstance(policy.noise_floor, str):
        return ()
    there = floor is not None
    reason = "read" if there else f"{policy.noise_floor} was not read"
    return (
        GateJudgement(
            name="noise floor",
            family="validity",
            metric="noise floor",
            verdict=Verdict.PASS if there else Verdict.INCONCLUSIVE,
            limit="the file that the policy names",
            reason=reason,
        ),
    )


def _anything(
    policy: Policy, compared: tuple[GateJudgement, ...]
) -> tuple[GateJudgement, ...]:
    """Rules that may be left out are not all left out: that would clear anybody."""
    if compared or not (policy.slos or policy.relative):
        return ()
    return (
        GateJudgement(
            name="anything measured",
            family="validity",
            metric="anything measured",
            verdict=Verdict.INCONCLUSIVE,
            limit="one slo or relative rule at least",
            reason="nothing that the policy's slos and relative rules ask for was"
            " measured in either arm",
        ),
    )


def _used_floor(judgements: tuple[GateJudgement, ...]) -> dict[str, float]:
    sds = {each.name: each.numbers.get("floor_sd", 0.0) for each in judgements}
    return {name: sd for name, sd in sds.items() if sd > 0}


def _host_note(
    policy: Policy, pairing: Pairing, floor: NoiseFloor | None
) -> tuple[str, ...]:
    hosts = pairing.confounded_hosts
    if hosts is None or floor is not None:
        return ()
    return (
        f"each arm has hosts of its own, {hosts} at least: a slow host looks like a"
        f" slow build. A spread of {policy.host_spread:.0%} between hosts was assumed"
        " (modelled); measure a noise floor, swap the arms, or use the same hosts",
    )


def _metas(baseline: Samples, canary: Samples) -> Mapping[str, Mapping[str, Any]]:
    return {
        name: {**arm.meta, "rows": len(arm)}
        for name, arm in (("baseline", baseline), ("canary", canary))
    }
