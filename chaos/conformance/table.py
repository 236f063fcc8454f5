"""The conformance table: for people, and as plain data."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from chaos.conformance.compare import Answer, how_to_expect
from chaos.conformance.properties import Arm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.conformance.compare import Finding
    from chaos.conformance.measured import Measured

_COLUMNS = (
    "property", "system", "version", "expected", "measured", "verdict"
)  # fmt: skip
_STYLES = {
    Answer.WORSE: "bold red",
    Answer.WRONG: "bold red",
    Answer.BETTER: "bold magenta",
    Answer.KNOWN_FAILURE: "yellow",
    Answer.UNTOLD: "cyan",
    Answer.NO_EXPECTATION: "cyan",
}


def render(
    findings: Sequence[Finding], *, color: bool = False, width: int = 140
) -> str:
    """Stalls side by side, then every property, then how to see each finding again."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        no_color=not color,
        highlight=False,
        markup=False,  # node ids have brackets
    )
    if not findings:
        console.print("no property was measured")
        return out.getvalue()
    console.print(_side_by_side(findings))
    console.print(_all(findings))
    console.print(_counts(findings))
    for line in how_to_expect(findings):
        console.print(line, soft_wrap=True)
    for command in _reproduce(findings):
        console.print(f"reproduce: {command}", soft_wrap=True)
    return out.getvalue()


def to_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The same as rows."""
    return [
        {
            "property": finding.measured.name,
            "arm": finding.measured.arm.value,
            "system": finding.measured.system,
            "version": finding.measured.version,
            "settings": finding.measured.settings,
            "expected": finding.expect,
            "reference": finding.expected.reference if finding.expected else "",
            "held": finding.measured.held,
            "measured": finding.measured.observed,
            "limit": finding.measured.limit,
            "samples": finding.measured.samples,
            "reason": finding.measured.reason,
            "answer": finding.answer.value,
            "verdict": finding.verdict.value,
            "numbers": dict(finding.measured.numbers),
            "reproduce": finding.measured.reproduce,
        }
        for finding in findings
    ]


def _side_by_side(findings: Sequence[Finding]) -> Table:
    """The longest wait of a read under each fault, one column a system and arm."""
    stalls = [f.measured for f in findings if f.measured.law == "stall-bounded"]
    columns = list(dict.fromkeys(one.who for one in stalls))
    table = Table(title="longest wait of a read under the fault", title_justify="left")
    table.add_column("fault")
    table.add_column("settings")
    for column in columns:
        table.add_column(column, justify="right")
    bare = [one for one in stalls if one.arm is Arm.BARE] or stalls
    for fault, settings in dict.fromkeys((one.fault, one.settings) for one in bare):
        rows = [one for one in stalls if one.fault == fault]
        cells = [_cell(rows, column, settings) for column in columns]
        table.add_row(fault, settings, *cells)
    return table


def _cell(rows: Sequence[Measured], who: str, settings: str) -> str:
    """The latest of these settings; a system without such settings has one column."""
    own = [one for one in rows if one.who == who]
    same = [one for one in own if one.settings == settings]
    return (same or own)[-1].observed if own else "-"


def _all(findings: Sequence[Finding]) -> Table:
    table = Table(title="expected and measured", title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for finding in findings:
        measured = finding.measured
        held = {True: "holds", False: "fails", None: "?"}[measured.held]
        table.add_row(
            measured.name,
            measured.who,
            f"{measured.version} ({measured.settings})",
            finding.expect,
            f"{held}: {measured.observed}",
            finding.answer.value,
            style=_STYLES.get(finding.answer),
        )
    return table


def _counts(findings: Sequence[Finding]) -> str:
    answers = [finding.answer for finding in findings]
    told = [f"{answers.count(one)} {one.value}" for one in Answer if one in answers]
    return ", ".join(told)


def _reproduce(findings: Sequence[Finding]) -> list[str]:
    return list(
        dict.fromkeys(f.measured.reproduce for f in findings if f.measured.reproduce)
    )
