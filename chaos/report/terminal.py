"""What an operator sees at the end: one table of verdicts, then failures to reproduce.

A rich table where there is a terminal; aligned plain text otherwise, with NO_COLOR or
in CI. `render` returns text, the caller prints it where it likes.
"""

from __future__ import annotations

import io
import os
import textwrap
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaos.judge.verdict import Judgement, Verdict
from chaos.report.document import line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.report.document import Document, Outcome

STYLES = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
}
# No column of the plain table is wider; the failure list below it has every word.
_CAPS = (10, 60, 36, 24, 8, 12)
_COLUMNS = ("oracle", "claim", "observed", "threshold", "n", "verdict")


def wants_color(*, tty: bool, environ: Mapping[str, str] | None = None) -> bool:
    """Whether a rich table is right: on a terminal, not in CI, NO_COLOR not set."""
    env = os.environ if environ is None else environ
    if not tty or env.get("NO_COLOR") or env.get("TERM") == "dumb":
        return False
    return env.get("CI", "").lower() not in ("1", "true", "yes")


def render(document: Document, *, color: bool, width: int = 100) -> str:
    """The whole closing report."""
    parts = [_title(document)]
    parts.append(_rich(document, width) if color else _plain(document, width))
    parts += [_failure(outcome, width) for outcome in _bad(document)]
    parts += [f"FAULT LEFT BEHIND: {one}" for one in document.residual]
    parts.append(_closing(document))
    return "\n".join(part.rstrip() for part in parts if part) + "\n"


def _title(document: Document) -> str:
    scale = document.time_scale
    name = "real time" if scale == 1 else "every time constant multiplied by it"
    return (
        f"{document.suite}: {document.system or 'system'} on "
        f"{document.target or 'target'}, seed {document.seed}, "
        f"time scale {scale:g} ({name}); TTFT is modelled"
    )


def _closing(document: Document) -> str:
    counts = document.counts
    numbers = ", ".join(f"{counts[one]} {one.value}" for one in Verdict)
    aborted = f" (aborted: {document.aborted})" if document.aborted else ""
    return f"verdict {document.verdict.value}{aborted}: {numbers}"


def _bad(document: Document) -> list[Outcome]:
    bad = [one for one in document.outcomes if one.verdict is not Verdict.PASS]
    return sorted(bad, key=lambda one: -one.verdict.severity)


def _failure(outcome: Outcome, width: int) -> str:
    words = [f"\n{outcome.verdict.value} {outcome.nodeid}"]
    bullets = [outcome.error] * bool(outcome.error)
    bullets += [line(row) for row in outcome.broken]
    words += [
        textwrap.fill(bullet, width, initial_indent="  - ", subsequent_indent="    ")
        for bullet in bullets or ["nothing was judged"]
    ]
    words.append(f"  reproduce: {outcome.reproduce}")  # never wrapped: to be pasted
    return "\n".join(words)


def _rich(document: Document, width: int) -> str:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(
            name,
            justify="right" if name == "n" else "left",
            no_wrap=name in ("oracle", "n", "verdict"),
        )
    for outcome in document.outcomes:
        style = STYLES[outcome.verdict]
        table.add_row("", Text(_short(outcome.nodeid), style="bold " + style))
        for row in outcome.judgements:
            verdict = Text(row.verdict.value, style=STYLES[row.verdict])
            table.add_row(*(Text(cell) for cell in _cells(row)[:-1]), verdict)
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=True,
        color_system="standard",
        width=width,
        legacy_windows=False,
    )
    console.print(table)
    return buffer.getvalue()


def _plain(document: Document, width: int) -> str:
    """Aligned columns; the claim gives way so that a line keeps the width."""
    rows = [_cells(row) for one in document.outcomes for row in one.judgements]
    if not rows:
        return "nothing was judged"
    widths = [max(len(row[i]) for row in (_COLUMNS, *rows)) for i in range(6)]
    widths = [min(size, cap) for size, cap in zip(widths, _CAPS, strict=True)]
    spare = width - sum(widths) + widths[1] - 2 * 5
    widths[1] = min(widths[1], max(20, spare))
    lines = [_aligned(_COLUMNS, widths)]
    for outcome in document.outcomes:
        rows = [_cells(row) for row in outcome.judgements]
        lines += [_short(outcome.nodeid), *(_aligned(row, widths) for row in rows)]
    return "\n".join(lines)


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    fitted = [
        _clipped(cell, size).rjust(size)
        if index == 4
        else _clipped(cell, size).ljust(size)
        for index, (cell, size) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(fitted).rstrip()


def _clipped(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 3] + "..."


def _cells(row: Judgement) -> tuple[str, ...]:
    return (
        row.oracle,
        row.claim,
        row.observed,
        row.threshold,
        str(row.samples),
        row.verdict.value,
    )


def _short(nodeid: str) -> str:
    return nodeid.rpartition("/")[2]
