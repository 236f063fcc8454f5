from __future__ import annotations

import json
import math

import pytest

from chaos.judge.limit import at_most, inconclusive, none_of
from chaos.judge.verdict import Verdict
from chaos.report.document import (
    Document,
    Outcome,
    document_of,
    judgement_of,
    judgement_row,
    line,
    reproduce,
)

GOOD = at_most(
    "O2", "wait <= T + poll", 0.2141, 0.3, samples=512, unit="s", label="max"
)
BAD = none_of("O1", "no wrong bytes", 2, of=40, what="wrong reads", reason="r9")
UNKNOWN = inconclusive("O5", "cost", "3 of the 30 samples needed", samples=3)


def outcome(*judgements, error="", nodeid="suites/chaos/test_x.py::test_y"):
    return Outcome(
        nodeid=nodeid, judgements=judgements, reproduce="pytest x", error=error
    )


def document(*outcomes, **fields):
    return Document(suite="x", seed=7, time_scale=0.1, outcomes=outcomes, **fields)


def test_a_line_reads_well():
    assert line(GOOD) == "O2 wait <= T + poll: max 0.214 s of 0.300 s (n=512) PASS"
    assert line(UNKNOWN) == (
        "O5 cost: not judged (n=3) INCONCLUSIVE: 3 of the 30 samples needed"
    )
    assert line(BAD) == (
        "O1 no wrong bytes: 2 wrong reads of 0 allowed (n=40) FAIL: r9"
    )


@pytest.mark.parametrize(
    ("made", "verdict", "code"),
    [
        (document(outcome(GOOD)), Verdict.PASS, 0),
        (document(outcome(GOOD), outcome(BAD)), Verdict.FAIL, 1),
        (document(outcome(GOOD, UNKNOWN)), Verdict.INCONCLUSIVE, 3),
        (document(), Verdict.INCONCLUSIVE, 3),
        (document(outcome()), Verdict.INCONCLUSIVE, 3),
        (document(outcome(GOOD, error="KeyError: 'x'")), Verdict.INCONCLUSIVE, 3),
        (document(outcome(GOOD, error="AssertionError: no")), Verdict.FAIL, 1),
        (document(outcome(GOOD), aborted="SIGTERM"), Verdict.INCONCLUSIVE, 3),
        (document(outcome(BAD), aborted="SIGTERM"), Verdict.FAIL, 1),
        (document(outcome(GOOD), residual=("kill(store-1)",)), Verdict.FAIL, 5),
    ],
)
def test_worst_wins_and_nothing_unknown_passes(made, verdict, code):
    assert (made.verdict, made.exit_code) == (verdict, code)


def test_what_broke_comes_worst_first():
    assert outcome(GOOD, UNKNOWN, BAD).broken == (BAD, UNKNOWN)


def test_a_judgement_survives_json():
    assert judgement_of(json.loads(json.dumps(judgement_row(GOOD)))) == GOOD


def test_numbers_that_json_does_not_know_become_null():
    never = at_most("O6", "opens", math.inf, 1.0, samples=1, unit="s")

    row = json.loads(json.dumps(judgement_row(never), allow_nan=False))

    assert row["numbers"]["value"] is None
    assert math.isnan(judgement_of(row).numbers["value"])


def test_a_document_survives_json():
    made = document(outcome(GOOD, UNKNOWN), outcome(BAD), notes=("a note",))

    again = document_of(json.loads(json.dumps(made.to_json())))

    assert again == made
    assert made.to_json()["ttft"].startswith("modelled")


def test_the_command_can_be_pasted():
    command = reproduce("a.py::test_x[y z]", seed=7, options=["--time-scale", "0.1"])

    assert command == "pytest 'a.py::test_x[y z]' --seed 7 --time-scale 0.1"
