"""Counters that must be there and be 0: no statistics, one event is one too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.canary.result import RESIDUAL, GateJudgement
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from chaos.canary.samples import Samples


def judge_invariant(name: str, baseline: Samples, canary: Samples) -> GateJudgement:
    """FAIL if the canary counted any, INCONCLUSIVE if anybody did not count.

    A baseline that counted some is broken itself, so it is no measure for a canary;
    a fault of ours left behind in either arm is FAIL.
    """
    left, right = baseline.counters.get(name), canary.counters.get(name)
    verdict, reason = _verdict(name, left, right)
    return GateJudgement(
        name=name,
        family="invariant",
        metric=name,
        verdict=verdict,
        limit="0",
        reason=reason,
        baseline=None if left is None else float(left),
        canary=None if right is None else float(right),
        n_baseline=len(baseline),
        n_canary=len(canary),
    )


def _verdict(name: str, left: int | None, right: int | None) -> tuple[Verdict, str]:
    if right is not None and right > 0:
        return Verdict.FAIL, f"the canary counted {right} {name}"
    if left is not None and left > 0:
        verdict = Verdict.FAIL if name == RESIDUAL else Verdict.INCONCLUSIVE
        return verdict, f"the baseline counted {left} {name} itself; mend it first"
    for arm, value in (("canary", right), ("baseline", left)):
        if value is None:
            return Verdict.INCONCLUSIVE, f"{name} was not counted in the {arm}"
        if value < 0:
            return Verdict.INCONCLUSIVE, f"{name} of the {arm} is {value}: no count"
    return Verdict.PASS, "none in either arm"
