"""Expected against measured. Pure: a mismatch is a finding, either way."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING

from chaos.conformance.profile import Expect, profile_for
from chaos.judge.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.conformance.measured import Measured
    from chaos.conformance.profile import Expectation, Profile


@unique
class Answer(Enum):
    """What a comparison says."""

    AS_EXPECTED = "as expected"
    KNOWN_FAILURE = "known failure"
    """It fails, as it always did: reported, not red."""
    SOMETIMES = "sometimes"
    NEW = "new"
    """Nothing was expected: a number to look at, not red."""
    BETTER = "FINDING: holds"
    """It was expected to fail: the expectation is out of date."""
    WORSE = "FINDING: fails"
    WRONG = "FINDING: wrong bytes"
    """Reads or outputs that were not their own: no expectation makes that green."""
    UNTOLD = "could not tell"


_VERDICTS = {
    Answer.BETTER: Verdict.FAIL,
    Answer.WORSE: Verdict.FAIL,
    Answer.WRONG: Verdict.FAIL,
    Answer.UNTOLD: Verdict.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One measured property beside what was expected of it."""

    measured: Measured
    expected: Expectation | None
    answer: Answer

    @property
    def verdict(self) -> Verdict:
        """Red is what does not match its expectation."""
        return _VERDICTS.get(self.answer, Verdict.PASS)

    @property
    def expect(self) -> str:
        """The expectation in one word."""
        return (self.expected.expect if self.expected else Expect.UNKNOWN).value


def compare(measured: Measured, expected: Expectation | None) -> Finding:
    """One row."""
    return Finding(
        measured=measured, expected=expected, answer=_answer(measured, expected)
    )


def compare_all(measured: Iterable[Measured], profiles: list[Profile]) -> list[Finding]:
    """All rows, each against the profile of its system and version."""
    found = []
    for one in measured:
        profile = profile_for(profiles, one.system, one.version)
        found.append(compare(one, profile.of(one.key) if profile else None))
    return found


def judgement_of(finding: Finding) -> Judgement:
    """For the docket of a test: PASS is "as expected", which may be a failure."""
    measured = finding.measured
    words = [finding.answer.value, measured.reason]
    if finding.expected is not None and finding.expected.reference:
        words.append(finding.expected.reference)
    return Judgement(
        oracle="CONFORMANCE",
        claim=f"{measured.who}: {measured.name}",
        verdict=finding.verdict,
        observed=measured.observed,
        threshold=f"expected: {finding.expect}",
        samples=measured.samples,
        reason="; ".join(word for word in words if word),
        numbers=dict(measured.numbers),
    )


def _answer(measured: Measured, expected: Expectation | None) -> Answer:
    expect = expected.expect if expected is not None else Expect.UNKNOWN
    if measured.numbers.get("wrong", 0.0) > 0:
        return Answer.WRONG
    if measured.held is None:
        return Answer.UNTOLD
    match expect:
        case Expect.HOLDS:
            return Answer.AS_EXPECTED if measured.held else Answer.WORSE
        case Expect.FAILS:
            return Answer.BETTER if measured.held else Answer.KNOWN_FAILURE
        case Expect.SOMETIMES:
            return Answer.SOMETIMES
        case Expect.UNKNOWN:
            return Answer.NEW
