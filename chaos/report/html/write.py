"""Reports on disk: `report.html` and its plots as SVG and PNG beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaos.judge.verdict import Verdict
from chaos.report.fault_words import faults_of
from chaos.report.files import read_json, write_bytes
from chaos.report.html.plots import draw_test
from chaos.report.html.run_facts import RunFacts
from chaos.report.html.run_page import run_page
from chaos.report.html.write_plots import write_plots
from chaos.report.run import document_at
from chaos.report.traces import MOST_BYTES, read_traces

if TYPE_CHECKING:
    import os

    from chaos.report.document import Document, Outcome
    from chaos.report.html.drawing import Plot
    from chaos.report.traces import Traces

REPORT: Final = "report.html"
MOST_PLOTTED: Final = 8
"""Tests drawn when a run ends, worst first: a run must not wait for its pictures."""
_NO_LOAD: Final = "No request of this test was recorded: there is nothing to draw."
_NOT_DRAWN: Final = (
    "Not drawn: a run draws its worst tests only; `chaos analyze RUN --html` draws all."
)


def write_run_report(
    run_dir: str | os.PathLike[str],
    *,
    document: Document | None = None,
    out_dir: str | os.PathLike[str] | None = None,
    most_plotted: float = MOST_PLOTTED,
    most_bytes: float = MOST_BYTES,
) -> Path:
    """Writes `report.html` and `plots/` of a run, and returns the path of the page.

    Args:
        run_dir: the results directory of a run, finished or killed.
        document: other verdicts than the recorded ones (`chaos analyze`).
        out_dir: where to write, instead of into the results.
        most_plotted: tests that are drawn, worst first.
        most_bytes: a larger history is not read; the page says so.
    """
    facts = gather(
        run_dir, document=document, most_plotted=most_plotted, most_bytes=most_bytes
    )
    return write_run(facts, Path(out_dir) if out_dir is not None else Path(run_dir))


def gather(
    run_dir: str | os.PathLike[str],
    *,
    document: Document | None = None,
    most_plotted: float = MOST_PLOTTED,
    most_bytes: float = MOST_BYTES,
) -> RunFacts:
    """Reads and draws everything that reports of a run are made of."""
    run = Path(run_dir)
    found = document if document is not None else document_at(run)
    traces = read_traces(run / "history.jsonl", most_bytes=most_bytes)
    plots, left_out = _draw(found, traces, most_plotted)
    return RunFacts(
        document=found,
        meta=read_json(run / "run.json"),
        traces=traces,
        plots=plots,
        left_out=left_out,
    )


def write_run(facts: RunFacts, folder: Path) -> Path:
    """Writes the page and its plots into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_plots(folder, [plot for plots in facts.plots.values() for plot in plots])
    path = folder / REPORT
    write_bytes(
        path, run_page(facts).encode("utf-8", "replace")
    )  # cleaned by its values
    return path


def _draw(
    document: Document, traces: Traces, most: float
) -> tuple[dict[str, list[Plot]], dict[str, str]]:
    plots: dict[str, list[Plot]] = {}
    left_out: dict[str, str] = {}
    for outcome in _in_order(document, traces):
        nodeid = outcome.nodeid
        trace = traces.of(nodeid)
        if not trace.shown:
            left_out[nodeid] = traces.skipped or _NO_LOAD
        elif len(plots) >= most:
            left_out[nodeid] = _NOT_DRAWN
        else:
            name = f"{len(plots) + 1:02d}-{_slug(nodeid)}"
            faults = faults_of(nodeid, document.faults, traces)
            try:
                plots[nodeid] = draw_test(name, trace, faults)
            except Exception as error:  # matplotlib's: a page without it is a page
                why = f"{type(error).__name__}: {error}"
                left_out[nodeid] = f"It could not be drawn: {why}"
    return plots, left_out


def _in_order(document: Document, traces: Traces) -> list[Outcome]:
    """Tests in the order in which they deserve a picture."""

    def order(outcome: Outcome) -> tuple[int, int]:
        broken = outcome.verdict is not Verdict.PASS
        requests = sum(len(arm) for arm in traces.of(outcome.nodeid).shown)
        return (-outcome.verdict.severity if broken else 0, -requests)

    return sorted(document.outcomes, key=order)


def _slug(nodeid: str) -> str:
    name = nodeid.rpartition("::")[2].removeprefix("test_")
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:48] or "test"
