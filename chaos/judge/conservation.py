"""O11: nothing leaks: the system's own ledger, and ours of threads and files."""

from __future__ import annotations

from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

from chaos.judge.limit import at_most, inconclusive, none_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.judge.verdict import Judgement

MAX_SHOWN = 5
_MIB = 1 << 20


def judge_conservation(broken: Sequence[str], *, laws: int = 1) -> Judgement:
    """Bytes, pages and occupancy add up; `broken` says in words which do not."""
    return none_of(
        "O11",
        "ledger: allocated = sum of objects, pages add up",
        len(broken),
        of=laws,
        what="broken laws",
        reason=_shown(broken),
    )


def judge_baseline(
    before: Mapping[str, int],
    after: Mapping[str, int],
    *,
    slack: Mapping[str, int] | None = None,
) -> Judgement:
    """Threads, files, processes, proxies are back to what they were.

    `slack` allows a named count to grow by so much; a count that is missing afterwards
    is unknown, not zero.
    """
    claim = "threads, files, processes, proxies back to baseline"
    missing = sorted(set(before) - set(after))
    if missing or not before:
        reason = f"not counted afterwards: {', '.join(missing)}" if missing else "empty"
        return inconclusive("O11", claim, reason, kind="counter")
    grown = [
        f"{name} {before.get(name, 0)} -> {count}"
        for name, count in sorted(after.items())
        if count > before.get(name, 0) + (slack or {}).get(name, 0)
    ]
    return none_of(
        "O11", claim, len(grown), of=len(after), what="grew", reason=_shown(grown)
    )


def _shown(words: Sequence[str]) -> str:
    rest = len(words) - MAX_SHOWN
    more = [f"and {rest} more"] if rest > 0 else []
    return "; ".join([*words[:MAX_SHOWN], *more])


def judge_growth(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    horizon_s: float,
    limit_bytes: float,
    warm_share: float = 1 / 3,
    needed: int = 30,
) -> Judgement:
    """The resident memory of no role grows: the median slope (Theil-Sen) over time.

    Args:
        series: (instant in seconds, bytes) by role.
        horizon_s: the growth is told for so long a time.
        limit_bytes: growth allowed over the horizon.
        warm_share: the first part of every series, in which caches fill, is left out.
        needed: readings of a role after that.
    """
    claim = "resident memory of every role is level"
    rows = {
        role: points[int(warm_share * len(points)) :] for role, points in series.items()
    }
    fewest = min((len(points) for points in rows.values()), default=0)
    if fewest < needed:
        reason = f"{fewest} of the {needed} readings needed"
        return inconclusive("O11", claim, reason, samples=fewest)
    grown = {role: _slope(points) * horizon_s for role, points in rows.items()}
    role = max(grown, key=lambda name: grown[name])
    return at_most(
        "O11",
        claim,
        grown[role] / _MIB,
        limit_bytes / _MIB,
        samples=fewest,
        unit="MiB",
        label=f"{role} grows",
        reason=f"over {horizon_s:.0f} s, after the first {100 * warm_share:.0f} %",
        numbers={name: value / _MIB for name, value in grown.items()},
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Median of the slopes of all pairs: one reading that is off moves it little."""
    slopes = [
        (after - before) / (late - soon)
        for (soon, before), (late, after) in combinations(points, 2)
        if late > soon
    ]
    return median(slopes) if slopes else 0.0
