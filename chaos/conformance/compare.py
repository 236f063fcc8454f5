"""Expected against measured. Pure: a mismatch is a finding, either way.

Where no profile expects anything, not even that it is unknown, nothing was compared:
that is INCONCLUSIVE, with a line that says how to make a profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from chaos.conformance.profile import FAILS_OF, Expect, profile_for
from chaos.judge.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.conformance.measured import Measured
    from chaos.conformance.profile import Expectation, Profile


_ORACLE: Final = "CONFORMANCE"


@unique
class Answer(Enum):
    """What a comparison says."""

    AS_EXPECTED = "as expected"
    KNOWN_FAILURE = "known failure"
    """It fails, as it always did: reported, not red."""
    SOMETIMES = "sometimes"
    NOT_JUDGED = "not judged"
    """Its profile calls it unknown: a number to look at, not red."""
    BETTER = "FINDING: holds"
    """It was expected to fail: the expectation is out of date."""
    WORSE = "FINDING: fails"
    WRONG = "FINDING: wrong bytes"
    """Reads or outputs that were not their own: no expectation makes that green."""
    UNTOLD = "could not tell"
    NO_EXPECTATION = "no expectation"
    """No profile speaks of it: it was measured, and compared with nothing."""


_VERDICTS = {
    Answer.BETTER: Verdict.FAIL,
    Answer.WORSE: Verdict.FAIL,
    Answer.WRONG: Verdict.FAIL,
    Answer.UNTOLD: Verdict.INCONCLUSIVE,
    Answer.NO_EXPECTATION: Verdict.INCONCLUSIVE,
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
        """The expectation in one word, "-" for none."""
        return self.expected.expect.value if self.expected else "-"


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


def judgements_of(findings: Iterable[Finding]) -> list[Judgement]:
    """For the docket of a test; what nobody expects anything of is one line a system.

    PASS is "as expected", which may be a failure.
    """
    judged, unexpected = [], []
    for finding in findings:
        if finding.answer is Answer.NO_EXPECTATION:
            unexpected.append(finding)
        else:
            judged.append(judgement_of(finding))
    return judged + [_not_compared(who, rows) for who, rows in _by_who(unexpected)]


def judgement_of(finding: Finding) -> Judgement:
    """One row as a judgement."""
    measured = finding.measured
    words = [finding.answer.value, measured.reason]
    if finding.expected is not None and finding.expected.reference:
        words.append(finding.expected.reference)
    return Judgement(
        oracle=_ORACLE,
        claim=f"{measured.who}: {measured.name}",
        verdict=finding.verdict,
        observed=measured.observed,
        threshold=f"expected: {finding.expect}",
        samples=measured.samples,
        reason="; ".join(word for word in words if word),
        numbers=dict(measured.numbers),
    )


def how_to_expect(findings: Iterable[Finding]) -> list[str]:
    """A line for each system, version and settings that lack expectations.

    What `scripts/soak mooncake` counted is a profile; an operator believes it or not.
    """
    rows = [one for one in findings if one.answer is Answer.NO_EXPECTATION]
    return [
        f"{who}: no expectation of {len(own)} measured properties; {_remedy(who)}"
        for who, own in _by_who(rows)
    ]


def _not_compared(who: _Who, rows: list[Finding]) -> Judgement:
    return Judgement(
        oracle=_ORACLE,
        claim=f"{who}: what was measured is what a profile expects",
        verdict=Verdict.INCONCLUSIVE,
        observed=f"{len(rows)} properties measured, no expectation of them",
        threshold=f"a row for each in suites/conformance/{who.file}.yaml",
        samples=0,
        reason=_remedy(who),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Who:
    """A system in a version, as it was set."""

    system: str
    version: str
    settings: str

    @property
    def file(self) -> str:
        return f"{self.system}-{self.version}"

    def __str__(self) -> str:
        return f"{self.system} {self.version} ({self.settings})"


def _by_who(findings: Iterable[Finding]) -> list[tuple[_Who, list[Finding]]]:
    groups: dict[_Who, list[Finding]] = {}
    for finding in findings:
        one = finding.measured
        who = _Who(system=one.system, version=one.version, settings=one.settings)
        groups.setdefault(who, []).append(finding)
    return list(groups.items())


def _remedy(who: _Who) -> str:
    """How a profile is made; the reference system is measured in the same runs."""
    own = f" --profile {who.settings}" if who.system == "mooncake" else ""
    return (
        f"make a profile: scripts/soak mooncake --runs {FAILS_OF}{own}, and put what"
        f" you believe of results/soak/mooncake/{who.file}.seen.yaml into"
        f" suites/conformance/{who.file}.yaml"
    )


def _answer(measured: Measured, expected: Expectation | None) -> Answer:
    if measured.numbers.get("wrong", 0.0) > 0:
        return Answer.WRONG
    if measured.held is None:
        return Answer.UNTOLD
    if expected is None:
        return Answer.NO_EXPECTATION
    match expected.expect:
        case Expect.HOLDS:
            return Answer.AS_EXPECTED if measured.held else Answer.WORSE
        case Expect.FAILS:
            return Answer.BETTER if measured.held else Answer.KNOWN_FAILURE
        case Expect.SOMETIMES:
            return Answer.SOMETIMES
        case Expect.UNKNOWN:
            return Answer.NOT_JUDGED
