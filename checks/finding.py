"""What a check says: outcomes of rules, and the findings a report is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checks.rules.declare import Rule


class Status(StrEnum):
    """Five outcomes, never four: UNKNOWN is never folded into PASS."""

    PASS = "PASS"  # noqa: S105 - a verdict
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    SKIP = "SKIP"


class Severity(StrEnum):
    """How much a bad finding matters: critical and error FAIL, warning WARNs."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def status(self) -> Status:
        """The status of a bad outcome; `info` never warns and never fails."""
        if self is Severity.INFO:
            return Status.PASS
        return Status.WARN if self is Severity.WARNING else Status.FAIL


SEVERITIES = {
    "C": Severity.CRITICAL,
    "E": Severity.ERROR,
    "W": Severity.WARNING,
    "I": Severity.INFO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a rule says of one subject. Made by `ok`, `bad`, `info`, `unknown`, `skip`.

    `status` is None for `bad`: the severity of the rule (or the one given) decides.
    """

    status: Status | None
    observed: str = ""
    expected: str = ""
    severity: Severity | None = None
    why: str = ""
    fix: tuple[str, ...] = ()
    value: str | None = None


def ok(observed: object, expected: object = "", *, value: object = None) -> Outcome:
    """It is as it should be. `value` is what `learn` and a baseline keep."""
    return Outcome(
        status=Status.PASS,
        observed=str(observed),
        expected=str(expected),
        value=None if value is None else str(value),
    )


def bad(
    observed: object,
    expected: object,
    *,
    severity: str = "",
    why: str = "",
    fix: tuple[str, ...] = (),
) -> Outcome:
    """It is not as it should be: FAIL or WARN by severity (one of C, E, W, I)."""
    return Outcome(
        status=None,
        observed=str(observed),
        expected=str(expected),
        severity=SEVERITIES[severity] if severity else None,
        why=why,
        fix=fix,
    )


def info(observed: object, expected: object = "") -> Outcome:
    """Worth knowing, and neither good nor bad: PASS with severity info."""
    return Outcome(
        status=Status.PASS,
        observed=str(observed),
        expected=str(expected),
        severity=Severity.INFO,
    )


def unknown(reason: object, expected: object = "") -> Outcome:
    """It could not be told."""
    return Outcome(status=Status.UNKNOWN, observed=str(reason), expected=str(expected))


def skip(reason: object, *, severity: str = "") -> Outcome:
    """The question does not arise here."""
    return Outcome(
        status=Status.SKIP,
        observed=str(reason),
        severity=SEVERITIES[severity] if severity else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waived:
    """An operator accepted a bad finding until a date."""

    was: Status
    until: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Finding:
    """One line of a report: one check, one node, one subject."""

    rule: Rule
    node: str
    subject: str
    status: Status
    severity: Severity
    observed: str
    expected: str
    source: tuple[str, ...]
    touches: frozenset[str]
    own_why: str = ""
    own_fix: tuple[str, ...] = ()
    blocked_by: tuple[str, ...] = ()
    waived: Waived | None = None
    peers: str = ""
    value: str | None = None
    key: str = ""

    @property
    def id(self) -> str:
        return self.rule.id

    @property
    def why(self) -> str:
        return self.own_why or self.rule.why

    @property
    def fix(self) -> tuple[str, ...]:
        return self.own_fix or self.rule.fix

    @property
    def bad(self) -> bool:
        return self.status is Status.FAIL or self.status is Status.WARN

    @property
    def is_root(self) -> bool:
        """Bad by itself: no other finding explains it."""
        return self.bad and not self.blocked_by

    def to_json(self) -> dict[str, object]:
        """The finding as `preflight.report/1` has it."""
        shown: dict[str, object] = {
            "id": self.id,
            "node": self.node,
            "subject": self.subject,
            "status": self.status.value,
            "severity": self.severity.value,
            "observed": self.observed,
            "expected": self.expected,
            "source": list(self.source),
            "why": self.why,
            "fix": list(self.fix),
            "blocked_by": list(self.blocked_by),
        }
        if self.peers:
            shown["peers"] = self.peers
        if self.waived is not None:
            shown["waived"] = {
                "was": self.waived.was.value,
                "until": self.waived.until,
                "reason": self.waived.reason,
            }
        return shown
