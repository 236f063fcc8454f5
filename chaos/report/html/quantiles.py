"""Quantile curves: what share of requests was at least as fast."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chaos.report.html.drawing import Plot, render
from chaos.report.html.palette import arm_colour
from chaos.report.html.panels import draw_legend, height_in, scale, stacked, thinned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.report.html.drawing import Colours
    from chaos.report.traces import Column

    Curves = Mapping[str, Sequence[tuple[str, Column]]]
    """By title: (arm, values)."""

PANEL_IN: Final = 1.4
QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)


def quantile_plot(name: str, curves: Curves, words: str) -> Plot:
    """A panel for each metric, a curve for each arm; the tail is stretched."""
    draw = partial(_draw_quantiles, curves=curves)
    height = height_in([PANEL_IN] * len(curves))
    return render(f"{name}-quantiles", "Quantiles", words, draw, height_in=height)


def _draw_quantiles(
    figure: Any,
    colours: Colours,
    *,
    curves: Curves,
) -> None:
    panels = stacked(figure, [PANEL_IN] * len(curves))
    most = 2
    for panel, (title, arms) in zip(panels, curves.items(), strict=True):
        seen = [np.empty(0)]
        for number, (name, column) in enumerate(arms):
            values = np.sort(column[np.isfinite(column)])
            if not values.size:
                continue
            colour = arm_colour(name, number)
            share = (np.arange(values.size) + 0.5) / values.size
            panel.plot(
                *thinned(-np.log10(1 - share), values),
                color=colours[colour],
                lw=1.4,
                label=name,
            )
            seen.append(values)
            most = max(most, values.size)
        scale(panel, np.concatenate(seen))
        panel.set_title(title)
    _quantile_ticks(panels[-1], most)
    draw_legend(figure, panels[0], colours)


def _quantile_ticks(panel: Any, samples: int) -> None:
    known = [q for q in (0.0, *QUANTILES) if samples * (1 - q) >= 1]
    panel.set_xticks([-math.log10(1 - q) for q in known])
    panel.set_xticklabels([f"p{100 * q:g}" for q in known])
    panel.set_xlabel("share of requests that were at least as fast")
