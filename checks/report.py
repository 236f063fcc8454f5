"""The report of a judgement: findings, counts, verdict and exit code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.finding import Finding, Severity, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checks.profile import Profile

SCHEMA = "preflight.report/1"
READY, FAILED, USAGE, UNDETERMINED, BROKE = range(5)
_DECIDES = frozenset({Severity.CRITICAL, Severity.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `judge` found. Findings are ordered by node, check and subject."""

    nodes: tuple[str, ...]
    cohorts: Mapping[str, tuple[str, ...]]
    findings: tuple[Finding, ...]
    profile: Profile
    expired: tuple[str, ...] = ()
    own_faults: tuple[str, ...] = ()

    def exit_code(self, *, strict: bool = False) -> int:
        """0 ready, 1 failed, 3 could not be determined. See `undetermined`."""
        statuses = {finding.status for finding in self.findings}
        if Status.FAIL in statuses or (strict and Status.WARN in statuses):
            return FAILED
        return UNDETERMINED if self.undetermined else READY

    @property
    def undetermined(self) -> bool:
        """A check that may FAIL is UNKNOWN and not optional, or nothing PASSed."""
        if not any(finding.status is Status.PASS for finding in self.findings):
            return True
        return any(self.is_open(finding) for finding in self.findings)

    def is_open(self, finding: Finding) -> bool:
        """UNKNOWN, and it matters."""
        return (
            finding.status is Status.UNKNOWN
            and finding.rule.severity in _DECIDES
            and finding.id not in self.profile.optional
        )

    @property
    def roots(self) -> tuple[Finding, ...]:
        """Bad findings that no other finding explains."""
        return tuple(finding for finding in self.findings if finding.is_root)

    @property
    def failing_nodes(self) -> tuple[str, ...]:
        bad = {f.node for f in self.findings if f.status is Status.FAIL}
        return tuple(node for node in self.nodes if node in bad)

    @property
    def undetermined_nodes(self) -> tuple[str, ...]:
        """Nodes without a FAIL of which something that matters is UNKNOWN."""
        failing = set(self.failing_nodes)
        unclear = {f.node for f in self.findings if self.is_open(f)}
        passed = {f.node for f in self.findings if f.status is Status.PASS}
        return tuple(
            node
            for node in self.nodes
            if node not in failing and (node in unclear or node not in passed)
        )

    @property
    def passing_nodes(self) -> tuple[str, ...]:
        others = {*self.failing_nodes, *self.undetermined_nodes}
        return tuple(node for node in self.nodes if node not in others)

    def summary(self, *, strict: bool = False) -> dict[str, object]:
        """Counts, by node and by status, and the verdict."""
        counts = Counter(finding.status for finding in self.findings)
        code = self.exit_code(strict=strict)
        words = {READY: "ready", FAILED: "failed", UNDETERMINED: "undetermined"}
        return {
            "verdict": words[code],
            "exit_code": code,
            "nodes": len(self.nodes),
            "nodes_passing": len(self.passing_nodes),
            "nodes_failing": len(self.failing_nodes),
            "nodes_undetermined": len(self.undetermined_nodes),
            **{status.value: counts[status] for status in Status},
            "root_causes": len(self.roots),
            "waived": sum(f.waived is not None for f in self.findings),
            "waivers_expired": list(self.expired),
            "own_faults": list(self.own_faults),
            "cohorts": {name: list(nodes) for name, nodes in self.cohorts.items()},
        }

    def to_json(self, *, strict: bool = False) -> dict[str, object]:
        """The document `preflight.report/1`."""
        return {
            "schema": SCHEMA,
            "summary": self.summary(strict=strict),
            "findings": [finding.to_json() for finding in self.findings],
        }
