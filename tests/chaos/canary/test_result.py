"""The result of a gate: exit codes, order, and the way to JSON and back."""

from __future__ import annotations

import json
import math

import pytest

from chaos.canary.result import GateJudgement, GateResult, worst
from chaos.judge.verdict import Verdict


def judgement(verdict, family="relative", metric="ttft_s", **fields):
    return GateJudgement(
        name=f"{metric} p99",
        family=family,
        metric=metric,
        verdict=verdict,
        limit="<= 1.1x",
        reason="because",
        **fields,
    )


def result(*judgements, **fields):
    return GateResult(verdict=worst(judgements), judgements=judgements, **fields)


@pytest.mark.parametrize(
    ("verdict", "on_inconclusive", "code"),
    [
        ("PASS", "block", 0),
        ("FAIL", "warn", 1),
        ("INCONCLUSIVE", "block", 3),
        ("INCONCLUSIVE", "extend", 3),
        ("INCONCLUSIVE", "warn", 0),
    ],
)
def test_exit_codes(verdict, on_inconclusive, code) -> None:
    found = result(judgement(Verdict(verdict)), on_inconclusive=on_inconclusive)

    assert found.exit_code == code


@pytest.mark.parametrize("on_inconclusive", ["block", "warn"])
def test_a_residual_fault_has_a_code_of_its_own(on_inconclusive) -> None:
    left = judgement(Verdict.FAIL, "invariant", "residual_faults")

    assert result(left, on_inconclusive=on_inconclusive).exit_code == 5


def test_nothing_judged_is_open() -> None:
    assert worst([]) is Verdict.INCONCLUSIVE


def test_the_worst_comes_first_and_invariants_before_the_rest() -> None:
    rows = [
        judgement(Verdict.PASS, "slo"),
        judgement(Verdict.FAIL),
        judgement(Verdict.FAIL, "invariant"),
        judgement(Verdict.INCONCLUSIVE, "validity"),
    ]

    order = [(j.verdict.value, j.family) for j in result(*rows).worst_first]

    assert order == [
        ("FAIL", "invariant"),
        ("FAIL", "relative"),
        ("INCONCLUSIVE", "validity"),
        ("PASS", "slo"),
    ]


def test_a_result_survives_json() -> None:
    before = result(
        judgement(Verdict.INCONCLUSIVE, needs=7, low=-math.inf, numbers={"se": 0.1}),
        extend_by=7,
        floor={"ttft_s p99": 0.02},
        notes=("a note",),
        arms={"baseline": {"build": "a", "rows": 3}},
        seed=4,
    )

    document = json.loads(json.dumps(before.to_document(), allow_nan=False))
    after = GateResult.from_document(document)

    assert after.to_document() == document
    assert after.judgements[0].low is None
    assert document["schema"] == "canary.verdict/1"


@pytest.mark.parametrize(
    "document", [{}, {"schema": "canary.verdict/2"}, {"schema": "canary.verdict/1"}]
)
def test_another_document_is_refused(document) -> None:
    with pytest.raises(ValueError, match=r"canary\.verdict/1"):
        GateResult.from_document(document)


@pytest.mark.parametrize("said", ["PASS", "INCONCLUSIVE"])
def test_a_verdict_better_than_its_judgements_is_not_read(said) -> None:
    document = result(judgement(Verdict.FAIL)).to_document() | {"verdict": said}

    with pytest.raises(ValueError, match="its judgements say FAIL"):
        GateResult.from_document(document)


def test_a_pass_of_no_judgement_is_not_read() -> None:
    document = result(judgement(Verdict.PASS)).to_document() | {"judgements": []}

    with pytest.raises(ValueError, match="its judgements say INCONCLUSIVE"):
        GateResult.from_document(document)
