from __future__ import annotations

import pytest

from chaos.history.checkers import (
    judge_contiguous_reuse,
    judge_no_failures,
    judge_wrong_bytes,
    reuse_counters,
)
from chaos.judge.verdict import Verdict
from chaos.load.sample import Ending

PAGE = 64


def run(fabricate, **last):
    """Ten good samples; the last one takes the given fields."""
    good = [fabricate.sample(f"r{i}") for i in range(9)]
    return [*good, fabricate.sample("r9", **last)]


# -- O1 --------------------------------------------------------------------------


def test_right_outputs_pass(fabricate):
    samples = run(fabricate)

    judged = judge_wrong_bytes(samples, fabricate.expected(samples))

    assert (judged.verdict, judged.samples) == (Verdict.PASS, 10)
    assert judged.kind == "counter"


def test_one_wrong_output_fails_and_is_named(fabricate):
    samples = run(fabricate, output_hash="stale")

    judged = judge_wrong_bytes(samples, fabricate.expected(samples))

    assert judged.verdict is Verdict.FAIL
    assert judged.reason == "r9"


def test_wrong_direct_reads_fail(fabricate):
    samples = run(fabricate)
    expected = fabricate.expected(samples)

    judged = judge_wrong_bytes(samples, expected, kv_reads=100, kv_wrong=1)

    assert (judged.verdict, judged.samples) == (Verdict.FAIL, 110)


def test_without_an_oracle_nothing_is_right(fabricate):
    samples = run(fabricate)
    expected = fabricate.expected(samples[:9])

    assert judge_wrong_bytes(samples, {}).verdict is Verdict.INCONCLUSIVE
    judged = judge_wrong_bytes(samples, expected)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.reason == "no oracle for 1 requests"


def test_requests_that_reused_nothing_cannot_show_wrong_bytes(fabricate):
    samples = [fabricate.sample("r0", l3=0)]

    judged = judge_wrong_bytes(samples, fabricate.expected(samples))

    assert judged.verdict is Verdict.INCONCLUSIVE


# -- O3 --------------------------------------------------------------------------


def test_whole_pages_and_the_right_output_pass(fabricate):
    samples = run(fabricate)

    judged = judge_contiguous_reuse(
        samples, fabricate.expected(samples), page_tokens=PAGE
    )

    assert judged.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("mutant", "reason"),
    [
        ({"l3": 500}, "no multiple of the page 64"),
        ({"output_hash": "torn"}, "output differs"),
        ({"recomputed_tokens": 500}, "reused 512 + recomputed 500"),
        ({"input_tokens": 960, "recomputed_tokens": 448}, "960 tokens of 1024"),
        ({"l3": 1088}, "negative"),
    ],
)
def test_every_mutant_of_reuse_is_caught(fabricate, mutant, reason):
    samples = run(fabricate, **mutant)

    judged = judge_contiguous_reuse(
        samples, fabricate.expected(samples), page_tokens=PAGE
    )

    assert judged.verdict is Verdict.FAIL
    assert judged.reason.startswith("r9: ")
    assert reason in judged.reason


# -- O4 --------------------------------------------------------------------------


def test_no_failure_passes_and_nothing_sent_does_not(fabricate):
    assert judge_no_failures(run(fabricate)).verdict is Verdict.PASS
    assert judge_no_failures([]).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("mutant", "reason"),
    [
        ({"ok": False, "error": "TRANSFER_FAIL"}, "1 x TRANSFER_FAIL"),
        ({"ok": False}, "1 x failed without a cause"),
        ({"ending": Ending.HUNG}, "1 x no answer within the timeout"),
    ],
)
def test_every_failure_counts_with_its_cause(fabricate, mutant, reason):
    judged = judge_no_failures(run(fabricate, **mutant))

    assert judged.verdict is Verdict.FAIL
    assert judged.reason == reason


@pytest.mark.parametrize("ending", [Ending.SHED, Ending.CANCELLED])
def test_what_never_reached_the_system_is_not_its_failure(fabricate, ending):
    judged = judge_no_failures(run(fabricate, ending=ending))

    assert (judged.verdict, judged.samples) == (Verdict.PASS, 9)


def test_counters_add_up(fabricate):
    counters = reuse_counters(run(fabricate))

    assert counters["requests"] == 10
    assert counters["l3_tokens"] + counters["recomputed_tokens"] == 10 * 1024
