"""The verdict of a run as data: tests, their judgements, and how to reproduce them.

This is `verdict.json`. The terminal and the Markdown summary read only this.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.judge.verdict import Judgement, Verdict, worst

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA = 1
EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3}
EXIT_RESIDUAL = 5
_ASSERTION = "AssertionError"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One test: every judgement on it, and what went wrong outside of them."""

    nodeid: str
    judgements: tuple[Judgement, ...]
    reproduce: str
    error: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst judgement.

        A broken assertion is a FAIL; any other error means that the test did not come
        to its end, which is never a PASS.
        """
        if self.error.startswith(_ASSERTION):
            return Verdict.FAIL
        verdict = worst(self.judgements)
        if self.error and verdict is Verdict.PASS:
            return Verdict.INCONCLUSIVE
        return verdict

    @property
    def broken(self) -> tuple[Judgement, ...]:
        """What did not pass, worst first."""
        bad = [row for row in self.judgements if row.verdict is not Verdict.PASS]
        return tuple(sorted(bad, key=lambda row: -row.verdict.severity))


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole run, as it is reported."""

    suite: str
    seed: int
    time_scale: float
    system: str = ""
    target: str = ""
    started: str = ""
    duration_s: float = 0.0
    aborted: str = ""
    residual: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    faults: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def verdict(self) -> Verdict:
        """The worst test; an aborted run cannot pass, a residual fault fails."""
        found = [outcome.verdict for outcome in self.outcomes]
        verdict = max(found, key=lambda one: one.severity, default=Verdict.INCONCLUSIVE)
        if self.residual:
            return Verdict.FAIL
        if self.aborted and verdict is Verdict.PASS:
            return Verdict.INCONCLUSIVE
        return verdict

    @property
    def exit_code(self) -> int:
        return EXIT_RESIDUAL if self.residual else EXIT_CODES[self.verdict]

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(outcome.verdict for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """Plain values only; a number that is not finite becomes null."""
        tests = [
            {
                "nodeid": outcome.nodeid,
                "verdict": outcome.verdict.value,
                "error": outcome.error,
                "reproduce": outcome.reproduce,
                "judgements": [judgement_row(row) for row in outcome.judgements],
            }
            for outcome in self.outcomes
        ]
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "exit_code": self.exit_code,
            "suite": self.suite,
            "seed": self.seed,
            "time_scale": self.time_scale,
            "system": self.system,
            "target": self.target,
            "started": self.started,
            "duration_s": self.duration_s,
            "aborted": self.aborted,
            "residual": list(self.residual),
            "counts": {one.value: self.counts[one] for one in Verdict},
            "ttft": "modelled: waits are real, prefill is computed",
            "notes": list(self.notes),
            "tests": tests,
        }


def document_of(row: Mapping[str, Any], faults: Iterable[Any] = ()) -> Document:
    """Reads a document back from `verdict.json` (and `schedule.json`)."""
    outcomes = [
        Outcome(
            nodeid=test["nodeid"],
            judgements=tuple(judgement_of(one) for one in test["judgements"]),
            reproduce=test["reproduce"],
            error=test["error"],
        )
        for test in row["tests"]
    ]
    return Document(
        suite=row["suite"],
        seed=row["seed"],
        time_scale=row["time_scale"],
        system=row["system"],
        target=row["target"],
        started=row["started"],
        duration_s=row["duration_s"],
        aborted=row["aborted"],
        residual=tuple(row["residual"]),
        outcomes=tuple(outcomes),
        faults=tuple(faults),
        notes=tuple(row["notes"]),
    )


def judgement_row(judgement: Judgement) -> dict[str, Any]:
    """A judgement as JSON; its line is there for people who read the file."""
    row = asdict(judgement)
    row["verdict"] = judgement.verdict.value
    row["numbers"] = {
        name: float(value) if math.isfinite(value) else None
        for name, value in judgement.numbers.items()
    }
    row["line"] = line(judgement)
    return row


def judgement_of(row: Mapping[str, Any]) -> Judgement:
    """A judgement read back; what was not finite is NaN."""
    return Judgement(
        oracle=row["oracle"],
        claim=row["claim"],
        verdict=Verdict(row["verdict"]),
        observed=row["observed"],
        threshold=row["threshold"],
        samples=row["samples"],
        reason=row["reason"],
        kind=row["kind"],
        numbers={
            name: math.nan if value is None else value
            for name, value in row["numbers"].items()
        },
    )


def line(judgement: Judgement) -> str:
    """One line for an operator.

    "O2 wait <= T + poll: max 0.214 s of 0.300 s (n=512) PASS"
    """
    reason = f": {judgement.reason}" if judgement.reason else ""
    limit = "" if judgement.threshold == "-" else f" of {judgement.threshold}"
    return (
        f"{judgement.oracle} {judgement.claim}: {judgement.observed}{limit} "
        f"(n={judgement.samples}) {judgement.verdict.value}{reason}"
    )


def reproduce(
    nodeid: str,
    *,
    seed: int,
    options: Iterable[str] = (),
    command: Iterable[str] = ("pytest",),
) -> str:
    """The one command that runs this test again, ready to paste."""
    return shlex.join([*command, nodeid, "--seed", str(seed), *options])
