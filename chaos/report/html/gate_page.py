"""The page of a canary gate: may this build go on, and which numbers say so."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaos.judge.verdict import Verdict
from chaos.report.html.forest import Branch
from chaos.report.html.page import (
    StoryRow,
    Table,
    plot_view,
    render_page,
    short,
    story_rows,
)
from chaos.report.laws import THE_LAW
from chaos.report.story import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.canary.result import GateJudgement, GateResult
    from chaos.report.html.drawing import Plot

_FAMILIES: Final = {
    "invariant": "must never happen",
    "validity": "is the comparison valid?",
    "slo": "absolute limits",
    "relative": "canary against baseline",
}
_CAPTIONS: Final = {
    "forest": "Each comparison with its interval. Left of the limit is good for times.",
    "time": "Both arms over time, from the beginning of the load.",
    "quantiles": "Quantiles of both arms; the slow tail is stretched.",
}
MOST_ALSO: Final = 4
_LIMIT: Final = re.compile(r"[<>]= ?([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)(x| pp)")
"""`<= 1.1x`, `>= -0.75 pp`: how the gate writes the limit of a comparison."""
_POINTS: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFacts:
    """Everything that a page of the gate is made of."""

    result: GateResult
    plots: Sequence[Plot] = ()
    arms: Mapping[str, Sequence[tuple[str, str]]] | None = None
    """Numbers of the arms beside their `meta`: name and value by arm."""
    repeat: str = ""
    missing: Sequence[str] = ()
    """What could not be shown, and why."""

    @property
    def lead(self) -> GateJudgement | None:
        """What a reader must know first; None where everything passed."""
        first = next(iter(self.result.worst_first), None)
        return None if first is None or first.verdict is Verdict.PASS else first


def gate_page(facts: GateFacts) -> str:
    """The whole page."""
    result = facts.result
    view = {
        "title": f"canary {result.verdict.value}",
        "policy": result.policy_name or "?",
        "verdict_word": result.verdict.value,
        "headline": short(headline(facts)),
        "story": story_rows(_story(facts)),
        "facts": _numbers(result),
        "alarms": [short(line) for line in (*facts.missing, *result.notes)],
        "plots": [
            plot_view(plot, _CAPTIONS.get(plot.name.rpartition("-")[2], plot.title))
            for plot in facts.plots
        ],
        "tables": [table.view() for table in _tables(result)],
        "arms": arms_table(facts).view(),
        "law": THE_LAW,
        "exit_code": result.exit_code,
    }
    return render_page("gate.html.j2", view)


def headline(facts: GateFacts) -> str:
    """The verdict in one sentence."""
    result, lead = facts.result, facts.lead
    if lead is None:
        if result.verdict is Verdict.PASS:
            rules = counted(len(result.judgements), "rule")
            return f"The canary may go on: {rules} hold."
        return "Nothing was judged: this says nothing about the canary."
    if lead.verdict is Verdict.FAIL:
        early = " early" if result.aborted_early else ""
        return f"The canary is stopped{early}: {lead.name}, {seen(lead)}."
    return f"It cannot be told whether the canary is good: {_why(lead)}."


def seen(row: GateJudgement) -> str:
    """ "0.41 -> 0.52, estimate 1.27 [1.19, 1.35], limit at most 1.1" """
    words = []
    if row.baseline is not None and row.canary is not None:
        words.append(f"{figure(row.baseline)} → {figure(row.canary)}")
    elif row.canary is not None:
        words.append(f"canary {figure(row.canary)}")
    if row.estimate is not None:
        words.append(f"estimate {figure(row.estimate)} {interval(row)}".strip())
    words.append(f"allowed {row.limit}")
    return ", ".join(words)


def interval(row: GateJudgement) -> str:
    """ "[1.19, 1.35]", "" where there is none."""
    if row.low is None and row.high is None:
        return ""
    return f"[{figure(row.low)}, {figure(row.high)}]"


def figure(value: float | None) -> str:
    """A number with four digits that matter; "?" for none."""
    return "?" if value is None or not math.isfinite(value) else f"{value:.4g}"


def branches(result: GateResult) -> tuple[list[Branch], list[Branch]]:
    """The relative judgements as ratios and as differences."""
    ratios: list[Branch] = []
    differences: list[Branch] = []
    for row in result.of("relative"):
        if row.estimate is None:
            continue
        limit, is_difference = _limit(row)
        branch = Branch(
            name=f"{row.name} ({row.verdict.value})",
            verdict=row.verdict.value,
            estimate=row.estimate,
            low=math.nan if row.low is None else row.low,
            high=math.nan if row.high is None else row.high,
            limit=limit,
            words=seen(row),
        )
        (differences if is_difference else ratios).append(branch)
    return ratios, differences


def _limit(row: GateJudgement) -> tuple[float, bool]:
    """The limit as a number, NaN for none, and whether a difference is compared."""
    found = _LIMIT.match(row.limit)
    if found is None:
        return math.nan, row.metric.endswith("_rate")
    is_difference = found[2] == " pp"
    return float(found[1]) * (_POINTS if is_difference else 1), is_difference


def _why(row: GateJudgement) -> str:
    needs = f"; {row.needs} samples an arm are still needed" if row.needs else ""
    return f"{row.name}: {row.reason or 'no reason given'}{needs}"


def _story(facts: GateFacts) -> list[StoryRow]:
    result, lead = facts.result, facts.lead
    bad = [row for row in result.worst_first if row.verdict is not Verdict.PASS]
    also = [f"{row.verdict.value} {row.name}: {_briefly(row)}" for row in bad[1:]]
    more = len(also) - MOST_ALSO
    also[MOST_ALSO:] = [f"and {more} more, below"] if more > 0 else []
    rows = [
        StoryRow(name="Compared", lines=_compared(result)),
        StoryRow(
            name="Expected",
            lines=(f"{lead.name}: {lead.limit}" if lead else "every rule holds",),
        ),
        StoryRow(name="Happened", lines=(_told(lead) if lead else "they hold",)),
        StoryRow(name="Next", lines=(_next(result),)),
        StoryRow(name="Repeat", lines=(facts.repeat,), code=True),
        StoryRow(name="Also", lines=tuple(also)),
    ]
    unclear = lead is not None and lead.verdict is Verdict.INCONCLUSIVE
    return [rows[2], *rows[:2], *rows[3:]] if unclear else rows


def _told(row: GateJudgement) -> str:
    """INCONCLUSIVE tells its reason first."""
    if row.verdict is Verdict.INCONCLUSIVE:
        return f"could not tell: {_why(row)} ({seen(row)})"
    reason = f"; {row.reason}" if row.reason else ""
    return f"{seen(row)}{reason} (n = {row.n_baseline} and {row.n_canary})"


def _briefly(row: GateJudgement) -> str:
    if row.verdict is Verdict.INCONCLUSIVE and row.reason:
        return row.reason
    return seen(row)


def _compared(result: GateResult) -> tuple[str, ...]:
    return tuple(
        f"{name}: {meta.get('system', '?')} {meta.get('build', '')}".strip()
        for name, meta in result.arms.items()
    )


def _next(result: GateResult) -> str:
    if result.verdict is Verdict.PASS:
        return "go on with the rollout"
    if result.verdict is Verdict.FAIL:
        return "roll back, and look at what differs between the builds"
    if result.on_inconclusive == "warn":
        return "the policy lets it pass with a warning; nobody knows whether it is good"
    if result.extend_by:
        return f"measure {result.extend_by} samples an arm more, then judge again"
    return "blocked: more samples would not help, see the reasons"


def _numbers(result: GateResult) -> list[str]:
    counts = {one: sum(j.verdict is one for j in result.judgements) for one in Verdict}
    words = ", ".join(f"{n} {one.value}" for one, n in counts.items() if n)
    found = [
        f"{counted(len(result.judgements), 'rule')}: {words or 'none'}",
        f"policy {result.policy_name or '?'}",
        f"seed {result.seed}",
        f"when inconclusive: {result.on_inconclusive}",
    ]
    if result.aborted_early:
        found.append("stopped early by the always-valid test")
    if _modelled(result):
        found.append("TTFT is modelled; waits for the cache are real")
    return found


def _modelled(result: GateResult) -> bool:
    return any(is_modelled(meta) for meta in result.arms.values())


def is_modelled(meta: Mapping[str, Any]) -> bool:
    """Whether an arm's TTFT comes from a model of prefill: that of the reference."""
    return "refimpl" in str(meta.get("system", "")).lower()


