"""After the fault: when the hit rate is back, and how much a newcomer takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.judge.limit import at_most, inconclusive, number
from chaos.load.sample import answered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.judge.verdict import Judgement
    from chaos.load.sample import Sample

RECOVERED_SHARE = 0.9


def hit_rate(samples: Sequence[Sample]) -> float:
    """Tokens reused / tokens asked, over all answered requests; NaN without any."""
    rows = answered(tuple(samples))
    asked = sum(answer.input_tokens for _, answer in rows)
    used = sum(a.l1_tokens + a.l2_tokens + a.l3_tokens for _, a in rows)
    return used / asked if asked else float("nan")


def recovered_at_s(
    samples: Sequence[Sample], *, former: float, window: int, from_s: float
) -> float:
    """When the hit rate of `window` requests in a row is back at 90 % of the former.

    The instant is the intended start of the last request of that window; infinite when
    it never comes.
    """
    rows = [sample for sample, _ in answered(tuple(samples))]
    after = sorted(
        (sample for sample in rows if sample.intended_s >= from_s),
        key=lambda sample: sample.intended_s,
    )
    for end in range(window, len(after) + 1):
        if hit_rate(after[end - window : end]) >= RECOVERED_SHARE * former:
            return after[end - 1].intended_s
    return float("inf")


def judge_recovery(
    oracle: str,
    samples: Sequence[Sample],
    *,
    former: float,
    healed_at_s: float,
    budget_s: float,
    window: int = 20,
) -> Judgement:
    """The hit rate is back at 90 % of the former within the budget."""
    claim = "hit rate back at 90 % of the former"
    if not former > 0:
        return inconclusive(oracle, claim, "the former hit rate is not known")
    after = [sample for sample in samples if sample.intended_s >= healed_at_s]
    if len(after) < window:
        reason = f"{len(after)} of the {window} samples needed after the fault"
        return inconclusive(oracle, claim, reason, samples=len(after))
    at_s = recovered_at_s(samples, former=former, window=window, from_s=healed_at_s)
    now = hit_rate(after[-window:])
    return at_most(
        oracle,
        claim,
        at_s - healed_at_s,
        budget_s,
        samples=len(after),
        unit="s",
        label="after",
        reason=f"former {number(former, 'share')}, last {number(now, 'share')}",
        numbers={"former": former, "last": now},
    )


def judge_slow_start(
    written_bytes: Mapping[str, int], *, newcomer: str, factor: float = 2.0
) -> Judgement:
    """A store that rejoins empty takes at most `factor` times its fair share (A3)."""
    claim = f"slow start: a newcomer takes <= {factor:g} x its fair share"
    total = sum(written_bytes.values())
    if total == 0 or newcomer not in written_bytes:
        return inconclusive("O7", claim, "nothing was written after it came back")
    share = written_bytes[newcomer] / total
    return at_most(
        "O7",
        claim,
        share,
        factor / len(written_bytes),
        samples=len(written_bytes),
        unit="share",
        label="took",
        kind="counter",
    )
