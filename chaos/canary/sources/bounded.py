"""One verdict out of two: of a measurement that is only known between two edges.

What passes with every unknown against the canary passes. What fails with every unknown
for it fails. Between them the measurement is too coarse, and that is the verdict.
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
    judged += tuple(one for one in mild.judgements if one.name not in known)
    return replace(harsh, judgements=judged, verdict=worst(judged))


def _between(
    harsh: GateJudgement, others: Mapping[str, GateJudgement]
) -> GateJudgement:
    mild = others.get(harsh.name)
    if mild is None or harsh.verdict is Verdict.PASS:
        return harsh
    if mild.verdict is Verdict.FAIL:
        return mild
    if harsh.verdict is mild.verdict:  # both could not tell, whatever the edge
        return harsh

    return replace(
        harsh,
        verdict=Verdict.INCONCLUSIVE,
        low=mild.low,
        high=harsh.high,
        needs=None,
        reason=f"{COARSE}; at the best edge {mild.verdict.value}: {mild.reason};"
        f" at the worst {harsh.verdict.value}: {harsh.reason}",
    )
