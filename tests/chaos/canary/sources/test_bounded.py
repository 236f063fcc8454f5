from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.canary.result import GateJudgement, GateResult, worst
from chaos.canary.sources.bounded import between
from chaos.judge.verdict import Verdict

PASS, OPEN, FAIL = Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL


def result(verdict, **fields):
    judgement = GateJudgement(
        name="ttft_s p99",
        family="relative",
        metric="ttft_s",
        verdict=verdict,
        limit="<= 1.1x",
        reason=f"was {verdict.value}",
        **fields,
    )
    return GateResult(verdict=worst([judgement]), judgements=(judgement,))


@pytest.mark.parametrize(
    ("harsh", "mild", "expected"),
    [
        (PASS, PASS, PASS),
        (FAIL, FAIL, FAIL),
        (FAIL, PASS, OPEN),
        (FAIL, OPEN, OPEN),
        (OPEN, PASS, OPEN),
        (OPEN, OPEN, OPEN),
        (OPEN, FAIL, OPEN),
        (PASS, FAIL, OPEN),
        (PASS, OPEN, OPEN),
    ],
)
def test_only_what_both_edges_allow_is_a_verdict(harsh, mild, expected) -> None:
    found = between(result(harsh), result(mild))

    assert found.verdict is expected
    assert found.judgements[0].verdict is expected


def test_a_coarse_histogram_is_named_with_both_bounds() -> None:
    found = between(result(FAIL, low=1.5, high=2.5), result(PASS, low=0.4, high=0.6))
    (judged,) = found.judgements

    assert (judged.low, judged.high) == (0.4, 2.5)
    assert "buckets of this histogram are too wide" in judged.reason


def test_a_rule_that_only_one_edge_judged_is_open() -> None:
    one, none = result(PASS), GateResult(verdict=PASS, judgements=())

    assert between(one, none).verdict is OPEN
    assert between(none, one).verdict is OPEN


def test_more_samples_are_not_asked_for_where_the_buckets_are_too_wide() -> None:
    harsh = replace(result(OPEN, needs=500), extend_by=500)

    assert between(harsh, result(OPEN, needs=9)).extend_by == 500
    assert between(harsh, result(PASS)).extend_by is None
