"""The page of a chaos run: its story, plots, oracles, tests, faults, environment."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from chaos.judge.verdict import Verdict
from chaos.report.html.page import (
    StoryRow,
    Table,
    counted,
    plot_view,
    render_page,
    short,
    story_rows,
)
from chaos.report.html.plots import shades_of
from chaos.report.laws import GLOSSARY, THE_LAW, law_of, rank
from chaos.report.moments import Moments, lasted
from chaos.report.story import (
    WATCHING,
    Story,
    begun,
    claim_of,
    faults_of,
    held,
    limit_of,
    parameters,
    proof,
    short_target,
    story_of,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.judge.verdict import Judgement
    from chaos.report.document import Document, Outcome
    from chaos.report.html.drawing import Plot
    from chaos.report.traces import Traces

    Plots = Mapping[str, Sequence[Plot]]

MOST_TESTS: Final = 400
MOST_FAULTS: Final = 500
_CAPTIONS: Final = {
    "time": "TTFT (modelled), cache wait (measured), hit rate and breakers over time."
    " Shaded: a fault is in place.",
    "quantiles": "Quantiles of each arm; the slow tail is stretched.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Everything that a page of a run is made of."""

    document: Document
    meta: Mapping[str, Any]
    traces: Traces
    plots: Plots = field(default_factory=dict)
    """Plots by node id."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a test has no plots, by node id."""

    @property
    def moments(self) -> Moments:
        return Moments.of(self.meta)

    @property
    def defects(self) -> list[str]:
        """Defects of the system under test that this run was asked to plant."""
        words = [str(word) for word in self.meta.get("options") or ()]
        return [value for option, value in pairwise(words) if option == "--defect"]

    @property
    def story(self) -> Story:
        return story_of(self.document, self.traces, self.moments, defects=self.defects)

    @property
    def outcomes(self) -> list[Outcome]:
        """Worst first."""
        return sorted(self.document.outcomes, key=lambda one: -one.verdict.severity)


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


# -- tables ----------------------------------------------------------------------------


def oracle_table(document: Document) -> Table:
    """One row an oracle: its law, how often it was judged, and its worst numbers."""
    rows: dict[str, list[Judgement]] = {}
    for outcome in document.outcomes:
        for judgement in outcome.judgements:
            rows.setdefault(judgement.oracle, []).append(judgement)
    worst_first = sorted(
        rows.items(),
        key=lambda item: (-_worst(item[1]).verdict.severity, rank(item[0]), item[0]),
    )
    return Table(
        caption="Oracles, worst first",
        columns=("oracle", "verdict", "law", "judged", "worst"),
        rows=tuple(_oracle_row(name, found) for name, found in worst_first),
    )


def _oracle_row(name: str, found: Sequence[Judgement]) -> tuple[str, ...]:
    worst = _worst(found)
    counts = Counter(row.verdict for row in found)
    judged = ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v])
    law = law_of(name) or worst.claim
    return (name, worst.verdict.value, law, judged, _line(worst))


def _worst(found: Sequence[Judgement]) -> Judgement:
    return max(found, key=lambda row: row.verdict.severity)


def _line(row: Judgement) -> str:
    """INCONCLUSIVE tells its reason first; there the numbers mean little."""
    limit = f", {limit_of(row)}" if limit_of(row) else ""
    if row.verdict is Verdict.INCONCLUSIVE and row.reason:
        return f"{row.reason} ({row.claim}: {row.observed}{limit})"
    return f"{row.claim}: {row.observed}{limit}"


def judgement_table(outcome: Outcome) -> Table:
    """Every judgement of a test with its numbers, what did not pass first."""
    rows = sorted(
        outcome.judgements, key=lambda row: (-row.verdict.severity, rank(row.oracle))
    )
    return Table(
        caption="Judgements",
        columns=("oracle", "verdict", "claim", "note", "observed", "limit", "samples"),
        rows=tuple(
            (
                row.oracle,
                row.verdict.value,
                row.claim,
                row.reason,
                row.observed,
                "" if row.threshold == "-" else row.threshold,
                str(row.samples),
            )
            for row in rows
        ),
    )


def arms_table(traces: Traces, nodeid: str) -> Table | None:
    """The numbers behind the plots of a test; None where no request was recorded."""
    arms = traces.of(nodeid).arms.values()
    rows = tuple(
        (
            arm.name,
            str(len(arm)),
            str(arm.failed),
            *(lasted(arm.quantile("ttft_s", q)) for q in (0.5, 0.99)),
            *(lasted(arm.quantile("wait_s", q)) for q in (0.5, 1.0)),
            _percent(arm.hit_rate),
        )
        for arm in arms
        if len(arm)
    )
    if not rows:
        return None
    return Table(
        caption="The arms in numbers",
        columns=(
            "arm",
            "requests",
            "failed",
            "TTFT p50 (modelled)",
            "TTFT p99 (modelled)",
            "cache wait p50",
            "cache wait max",
            "hit rate",
        ),
        rows=rows,
    )


def fault_table(facts: RunFacts) -> Table:
    """Every fault of the run with its evidence, in the order of time."""
    rows = sorted(facts.document.faults, key=lambda row: begun(row) or math.inf)[
        :MOST_FAULTS
    ]
    return Table(
        caption="Time line of faults",
        columns=("when", "fault", "held", "proof", "test"),
        rows=tuple(
            (
                facts.moments.utc(begun(row)),
                told(row),
                lasted(held(row)),
                proof(row),
                claim_of(str(row.get("test", ""))),
            )
            for row in rows
        ),
    )


def environment_table(facts: RunFacts) -> Table:
    """What ran where: enough to run it again."""
    document, meta = facts.document, facts.meta
    git = _mapping(meta.get("git"))
    rows = [
        ("system", f"{document.system} on {document.target}"),
        ("seed", str(document.seed)),
        ("time scale", f"{document.time_scale:g}"),
        ("started", document.started),
        ("command", " ".join(str(word) for word in meta.get("argv") or ())),
        ("options", " ".join(str(word) for word in meta.get("options") or ())),
        ("git", f"{git.get('head', '?')}{' (changed)' if git.get('dirty') else ''}"),
        ("capabilities", ", ".join(map(str, _mapping(meta.get("capabilities"))))),
        *((k, str(v)) for k, v in _mapping(meta.get("versions")).items()),
    ]
    return Table(
        caption="What ran, and where",
        columns=("what", "value"),
        rows=tuple((name, value) for name, value in rows if value),
    )


def _mapping(value: object) -> dict[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


# -- tests -----------------------------------------------------------------------------


def _test(
    number: int, outcome: Outcome, facts: RunFacts, *, led: bool
) -> dict[str, Any]:
    plots = () if led else facts.plots.get(outcome.nodeid, ())
    above = "The plots are at the top of this page." if led else ""
    judged = judgement_table(outcome).view() if outcome.judgements else None
    arms = None if led else _view(arms_table(facts.traces, outcome.nodeid))
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
    steps = _mapping(row.get("parameters")).get("plan")
    detail = _mapping(row.get("evidence")).get("detail")
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


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if math.isfinite(share) else "?"
