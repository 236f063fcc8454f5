"""`chaos report --conformance`: what was expected, and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos.conformance.compare import compare_all
from chaos.conformance.profile import load_profiles
from chaos.conformance.results import measured_in
from chaos.conformance.table import render, to_json
from chaos.errors import UsageError
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.conformance.compare import Finding

PASS, FAIL, INCONCLUSIVE = 0, 1, 3


def findings_of(results: Sequence[Path], profiles: Path) -> list[Finding]:
    """Every property that these runs measured, compared.

    Raises:
        UsageError: There is nothing to read, or it cannot be read.
    """
    if not profiles.is_dir():
        raise UsageError(
            f"{profiles} is no folder of profiles", "say --profiles FOLDER"
        )
    known = load_profiles(profiles)
    return compare_all([m for one in results for m in measured_in(one)], known)


def exit_code(findings: Sequence[Finding]) -> int:
    """1 when something is not as expected, 3 when something, or all, is not known."""
    verdicts = {finding.verdict for finding in findings}
    if Verdict.FAIL in verdicts:
        return FAIL
    return PASS if findings and Verdict.INCONCLUSIVE not in verdicts else INCONCLUSIVE


def shown(findings: Sequence[Finding], *, as_json: bool, color: bool) -> Any:
    """Rows for machines, or the table for people."""
    return to_json(findings) if as_json else render(findings, color=color)
