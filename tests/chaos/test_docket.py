from __future__ import annotations

import pytest

from chaos.case import Case
from chaos.docket import Docket
from chaos.faults.base import Evidence, Receipt
from chaos.judge.verdict import Judgement, Verdict


def judged(verdict: Verdict, oracle: str = "O2", reason: str = "") -> Judgement:
    return Judgement(
        oracle=oracle,
        claim="a claim",
        verdict=verdict,
        observed="3 s",
        threshold="2 s",
        samples=7,
        reason=reason,
    )


def test_an_empty_docket_is_inconclusive_never_pass() -> None:
    docket = Docket()

    assert docket.verdict is Verdict.INCONCLUSIVE
    assert docket.reason == "INCONCLUSIVE: nothing was judged"


def test_single_judgements_and_groups_are_laid_down_alike() -> None:
    docket = Docket()
    answer = docket(
        judged(Verdict.PASS), [judged(Verdict.FAIL), judged(Verdict.INCONCLUSIVE)]
    )

    assert answer is Verdict.FAIL
    assert len(docket.judgements) == 3


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_reason_is_that_of_the_worst_whatever_the_order(order) -> None:
    rows = [
        judged(Verdict.PASS),
        judged(Verdict.INCONCLUSIVE, "O5", "too few"),
        judged(Verdict.FAIL, "O7", "everything was lost"),
    ]
    docket = Docket()
    docket(rows[place] for place in order)

    assert docket.reason == (
        "FAIL O7: a claim: observed 3 s, threshold 2 s, n=7 (everything was lost)"
    )


class FakeInjector:
    def __init__(self, *receipts: Receipt) -> None:
        self.receipts = list(receipts)
        self.reverted = 0

    def revert_all(self) -> None:
        self.reverted += 1


def case_with(*receipts: Receipt) -> Case:
    case = Case(nodeid="t", reproduce="pytest t", seed=1)
    case.injectors.append(FakeInjector(*receipts))
    return case


def receipt(effect: float, residual: str = "") -> Receipt:
    return Receipt(
        fault_id="kill-1",
        kind="kill",
        target="store-3",
        injected_at_s=1.0,
        evidence=Evidence(measure="gone", effect=effect),
        residual=residual,
    )


@pytest.mark.parametrize(
    ("effect", "residual", "verdict"),
    [
        (1.0, "", Verdict.PASS),
        (0.0, "", Verdict.INCONCLUSIVE),
        (1.0, "a rule", Verdict.FAIL),
    ],
)
def test_the_faults_of_a_case_are_judged_too(effect, residual, verdict) -> None:
    case = case_with(receipt(effect, residual))
    case.docket(judged(Verdict.PASS))
    case.conclude()

    assert case.docket.verdict is verdict


def test_a_case_is_concluded_once() -> None:
    case = case_with(receipt(1.0))
    case.conclude()
    case.conclude()

    assert case.injectors[0].reverted == 1
    assert len(case.docket.judgements) == 1


def test_a_case_without_faults_and_judgements_decides_nothing() -> None:
    case = case_with()
    case.conclude()

    assert not case.decides
