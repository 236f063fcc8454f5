"""What all findings of one check on one node come to, as a test item knows outcomes.

FAIL fails, and so does an UNKNOWN of a check that may fail a node: it could not be told
to be ready. WARN, and an UNKNOWN of lower severity beside a PASS, warn. An item without
anything judged is skipped, with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from checks.finding import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checks.report import Report


class PreflightWarning(UserWarning):
    """A check that warns: the item passes, and pytest's summary shows it."""


class ItemOutcome(StrEnum):
    """How an item ends."""

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """The end of an item, and what is shown with it."""

    outcome: ItemOutcome
    text: str = ""


class Items:
    """The items of a report; ask by check and node."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._found: dict[tuple[str, str], list[Finding]] = defaultdict(list)
        for finding in report.findings:
            self._found[finding.id, finding.node].append(finding)

    def of(self, check: str, node: str) -> Item:
        """What the report says of one check on one node."""
        found = self._found.get((check, node), [])
        is_open = self._report.is_open
        failed = [f for f in found if f.status is Status.FAIL or is_open(f)]
        if failed:
            return Item(outcome=ItemOutcome.FAILED, text=_told(failed))
        unknown = [f for f in found if f.status is Status.UNKNOWN]
        warned = [f for f in found if f.status is Status.WARN]
        passed = any(f.status is Status.PASS for f in found)
        if warned or (unknown and passed):
            return Item(outcome=ItemOutcome.WARNED, text=_told([*warned, *unknown]))
        if passed:
            return Item(outcome=ItemOutcome.PASSED)
        return Item(outcome=ItemOutcome.SKIPPED, text=_reasons(found))


def _told(findings: Sequence[Finding]) -> str:
    """Findings with what to do; reasons and remedies that repeat are said once."""
    lines: list[str] = []
    for finding in findings:
        subject = f" {finding.subject}" if finding.subject else ""
        blocked = ", ".join(finding.blocked_by)
        lines.append(f"{finding.status} {finding.id}{subject}: {finding.observed}")
        lines += [f"  expected: {finding.expected}"] if finding.expected else []
        lines += [f"  explained by: {blocked}"] if blocked else []
    whys = dict.fromkeys(f"why: {finding.why}" for finding in findings)
    fixes = dict.fromkeys(f"fix: {fix}" for finding in findings for fix in finding.fix)
    return "\n".join([*lines, *whys, *fixes])


def _reasons(findings: Sequence[Finding]) -> str:
    told = dict.fromkeys(
        f"blocked by {', '.join(f.blocked_by)}"
        if f.blocked_by
        else f"{'UNKNOWN: ' * (f.status is Status.UNKNOWN)}{f.observed}"
        for f in findings
    )
    return "; ".join(told) or "not judged"
