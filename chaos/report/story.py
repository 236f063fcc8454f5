"""A run in one screen, for somebody who did not write it.

What was broken, what was expected, what happened, since when, how to repeat it. All
words come from the judgements, receipts and samples of the run; nothing is judged here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaos.judge.verdict import Judgement, Verdict
from chaos.report.laws import law_of, rank
from chaos.report.moments import lasted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.report.document import Document, Outcome
    from chaos.report.moments import Moments
    from chaos.report.traces import Arm, Trace, Traces

    Row = Mapping[str, Any]

WATCHING: Final = frozenset({"tap"})
"""Kinds that only look: nothing is broken by them."""
MOST_FAULTS: Final = 3
MOST_OTHERS: Final = 5
_PHRASES: Final = {
    "kill": "{} was killed",
    "pause": "{} was frozen (it hung)",
    "restart": "{} was restarted",
    "nic_down": "the NIC {} went dead",
    "flap": "the link {} went down and up",
    "partition": "{} was cut off",
    "latency": "traffic of {} was delayed",
    "bandwidth": "traffic of {} was slowed down",
    "blackhole": "traffic of {} was swallowed",
    "reset": "connections of {} were reset",
    "loss": "packets of {} were lost",
    "reorder": "packets of {} were reordered",
    "corrupt": "packets of {} were damaged",
    "failpoint": "{} was made to fail",
    "disk_full": "the disk of {} was filled",
    "slow_disk": "the disk of {} was slowed down",
    "memory": "memory of {} was used up",
    "memory_limit": "memory of {} was limited",
    "cpu": "processors of {} were kept busy",
    "clock_step": "the clock of {} was set",
    "port_taken": "a port of {} was taken",
}
_OWN_PARAMETERS: Final = frozenset({"plan", "undone"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The first screen of a report, as words."""

    verdict: Verdict
    headline: str
    test: str
    broken: tuple[str, ...]
    expected: str
    happened: str
    since: str
    repeat: str
    also: tuple[str, ...] = ()
    """What else was broken in the same test."""
    others: tuple[str, ...] = ()
    """Other tests that did not pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """The first thing in a history that should not have been."""

    at_s: float
    words: str


def story_of(
    document: Document, traces: Traces, moments: Moments, *, defects: Sequence[str] = ()
) -> Story:
    """The story of a run: of its worst test, or of its success."""
    outcome = _worst(document.outcomes)
    if outcome is None or (document.verdict is Verdict.PASS):
        return _calm(document, defects)
    lead = lead_of(outcome)
    faults = faults_of(outcome.nodeid, document.faults, traces)
    trace = traces.of(outcome.nodeid)
    return Story(
        verdict=document.verdict,
        headline=_headline(document, outcome, lead, faults),
        test=outcome.nodeid,
        broken=_broken(faults, moments, defects),
        expected=_expected(lead),
        happened=_happened(outcome, lead),
        since=since(lead, trace, faults, moments),
        repeat=outcome.reproduce,
        also=_also(outcome, lead),
        others=_others(document, outcome),
    )


def lead_of(outcome: Outcome) -> Judgement | None:
    """The broken judgement to be told first: worst, then by what it costs a user.

    None where the test itself broke, or where nothing was judged.
    """
    if outcome.error or not outcome.broken:
        return None
    return min(
        outcome.broken, key=lambda row: (-row.verdict.severity, rank(row.oracle))
    )


def faults_of(
    nodeid: str, faults: Iterable[Row], traces: Traces
) -> list[dict[str, Any]]:
    """The faults of a test in the order of time.

    Receipts come from the results; what a killed run could not write there is taken
    from its history.
    """
    known = traces.of(nodeid).faults
    rows = {name: dict(row) for name, row in known.items()}
    rows |= {str(r["fault_id"]): dict(r) for r in faults if r.get("test") == nodeid}
    return sorted(rows.values(), key=lambda row: begun(row) or math.inf)


def begun(fault: Row) -> float | None:
    """When a fault began, on the clock of the run; None where it never did."""
    at_s = fault.get("injected_at_s")
    return float(at_s) if isinstance(at_s, int | float) else None


def held(fault: Row) -> float | None:
    """For how many seconds a fault was in place."""
    start_s, end_s = begun(fault), fault.get("reverted_at_s")
    known = start_s is not None and isinstance(end_s, int | float)
    return float(end_s) - start_s if known and start_s is not None and end_s else None


def short_target(target: object, most: int = 2) -> str:
    """ "store-0.rail0, store-0.rail1 and 14 more" """
    names = [name for name in str(target).split(",") if name]
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def told(fault: Row) -> str:
    """A fault as a sentence: "store-3 was killed"."""
    phrase = _PHRASES.get(str(fault.get("kind")), f"{fault.get('kind')} on {{}}")
    return phrase.format(short_target(fault.get("target", "?")))


def parameters(fault: Row) -> str:
    """What a fault was told beside its target: "latency_ms 50, jitter_ms 5"."""
    found = fault.get("parameters")
    if not isinstance(found, dict):
        return ""
    words = [f"{k} {v}" for k, v in found.items() if k not in _OWN_PARAMETERS]
    return ", ".join(words)


def proof(fault: Row) -> str:
    """The evidence of a fault in words; without any it says so."""
    evidence = fault.get("evidence")
    if not isinstance(evidence, dict):
        return "no evidence of any effect"
    effect = evidence.get("effect")
    number = f"{effect:,.6g}" if isinstance(effect, int | float) else "?"
    if not effect:
        return f"no effect: {number} {evidence.get('measure')}"
    return f"{evidence.get('measure')}: {number}"


def limit_of(row: Judgement) -> str:
    """A threshold as half a sentence: "limit 0.3 s", "0 allowed", "at least 1"."""
    if row.threshold in ("-", ""):
        return ""
    number = row.threshold.replace(",", "")[:1].isdigit()
    if number and not row.threshold.endswith("allowed"):
        return f"limit {row.threshold}"
    return row.threshold if row.threshold[:1].isdigit() else f"expected {row.threshold}"


def since(
    lead: Judgement | None,
    trace: Trace,
    faults: Sequence[Row],
    moments: Moments,
) -> str:
    """Since when it went wrong: the first sign in the history, or the first fault."""
    acts = [row for row in faults if row.get("kind") not in WATCHING]
    sign = first_sign(lead.oracle, trace, acts) if lead is not None else None
    if sign is not None:
        after = _after(sign.at_s, acts)
        return f"{moments.utc(sign.at_s)}{after}: {sign.words}"
    starts = [at_s for row in acts if (at_s := begun(row)) is not None]
    if starts:
        return (
            f"{moments.utc(min(starts))}, when {told(acts[0])}; the history names no"
            " single request"
        )
    return "the whole test: nothing was broken before, no request stands out"


def first_sign(oracle: str, trace: Trace, acts: Sequence[Row] = ()) -> Sign | None:
    """The first sample or breaker change that contradicts a law; None where none does.

    For O5 and O7 a request is compared with the same one in the other arm.
    """
    numbered = re.match(r"O\d+", oracle)
    finder = _FINDERS.get(numbered[0]) if numbered else None
    if finder is not None:
        signs = [sign for sign in finder(trace) if math.isfinite(sign.at_s)]
        return min(signs, key=lambda sign: sign.at_s, default=None)
    if numbered and numbered[0] == "O6":
        return _breaker_sign(trace, acts)
    return None


def claim_of(nodeid: str) -> str:
    """The name of a test as the claim it is."""
    path, _, name = nodeid.rpartition("::")
    words = (name or path).removeprefix("test_").replace("_", " ")
    return words or nodeid


# -- parts of the story ----------------------------------------------------------------


def _worst(outcomes: Sequence[Outcome]) -> Outcome | None:
    def order(outcome: Outcome) -> tuple[int, int]:
        lead = lead_of(outcome)
        return (-outcome.verdict.severity, rank(lead.oracle) if lead else -1)

    return min(outcomes, key=order, default=None)


def _calm(document: Document, defects: Sequence[str]) -> Story:
    judged = sum(len(one.judgements) for one in document.outcomes)
    acts = [row for row in document.faults if row.get("kind") not in WATCHING]
    if not document.outcomes:
        headline = "Nothing was judged: this run says nothing about the system."
    else:
        headline = (
            f"{judged} judgements of {len(document.outcomes)} tests hold, while"
            f" {len(acts)} faults came and went."
        )
    kinds = Counter(str(row.get("kind")) for row in acts)
    broken = [f"{count} x {kind}" for kind, count in sorted(kinds.items())]
    ends = [
        *(f"A fault was left behind: {one}." for one in document.residual),
        *([f"The run was stopped early: {document.aborted}."] * bool(document.aborted)),
    ]
    first = document.outcomes[0].reproduce if document.outcomes else ""
    return Story(
        verdict=document.verdict,
        headline=" ".join([*ends, headline]),
        test="",
        broken=(*_planted(defects), *(broken or ("nothing",))),
        expected="every law below holds",
        happened="they held" if document.verdict is Verdict.PASS else "see above",
        since="",
        repeat=first if len(document.outcomes) == 1 else "",
    )


def _headline(
    document: Document, outcome: Outcome, lead: Judgement | None, faults: Sequence[Row]
) -> str:
    words = [f"A fault was left behind: {one}." for one in document.residual]
    if document.aborted:
        words.append(f"The run was stopped early: {document.aborted}.")
    if lead is None:
        what = outcome.error or "nothing was judged"
        words.append(f"The test “{claim_of(outcome.nodeid)}” broke: {what}")
    elif lead.verdict is Verdict.INCONCLUSIVE:
        why = lead.reason or lead.observed
        words.append(f"It cannot be told whether “{lead.claim}” holds: {why}.")
    else:
        words.append(f"{_acts(faults)} {_law(lead)}: {_seen(lead)}.")
    return " ".join(words)


def _law(lead: Judgement) -> str:
    """The broken law in plain words; the claim, where there is no law behind it."""
    law = law_of(lead.oracle)
    return f"this did not hold: {law.rstrip('.')}" if law else f"“{lead.claim}” failed"


def _acts(faults: Sequence[Row]) -> str:
    acts = [row for row in faults if row.get("kind") not in WATCHING]
    if not acts:
        return "Nothing was broken on purpose, and yet"
    phrases = list(dict.fromkeys(told(row) for row in acts))[:MOST_FAULTS]
    return f"When {' and '.join(phrases)},"


def _seen(lead: Judgement) -> str:
    limit = limit_of(lead)
    return f"{lead.observed}, {limit}" if limit else lead.observed


def _planted(defects: Sequence[str]) -> list[str]:
    return [f"planted defect of the system under test: {name}" for name in defects]


def _broken(
    faults: Sequence[Row], moments: Moments, defects: Sequence[str]
) -> tuple[str, ...]:
    acts = [row for row in faults if row.get("kind") not in WATCHING]
    lines = []
    for row in acts[:MOST_FAULTS]:
        extra = parameters(row)
        words = f"{told(row)}{f' ({extra})' if extra else ''}"
        when = f"{moments.utc(begun(row))} for {lasted(held(row))}"
        lines.append(f"{words}, {when}; proof: {proof(row)}")
    if len(acts) > MOST_FAULTS:
        lines.append(f"and {len(acts) - MOST_FAULTS} faults more, see the test")
    return (*(lines or ["nothing on purpose"]), *_planted(defects))


def _expected(lead: Judgement | None) -> str:
    if lead is None:
        return "the test comes to its end and judges"
    limit = limit_of(lead)
    return f"{lead.claim}; {limit}" if limit else lead.claim


def _happened(outcome: Outcome, lead: Judgement | None) -> str:
    if lead is None:
        return outcome.error or "nothing was judged"
    if lead.verdict is Verdict.INCONCLUSIVE:
        return f"could not tell: {lead.reason or 'no reason given'}"
    extra = f" ({lead.reason})" if lead.reason else ""
    return f"{lead.observed}{extra}, from {lead.samples} samples"


def _also(outcome: Outcome, lead: Judgement | None) -> tuple[str, ...]:
    rest = [row for row in outcome.broken if row is not lead]
    return tuple(
        f"{row.verdict.value} {row.oracle} {row.claim}: {_seen(row)}"
        + (f" ({row.reason})" if row.reason else "")
        for row in rest
    )


def _others(document: Document, told_already: Outcome) -> tuple[str, ...]:
    rest = [
        one
        for one in document.outcomes
        if one.verdict is not Verdict.PASS and one is not told_already
    ]
    rest.sort(key=lambda one: -one.verdict.severity)
    lines = [f"{one.verdict.value} {claim_of(one.nodeid)}" for one in rest]
    more = len(lines) - MOST_OTHERS
    return (*lines[:MOST_OTHERS], *([f"and {more} more"] if more > 0 else []))


def _after(at_s: float, acts: Sequence[Row]) -> str:
    """ ", 0.21 s after store-3 was killed" """
    before = [(b, row) for row in acts if (b := begun(row)) is not None and b <= at_s]
    if not before:
        return ""
    start_s, row = max(before, key=lambda pair: pair[0])
    return f", {lasted(at_s - start_s)} after {told(row)}"


# -- first signs -----------------------------------------------------------------------


def _wrong(trace: Trace) -> list[Sign]:
    return [
        Sign(at_s=arm.at_s[i], words=f"request {arm.requests[i]} had another output")
        for arm in trace.arms.values()
        for i, wrong in enumerate(arm.wrong)
        if wrong
    ]


def _failures(trace: Trace) -> list[Sign]:
    return [
        Sign(at_s=arm.at_s[i], words=f"request {arm.requests[i]} failed")
        for arm in trace.arms.values()
        for i, ok in enumerate(arm.ok)
        if not ok
    ]


def _waits(trace: Trace) -> list[Sign]:
    return [
        Sign(
            at_s=arm.at_s[i],
            words=f"request {arm.requests[i]} waited {lasted(wait_s)} for the cache,"
            f" T + poll is {lasted(arm.allowed_s[i] + trace.poll_s)}",
        )
        for arm in trace.arms.values()
        for i, wait_s in enumerate(arm.wait_s)
        if wait_s > arm.allowed_s[i] + trace.poll_s
    ]


def _costs(trace: Trace) -> list[Sign]:
    return [
        Sign(
            at_s=fault.at_s[i],
            words=f"request {fault.requests[i]} took {lasted(fault.ttft_s[i])}"
            f" (TTFT, modelled), {lasted(local.ttft_s[j])} without the cache",
        )
        for fault, i, local, j in _pairs(trace, "fault", "local_only")
        if fault.ttft_s[i] > local.ttft_s[j] + fault.allowed_s[i] + trace.poll_s
    ]


def _losses(trace: Trace) -> list[Sign]:
    return [
        Sign(
            at_s=fault.at_s[i],
            words=f"request {fault.requests[i]} reused {fault.reused[i]:.0f} of"
            f" {fault.asked[i]:.0f} tokens, {healthy.reused[j]:.0f} when healthy",
        )
        for fault, i, healthy, j in _pairs(trace, "fault", "healthy")
        if fault.reused[i] < healthy.reused[j]
    ]


def _pairs(trace: Trace, name: str, other: str) -> Iterable[tuple[Arm, int, Arm, int]]:
    """The same request in two arms; the n-th time in one with the n-th in the other."""
    first, second = trace.arms.get(name), trace.arms.get(other)
    if first is None or second is None:
        return
    places = {key: j for j, key in enumerate(_numbered(second.requests))}
    for i, key in enumerate(_numbered(first.requests)):
        if key in places:
            yield first, i, second, places[key]


def _numbered(names: Iterable[str]) -> list[tuple[str, int]]:
    seen: Counter[str] = Counter()
    keys = []
    for name in names:
        seen[name] += 1
        keys.append((name, seen[name]))
    return keys


def _breaker_sign(trace: Trace, acts: Sequence[Row]) -> Sign | None:
    starts = [at_s for row in acts if (at_s := begun(row)) is not None]
    from_s = min(starts, default=-math.inf)
    changes = [
        (change.at_s, engine, change)
        for engine, log in trace.breakers.items()
        for change in log
        if change.at_s >= from_s
    ]
    if not changes:
        return None
    at_s, engine, change = min(changes, key=lambda one: one[0])
    why = f" ({change.reason})" if change.reason else ""
    return Sign(at_s=at_s, words=f"the breaker of {engine} went {change.target}{why}")


_FINDERS: Final = {
    "O1": _wrong,
    "O2": _waits,
    "O3": _wrong,
    "O4": _failures,
    "O5": _costs,
    "O7": _losses,
}
