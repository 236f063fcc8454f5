"""`metrics.prom`: a run as OpenMetrics, to be scraped, pushed or kept.

Every number of the verdict, the faults and the arms. A number that is not known is left
out, never 0. TTFT carries "modelled" in its name.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from chaos.judge.verdict import Verdict
from chaos.report.fault_words import WATCHING, begun, held
from chaos.report.moments import Moments
from chaos.report.redaction import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chaos.report.document import Document
    from chaos.report.traces import Traces

QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)
MOST_SERIES: Final = 20_000
"""Further ones are left out, and `moonquake_series_left_out` says how many."""
_LABEL_MOST: Final = 200

Labels = dict[str, str]
Point = tuple[str, Labels, float]
_HELP: Final = {
    "run_verdict": "1 for the verdict of the run, 0 for the others.",
    "run_exit_code": "What a command ends with: 0 pass, 1 fail, 3 inconclusive, 5 a"
    " fault was left behind.",
    "run_duration_seconds": "How long the run took.",
    "run_started_timestamp_seconds": "When the run began.",
    "tests": "Tests by verdict.",
    "residual_faults": "Faults that were left behind.",
    "judgement": "0 pass, 1 inconclusive, 2 fail.",
    "judgement_samples": "Observations behind a judgement.",
    "judgement_value": "What was observed.",
    "judgement_limit": "What was allowed.",
    "fault_held_seconds": "How long a fault was in place.",
    "fault_effect": "The evidence of a fault, in the unit of its measure.",
    "requests": "Requests of an arm that the system had its chance with.",
    "failed_requests": "Requests of an arm without a good answer.",
    "hit_ratio": "Tokens reused / tokens asked of an arm.",
    "ttft_modelled_seconds": "Time to first token; waits are real, prefill modelled.",
    "cache_wait_seconds": "Wait for the cache, measured.",
    "series_left_out": "Series that did not fit.",
}


def render_metrics(document: Document, traces: Traces, meta: Mapping[str, Any]) -> str:
    """The run as OpenMetrics text, "# EOF" at its end."""
    from prometheus_client import CollectorRegistry, Gauge
    from prometheus_client.openmetrics import exposition

    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for name, labels, value in _bounded(document, traces, meta):
        if name not in gauges:
            gauges[name] = Gauge(
                f"moonquake_{name}", _HELP[name], list(labels), registry=registry
            )
        gauge = gauges[name].labels(**labels) if labels else gauges[name]
        gauge.set(value)
    writer: Any = exposition
    text: bytes = writer.generate_latest(registry)
    return text.decode("utf-8")


def _bounded(
    document: Document, traces: Traces, meta: Mapping[str, Any]
) -> Iterator[Point]:
    taken = left_out = 0
    for name, labels, value in _points(document, traces, meta):
        if not math.isfinite(value):
            continue
        if taken >= MOST_SERIES:
            left_out += 1
            continue
        taken += 1
        yield name, {key: _label(text) for key, text in labels.items()}, value
    yield "series_left_out", {}, float(left_out)


def _points(
    document: Document, traces: Traces, meta: Mapping[str, Any]
) -> Iterator[Point]:
    yield from _of_run(document, meta)
    yield from _of_judgements(document)
    yield from _of_faults(document)
    yield from _of_arms(traces)


def _of_run(document: Document, meta: Mapping[str, Any]) -> Iterator[Point]:
    run = {
        "suite": document.suite,
        "system": document.system,
        "target": document.target,
        "seed": str(document.seed),
        "time_scale": f"{document.time_scale:g}",
    }
    for one in Verdict:
        hit = float(one is document.verdict)
        yield "run_verdict", {**run, "verdict": one.value}, hit
        yield "tests", {"verdict": one.value}, float(document.counts[one])
    yield "run_exit_code", {}, float(document.exit_code)
    yield "run_duration_seconds", {}, document.duration_s
    started = Moments.of(meta).started
    if started is not None:
        yield "run_started_timestamp_seconds", {}, started.timestamp()
    yield "residual_faults", {}, float(len(document.residual))


def _of_judgements(document: Document) -> Iterator[Point]:
    """One law may be judged twice in a test: `number` is its place there."""
    for outcome in document.outcomes:
        for number, row in enumerate(outcome.judgements):
            labels = {
                "test": outcome.nodeid,
                "oracle": row.oracle,
                "claim": row.claim,
                "number": str(number),
            }
            yield "judgement", labels, float(row.verdict.severity)
            yield "judgement_samples", labels, float(row.samples)
            for key in ("value", "limit"):
                if key in row.numbers:
                    yield f"judgement_{key}", labels, float(row.numbers[key])


def _of_faults(document: Document) -> Iterator[Point]:
    for row in document.faults:
        if row.get("kind") in WATCHING or begun(row) is None:
            continue
        names = ("test", "fault_id", "kind", "target")
        labels = {name: str(row.get(name, "")) for name in names}
        yield "fault_held_seconds", labels, held(row) or math.nan
        evidence = row.get("evidence")
        if isinstance(evidence, dict):
            effect = evidence.get("effect")
            measured = {**labels, "measure": str(evidence.get("measure", ""))}
            if isinstance(effect, int | float):
                yield "fault_effect", measured, float(effect)


def _of_arms(traces: Traces) -> Iterator[Point]:
    for test, trace in traces.tests.items():
        for arm in trace.arms.values():
            labels = {"test": test, "arm": arm.name}
            yield "requests", labels, float(len(arm))
            yield "failed_requests", labels, float(arm.failed)
            yield "hit_ratio", labels, arm.hit_rate
            for q in QUANTILES:
                at = {**labels, "q": f"{q:g}"}
                yield "ttft_modelled_seconds", at, arm.quantile("ttft_s", q)
                yield "cache_wait_seconds", at, arm.quantile("wait_s", q)


def _label(text: str) -> str:
    """One that can be written: UTF-8, not endless, without secrets."""
    told = clean_text(text).encode("utf-8", "replace").decode("utf-8")
    return told.replace("\0", "")[:_LABEL_MOST]
