"""Findings as judgements: one for wrong bytes, one for what was lost, one for the rest.

What a schedule expects is known of its system: it is told, and is no news either way.
A play of which nothing was read, or that did not come to its end, proves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.correctness.checker import check
from chaos.correctness.findings import WRONG_BYTES, Finding, Kind
from chaos.judge.limit import downgraded, none_of
from chaos.judge.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from chaos.correctness.laws import Laws
    from chaos.correctness.player import Played

_LOST: Final = frozenset({Kind.ACK_LOSS, Kind.UNREADABLE})
_REST: Final = frozenset(set(Kind) - WRONG_BYTES - _LOST)
_SHOWN: Final = 3


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
    known = played.schedule.expects if expects is None else expects
    found = findings_of(played, laws)
    judged = [
        _judged("O1", "no read gives wrong bytes", WRONG_BYTES, found, known, played),
        _judged(
            "ack", "what was acknowledged is readable", _LOST, found, known, played
        ),
        _judged("order", "what is gone stays gone", _REST, found, known, played),
    ]
    why = _unproved(played)
    return [_not_proved(judgement, why) for judgement in judged]


def _judged(
    oracle: str,
    claim: str,
    kinds: frozenset[Kind],
    found: Sequence[Finding],
    known: Collection[str],
    played: Played,
) -> Judgement:
    mine = [finding for finding in found if finding.kind in kinds]
    news = [finding for finding in mine if finding.kind.value not in known]
    words = [str(finding) for finding in news[:_SHOWN]]
    rest = len(news) - _SHOWN
    words += [f"and {rest} more"] if rest > 0 else []
    old = len(mine) - len(news)
    words += [f"{old} findings of kinds known of this system"] if old else []
    of = played.acknowledged if kinds is _LOST else played.reads
    return none_of(
        oracle,
        claim,
        len(news),
        of=of,
        what="findings",
        reason="; ".join(words),
        numbers={"known": float(old)},
    )


def _unproved(played: Played) -> str:
    """Why a play proves nothing, "" when it does."""
    if played.halted:
        return f"it was halted: {played.halted}"
    if played.not_here:
        return str(played.not_here[0])
    if not played.settled:
        return "the cluster did not become whole again after the last step"
    return ""


def _not_proved(judgement: Judgement, why: str) -> Judgement:
    """No PASS of a play that did not come to its end; what was found stays found."""
    if why and judgement.verdict is Verdict.PASS:
        return downgraded(judgement, why)
    return judgement
