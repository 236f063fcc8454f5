"""The verdict on a terminal: a table of rules, then why, then what to do."""

from __future__ import annotations

import io
import textwrap
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaos.canary.render import cells
from chaos.canary.result import GateResult
from chaos.judge.verdict import Verdict
from chaos.report.terminal import STYLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.canary.result import GateJudgement

WIDTH = 120
_COLUMNS = (
    "verdict",
    "rule",
    "baseline",
    "canary",
    "change",
    "limit",
    "n",
    "would see",
)
_RIGHT = frozenset({"baseline", "canary", "n"})
_WRAPPED = frozenset({"rule", "limit"})


def render(document: Mapping[str, Any]) -> str:
    """The plain table of a `canary.verdict/1` document.

    Raises:
        ValueError: It is none.
    """
    return table(GateResult.from_document(document))


def table(
    result: GateResult, *, command: str = "", color: bool = False, width: int = WIDTH
) -> str:
    """The whole report; `color` for a terminal."""
    rows = [one for one in result.worst_first if not _folded(one)]
    parts = [_wrapped(told, width) for told in cells.arms(result)]
    parts.append(_printed(_grid(result, rows, color=color), width, color=color))
    parts += _fold(result, width)
    parts += [_told(one, width) for one in result.worst_first if _unsettled(one)]
    parts += [_wrapped(f"note: {cells.plain(note)}", width) for note in result.notes]
    if result.floor:
        parts.append(f"noise floor used for {len(result.floor)} rules")
    verdict = f"verdict: {cells.headline(result)}"
    parts.append(_printed(Text(verdict, STYLES[result.verdict]), 400, color=color))
    parts.append(cells.next_step(result))
    parts.append(f"again: {cells.plain(command)}" if command else "")
    return "\n".join(part for part in parts if part) + "\n"


def _folded(judgement: GateJudgement) -> bool:
    """What is as it must be and compares nothing needs no row of its own."""
    quiet = judgement.family in ("invariant", "validity")
    return quiet and judgement.verdict is Verdict.PASS


def _fold(result: GateResult, width: int) -> list[str]:
    """One line a family: `PASS validity: baseline whole, mix, lag`."""
    lines = []
    for family, told in (("invariant", "all 0"), ("validity", "in order")):
        names = [cells.plain(one.name) for one in result.judgements if _is(one, family)]
        if names:
            lines.append(_wrapped(f"PASS {family}, {told}: {', '.join(names)}", width))
    return lines


def _is(judgement: GateJudgement, family: str) -> bool:
    return judgement.family == family and _folded(judgement)


def _unsettled(judgement: GateJudgement) -> bool:
    return judgement.verdict is not Verdict.PASS


def _grid(result: GateResult, rows: Sequence[GateJudgement], *, color: bool) -> Table:
    grid = Table(
        box=box.SIMPLE_HEAD if color else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name in _COLUMNS:
        justify: Literal["left", "right"] = "right" if name in _RIGHT else "left"
        grid.add_column(name, justify=justify, no_wrap=name not in _WRAPPED)
    for one in rows:
        verdict = Text(one.verdict.value, style=STYLES[one.verdict], no_wrap=True)
        grid.add_row(verdict, *(Text(cells.plain(cell)) for cell in _row(one, result)))
    return grid


def _row(one: GateJudgement, result: GateResult) -> tuple[str, ...]:
    return (
        cells.label(one, result),
        cells.value(one, one.baseline),
        cells.value(one, one.canary),
        cells.change(one),
        one.limit,
        cells.rows(one),
        cells.seen(one),
    )


def _told(one: GateJudgement, width: int) -> str:
    return _wrapped(
        f"{one.verdict.value} {cells.plain(one.name)}: {cells.reason(one)}", width
    )


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False)


def _printed(what: Table | Text, width: int, *, color: bool) -> str:
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
        console.print(what)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
