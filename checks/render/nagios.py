"""Nagios: one line, and its own exit codes (0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN)."""

from __future__ import annotations

from checks.finding import Status
from checks.render.grouping import causes, folded
from checks.report import FAILED, READY, Report

_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def nagios(report: Report, *, strict: bool = False) -> str:
    """`PREFLIGHT CRITICAL - nic-port-state on node-07 (and 1 more) | fail=2 ...`."""
    code = nagios_code(report, strict=strict)
    summary = report.summary(strict=strict)
    bad = causes(report)
    told = "all checks passed"
    if bad:
        rest = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        told = f"{bad[0].id} on {folded(bad[0].nodes, 3)}{rest}"
    elif code == len(_WORDS) - 1:
        told = f"{summary['UNKNOWN']} findings could not be determined"
    counts = " ".join(f"{s.value.lower()}={summary[s.value]}" for s in Status)
    return f"PREFLIGHT {_WORDS[code]} - {told} | {counts}\n"


def nagios_code(report: Report, *, strict: bool = False) -> int:
    """The exit code of a Nagios plugin for this report."""
    code = report.exit_code(strict=strict)
    if code == FAILED:
        return 2
    if code != READY:
        return 3
    return 1 if any(f.status is Status.WARN for f in report.findings) else 0
