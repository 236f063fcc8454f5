"""The plain judge: a number against a limit, three-valued, with words and samples.

All other judges end here, so that every verdict has the same form:
"O2 wait <= T + poll: max 0.214 s of 0.300 s (n=512) PASS".
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.judge.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping


def number(value: float, unit: str = "") -> str:
    """A number as an operator reads it: three digits that matter, then its unit."""
    if not math.isfinite(value):
        return "nothing" if math.isnan(value) else "never"
    if unit == "s":
        return f"{value:.3f} s"
    if unit == "%":
        return f"{100 * value:+.1f} %"
    if unit == "share":
        return f"{100 * value:.1f} %"
    text = str(int(value)) if value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".strip()


def too_few(samples: int, needed: int) -> str:
    """Why there are too few samples, empty when there are enough."""
    if samples >= needed:
        return ""
    return f"{samples} of the {needed} samples needed"


def at_most(
    oracle: str,
    claim: str,
    value: float,
    limit: float,
    *,
    samples: int,
    unit: str = "",
    label: str = "",
    needed: int = 1,
    kind: str = "timing",
    reason: str = "",
    numbers: Mapping[str, float] | None = None,
) -> Judgement:
    """PASS when value <= limit, FAIL above; INCONCLUSIVE with too few samples or NaN.

    A FAIL on too few samples stays a FAIL: one wrong byte is one too many.
    """
    good = value <= limit
    return _judged(
        good=good,
        oracle=oracle,
        claim=claim,
        observed=_observed(value, unit, label),
        threshold=number(limit, unit),
        samples=samples,
        short=too_few(samples, needed),
        unknown=math.isnan(value),
        kind=kind,
        reason=reason,
        numbers={"value": value, "limit": limit, **(numbers or {})},
    )


def at_least(
    oracle: str,
    claim: str,
    value: float,
    limit: float,
    *,
    samples: int,
    unit: str = "",
    label: str = "",
    needed: int = 1,
    kind: str = "timing",
    reason: str = "",
    numbers: Mapping[str, float] | None = None,
) -> Judgement:
    """PASS when value >= limit, FAIL below; too few samples are INCONCLUSIVE."""
    return _judged(
        good=value >= limit,
        oracle=oracle,
        claim=claim,
        observed=_observed(value, unit, label),
        threshold=f"at least {number(limit, unit)}",
        samples=samples,
        short=too_few(samples, needed),
        unknown=math.isnan(value),
        kind=kind,
        reason=reason,
        numbers={"value": value, "limit": limit, **(numbers or {})},
    )


def none_of(
    oracle: str,
    claim: str,
    found: int,
    *,
    of: int,
    what: str,
    needed: int = 1,
    reason: str = "",
    numbers: Mapping[str, float] | None = None,
) -> Judgement:
    """An exact counter that must be 0 among `of` observations."""
    return _judged(
        good=found == 0,
        oracle=oracle,
        claim=claim,
        observed=f"{found} {what}",
        threshold="0 allowed",
        samples=of,
        short=too_few(of, needed),
        unknown=False,
        kind="counter",
        reason=reason,
        numbers={"found": float(found), **(numbers or {})},
    )


def inconclusive(
    oracle: str, claim: str, reason: str, *, samples: int = 0, kind: str = "timing"
) -> Judgement:
    """Could not tell, and why."""
    return Judgement(
        oracle=oracle,
        claim=claim,
        verdict=Verdict.INCONCLUSIVE,
        observed="not judged",
        threshold="-",
        samples=samples,
        reason=reason,
        kind=kind,
    )


def downgraded(judgement: Judgement, reason: str) -> Judgement:
    """The same observation as INCONCLUSIVE; earlier reasons are kept."""
    words = "; ".join(word for word in (reason, judgement.reason) if word)
    return replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=words)


def _observed(value: float, unit: str, label: str) -> str:
    text = number(value, unit)
    return f"{label} {text}".strip() if math.isfinite(value) else text


def _judged(
    *,
    good: bool,
    oracle: str,
    claim: str,
    observed: str,
    threshold: str,
    samples: int,
    short: str,
    unknown: bool,
    kind: str,
    reason: str,
    numbers: Mapping[str, float],
) -> Judgement:
    verdict = Verdict.PASS if good else Verdict.FAIL
    words = [reason] if reason else []
    if unknown or (good and (short or samples == 0)):
        verdict = Verdict.INCONCLUSIVE
        words.insert(0, short or "nothing was observed")
    return Judgement(
        oracle=oracle,
        claim=claim,
        verdict=verdict,
        observed=observed,
        threshold=threshold,
        samples=samples,
        reason="; ".join(words),
        kind=kind,
        numbers=dict(numbers),
    )
