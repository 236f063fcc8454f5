"""O6: the cluster breaker, from its state log and the counters beside it.

It opens within its budget under persistent errors, sends nothing while open, lets one
probe at a time through, closes after recovery, does not flap, and never opens for one
bad endpoint. Instants are seconds on the clock of the run (monotonic, one machine).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from chaos.judge.limit import at_most, inconclusive, none_of
from chaos.judge.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.systems.base import Limits

CLOSED, OPEN, HALF_OPEN = "CLOSED", "OPEN", "HALF_OPEN"
OPEN_FOR_CAP = 12  # 5 s, doubled up to 60 s
JITTER = 0.2
_OPERATOR = "operator"
_LEGAL = {
    (CLOSED, OPEN),
    (OPEN, HALF_OPEN),
    (HALF_OPEN, OPEN),
    (HALF_OPEN, CLOSED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One transition of a breaker."""

    at_s: float
    source: str
    target: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time, as the flight of a probe or an outage."""

    start_s: float
    end_s: float


def changes_of(
    rows: Iterable[Mapping[str, Any]], *, since_s: float = float("-inf")
) -> list[Change]:
    """Reads transitions from an engine's state: `{"at", "from", "to", "reason"}`.

    What the operator's lever did (the local-only arm) and what came before `since_s` is
    left out: neither says anything about the breaker's own decisions.
    """
    found = [
        Change(
            at_s=float(row["at"]),
            source=_state(row["from"]),
            target=_state(row["to"]),
            reason=str(row.get("reason", "")),
        )
        for row in rows
        if float(row["at"]) >= since_s
        and not str(row.get("reason", "")).startswith(_OPERATOR)
    ]
    return sorted(found, key=lambda change: change.at_s)


def open_spans(changes: Sequence[Change], until_s: float) -> list[Span]:
    """When the breaker was OPEN; a span that did not end is cut at `until_s`."""
    spans: list[Span] = []
    since: float | None = None
    for change in changes:
        if change.target == OPEN and since is None:
            since = change.at_s
        elif change.source == OPEN and since is not None:
            spans.append(Span(start_s=since, end_s=change.at_s))
            since = None
    if since is not None and since < until_s:
        spans.append(Span(start_s=since, end_s=until_s))
    return spans


def retrips(changes: Iterable[Change]) -> int:
    """How often a probe failed and the breaker opened again."""
    return sum(_is_retrip(change) for change in changes)


def closing_budget_s(
    changes: Sequence[Change], limits: Limits, *, healed_s: float
) -> float:
    """How long closing may take from the end of the fault: open_for + the probes.

    `open_for` doubles with every probe that the fault failed, up to 12 times itself,
    jittered by 20 %. A probe that may have been under way when the fault ended is the
    fault's too: it may fail up to its deadline later, and `open_for` begins there.
    """
    probe_s = limits.breaker_probe_deadline_s + limits.poll_s
    latest_s = healed_s + limits.breaker_probe_deadline_s
    failed = [
        change.at_s
        for before, change in zip([None, *changes], changes, strict=False)
        if _is_retrip(change)
        and (before is None or before.at_s <= healed_s)
        and change.at_s <= latest_s
    ]
    last_s = max(failed, default=healed_s)
    open_for_s = limits.breaker_open_for_s * min(1 << len(failed), OPEN_FOR_CAP)
    reopened_s = max(0.0, last_s - healed_s) + open_for_s * (1 + JITTER)
    return reopened_s + limits.breaker_probes_to_close * probe_s


def trip_budget_s(limits: Limits, tokens: int) -> tuple[float, str]:
    """How long opening may take under silence, and the formula in words.

    The run of read deadlines that opens it, one after the other, each T and a poll.
    """
    count = limits.breaker_consecutive_deadlines
    each_s = limits.deadline_s(tokens) + limits.poll_s
    words = f"{count} read deadlines x (T {limits.deadline_s(tokens):.3f} s + one poll)"
    return count * each_s, words


def judge_opens(
    changes: Sequence[Change], *, fault_at_s: float, budget_s: float, formula: str = ""
) -> Judgement:
    """Opens within its budget once errors persist; never opening is a FAIL.

    `fault_at_s` is the instant of the first operation that could meet the fault;
    `formula` says in words where the budget comes from.
    """
    claim = f"breaker opens within {formula or 'its budget'}"
    opened = [c.at_s for c in changes if c.target == OPEN and c.at_s >= fault_at_s]
    taken_s = opened[0] - fault_at_s if opened else float("inf")
    return at_most(
        "O6",
        claim,
        taken_s,
        budget_s,
        samples=max(1, len(opened)),
        unit="s",
        label="after",
        reason="" if opened else "it never opened",
    )


def judge_closes(
    changes: Sequence[Change],
    *,
    healed_at_s: float,
    budget_s: float,
    healing_from_s: float = float("inf"),
) -> Judgement:
    """Closes within its budget once the fault is gone; it must have been open.

    A fault of many parts goes part by part from `healing_from_s` on; a breaker that
    closes while the last part goes has taken no time.
    """
    claim = "breaker closes after recovery within its budget"
    begin_s = min(healing_from_s, healed_at_s)
    if _state_at(changes, begin_s) == CLOSED:
        reason = "the breaker was not open when the fault ended"
        return inconclusive("O6", claim, reason)
    closed = [c.at_s for c in changes if c.target == CLOSED and c.at_s >= begin_s]
    taken_s = max(0.0, closed[0] - healed_at_s) if closed else float("inf")
    return at_most(
        "O6",
        claim,
        taken_s,
        budget_s,
        samples=max(1, len(closed)),
        unit="s",
        label="after",
        reason="" if closed else "it never closed",
    )


def judge_silent_while_open(sent: int, *, open_s: float, due: int) -> Judgement:
    """Nothing is sent to the store while open.

    `sent` counts storage operations or packets between two readings taken while the
    breaker was open; `due` counts the requests of that stretch, which would have sent.
    """
    reason = f"open for {open_s:.3f} s, {due} requests due"
    if open_s <= 0 or due == 0:
        reason = "the breaker was not open while requests were due"
        return inconclusive("O6", "nothing sent while open", reason, kind="counter")
    return none_of(
        "O6", "nothing sent while open", sent, of=due, what="operations", reason=reason
    )


def judge_single_probe(probes: Sequence[Span]) -> Judgement:
    """HALF_OPEN admits one probe at a time: no two probes overlap."""
    ordered = sorted(probes, key=lambda probe: probe.start_s)
    overlaps = 0
    latest = float("-inf")
    for probe in ordered:
        overlaps += probe.start_s < latest
        latest = max(latest, probe.end_s)
    return none_of(
        "O6",
        "one probe at a time",
        overlaps,
        of=len(ordered),
        what="overlapping probes",
    )


def judge_no_flapping(changes: Sequence[Change], *, outages: int) -> Judgement:
    """At most one CLOSED -> OPEN per outage; failed probes in between are allowed."""
    claim = "at most one opening per outage"
    illegal = _illegal(changes)
    trips = sum(c.source == CLOSED and c.target == OPEN for c in changes)
    judgement = at_most(
        "O6",
        claim,
        trips,
        outages,
        samples=max(1, len(changes)),
        unit="openings",
        kind="counter",
        reason=f"illegal transitions: {', '.join(illegal)}" if illegal else "",
    )
    if illegal:
        return _failed(judgement)
    return judgement


def judge_stays_closed(
    changes: Sequence[Change], *, faults: int, operations: int, why: str
) -> Judgement:
    """Never opens below its threshold, nor for one bad endpoint.

    Without a fault seen by the engine the claim was not put to the test.
    """
    claim = f"breaker stays closed ({why})"
    if faults == 0:
        reason = "the engine saw no fault"
        return inconclusive("O6", claim, reason, samples=operations, kind="counter")
    opened = sum(change.target == OPEN for change in changes)
    return none_of(
        "O6",
        claim,
        opened,
        of=operations,
        what="openings",
        reason=f"{faults} faults in {operations} operations",
    )


def judge_quarantine(
    quarantined: Iterable[str], *, bad: Iterable[str], taken_s: float, budget_s: float
) -> Judgement:
    """The bad endpoints, and only they, are quarantined within the budget."""
    seen, wanted = set(quarantined), set(bad)
    claim = "only the bad endpoint is quarantined"
    if not wanted:
        return inconclusive("O6", claim, "no bad endpoint was named")
    missing, innocent = sorted(wanted - seen), sorted(seen - wanted)
    words = [f"not quarantined: {', '.join(missing)}"] * bool(missing)
    words += [f"innocent: {', '.join(innocent)}"] * bool(innocent)
    judgement = at_most(
        "O6",
        claim,
        float("inf") if missing else taken_s,
        budget_s,
        samples=len(wanted),
        unit="s",
        label="after",
        reason="; ".join(words),
    )
    return _failed(judgement) if innocent else judgement


def judge_same_recovery(
    taken_s: Mapping[str, float], *, probe_interval_s: float
) -> Judgement:
    """Recovery does not depend on the hit ratio: all within one probe (erpc#1118)."""
    claim = "same recovery time at every hit ratio, one probe allowed"
    if len(taken_s) < 2:
        return inconclusive("O6", claim, "needs at least two hit ratios")
    values = list(taken_s.values())
    return at_most(
        "O6",
        claim,
        max(values) - min(values),
        probe_interval_s,
        samples=len(values),
        unit="s",
        label="spread",
        reason=", ".join(f"{name}: {value:.3f} s" for name, value in taken_s.items()),
    )


def _state(value: object) -> str:
    """CLOSED, OPEN or HALF_OPEN from a name, "BreakerState.OPEN" or the gauge 0/1/2."""
    if isinstance(value, int):
        return (CLOSED, OPEN, HALF_OPEN)[value]
    name = str(value).rpartition(".")[2].upper().replace("-", "_")
    if name not in (CLOSED, OPEN, HALF_OPEN):
        msg = f"breaker state {value!r}: want CLOSED, OPEN or HALF_OPEN"
        raise ValueError(msg)
    return name


def _is_retrip(change: Change) -> bool:
    return change.source == HALF_OPEN and change.target == OPEN


def _state_at(changes: Sequence[Change], at_s: float) -> str:
    state = CLOSED
    for change in changes:
        if change.at_s <= at_s:
            state = change.target
    return state


def _illegal(changes: Sequence[Change]) -> list[str]:
    bad = [
        f"{c.source}->{c.target}" for c in changes if (c.source, c.target) not in _LEGAL
    ]
    bad += [
        f"{before.target} then {after.source}->{after.target}"
        for before, after in pairwise(changes)
        if before.target != after.source
    ]
    return bad


def _failed(judgement: Judgement) -> Judgement:
    return replace(judgement, verdict=Verdict.FAIL)