def _tables(result: GateResult) -> list[Table]:
    return [
        Table(
            caption=f"{family}: {words}",
            columns=(
                *("rule", "verdict", "note", "baseline", "canary", "estimate"),
                *("interval", "limit", "p (Holm)", "detectable", "n"),
            ),
            rows=tuple(_row(row) for row in result.worst_first if row.family == family),
        )
        for family, words in _FAMILIES.items()
        if any(row.family == family for row in result.judgements)
    ]


def _row(row: GateJudgement) -> tuple[str, ...]:
    def maybe(value: float | None) -> str:
        return "" if value is None else figure(value)

    needs = f"; needs {row.needs} more an arm" if row.needs else ""
    return (
        row.name,
        row.verdict.value,
        f"{row.reason}{needs}",
        maybe(row.baseline),
        maybe(row.canary),
        maybe(row.estimate),
        interval(row),
        row.limit,
        maybe(row.adjusted_p),
        maybe(row.detectable),
        f"{row.n_baseline} / {row.n_canary}",
    )


def arms_table(facts: GateFacts) -> Table:
    """What each arm was, and its plain numbers."""
    names = list(facts.result.arms) or list(facts.arms or {})
    values: dict[str, dict[str, str]] = {}
    for arm in names:
        meta = facts.result.arms.get(arm, {})
        told = [(k, str(v)) for k, v in meta.items() if not isinstance(v, dict | list)]
        for key, value in (*told, *((facts.arms or {}).get(arm, ()))):
            values.setdefault(key, {})[arm] = value
    return Table(
        caption="The arms",
        columns=("what", *names),
        rows=tuple(
            (key, *(by_arm.get(name, "") for name in names))
            for key, by_arm in values.items()
        ),
    )
