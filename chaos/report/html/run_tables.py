"""The tables of a chaos run: oracles, judgements, arms, faults, environment."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from chaos.judge.verdict import Verdict
from chaos.report.fault_words import begun, held, proof, told
from chaos.report.html.page import Table
from chaos.report.html.plots import percent
from chaos.report.laws import law_of, rank
from chaos.report.moments import lasted
from chaos.report.story import claim_of, limit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.judge.verdict import Judgement
    from chaos.report.document import Document, Outcome
    from chaos.report.html.run_facts import RunFacts
    from chaos.report.traces import Traces

MOST_FAULTS: Final = 500


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
            percent(arm.hit_rate),
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
    git = mapping(meta.get("git"))
    rows = [
        ("system", f"{document.system} on {document.target}"),
        ("seed", str(document.seed)),
        ("time scale", f"{document.time_scale:g}"),
        ("started", document.started),
        ("command", " ".join(str(word) for word in meta.get("argv") or ())),
        ("options", " ".join(str(word) for word in meta.get("options") or ())),
        ("git", f"{git.get('head', '?')}{' (changed)' if git.get('dirty') else ''}"),
        *((f"{k} is", v) for k, v in facts.traces.versions.items()),
        ("capabilities", ", ".join(map(str, mapping(meta.get("capabilities"))))),
        *((k, str(v)) for k, v in mapping(meta.get("versions")).items()),
    ]
    return Table(
        caption="What ran, and where",
        columns=("what", "value"),
        rows=tuple((name, value) for name, value in rows if value),
    )


def mapping(value: object) -> dict[str, Any]:
    """A dict of JSON, empty where something else stands."""
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}
