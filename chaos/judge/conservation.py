"""O11: nothing leaks: the system's own ledger, and ours of threads and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.judge.limit import inconclusive, none_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.judge.verdict import Judgement

MAX_SHOWN = 5


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
