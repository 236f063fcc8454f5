"""Findings gathered by root cause, and node names folded: what every shape shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.finding import Finding, Severity, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from checks.report import Report

_RANK = {severity: at for at, severity in enumerate(Severity)}
_NUMBERED = re.compile(r"^(.*?)(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Subjects of nodes that show the same thing."""

    observed: str
    expected: str
    nodes: tuple[str, ...]
    subjects: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One root cause: a check that is bad by itself, everywhere it is."""

    id: str
    status: Status
    severity: Severity
    why: str
    fix: tuple[str, ...]
    places: tuple[Place, ...]
    nodes: tuple[str, ...]
    blocked: dict[str, int]
    """Other checks that it explains, with the number of their findings."""


def causes(report: Report) -> tuple[Cause, ...]:
    """Root causes, the most severe and widest first."""
    by_id: dict[str, list[Finding]] = {}
    for finding in report.roots:
        by_id.setdefault(finding.id, []).append(finding)
    explained = _explained(report)
    found = [_cause(each, explained.get(name, {})) for name, each in by_id.items()]
    return tuple(sorted(found, key=lambda c: (_RANK[c.severity], -len(c.nodes), c.id)))


def unknowns(report: Report) -> tuple[Cause, ...]:
    """What could not be told, by check; those that matter first."""
    by_id: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if finding.status is Status.UNKNOWN:
            by_id.setdefault(finding.id, []).append(finding)
    found = [_cause(each, {}) for each in by_id.values()]
    return tuple(sorted(found, key=lambda c: (_RANK[c.severity], -len(c.nodes), c.id)))


def folded(names: Iterable[str], limit: int = 6) -> str:
    """`node-00..06, node-09`: runs of numbered names in one word, then a count."""
    runs: list[list[str]] = []
    for name in dict.fromkeys(names):
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    words = [_run(each) for each in runs]
    if len(words) <= limit:
        return ", ".join(words)
    rest = sum(len(each) for each in runs[limit:])
    return f"{', '.join(words[:limit])} and {rest} more"


def _explained(report: Report) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for finding in report.findings:
        for root in finding.blocked_by:
            counts = found.setdefault(root, {})
            counts[finding.id] = counts.get(finding.id, 0) + 1
    return found


def _cause(findings: Sequence[Finding], blocked: dict[str, int]) -> Cause:
    worst = min(findings, key=lambda f: _RANK[f.severity])
    return Cause(
        id=worst.id,
        status=worst.status,
        severity=worst.severity,
        why=worst.why,
        fix=worst.fix,
        places=_places(findings),
        nodes=tuple(dict.fromkeys(f.node for f in findings)),
        blocked=dict(sorted(blocked.items())),
    )


def _places(findings: Sequence[Finding]) -> tuple[Place, ...]:
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.observed, finding.expected), []).append(finding)
    found = [
        Place(
            observed=observed,
            expected=expected,
            nodes=tuple(dict.fromkeys(f.node for f in each)),
            subjects=tuple(dict.fromkeys(f.subject for f in each if f.subject)),
        )
        for (observed, expected), each in alike.items()
    ]
    return tuple(sorted(found, key=lambda place: -len(place.nodes)))


def _follows(one: str, other: str) -> bool:
    left, right = _NUMBERED.match(one), _NUMBERED.match(other)
    if not (left and right) or left[1] != right[1]:
        return False
    return int(right[2]) == int(left[2]) + 1


def _run(names: Sequence[str]) -> str:
    if len(names) < 3:
        return ", ".join(names)
    number = _NUMBERED.match(names[-1])
    return f"{names[0]}..{number[2]}" if number else ", ".join(names)
