from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.faults.base import Receipt
from chaos.history.history import History, read_history
from chaos.history.rejudge import recorded, rejudge
from chaos.judge.blast import Loss, judge_prediction
from chaos.judge.breaker import Change, Span, judge_opens, judge_single_probe
from chaos.judge.verdict import Verdict


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.jsonl"


def write(path, fabricate, *, mutate=lambda sample: sample, cap=10_000):
    with History(path, max_events=cap) as history:
        history.test = "t"
        history.limits(fabricate.limits())
        history.info("detected", at_s=2.0)
        for arm, seed in (("fault", 1), ("local_only", 2)):
            for sample in fabricate.arm(seed, noise=0.02):
                row = mutate(sample) if arm == "fault" else sample
                history.invoke(row.request, "e", row.sent_s, arm)
                history.complete(row, arm, f"out-{row.request.request_id}")


def verdicts(path):
    return {
        (row.oracle, row.claim.partition("(")[2].partition(")")[0]): row.verdict
        for _, row in rejudge(read_history(path))
    }


def test_a_sound_history_passes_again(path, fabricate):
    write(path, fabricate)

    rows = rejudge(read_history(path))

    assert {row.oracle for _, row in rows} == {"O1", "O2", "O3", "O4", "O5"}
    assert {row.verdict for _, row in rows} == {Verdict.PASS}
    assert {test for test, _ in rows} == {"t"}


@pytest.mark.parametrize(
    ("oracle", "change"),
    [
        ("O1", {"output_hash": "stale"}),
        ("O2", {"cache_wait_s": 9.0}),
        ("O3", {"recomputed_tokens": 7}),
        ("O4", {"ok": False, "error": "x"}),
        ("O5", {"ttft_modelled_s": 9.0}),
    ],
)
def test_a_broken_law_is_found_again(path, fabricate, oracle, change):
    def mutate(sample):
        if sample.request.request_id != "r100":
            return sample
        return replace(sample, answer=replace(sample.answer, **change), done_s=99.0)

    write(path, fabricate, mutate=mutate)

    broken = {
        row.oracle
        for _, row in rejudge(read_history(path))
        if row.verdict is Verdict.FAIL
    }
    assert oracle in broken


def test_a_cut_history_passes_nothing(path, fabricate):
    write(path, fabricate, cap=1200)

    rows = rejudge(read_history(path))

    assert Verdict.PASS not in {row.verdict for _, row in rows}
    assert any("not whole" in row.reason for _, row in rows)


def test_a_fault_without_effect_passes_nothing(path, fabricate):
    write(path, fabricate)
    with History(path) as history:
        history.test = "t"
        history.fault("end", Receipt(fault_id="f", kind="kill", target="store-1"))

    rows = rejudge(read_history(path))

    assert {row.verdict for _, row in rows} == {Verdict.INCONCLUSIVE}
    assert all("no effect of kill store-1" in row.reason for _, row in rows)


def test_a_lagging_generator_cannot_be_judged_in_timing(path, fabricate):
    write(path, fabricate, mutate=lambda s: replace(s, sent_s=s.intended_s + 0.5))

    by_kind = {(row.kind, row.verdict) for _, row in rejudge(read_history(path))}

    assert by_kind == {
        ("counter", Verdict.PASS),
        ("timing", Verdict.INCONCLUSIVE),
    }


def test_a_request_without_an_end_is_inconclusive(path, fabricate):
    with History(path) as history:
        history.invoke(fabricate.request("r0"), "e", 1.0)

    rows = rejudge(read_history(path))

    assert any("no end" in row.reason for _, row in rows)
    assert Verdict.PASS not in {row.verdict for _, row in rows}


def test_facts_are_judged_again_from_their_record(path):
    change = Change(at_s=1.0, source="CLOSED", target="OPEN")
    with History(path) as history:
        first = [
            recorded(history, judge_opens, [change], fault_at_s=0.5, budget_s=0.2),
            recorded(
                history,
                judge_single_probe,
                [Span(start_s=0, end_s=1), Span(start_s=2, end_s=3)],
            ),
            recorded(
                history,
                judge_prediction,
                Loss(pages=9, lost=3, requests=40),
                Loss(pages=9, lost=3, requests=40),
            ),
        ]

    again = [row for _, row in rejudge(read_history(path))]

    assert again == first
    assert [row.verdict for row in again] == [Verdict.FAIL, Verdict.PASS, Verdict.PASS]


def test_a_judge_that_analyze_does_not_know_is_refused(path):
    with History(path) as history, pytest.raises(ValueError, match="add it there"):
        recorded(history, lambda: None)
