"""A run in one screen, for somebody who did not write it.

What was broken, what was expected, what happened, since when, how to repeat it. All
words come from the judgements, receipts and samples of the run; nothing is judged here.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaos.judge.verdict import Judgement, Verdict
from chaos.report.fault_words import (
    WATCHING,
    begun,
    faults_of,
    held,
    parameters,
    proof,
    told,
)
from chaos.report.laws import law_of, rank
from chaos.report.moments import lasted
from chaos.report.signs import Sign, first_sign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.report.document import Document, Outcome
    from chaos.report.fault_words import Row
    from chaos.report.moments import Moments
    from chaos.report.traces import Traces

MOST_FAULTS: Final = 3
MOST_ALSO: Final = 3
MOST_OTHERS: Final = 5


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


def story_of(
    document: Document, traces: Traces, moments: Moments, *, defects: Sequence[str] = ()
) -> Story:
    """The story of a run: of its worst test, or of its success."""
    outcome = _worst(document.outcomes)
    if outcome is None or outcome.verdict is Verdict.PASS:
        return _calm(document, defects)
    lead = lead_of(outcome)
    rows = faults_of(outcome.nodeid, document.faults, traces)
    acts = [row for row in rows if row.get("kind") not in WATCHING]
    trace = traces.of(outcome.nodeid)
    sign = first_sign(lead.oracle, trace, acts) if lead is not None else None
    return Story(
        verdict=document.verdict,
        headline=_headline(document, outcome, lead, _causes(sign, acts)),
        test=outcome.nodeid,
        broken=_broken(acts, moments, defects),
        expected=_expected(lead),
        happened=_happened(outcome, lead),
        since=_since(sign, acts, moments),
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
    return min(outcome.broken, key=_order)


def limit_of(row: Judgement) -> str:
    """A threshold as half a sentence: "limit 0.3 s", "0 allowed", "at least 1"."""
    if row.threshold in ("-", ""):
        return ""
    number = row.threshold.replace(",", "")[:1].isdigit()
    if number and not row.threshold.endswith("allowed"):
        return f"limit {row.threshold}"
    return row.threshold if row.threshold[:1].isdigit() else f"expected {row.threshold}"


def _causes(sign: Sign | None, acts: Sequence[Row]) -> list[Row]:
    """The faults that were in place at the first sign; all, where there is none."""
    if sign is None:
        return list(acts)
    before = [row for row in acts if (begun(row) or math.inf) <= sign.at_s]
    active = [
        row
        for row in before
        if not isinstance(end_s := row.get("reverted_at_s"), int | float)
        or end_s >= sign.at_s
    ]
    return active or before[-1:] or list(acts)


def _since(sign: Sign | None, acts: Sequence[Row], moments: Moments) -> str:
    """Since when it went wrong: the first sign in the history, or the first fault."""
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


def counted(number: int, what: str) -> str:
    """ "1 test", "3 tests" """
    return f"{number} {what}{'' if number == 1 else 's'}"


def claim_of(nodeid: str) -> str:
    """The name of a test as the claim it is."""
    path, _, name = nodeid.rpartition("::")
    words = (name or path).removeprefix("test_").replace("_", " ")
    return words or nodeid


def _order(row: Judgement) -> tuple[int, int]:
    doubt = row.verdict is Verdict.INCONCLUSIVE
    return (-row.verdict.severity, rank(row.oracle, doubt=doubt))


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
            f"What was judged holds: {counted(judged, 'judgement')} in"
            f" {counted(len(document.outcomes), 'test')}, while"
            f" {counted(len(acts), 'fault')} came and went."
        )
    kinds = Counter(str(row.get("kind")) for row in acts)
    broken = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
    ends = [
        *(f"A fault was left behind: {one}." for one in document.residual),
        *([f"The run was stopped early: {document.aborted}."] * bool(document.aborted)),
    ]
    single = document.outcomes[0] if len(document.outcomes) == 1 else None
    return Story(
        verdict=document.verdict,
        headline=" ".join([*ends, headline]),
        test=single.nodeid if single is not None else "",
        broken=(broken or "nothing", *_planted(defects)),
        expected="every law below holds",
        happened="they hold" if document.verdict is Verdict.PASS else " ".join(ends),
        since="",
        repeat=single.reproduce if single is not None else "",
    )


def _headline(
    document: Document, outcome: Outcome, lead: Judgement | None, causes: Sequence[Row]
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
        words.append(f"{_acts(causes)} {_law(lead)}: {_seen(lead)}.")
    return " ".join(words)


def _law(lead: Judgement) -> str:
    """The broken law in plain words; the claim, where there is no law behind it."""
    law = law_of(lead.oracle)
    return f"this did not hold: {law.rstrip('.')}" if law else f"“{lead.claim}” failed"


def _acts(acts: Sequence[Row]) -> str:
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
    acts: Sequence[Row], moments: Moments, defects: Sequence[str]
) -> tuple[str, ...]:
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
    lines = [
        f"{row.verdict.value} {row.oracle} {row.claim}: {_seen(row)}"
        + (f" ({row.reason})" if row.reason else "")
        for row in rest
    ]
    more = len(lines) - MOST_ALSO
    return (*lines[:MOST_ALSO], *([f"and {more} more, below"] if more > 0 else []))


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
