from __future__ import annotations

import pytest

from chaos.conformance.compare import (
    Answer,
    compare,
    compare_all,
    how_to_expect,
    judgement_of,
    judgements_of,
)
from chaos.judge.verdict import Verdict

GOOD, BAD, COULD_NOT = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
CASES = [
    ("holds", True, Answer.AS_EXPECTED, GOOD),
    ("holds", False, Answer.WORSE, BAD),
    ("fails", True, Answer.BETTER, BAD),
    ("fails", False, Answer.KNOWN_FAILURE, GOOD),
    ("sometimes", True, Answer.SOMETIMES, GOOD),
    ("sometimes", False, Answer.SOMETIMES, GOOD),
    ("unknown", True, Answer.NOT_JUDGED, GOOD),
    ("unknown", False, Answer.NOT_JUDGED, GOOD),
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
    right = compare(measured(held=True, numbers={"wrong": 0.0}), expectation("holds"))
    assert right.answer is Answer.AS_EXPECTED


@pytest.mark.parametrize("held", [True, False])
def test_what_no_profile_speaks_of_is_inconclusive(measured, held):
    found = compare(measured(held=held), None)

    assert (found.answer, found.verdict) == (Answer.NO_EXPECTATION, COULD_NOT)
    assert found.expect == "-"


def test_wrong_bytes_are_red_without_any_expectation(measured):
    assert compare(measured(numbers={"wrong": 1.0}), None).answer is Answer.WRONG


def test_another_version_is_not_judged_by_this_one(measured, profile):
    rows = [measured(version="1.2.3"), measured(version="9.9.9")]
    found = compare_all(rows, [profile(version="1.2.3")])

    assert [f.answer for f in found] == [Answer.KNOWN_FAILURE, Answer.NO_EXPECTATION]


def test_other_settings_are_not_judged_by_these(measured, profile):
    found = compare_all([measured(settings="default")], [profile()])

    assert found[0].answer is Answer.NO_EXPECTATION


def test_a_version_without_a_profile_is_one_inconclusive_line_with_the_remedy(
    measured, profile
):
    rows = [
        measured(version="9.9.9", law=law)
        for law in ("stall-bounded", "healthy-keys-used", "back-after-heal")
    ]
    found = compare_all(rows, [profile(version="1.2.3")])
    (judged,) = judgements_of(found)
    (line,) = how_to_expect(found)

    assert judged.verdict is COULD_NOT
    assert judged.observed.startswith("3 properties measured")
    assert "scripts/soak mooncake --runs 20 --profile tuned" in judged.reason
    assert "suites/conformance/mooncake-9.9.9.yaml" in judged.reason
    assert line == (
        "mooncake 9.9.9 (tuned): no expectation of 3 measured properties; "
        + judged.reason
    )


def test_beside_what_is_expected_the_rest_is_still_told(measured, profile):
    rows = [
        measured(),
        measured(version="9.9.9"),
        measured(version="9.9.9", numbers={"wrong": 2.0}),
        measured(version="9.9.9", held=None),
    ]
    judged = judgements_of(compare_all(rows, [profile(version="1.2.3")]))

    assert [one.verdict for one in judged] == [GOOD, BAD, COULD_NOT, COULD_NOT]
    assert "wrong bytes" in judged[1].reason


def test_a_known_failure_is_told_in_its_judgement(expectation, measured):
    judged = judgement_of(compare(measured(), expectation("fails")))

    assert judged.verdict is GOOD
    assert judged.threshold == "expected: fails"
    assert "known failure" in judged.reason
    assert "the status timer of 30 s" in judged.reason
    assert judged.observed == "30.02 s"
