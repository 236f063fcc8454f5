"""A forest plot: every comparison of the gate with its interval, against no change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from chaos.report.html.drawing import Plot, render
from chaos.report.html.panels import height_in, stacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.report.html.drawing import Colours

ROW_IN: Final = 0.42
_VERDICTS: Final = {"PASS": "pass", "FAIL": "fail", "INCONCLUSIVE": "inc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One comparison: a ratio (neutral 1) or a difference (neutral 0).

    A bound that is not known is NaN: it is drawn to the edge.
    """

    name: str
    verdict: str
    estimate: float
    low: float
    high: float
    limit: float = math.nan
    words: str = ""


def draw_forest(
    name: str, ratios: Sequence[Branch], differences: Sequence[Branch]
) -> Plot | None:
    """Ratios and differences in a panel each; None where there is neither."""
    panels = [
        (title, rows, neutral)
        for title, rows, neutral in (
            ("canary / baseline", ratios, 1.0),
            ("canary - baseline", differences, 0.0),
        )
        if rows
    ]
    if not panels:
        return None
    heights = [ROW_IN * len(rows) + 0.15 for _, rows, _ in panels]
    draw = partial(_draw, panels=panels, heights=heights)
    words = " ".join(
        f"{row.name}: {row.words}, {row.verdict}."
        for _, rows, _ in panels
        for row in rows
    )
    height = height_in([h + 0.25 for h in heights])
    return render(f"{name}-forest", "Comparisons", words, draw, height_in=height)


def _draw(
    figure: Any,
    colours: Colours,
    *,
    panels: Sequence[tuple[str, Sequence[Branch], float]],
    heights: Sequence[float],
) -> None:
    axes = stacked(figure, heights, sharex=False)
    for panel, (title, rows, neutral) in zip(axes, panels, strict=True):
        panel.set_title(f"{title}: estimate and interval; | is the limit")
        _frame(panel, rows, neutral)
        panel.axvline(neutral, color=colours["muted"], lw=0.9)
        for at, row in enumerate(rows):
            _draw_row(panel, at, row, colours)


def _frame(panel: Any, rows: Sequence[Branch], neutral: float) -> None:
    known = [
        value
        for row in rows
        for value in (row.estimate, row.low, row.high, row.limit)
        if math.isfinite(value)
    ]
    low, high = min([neutral, *known]), max([neutral, *known])
    room = 0.06 * (high - low) or 0.1
    panel.set_xlim(low - room, high + room)
    panel.set_ylim(len(rows) - 0.4, -0.75)
    panel.set_yticks([])
    panel.locator_params(axis="x", nbins=5)
    panel.xaxis.set_major_formatter(lambda value, _at: f"{value:.4g}")


def _draw_row(panel: Any, at: int, row: Branch, colours: Colours) -> None:
    colour = colours[_VERDICTS.get(row.verdict, "muted")]
    left, right = panel.get_xlim()
    low = row.low if math.isfinite(row.low) else left
    high = row.high if math.isfinite(row.high) else right
    panel.plot([low, high], [at, at], color=colour, lw=1.6, solid_capstyle="butt")
    if math.isfinite(row.estimate):
        panel.plot([row.estimate], [at], marker="o", markersize=4.5, color=colour)
    if math.isfinite(row.limit):
        panel.plot(
            [row.limit, row.limit], [at - 0.28, at + 0.28], color=colours["limit"], lw=2
        )
    panel.text(left, at - 0.32, row.name, color=colours["fg"], va="bottom", fontsize=8)
