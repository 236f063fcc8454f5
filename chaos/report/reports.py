"""All reports of a run in one go: HTML with plots, Markdown, OpenMetrics.

They are written last, when every result is on disk, and nothing that goes wrong here
may break a run or its exit code: it becomes one line of warning.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaos.report.files import write_text

if TYPE_CHECKING:
    import os

    from chaos.report.document import Document
    from chaos.report.html.run_facts import RunFacts

ANALYSIS: Final = "analysis"
"""Where a run that was judged again is reported: what was recorded stays as it is."""


def write_reports(run_dir: str | os.PathLike[str], document: Document) -> str:
    """Writes the reports of a run that has just ended into its results.

    Returns:
        What went wrong, in one line; "" when nothing did.
    """
    try:
        from chaos.report.html.write import gather

        # Whoever stopped the run waits for its end.
        most = {"most_plotted": 1} if document.aborted else {}
        _write_all(gather(run_dir, document=document, **most), Path(run_dir))
    except Exception as error:  # the run and its verdict are more than its picture
        words = " ".join(str(error).split())
        return f"{run_dir}: no report was written: {type(error).__name__}: {words}"
    return ""


def write_analysis(run_dir: str | os.PathLike[str], document: Document) -> Path:
    """Writes the reports of a run that was judged again, with every plot.

    Returns:
        The path of the page, in `analysis/` of the results.

    Raises:
        OSError: The results cannot be read or written.
    """
    from chaos.report.html.write import gather

    facts = gather(
        run_dir, document=document, most_plotted=math.inf, most_bytes=math.inf
    )
    return _write_all(facts, Path(run_dir) / ANALYSIS)


def _write_all(facts: RunFacts, folder: Path) -> Path:
    from chaos.report.html.write import write_run
    from chaos.report.html.write_plots import PLOTS
    from chaos.report.markdown import render_markdown
    from chaos.report.openmetrics import render_metrics

    page = write_run(facts, folder)
    story = facts.story
    shown = facts.plots.get(story.test, ())
    pictures = [(plot.title, f"{PLOTS}/{plot.name}.png") for plot in shown]
    write_text(folder / "report.md", render_markdown(facts.document, story, pictures))
    metrics = render_metrics(facts.document, facts.traces, facts.meta)
    write_text(folder / "metrics.prom", metrics)
    return page
