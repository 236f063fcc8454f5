"""OpenMetrics, for a textfile collector or a push gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.exposition import generate_latest

from chaos.canary.render import cells
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from chaos.canary.result import GateJudgement, GateResult

_LABELS = ("rule", "family")


def openmetrics(result: GateResult, *, command: str = "") -> str:
    """The verdict, every rule with its numbers, and the exit code. No timestamps."""
    del command
    registry = CollectorRegistry()
    _verdict(registry, result)
    judged = Gauge(
        "canary_rule",
        "1 for the verdict of a rule, 0 for the two others.",
        (*_LABELS, "verdict"),
        registry=registry,
    )
    numbers = {
        name: Gauge(f"canary_rule_{name}", text, _LABELS, registry=registry)
        for name, text in _NUMBERS.items()
    }
    for one in result.judgements:
        labels = (cells.label(one, result), one.family)
        for verdict in Verdict:
            judged.labels(*labels, verdict.value).set(one.verdict is verdict)
        for name, gauge in numbers.items():
            number = _number(one, name)
            if number is not None:
                gauge.labels(*labels).set(number)
    return str(generate_latest(registry).decode())  # type: ignore[no-untyped-call]


_NUMBERS = {
    "baseline": "The baseline's value, in base units.",
    "canary": "The canary's value, in base units.",
    "change": "Ratio (quantiles, means) or difference (shares), canary to baseline.",
    "change_low": "Lower bound of the change.",
    "change_high": "Upper bound of the change.",
    "needed_samples": "Samples an arm that are still needed for a decision.",
}


def _verdict(registry: CollectorRegistry, result: GateResult) -> None:
    gauge = Gauge(
        "canary_verdict",
        "1 for the verdict of the gate, 0 for the two others.",
        ("policy", "verdict"),
        registry=registry,
    )
    for verdict in Verdict:
        label = cells.plain(result.policy_name)
        gauge.labels(label, verdict.value).set(result.verdict is verdict)
    code = Gauge(
        "canary_exit_code",
        "0 pass, 1 fail, 3 inconclusive, 5 a fault was left behind.",
        registry=registry,
    )
    code.set(result.exit_code)


def _number(one: GateJudgement, name: str) -> float | None:
    return {
        "baseline": one.baseline,
        "canary": one.canary,
        "change": one.estimate,
        "change_low": one.low,
        "change_high": one.high,
        "needed_samples": None if one.needs is None else float(one.needs),
    }[name]
