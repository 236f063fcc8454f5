"""One verdict out of two: of a measurement that is only known between two edges.

What passes with every unknown against the canary, and with every unknown for it, is a
PASS. What fails in both is a FAIL. Else the measurement is too coarse to tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.canary.result import GateJudgement, GateResult, worst
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

COARSE = (
    "the buckets of this histogram are too wide: the values could be anywhere in them"
)


def between(harsh: GateResult, mild: GateResult) -> GateResult:
    """The verdict that both edges allow; numbers are those of the edge it rests on.

    Args:
        harsh: judged with every value at the edge that is worst for the canary.
        mild: the same measurement at the best edge.
    """
    others = {judgement.name: judgement for judgement in mild.judgements}
    judged = tuple(_between(one, others) for one in harsh.judgements)
    known = {one.name for one in judged}
    judged += tuple(
        replace(one, verdict=Verdict.INCONCLUSIVE)
        for one in mild.judgements
        if one.name not in known
    )
    return replace(
        harsh,
        judgements=judged,
        verdict=worst(judged),
        extend_by=harsh.extend_by if _more_helps(judged) else None,
    )


def _more_helps(judged: tuple[GateJudgement, ...]) -> bool:
    """No number of samples makes a bucket narrower."""
    return not any(
        one.verdict is Verdict.INCONCLUSIVE and one.needs is None for one in judged
    )


def _between(
    harsh: GateJudgement, others: Mapping[str, GateJudgement]
) -> GateJudgement:
    mild = others.get(harsh.name)
    if mild is None:
        return replace(harsh, verdict=Verdict.INCONCLUSIVE)
    if harsh.verdict is mild.verdict:
        return mild if mild.verdict is Verdict.FAIL else harsh
    return replace(
        harsh,
        verdict=Verdict.INCONCLUSIVE,
        low=mild.low,
        high=harsh.high,
        needs=None,
        reason=f"{COARSE}; at the best edge {mild.verdict.value}: {mild.reason};"
        f" at the worst {harsh.verdict.value}: {harsh.reason}",
    )
