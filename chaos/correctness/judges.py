"""Findings as judgements: one for wrong bytes, one for what was lost, one for the rest.

What a schedule expects is known of its system: it is told, and is no news either way.
A play of which nothing was read, or that did not come to its end, proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaos.correctness import operation as record
from chaos.correctness.checker import check
from chaos.correctness.findings import WRONG_BYTES, Finding, Kind
from chaos.correctness.laws import laws_of
from chaos.correctness.schedule import parse_schedule
from chaos.correctness.spaces import laws_mode
from chaos.history.history import is_truncated, limits_of
from chaos.judge.limit import downgraded, none_of
from chaos.judge.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from chaos.correctness.laws import Laws
    from chaos.correctness.operation import Operation
    from chaos.correctness.player import Played
    from chaos.history.history import Event

_LOST: Final = frozenset(
    {Kind.ACK_LOSS, Kind.UNREADABLE, Kind.UNFINISHED, Kind.REMOVED_LATE}
)
_REST: Final = frozenset(set(Kind) - WRONG_BYTES - _LOST)
_SHOWN: Final = 3
_ANSWERS: Final = frozenset({0, -704, -712})
"""Codes of a read that tell something: there, not there, gone with its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is judged: findings among observations, and what is known already."""

    found: tuple[Finding, ...]
    expects: tuple[str, ...]
    reads: int
    acknowledged: int
    unproved: str


def findings_of(played: Played, laws: Laws) -> list[Finding]:
    """What a play showed that no correct cache can."""
    return check(played.operations, played.windows, laws)


def judge_correctness(
    played: Played, laws: Laws, *, expects: Collection[str] | None = None
) -> list[Judgement]:
    """All that was promised of single values.

    Args:
        played: what was seen.
        laws: of the system.
        expects: kinds that are known of it; those of the schedule by default.
    """
    known = played.schedule.expects if expects is None else tuple(expects)
    found = findings_of(played, laws)
    return _judged(_case(played.operations, found, known, played.unproved))


def why_untold(played: Played) -> str:
    """Why a play without a finding says nothing, "" when it does.

    It did not come to its end, or no read at its end was answered, be it with a miss:
    calls that break in the harness find nothing either.
    """
    answered = _answered(played.operations)
    return played.unproved or ("" if answered else "no last read was answered")


def _answered(operations: Sequence[Operation]) -> int:
    """Keys of which the last look, after all had healed, told something."""
    reads = (one.codes for one in operations if one.do == "get" and one.quiet)
    return sum(code in _ANSWERS for codes in reads for code in codes)


def rejudged(events: Sequence[Event]) -> list[Judgement]:
    """The same from a stored history of one test; parts that were cut are left out."""
    limits = limits_of(events)
    judged: list[Judgement] = []
    for play in record.plays_of(events):
        if limits is None or play[0].value["cut"]:
            continue
        schedule = parse_schedule(str(play[0].value["schedule"]))
        laws = laws_of(
            schedule.system, laws_mode(schedule.system, schedule.shape), limits
        )
        operations = record.operations_of(play)
        found = check(operations, record.windows_of(play), laws)
        cut_off = "the history is not whole" if is_truncated(play) else ""
        unproved = record.unproved_of(play) or cut_off
        judged += _judged(_case(operations, found, schedule.expects, unproved))
    return judged


def _case(
    operations: Sequence[Operation],
    found: Sequence[Finding],
    expects: tuple[str, ...],
    unproved: str,
) -> _Case:
    answered = _answered(operations)
    silent = "" if answered else "no last read was answered"
    return _Case(
        found=tuple(found),
        expects=expects,
        reads=max(answered, record.good_keys(operations, "get")),
        acknowledged=record.good_keys(operations, "put"),
        unproved=unproved or silent,
    )


def _judged(case: _Case) -> list[Judgement]:
    rows = [
        _of("O1", "no read gives wrong bytes", WRONG_BYTES, case.reads, case),
        _of("ack", "what was acknowledged is there", _LOST, case.acknowledged, case),
        _of("order", "what is gone stays gone", _REST, case.reads, case),
    ]
    return [_not_proved(row, case.unproved) for row in rows]


def _of(
    oracle: str, claim: str, kinds: frozenset[Kind], observed: int, case: _Case
) -> Judgement:
    mine = [finding for finding in case.found if finding.kind in kinds]
    news = [finding for finding in mine if finding.kind.value not in case.expects]
    words = [str(finding) for finding in news[:_SHOWN]]
    rest, old = len(news) - _SHOWN, len(mine) - len(news)
    words += [f"and {rest} more"] if rest > 0 else []
    words += [f"{old} findings of kinds known of this system"] if old else []
    return none_of(
        oracle,
        claim,
        len(news),
        of=observed,
        what="new findings" if old else "findings",
        reason="; ".join(words),
        numbers={"known": float(old)},
    )


def _not_proved(judgement: Judgement, why: str) -> Judgement:
    """No PASS of a play that did not come to its end; what was found stays found."""
    if why and judgement.verdict is Verdict.PASS:
        return downgraded(judgement, why)
    return judgement
