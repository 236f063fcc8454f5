from __future__ import annotations

import pytest

from chaos.conformance.compare import Answer, compare, compare_all, judgement_of
from chaos.judge.verdict import Verdict

GOOD, BAD, COULD_NOT = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
CASES = [
    ("holds", True, Answer.AS_EXPECTED, GOOD),
    ("holds", False, Answer.WORSE, BAD),
    ("fails", True, Answer.BETTER, BAD),
    ("fails", False, Answer.KNOWN_FAILURE, GOOD),
    ("sometimes", True, Answer.SOMETIMES, GOOD),
    ("sometimes", False, Answer.SOMETIMES, GOOD),
    ("unknown", True, Answer.NEW, GOOD),
    ("unknown", False, Answer.NEW, GOOD),
]


@pytest.fixture
def expectation(profile, row):
    def build(expect):
        seen = {"fails": {"failed": 20}, "holds": {"held": 1}}.get(expect)
        return profile(row(expect=expect, seen=seen)).expected[0]

    return build


@pytest.mark.parametrize(("expect", "held", "answer", "verdict"), CASES)
def test_a_mismatch_is_a_finding_either_way(
    expectation, measured, expect, held, answer, verdict
):
    found = compare(measured(held=held), expectation(expect))

    assert (found.answer, found.verdict) == (answer, verdict)


@pytest.mark.parametrize("expect", ["holds", "fails", "sometimes", "unknown"])
def test_what_could_not_be_told_is_never_as_expected(expectation, measured, expect):
    found = compare(measured(held=None), expectation(expect))

    assert (found.answer, found.verdict) == (Answer.UNTOLD, COULD_NOT)


@pytest.mark.parametrize("expect", ["holds", "fails", "sometimes", "unknown"])
@pytest.mark.parametrize("held", [True, False, None])
def test_wrong_bytes_are_red_whatever_is_expected(expectation, measured, expect, held):
    found = compare(measured(held=held, numbers={"wrong": 1.0}), expectation(expect))

    assert (found.answer, found.verdict) == (Answer.WRONG, BAD)
    assert compare(measured(numbers={"wrong": 0.0}), None).answer is Answer.NEW


def test_without_an_expectation_it_is_new(measured):
    assert compare(measured(), None).answer is Answer.NEW


def test_another_version_is_not_judged_by_this_one(measured, profile):
    rows = [measured(version="1.2.3"), measured(version="9.9.9")]
    found = compare_all(rows, [profile(version="1.2.3")])

    assert [f.answer for f in found] == [Answer.KNOWN_FAILURE, Answer.NEW]


def test_other_settings_are_not_judged_by_these(measured, profile):
    found = compare_all([measured(settings="default")], [profile()])

    assert found[0].answer is Answer.NEW


def test_a_known_failure_is_told_in_its_judgement(expectation, measured):
    judged = judgement_of(compare(measured(), expectation("fails")))

    assert judged.verdict is GOOD
    assert judged.threshold == "expected: fails"
    assert "known failure" in judged.reason
    assert "the status timer of 30 s" in judged.reason
    assert judged.observed == "30.02 s"
