from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.judge.verdict import Verdict, worst
from chaos.safety.halt import Pulled
from chaos.scenario.judges import judge_played

ALL = """
name: all laws
timeline:
  - {fault: kill, target: store-1, at: 30s, for: 20s}
abort: [{error_rate: 50%, window: 20s, samples: 5}]
load: {rate_per_s: 2, pulse: 0, after: 60s}
steady_state: {during: [{error_rate: 0%, window: 20s, samples: 5}], recovery_slo: 40s}
judge: [O1, O2, O3, O4, O11, recovery]
"""


def judged(theatre, text=ALL):
    played = theatre.play(text)
    return judge_played(played, theatre.cluster)


def bad(judgements):
    return [
        (row.oracle, row.verdict.value)
        for row in judgements
        if row.verdict is not Verdict.PASS
    ]


def failing(since_s, **changes):
    def change(sample):
        if sample.intended_s < since_s:
            return sample
        return replace(sample, answer=replace(sample.answer, **changes))

    return change


def test_a_good_play_passes_every_law_it_asked_for(theatre) -> None:
    rows = judged(theatre)

    assert bad(rows) == []
    oracles = [row.oracle for row in rows]
    assert oracles == [
        "steady",
        "abort",
        "during",
        "O1",
        "O2",
        "O3",
        "O4",
        "O11",
        "recovery",
        "recovery",
    ]


@pytest.mark.parametrize(
    ("changes", "oracle"),
    [
        ({"output_hash": "wrong"}, "O1"),
        ({"cache_wait_s": 9.0}, "O2"),
        ({"l3_tokens": 63}, "O3"),
        ({"ok": False, "error": "cache down"}, "O4"),
        ({"l3_tokens": 0, "recomputed_tokens": 10**6}, "O3"),
    ],
)
def test_every_law_can_fail(theatre, changes, oracle) -> None:
    theatre.load.answer = failing(60.0, **changes)

    assert (oracle, "FAIL") in bad(judged(theatre))


def test_a_broken_ledger_fails(theatre) -> None:
    theatre.cluster.broken = ["pages do not add up"]

    assert bad(judged(theatre)) == [("O11", "FAIL")]


def test_a_limit_that_breaks_during_the_fault_fails(theatre) -> None:
    one = []

    def first(sample):
        if sample.intended_s < 40.0 or one:
            return sample
        one.append(sample)
        return failing(0.0, ok=False, error="down")(sample)

    theatre.load.answer = first

    assert ("during", "FAIL") in bad(judged(theatre))


def test_a_tripped_abort_fails_and_says_what_was_read(theatre) -> None:
    theatre.load.answer = failing(35.0, ok=False, error="down")

    rows = judged(theatre)

    (abort,) = [row for row in rows if row.oracle == "abort"]
    assert abort.verdict is Verdict.FAIL
    assert "error_rate above 50.0 %" in abort.reason


def test_an_abort_condition_that_saw_too_little_was_blind(theatre) -> None:
    rows = judged(theatre, ALL.replace("samples: 5", "samples: 5000", 1))

    assert ("abort", "INCONCLUSIVE") in bad(rows)


def test_a_limit_that_saw_too_little_is_inconclusive(theatre) -> None:
    text = ALL.replace("rate: 0%, window: 20s, samples: 5", "rate: 0%, samples: 5000")

    assert bad(judged(theatre, text)) == [("during", "INCONCLUSIVE")]


def test_no_abort_with_a_reason_passes_and_tells_it(theatre) -> None:
    text = ALL.replace(
        "abort: [{error_rate: 50%, window: 20s, samples: 5}]",
        "abort: none\nabort_reason: it is a laptop",
    )

    (row,) = [row for row in judged(theatre, text) if row.oracle == "abort"]
    assert row.verdict is Verdict.PASS
    assert "it is a laptop" in row.reason


def test_a_system_that_is_not_steady_before_is_inconclusive(theatre) -> None:
    theatre.steady.verdicts = [Verdict.FAIL]

    (row,) = judged(theatre)

    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reason == "nothing was broken: store-1 is not mounted"


def test_a_system_that_stays_unwell_is_not_recovered(theatre) -> None:
    """K2: the rollback breaks the system, and the run may not be called a success."""
    theatre.steady.verdicts = [Verdict.PASS, Verdict.FAIL]

    rows = judged(theatre)

    assert bad(rows) == [("recovery", "FAIL")]
    assert rows[-1].reason == "not recovered: store-1 is not mounted"


def test_a_fault_that_is_left_behind_is_not_recovered(theatre) -> None:
    theatre.inject.settings["kill"] = {"residual": "still dead"}

    rows = judged(theatre)

    assert rows[-1].verdict is Verdict.FAIL
    assert rows[-1].reason == "not recovered: kill(store-1): still dead"


def test_a_halted_play_is_inconclusive(theatre) -> None:
    pulled = Pulled(reason="an outage", by="op", at="now", where="here")
    theatre.clock.at(35.0, lambda: setattr(theatre.lever, "pulled", pulled))

    rows = judged(theatre)

    assert worst(rows) is Verdict.INCONCLUSIVE
    assert any("an outage" in row.reason for row in rows)


def test_a_hit_rate_that_does_not_come_back_fails(theatre) -> None:
    theatre.load.answer = lambda sample: (
        sample if sample.intended_s < 30 else lost(sample)
    )

    assert ("recovery", "FAIL") in bad(judged(theatre))


def test_a_load_that_ends_too_soon_cannot_tell_that_it_does_not(theatre) -> None:
    theatre.load.answer = lambda sample: (
        sample if sample.intended_s < 30 else lost(sample)
    )

    rows = judged(theatre, ALL.replace("after: 60s", "after: 30s"))

    assert bad(rows) == [("recovery", "INCONCLUSIVE")]
    assert any("the load ended" in row.reason for row in rows)


def test_requests_to_an_engine_that_was_hit_itself_are_spared(theatre) -> None:
    text = ALL.replace("target: store-1", "target: engine-0")
    theatre.load.answer = lambda sample: (
        failing(0.0, ok=False, error="engine is gone")(sample)
        if 31 < sample.intended_s < 49
        else sample
    )

    rows = judged(theatre, text)

    assert ("O4", "FAIL") not in bad(rows)
    assert ("abort", "FAIL") not in bad(rows)


def test_o5_needs_its_arm_and_judges_the_cost(theatre) -> None:
    rows = judged(theatre, ALL.replace("judge: [", "judge: [O5, "))

    assert [row.verdict for row in rows if row.oracle == "O5"] == [Verdict.PASS]


def lost(sample):
    answer = sample.answer
    none = replace(answer, l3_tokens=0, recomputed_tokens=answer.input_tokens)
    return replace(sample, answer=none)
