"""OpenMetrics: for a textfile collector or a push gateway."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from checks.finding import Status

if TYPE_CHECKING:
    from checks.report import Report


def openmetrics(report: Report, *, strict: bool = False) -> str:
    """Findings by node and status, bad findings one by one, and the exit code."""
    counts = Counter((f.node, f.status) for f in report.findings)
    lines = [
        "# TYPE preflight_findings gauge",
        "# HELP preflight_findings Findings of a node by status.",
    ]
    lines += [
        f'preflight_findings{{node="{_label(node)}",status="{status.value}"}} '
        f"{counts[node, status]}"
        for node in report.nodes
        for status in Status
    ]
    lines += [
        "# TYPE preflight_bad gauge",
        "# HELP preflight_bad A check that failed or warned; root is 0 if explained.",
    ]
    bad = [
        f'preflight_bad{{node="{_label(f.node)}",check="{f.id}",'
        f'subject="{_label(f.subject)}",status="{f.status.value}",'
        f'root="{int(f.is_root)}"}} 1'
        for f in report.findings
        if f.bad
    ]
    lines += dict.fromkeys(bad)
    lines += [
        "# TYPE preflight_exit_code gauge",
        "# HELP preflight_exit_code 0 ready, 1 failed, 3 undetermined.",
        f"preflight_exit_code {report.exit_code(strict=strict)}",
        "# EOF",
    ]
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
