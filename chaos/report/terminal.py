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
WIDE = 100  # from here on a number and its interval stay on one line
_WHOLE = ("oracle", "n", "verdict")
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
    parts.append(_table(document, width, color=color))
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


def _table(document: Document, width: int, *, color: bool) -> str:
    """One table for all tests; claims wrap, so that no word is lost."""
    if not any(outcome.judgements for outcome in document.outcomes):
        return "nothing was judged"
    table = Table(
        box=box.SIMPLE_HEAD if color else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name in _COLUMNS:
        table.add_column(
            name,
            justify="right" if name == "n" else "left",
            no_wrap=name in _WHOLE or (name == "observed" and width >= WIDE),
        )
    titles = {}
    for number, outcome in enumerate(document.outcomes):
        titles[f"@{number}@"] = _heading(outcome, color=color)
        table.add_row("", f"@{number}@")
        for row in outcome.judgements:
            verdict = Text(row.verdict.value, style=STYLES[row.verdict])
            table.add_row(*(Text(cell) for cell in _cells(row)), verdict)
    printed = _printed(table, width, color=color).splitlines()
    # A name longer than its column is still told whole, to be pasted.
    return "\n".join(titles.get(text.strip(), text) for text in printed)


def _heading(outcome: Outcome, *, color: bool) -> str:
    name = _short(outcome.nodeid)
    text = Text(name, style=f"bold {STYLES[outcome.verdict]}", no_wrap=True)
    return _printed(text, len(name), color=color)


def _printed(table: Table | Text, width: int, *, color: bool) -> str:
    console = Console(
        file=io.StringIO(),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        width=width,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as captured:
        console.print(table)
    return "\n".join(text.rstrip() for text in captured.get().splitlines())


def _cells(row: Judgement) -> tuple[str, ...]:
    return (
        row.oracle,
        row.claim,
        row.observed,
        row.threshold,
        str(row.samples),
    )


def _short(nodeid: str) -> str:
    return nodeid.rpartition("/")[2]
