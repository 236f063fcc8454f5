from __future__ import annotations

from chaos.judge.limit import at_most, none_of
from chaos.report.document import Document, Outcome
from chaos.report.summary import BUDGET_BYTES, render_summary

GOOD = at_most("O2", "wait <= T | poll", 0.2141, 0.3, samples=512, unit="s")
BAD = none_of("O1", "no wrong bytes", 2, of=40, what="wrong reads", reason="r9")
FAULT = {
    "kind": "kill",
    "target": "store-1",
    "injected_at_s": 1.0,
    "reverted_at_s": 3.5,
    "evidence": {"measure": "process gone", "effect": 1.0},
}


def outcome(name, *judgements):
    return Outcome(nodeid=name, judgements=judgements, reproduce=f"pytest {name}")


def document(*outcomes, **fields):
    return Document(suite="x", seed=7, time_scale=0.1, outcomes=outcomes, **fields)


def test_failures_come_first_with_their_command():
    text = render_summary(document(outcome("good", GOOD), outcome("bad", GOOD, BAD)))

    assert text.startswith("# x: FAIL\n")
    assert "pytest bad" in text
    assert "pytest good" not in text
    assert text.index("## FAIL `bad`") < text.index("### PASS `good`")


def test_seed_scale_and_modelled_are_named():
    text = render_summary(document(outcome("good", GOOD)))

    assert "Seed 7, time scale 0.1" in text
    assert "TTFT is modelled" in text


def test_faults_have_their_evidence():
    text = render_summary(document(outcome("good", GOOD), faults=(FAULT,)))

    assert "| kill | store-1 | 2.50 s | 1 process gone |" in text


def test_a_fault_without_times_or_evidence_does_not_break_it():
    text = render_summary(document(faults=({"kind": "kill", "target": "s"},)))

    assert "| kill | s | ? | 0 none |" in text


def test_pipes_do_not_break_tables():
    assert "wait <= T \\| poll" in render_summary(document(outcome("good", GOOD)))


def test_the_budget_holds_and_the_cut_is_said():
    many = [outcome(f"test-{i}", *[GOOD] * 20) for i in range(2000)]

    text = render_summary(document(outcome("bad", BAD), *many))

    assert 0.9 * BUDGET_BYTES < len(text.encode()) <= BUDGET_BYTES
    assert "_Cut: " in text
    assert "## FAIL `bad`" in text


def test_even_failures_are_cut_to_the_budget():
    many = [outcome(f"test-{i}", BAD) for i in range(200)]

    text = render_summary(document(*many), budget_bytes=5000)

    assert len(text.encode()) <= 5000
    assert "failed or inconclusive tests._" in text
