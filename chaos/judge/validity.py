"""Whether a run may be judged at all: the generator kept up, the fault had effect.

A lagging generator cannot accuse nor acquit in timing: those verdicts become
INCONCLUSIVE. Counters are exact and stay. A fault without effect proves nothing, so a
PASS under it becomes INCONCLUSIVE; a FAIL stays, whoever caused it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.judge.limit import downgraded, number
from chaos.judge.verdict import Judgement, Verdict
from chaos.load.sample import LoadRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos.faults.base import Receipt
    from chaos.systems.base import Limits

LAG_SHARE = 0.1
MIN_ACHIEVED = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """What the generator did, against the smallest threshold that is judged."""

    lag_p99_s: float
    lag_limit_s: float
    achieved: float
    sent: int

    @property
    def problem(self) -> str:
        """Empty when the timing of this run may be judged."""
        if self.sent == 0:
            return "no request was sent"
        if self.achieved < MIN_ACHIEVED:
            return (
                f"the generator achieved {100 * self.achieved:.1f} % of the offered "
                f"load, {100 * MIN_ACHIEVED:.0f} % needed"
            )
        if self.lag_p99_s > self.lag_limit_s:
            return (
                f"the generator lagged {number(self.lag_p99_s, 's')} (p99), "
                f"{number(self.lag_limit_s, 's')} allowed"
            )
        return ""


def validity_of(runs: LoadRun | Sequence[LoadRun], smallest_limit_s: float) -> Validity:
    """The worst of the runs; `smallest_limit_s` is the smallest threshold judged."""
    chosen = [runs] if isinstance(runs, LoadRun) else list(runs)
    return Validity(
        lag_p99_s=max((run.lag_p99_s for run in chosen), default=float("inf")),
        lag_limit_s=LAG_SHARE * smallest_limit_s,
        achieved=min((run.achieved_share for run in chosen), default=0.0),
        sent=min((run.sent for run in chosen), default=0),
    )


def smallest_limit_s(limits: Limits) -> float:
    """The smallest threshold of O2 and O5: T of an empty prompt + one poll."""
    return limits.deadline_s(0) + limits.poll_s


def judge_generator(validity: Validity) -> Judgement:
    """The generator's own verdict: PASS or INCONCLUSIVE, it has no law to break."""
    good = not validity.problem
    return Judgement(
        oracle="validity",
        claim="the load generator kept up",
        verdict=Verdict.PASS if good else Verdict.INCONCLUSIVE,
        observed=(
            f"lag p99 {number(validity.lag_p99_s, 's')}, "
            f"{100 * validity.achieved:.1f} % sent"
        ),
        threshold=f"{number(validity.lag_limit_s, 's')}, {100 * MIN_ACHIEVED:.0f} %",
        samples=validity.sent,
        reason=validity.problem,
        numbers={"lag_p99_s": validity.lag_p99_s, "achieved": validity.achieved},
    )


def judge_evidence(receipts: Iterable[Receipt]) -> Judgement:
    """Every fault had a measured effect, and nothing of it is left."""
    rows = list(receipts)
    idle = [f"{row.kind} {row.target}" for row in rows if not row.had_effect]
    left = [f"{row.kind} {row.target}: {row.residual}" for row in rows if row.residual]
    verdict = Verdict.FAIL if left else Verdict.PASS
    if not left and (idle or not rows):
        verdict = Verdict.INCONCLUSIVE
    words = [f"no effect of {name}" for name in idle]
    words += [f"left behind: {name}" for name in left]
    return Judgement(
        oracle="evidence",
        claim="every fault had effect and is gone",
        verdict=verdict,
        observed=f"{len(rows) - len(idle)} of {len(rows)} proved",
        threshold="all",
        samples=len(rows),
        reason="; ".join(words) or ("" if rows else "no fault was injected"),
        kind="counter",
    )


def judge_leases(broken: Iterable[str], hosts: int) -> Judgement:
    """No host healed itself behind our back, which would make every PASS a guess."""
    problems = list(broken)
    return Judgement(
        oracle="evidence",
        claim="every host held its lease",
        verdict=Verdict.INCONCLUSIVE if problems else Verdict.PASS,
        observed=f"{len(problems)} lost",
        threshold="none",
        samples=hosts,
        reason="; ".join(problems),
        kind="counter",
    )


def gated(
    judgement: Judgement,
    *,
    validity: Validity | None = None,
    receipts: Sequence[Receipt] = (),
) -> Judgement:
    """A judgement after what is known about the run it came from."""
    timing = judgement.kind == "timing"
    if validity is not None and validity.problem and timing:
        return downgraded(judgement, validity.problem)
    idle = [f"{row.kind} {row.target}" for row in receipts if not row.had_effect]
    if idle and judgement.verdict is Verdict.PASS:
        return downgraded(judgement, f"no effect of {', '.join(idle)}")
    return judgement


def scheduling_allowance_s(run: LoadRun, limits: Limits) -> float:
    """What this machine's scheduler may add to one wait, as measured by this run.

    The largest lag of the generator, which sleeps on the same clock and the same cores
    as the engines; never more than one poll, so it cannot hide a broken deadline. It is
    printed beside the law, not inside it.
    """
    if not run.lag_s:
        return 0.0
    return max(0.0, min(run.lag_max_s, limits.poll_s))
