"""The page of a chaos run: its story, plots, oracles, tests, faults, environment."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from chaos.judge.verdict import Verdict
from chaos.report.fault_words import (
    WATCHING,
    begun,
    faults_of,
    held,
    parameters,
    proof,
    short_target,
    told,
)
from chaos.report.html.page import (
    StoryRow,
    Table,
    plot_view,
    render_page,
    short,
    story_rows,
)
from chaos.report.html.run_tables import (
    MOST_FAULTS,
    arms_table,
    environment_table,
    fault_table,
    judgement_table,
    mapping,
    oracle_table,
)
from chaos.report.html.timeline import shades_of
from chaos.report.laws import GLOSSARY, THE_LAW
from chaos.report.moments import Moments, lasted
from chaos.report.story import Story, claim_of, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.report.document import Outcome
    from chaos.report.html.drawing import Plot
    from chaos.report.html.run_facts import RunFacts

MOST_TESTS: Final = 400
_CAPTIONS: Final = {
    "time": "TTFT (modelled), cache wait (measured), hit rate and breakers over time."
    " Shaded: a fault is in place.",
    "quantiles": "Quantiles of each arm; the slow tail is stretched.",
}


def run_page(facts: RunFacts) -> str:
    """The whole page."""
    document, story = facts.document, facts.story
    lead = facts.plots.get(story.test, ())
    tests = [
        _test(number, outcome, facts, led=outcome.nodeid == story.test)
        for number, outcome in enumerate(facts.outcomes[:MOST_TESTS])
    ]
    view = {
        "title": f"{document.verdict.value}: {document.suite}",
        "suite": document.suite,
        "started": document.started[:19].replace("T", " ") + " UTC",
        "verdict_word": document.verdict.value,
        "headline": short(story.headline),
        "story": story_rows(_story(story)),
        "facts": run_facts(facts),
        "alarms": _alarms(facts),
        "parts": _parts(lead=bool(lead)),
        "lead_plots": [plot_view(plot, _caption(plot)) for plot in lead],
        "lead_words": _lead_words(facts, story),
        "lead_table": _view(arms_table(facts.traces, story.test)) if lead else None,
        "oracles": oracle_table(document).view(),
        "tests": tests,
        "faults": fault_table(facts).view(),
        "faults_told": counted(len(document.faults), "fault"),
        "glossary": [list(pair) for pair in GLOSSARY],
        "environment": environment_table(facts).view(),
        "law": THE_LAW,
        "exit_code": document.exit_code,
    }
    return render_page("run.html.j2", view)


def _story(story: Story) -> list[StoryRow]:
    why = story.verdict is Verdict.INCONCLUSIVE and story.happened
    rows = [
        StoryRow(name="Broken", lines=story.broken),
        StoryRow(name="Expected", lines=(story.expected,)),
        StoryRow(name="Happened", lines=(story.happened,)),
        StoryRow(name="Since", lines=(story.since,)),
        StoryRow(name="Repeat", lines=(story.repeat,), code=True),
        StoryRow(name="Also", lines=story.also),
        StoryRow(name="And", lines=story.others),
    ]
    return [rows[2], *rows[:2], *rows[3:]] if why else rows


def run_facts(facts: RunFacts) -> list[str]:
    """What stands under a story: numbers of the run in a few words."""
    document = facts.document
    counts = document.counts
    scale = document.time_scale
    words = ", ".join(f"{counts[one]} {one.value}" for one in Verdict if counts[one])
    return [
        f"{counted(len(document.outcomes), 'test')}: {words or 'none'}",
        f"{document.system or '?'} on {document.target or '?'}",
        f"seed {document.seed}",
        f"time scale {scale:g}"
        + ("" if scale == 1 else " (every time constant of the system times it)"),
        f"took {lasted(document.duration_s)}",
        "TTFT is modelled; waits for the cache are real",
    ]


def _alarms(facts: RunFacts) -> list[str]:
    document = facts.document
    lines = [f"A fault was left behind: {one}" for one in document.residual]
    if document.aborted:
        lines.append(f"The run was stopped early: {document.aborted}")
    if facts.traces.why:
        lines.append(f"Not everything is shown: {facts.traces.why}")
    hidden = len(document.outcomes) - MOST_TESTS
    if hidden > 0:
        lines.append(f"{counted(hidden, 'passing or later test')} not listed")
    return [short(line) for line in (*lines, *document.notes)]


def _parts(*, lead: bool) -> list[dict[str, str]]:
    names = {
        "plots": "Plots",
        "oracles": "Oracles",
        "tests": "Tests",
        "faults": "Faults",
        "environment": "Environment",
    }
    return [
        {"id": key, "name": name}
        for key, name in names.items()
        if lead or key != "plots"
    ]


def _lead_words(facts: RunFacts, story: Story) -> str:
    rows = faults_of(story.test, facts.document.faults, facts.traces)
    return " ".join(f"{s.letter}: {s.words}." for s in shades_of(rows, math.inf))


# -- tests -----------------------------------------------------------------------------


def _test(
    number: int, outcome: Outcome, facts: RunFacts, *, led: bool
) -> dict[str, Any]:
    found = facts.plots.get(outcome.nodeid, ())
    plots = () if led else found
    above = "The plots are at the top of this page." if led and found else ""
    judged = judgement_table(outcome).view() if outcome.judgements else None
    told_above = led and found
    arms = None if told_above else _view(arms_table(facts.traces, outcome.nodeid))
    return {
        "id": f"test-{number}",
        "nodeid": outcome.nodeid,
        "claim": claim_of(outcome.nodeid),
        "verdict": outcome.verdict.value,
        "open": outcome.verdict is not Verdict.PASS,
        "error": short(outcome.error),
        "judgements": judged,
        "faults": _faults(outcome, facts),
        "plots": [plot_view(plot, _caption(plot)) for plot in plots],
        "no_plot": above or facts.left_out.get(outcome.nodeid, ""),
        "arms": arms,
        "reproduce": outcome.reproduce,
    }


def _faults(outcome: Outcome, facts: RunFacts) -> list[dict[str, Any]]:
    rows = faults_of(outcome.nodeid, facts.document.faults, facts.traces)
    drawn = bool(facts.plots.get(outcome.nodeid))
    shades = shades_of(rows, math.inf) if drawn else []
    letters = {(s.start_s, s.words): s.letter for s in shades}
    return [
        _fault(row, facts.moments, letters.get((begun(row) or 0.0, told(row)), ""))
        for row in rows[:MOST_FAULTS]
    ]


def _fault(row: Mapping[str, Any], moments: Moments, letter: str) -> dict[str, Any]:
    watching = row.get("kind") in WATCHING
    what = f"{short_target(row.get('target'))} was watched" if watching else told(row)
    extra = parameters(row)
    steps = mapping(row.get("parameters")).get("plan")
    detail = mapping(row.get("evidence")).get("detail")
    return {
        "letter": f"{letter}: " if letter else "",
        "kind_class": "" if watching else "act",
        "words": short(f"{what}{f' ({extra})' if extra else ''}"),
        "when": moments.utc(begun(row)),
        "held": lasted(held(row)),
        "proof": short(f"{proof(row)}{f' ({detail})' if detail else ''}"),
        "left": short(row.get("residual") or ""),
        "steps": [short(step) for step in steps] if isinstance(steps, list) else [],
    }


def _caption(plot: Plot) -> str:
    return _CAPTIONS.get(plot.name.rpartition("-")[2], plot.title)


def _view(table: Table | None) -> dict[str, Any] | None:
    return table.view() if table is not None else None
