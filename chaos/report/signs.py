"""Since when it went wrong: the first sample of a history that contradicts a law."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaos.report.fault_words import begun
from chaos.report.moments import lasted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos.report.fault_words import Row
    from chaos.report.traces import Arm, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """The first thing in a history that should not have been."""

    at_s: float
    words: str


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
