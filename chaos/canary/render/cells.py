"""Numbers of a judgement as people read them; the same in every shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos.judge.verdict import Verdict
from chaos.report.redaction import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.canary.result import GateJudgement, GateResult

_KNOWN = {"time scale": "time_scale", "seed": "seed"}


def is_ratio(judgement: GateJudgement) -> bool:
    """Whether its estimate is canary / baseline and not a difference of shares."""
    return judgement.family == "relative" and judgement.limit.endswith("x")


def is_share(judgement: GateJudgement) -> bool:
    return judgement.family == "relative" and judgement.limit.endswith("pp")


def value(judgement: GateJudgement, number: float | None) -> str:
    """One arm's value in its own unit, "-" where there is none."""
    if number is None:
        return "-"
    if is_share(judgement):
        return f"{number * 100:.4g} %"
    if judgement.family == "invariant":
        return f"{number:.0f}"
    return f"{number:.4g}{_unit(judgement)}"


def change(judgement: GateJudgement) -> str:
    """The estimate with its bounds: `+3.1 % [-0.4, +6.8]`, `+0.02 pp [...]`."""
    if judgement.estimate is None:
        return "-"
    if not (is_ratio(judgement) or is_share(judgement)):
        return _absolute(judgement)
    unit = "%" if is_ratio(judgement) else "pp"
    numbers = [_points(judgement, x) for x in (judgement.low, judgement.high)]
    return f"{_points(judgement, judgement.estimate)} {unit} [{', '.join(numbers)}]"


def seen(judgement: GateJudgement) -> str:
    """The smallest true change that would have shown: `sees +4.2 %`."""
    if judgement.detectable is None:
        return ""
    unit = "%" if is_ratio(judgement) else "pp"
    return f"{_points(judgement, judgement.detectable)} {unit}"


def rows(judgement: GateJudgement) -> str:
    """`2000 pairs`, `10000 / 9998`, "" where no rows were counted."""
    if not (judgement.n_baseline or judgement.n_canary):
        return ""
    if judgement.n_baseline == judgement.n_canary:
        pairs = " pairs" if judgement.design == "paired" else ""
        return f"{judgement.n_canary}{pairs}"
    return f"{judgement.n_baseline} / {judgement.n_canary}"


def reason(judgement: GateJudgement) -> str:
    """Why, in one line without secrets."""
    return plain(judgement.reason)


def plain(text: str) -> str:
    """One line of printable signs, without secrets."""
    line = clean_text(" ".join(text.split()))
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def label(judgement: GateJudgement, result: GateResult) -> str:
    """The rule's name; a TTFT that comes from a model of prefill says so."""
    modelled = judgement.metric == "ttft_s" and is_modelled(result)
    return plain(judgement.name) + (" (modelled)" if modelled else "")


def is_modelled(result: GateResult) -> bool:
    """Whether the prefill in an arm is a timed model: that of the reference system."""
    systems = [str(meta.get("system", "")) for meta in result.arms.values()]
    return any("refimpl" in system.lower() for system in systems)


def arms(result: GateResult) -> list[str]:
    """What the arms were: `baseline: system refimpl, build v1, 2000 rows`."""
    return [
        f"{plain(name)}: {facts}"
        for name, meta in result.arms.items()
        if (facts := _facts(meta))
    ]


def _facts(meta: Mapping[str, Any]) -> str:
    told = [f"{k} {meta[k]}" for k in ("system", "build") if meta.get(k)]
    if isinstance(meta.get("rows"), int):
        told.append(f"{meta['rows']} rows")
    told += [f"{k} {meta[v]}" for k, v in _KNOWN.items() if meta.get(v) is not None]
    return plain(", ".join(told))[:400]


def headline(result: GateResult) -> str:
    """The verdict in a sentence: what decides, in numbers."""
    judged = result.judgements
    counts = {one: sum(j.verdict is one for j in judged) for one in Verdict}
    told = ", ".join(f"{counts[one]} {one.value}" for one in reversed(Verdict))
    early = ", stopped early" if result.aborted_early else ""
    return f"{result.verdict.value} (policy {plain(result.policy_name)}: {told}{early})"


def next_step(result: GateResult) -> str:
    """What to do about an open verdict; "" for one that is decided."""
    if result.verdict is not Verdict.INCONCLUSIVE:
        return ""
    if result.extend_by is not None:
        more = f"{result.extend_by} more samples an arm would decide it"
    else:
        more = "more samples alone will not decide it: see the reasons"
    if result.on_inconclusive == "warn":
        return (
            f"WARNING: inconclusive, and let through by --on-inconclusive warn; {more}"
        )
    return more


def _unit(judgement: GateJudgement) -> str:
    """Units stand last in the names of metrics."""
    unit = judgement.metric.rpartition("_")[2]
    return f" {unit}" if unit in ("s", "ms") else ""


def _absolute(judgement: GateJudgement) -> str:
    told = value(judgement, judgement.estimate)
    if judgement.low is None and judgement.high is None:
        return told
    low, high = (_bound(x) for x in (judgement.low, judgement.high))
    return f"{told} [{low}, {high}]"


def _bound(number: float | None) -> str:
    return "?" if number is None else f"{number:.4g}"


def _points(judgement: GateJudgement, number: float | None) -> str:
    if number is None:
        return "?"
    points = (number - 1) * 100 if is_ratio(judgement) else number * 100
    return f"{points:+.3g}"
