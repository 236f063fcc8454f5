"""Markdown: for a ticket or the summary of a CI job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.finding import Status
from checks.render.grouping import Cause, causes, folded, unknowns

if TYPE_CHECKING:
    from checks.report import Report


def markdown(report: Report, *, strict: bool = False) -> str:
    """Verdict, root causes as a table with why and fix below, what is unknown."""
    summary = report.summary(strict=strict)
    counts = ", ".join(f"{summary[s.value]} {s.value}" for s in Status)
    lines = [
        f"# preflight: {summary['verdict']}",
        "",
        f"{len(report.nodes)} nodes: {summary['nodes_passing']} pass, "
        f"{summary['nodes_failing']} fail, "
        f"{summary['nodes_undetermined']} undetermined. "
        f"Findings: {counts}.",
        "",
    ]
    bad = causes(report)
    if bad:
        lines += _table(bad)
        for cause in bad:
            lines += _details(cause)
    missing = unknowns(report)
    if missing:
        lines += ["## Could not be told", ""]
        lines += [
            f"- `{c.id}` on {folded(c.nodes, 3)}: {_cell(c.places[0].observed)}"
            for c in missing
        ]
        lines.append("")
    return "\n".join(lines)


def _table(bad: tuple[Cause, ...]) -> list[str]:
    rows = [
        f"| {c.status.value} | `{c.id}` | {_cell(folded(c.nodes))} "
        f"| {_cell(folded(c.places[0].subjects))} | {_cell(c.places[0].observed)} "
        f"| {_cell(c.places[0].expected)} |"
        for c in bad
    ]
    head = "| status | check | nodes | subject | observed | expected |"
    return [head, "|---|---|---|---|---|---|", *rows, ""]


def _details(cause: Cause) -> list[str]:
    explains = ", ".join(f"`{name}`" for name in cause.blocked)
    return [
        f"## {cause.id}",
        "",
        f"{cause.why}",
        "",
        *[f"- {each}" for each in cause.fix],
        *([f"- explains {explains}"] if explains else []),
        "",
    ]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split()) or "-"
