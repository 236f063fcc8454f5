"""Markdown for the summary of a CI job, within the size that GitHub takes.

A step summary over 1 MiB is not cut but dropped as a whole, so it is kept under
900 kB here, section by section, and what was left out is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.canary.render import cells
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos.canary.result import GateResult

BUDGET_BYTES: Final = 900_000
MAX_CELL: Final = 400
_MARKS: Final = {
    Verdict.PASS: "✅",
    Verdict.INCONCLUSIVE: "⚠️",
    Verdict.FAIL: "❌",
}
_ESCAPED: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
    | {sign: f"\\{sign}" for sign in "\\`*_[]|#~"}
)


def markdown(
    result: GateResult, *, command: str = "", budget_bytes: int = BUDGET_BYTES
) -> str:
    """Verdict, table of rules, reasons, notes, arms, and the command to repeat it."""
    head = [
        f"## canary: {_MARKS[result.verdict]} {_text(cells.headline(result))}",
        "",
        _text(cells.next_step(result)),
        "",
    ]
    tail = [f"Again: `{_code(command)}`", ""] if command else []
    left = budget_bytes - _size([*head, *tail]) - 400
    lines = head
    for title, section in _sections(result):
        kept, dropped = _fitting(section, left - _size([title, ""]))
        if not kept and not dropped:
            continue
        lines += [title, "", *kept]
        if dropped:
            lines += ["", f"{dropped} more lines were left out: the summary is full."]
        lines.append("")
        left -= _size([title, "", *kept]) + 100
    return "\n".join([*lines, *tail])


def _sections(result: GateResult) -> Iterable[tuple[str, Sequence[str]]]:
    bad = [one for one in result.worst_first if one.verdict is not Verdict.PASS]
    yield "### Rules", _table(result)
    yield "### Why", [f"- **{_text(o.name)}**: {_text(cells.reason(o))}" for o in bad]
    yield "### Notes", [f"- {_text(cells.plain(note))}" for note in result.notes]
    yield "### Arms", [f"- {_text(told)}" for told in cells.arms(result)]


def _table(result: GateResult) -> list[str]:
    head = "| | rule | baseline | canary | change | limit | n | sees |"
    rows = [
        "| "
        + " | ".join(
            _text(cell, MAX_CELL)
            for cell in (
                f"{_MARKS[one.verdict]} {one.verdict.value}",
                cells.label(one, result),
                cells.value(one, one.baseline),
                cells.value(one, one.canary),
                cells.change(one),
                one.limit,
                cells.rows(one),
                cells.seen(one),
            )
        )
        + " |"
        for one in result.worst_first
    ]
    return [head, "|---|---|---:|---:|---|---|---:|---|", *rows] if rows else []


def _fitting(lines: Sequence[str], budget: int) -> tuple[list[str], int]:
    """The first lines that fit, and how many do not."""
    kept: list[str] = []
    for line in lines:
        budget -= _size([line])
        if budget < 0:
            break
        kept.append(line)
    return kept, len(lines) - len(kept)


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _text(text: str, most: int = 4000) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = cells.plain(text)
    cut = line if len(line) <= most else f"{line[: most - 3]}..."
    return cut.translate(_ESCAPED)


def _code(text: str) -> str:
    return cells.plain(text).replace("`", "'")[:4000]
