"""Three-valued verdicts: PASS, FAIL, INCONCLUSIVE, each with numbers.

"Could not tell" is a value of its own. Worst wins: FAIL > INCONCLUSIVE > PASS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@unique
class Verdict(Enum):
    """The three answers, in order of severity."""

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    INCONCLUSIVE = "INCONCLUSIVE"
    FAIL = "FAIL"

    @property
    def severity(self) -> int:
        return (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One law judged once: what was seen, against which limit, on how many samples.

    `kind` is "counter" where the observation is exact and must not depend on the
    speed of the machine (runs may be compared by it), "timing" otherwise.
    """

    oracle: str
    claim: str
    verdict: Verdict
    observed: str
    threshold: str
    samples: int
    reason: str = ""
    kind: str = "timing"
    numbers: dict[str, float] = field(default_factory=dict)


def worst(judgements: Iterable[Judgement]) -> Verdict:
    """The worst verdict; nothing judged is INCONCLUSIVE, never PASS."""
    verdicts = [judgement.verdict for judgement in judgements]
    if not verdicts:
        return Verdict.INCONCLUSIVE
    return max(verdicts, key=lambda verdict: verdict.severity)
