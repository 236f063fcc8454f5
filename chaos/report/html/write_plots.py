"""Plots as files, for whoever wants one in a ticket or a slide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.report.files import write_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.report.html.drawing import Plot

PLOTS: Final = "plots"


def write_plots(folder: Path, plots: Sequence[Plot]) -> None:
    """Each plot as SVG and PNG, in `plots/` of this folder."""
    if plots:
        (folder / PLOTS).mkdir(exist_ok=True)
    for plot in plots:
        drawing = f"{plot.svg}\n".encode("utf-8", "replace")
        write_bytes(folder / PLOTS / f"{plot.name}.svg", drawing)
        write_bytes(folder / PLOTS / f"{plot.name}.png", plot.png)
