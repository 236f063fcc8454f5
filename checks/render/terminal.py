"""The terminal: root causes first, one block each, then what could not be told."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from checks.finding import Status
from checks.render.grouping import Cause, Place, causes, folded, unknowns

if TYPE_CHECKING:
    from checks.report import Report

WIDTH = 100
PLACES = 8
_Paint = Callable[[str, str], str]
"""Text, and the status whose colour it takes."""
_COLORS = {
    "FAIL": "31;1",
    "WARN": "33;1",
    "UNKNOWN": "35;1",
    "PASS": "32;1",
    "SKIP": "2",
}
_VERDICTS = {"ready": "PASS", "failed": "FAIL", "undetermined": "UNKNOWN"}


def terminal(report: Report, *, strict: bool = False, color: bool = False) -> str:
    """The whole report as text."""
    paint = _painted if color else _plain
    lines = [
        *_roots(report, paint),
        *_open(report, paint),
        *_notes(report),
        *_counts(report, strict, paint),
    ]
    return "\n".join(lines) + "\n"


def _roots(report: Report, paint: _Paint) -> Iterator[str]:
    for cause in causes(report):
        where = folded(cause.nodes)
        status = paint(f"{cause.status.value:<4}", cause.status.value)
        yield f"{status}  {cause.id}  ({cause.severity.value})  {where}"
        for place in cause.places[:PLACES]:
            yield from _place(place, cause)
        if len(cause.places) > PLACES:
            more = len(cause.places) - PLACES
            yield f"      ... {more} more kinds; see --format json"
        yield from _told("why", cause.why)
        for each in cause.fix:
            yield from _told("fix", each)
        if cause.blocked:
            blocked = ", ".join(f"{name} ({n})" for name, n in cause.blocked.items())
            yield from _told("explains", blocked)
        yield ""


def _place(place: Place, cause: Cause) -> Iterator[str]:
    where = folded(place.subjects)
    if len(cause.places) > 1:
        where = (
            f"{folded(place.nodes, 3)}: {where}" if where else folded(place.nodes, 3)
        )
    if where:
        yield from _told("at", where)
    yield from _told("observed", place.observed)
    if place.expected:
        yield from _told("expected", place.expected)


def _open(report: Report, paint: _Paint) -> Iterator[str]:
    every = unknowns(report)
    if not every:
        return
    optional = set(report.profile.optional)
    yield f"{paint('UNKNOWN', 'UNKNOWN')}  could not be told:"
    for cause in every:
        reason = cause.places[0].observed
        note = " (optional)" if cause.id in optional else ""
        text = f"{cause.id}{note}  {folded(cause.nodes, 3)}: {reason}"
        yield "  " + textwrap.shorten(text, WIDTH - 2, placeholder=" ...")
    yield ""


def _notes(report: Report) -> Iterator[str]:
    for finding in report.findings:
        if finding.waived is not None:
            waived = finding.waived
            yield (
                f"waived: {finding.id} {finding.node} {finding.subject} until "
                f"{waived.until}: {waived.reason}"
            )
    for expired in report.expired:
        yield f"waiver expired: {expired}"
    for fault in report.own_faults:
        yield f"our own fault, please report it: {fault}"


def _counts(report: Report, strict: bool, paint: _Paint) -> Iterator[str]:
    summary = report.summary(strict=strict)
    counts = ", ".join(f"{summary[s.value]} {s.value}" for s in Status)
    yield (
        f"{len(report.nodes)} nodes: {summary['nodes_passing']} pass, "
        f"{summary['nodes_failing']} fail, "
        f"{summary['nodes_undetermined']} undetermined; findings: {counts}"
    )
    verdict = str(summary["verdict"])
    yield f"verdict: {paint(verdict, _VERDICTS[verdict])}"


def _told(word: str, text: str) -> list[str]:
    lead = f"      {word:<9}"
    return textwrap.wrap(
        text or "-",
        WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _painted(text: str, status: str) -> str:
    return f"\x1b[{_COLORS[status]}m{text}\x1b[0m"


def _plain(text: str, status: str) -> str:
    return text
