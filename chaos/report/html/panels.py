"""What every plot is made of: panels over one axis, plain scales, a legend."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chaos.report.html.drawing import BOTTOM_IN, TITLE_IN, TOP_IN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.report.html.drawing import Colours
    from chaos.report.traces import Column

MOST_POINTS: Final = 400
"""Points drawn of one arm; of more, the extremes of each stretch are kept."""
LEGEND_COLUMNS: Final = 4
_LOG_FROM: Final = 30.0
_LOG_MOST: Final = 3000.0
"""What is this many times smaller than the largest value lies on the ground."""


def height_in(heights: Sequence[float]) -> float:
    """The height of a figure with panels of these heights, inches."""
    return sum(heights) + TITLE_IN * (len(heights) - 1) + TOP_IN + BOTTOM_IN


def stacked(figure: Any, heights: Sequence[float], *, sharex: bool = True) -> list[Any]:
    """Panels over one x axis, with room for a title above each."""
    mean = sum(heights) / len(heights)
    panels = figure.subplots(
        len(heights),
        1,
        sharex=sharex,
        squeeze=False,
        height_ratios=heights,
        gridspec_kw={"hspace": TITLE_IN / mean},
    )
    return list(panels[:, 0])


def scale(panel: Any, values: Column) -> None:
    """Linear from 0, or logarithmic where values are far apart; always plain words."""
    known = values[np.isfinite(values) & (values > 0)]
    if known.size and np.max(known) > _LOG_FROM * np.quantile(known, 0.05):
        panel.set_yscale("log")
        high = np.max(known) * 1.5
        low = max(np.min(known) / 1.5, high / _LOG_MOST)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        panel.set_ylim(low, high)
        for line in panel.lines:
            line.set_ydata(np.maximum(line.get_ydata(), low))
        panel.set_yticks([10.0**p for p in powers if low <= 10.0**p <= high])
        panel.set_yticks([], minor=True)
    else:
        panel.set_ylim(0, float(np.max(known)) * 1.15 if known.size else 1.0)
        panel.locator_params(axis="y", nbins=4)
    panel.yaxis.set_major_formatter(lambda value, _at: f"{value:.4g}")
    panel.grid(axis="y", linewidth=0.5)


def draw_legend(figure: Any, panel: Any, colours: Colours) -> None:
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper left",
        ncols=LEGEND_COLUMNS,
        labelcolor=colours["fg"],
        handletextpad=0.3,
        handlelength=1.2,
        columnspacing=1.0,
        borderaxespad=0.1,
        markerscale=2,
    )


def thinned(x: Column, y: Column) -> tuple[Column, Column]:
    """At most 400 points: of each stretch the lowest and the highest, in order."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if x.size <= MOST_POINTS:
        return x, y
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    keep: list[int] = []
    for part in np.array_split(np.arange(x.size), MOST_POINTS // 2):
        keep += sorted({int(part[np.argmin(y[part])]), int(part[np.argmax(y[part])])})
    return x[keep], y[keep]
