"""The judges of a played scenario: the oracles it asked for, and those nobody may skip.

Always judged: steady before, the limits during, whether it came to its end, whether it
recovered. Undoing that breaks the system, or a system that stays unwell afterwards, is
"not recovered" and FAIL (Chaos Toolkit called such runs successful).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.history.checkers import (
    judge_contiguous_reuse,
    judge_no_failures,
    judge_wrong_bytes,
)
from chaos.judge.conservation import judge_conservation
from chaos.judge.latency import judge_cache_wait, judge_cost_per_request
from chaos.judge.limit import downgraded, inconclusive, none_of
from chaos.judge.recovery import hit_rate, judge_recovery
from chaos.judge.validity import (
    gated,
    scheduling_allowance_s,
    smallest_limit_s,
    validity_of,
)
from chaos.judge.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.load.sample import LoadRun, Sample
    from chaos.scenario.player import Played
    from chaos.scenario.schema import Oracle
    from chaos.systems.base import Cluster

RECOVERY_WINDOW = 20
"""Requests in a row whose hit rate is compared with the former one."""


def judge_played(played: Played, cluster: Cluster) -> list[Judgement]:
    """Every judgement on a play; the evidence of its faults is judged by the caller,
    who has the receipts."""
    if played.run is None:
        return [_not_begun(played)]
    judged = [_before(played), *_ending(played), *_during(played)]
    judged += _asked(played, played.run, cluster)
    return [*judged, _recovered(played)]


def _not_begun(played: Played) -> Judgement:
    claim = "steady state before anything is broken"
    if played.halted is not None:
        return inconclusive("steady", claim, f"nothing was broken: {played.halted}")
    reason = played.before.reason if played.before is not None else "it was not looked"
    return inconclusive("steady", claim, f"nothing was broken: {reason}", samples=1)


def _before(played: Played) -> Judgement:
    assert played.before is not None
    return played.before


def _ending(played: Played) -> list[Judgement]:
    """Whether it came to its end, and if not, why not."""
    claim = "played to its end"
    found = [
        inconclusive("scenario", claim, f"not injected: {what}", kind="counter")
        for what in (*played.not_injected, *played.not_here)
    ]
    if played.halted is not None:
        found.append(inconclusive("scenario", claim, str(played.halted)))
    if played.tripped is not None:
        found.append(_broken("abort", "no abort condition trips", played.tripped))
    return found or [_blind(played)]


def _blind(played: Played) -> Judgement:
    """No condition tripped, which only counts where it could have been seen."""
    conditions = played.abort_conditions
    claim = "no abort condition trips"
    if not conditions:
        reason = f"none was wanted: {played.scenario.abort_reason}"
        claim = "played to its end"
        return none_of("abort", claim, 0, of=1, what="interruptions", reason=reason)
    blind = [str(one) for one in conditions if one not in played.known]
    judgement = none_of(
        "abort", claim, 0, of=len(conditions) - len(blind), what="tripped"
    )
    if blind:
        return downgraded(judgement, f"too few samples for: {'; '.join(blind)}")
    return judgement


def _during(played: Played) -> list[Judgement]:
    """The limits that must hold while a fault is active."""
    found = []
    for limit in played.limits_during:
        claim = f"while broken: not {limit}"
        reading = played.broken_limits.get(limit)
        if reading is not None:
            found.append(_broken("during", claim, reading))
        elif limit in played.known:
            found.append(none_of("during", claim, 0, of=1, what="times broken"))
        else:
            found.append(inconclusive("during", claim, "too few samples"))
    return found


def _broken(oracle: str, claim: str, reading: object) -> Judgement:
    return none_of(oracle, claim, 1, of=1, what="broken", reason=str(reading))


def _recovered(played: Played) -> Judgement:
    """Steady after everything was undone, or "not recovered"."""
    after = played.after
    claim = "recovered: steady state after the last fault was undone"
    if played.residual:
        left = f"not recovered: {'; '.join(played.residual)}"
        return none_of("recovery", claim, 1, of=1, what="left behind", reason=left)
    if after is None:
        return inconclusive("recovery", claim, "it was not looked")
    reason = f"not recovered: {after.reason}" if after.reason else ""
    return replace(after, oracle="recovery", reason=reason)


def _asked(played: Played, run: LoadRun, cluster: Cluster) -> list[Judgement]:
    """The oracles that the scenario names, over what was not spared."""
    watch = played.watch
    spares: Callable[[Sample], bool] = watch.spares if watch else lambda _sample: False
    samples = [sample for sample in run.samples if not spares(sample)]
    validity = validity_of(run, smallest_limit_s(cluster.limits))
    judged = []
    for oracle in played.scenario.judge:
        judgement = _JUDGES[oracle](played, samples, cluster)
        judged.append(gated(judgement, validity=validity))
    return judged


def _o1(played: Played, samples: Sequence[Sample], cluster: Cluster) -> Judgement:
    return judge_wrong_bytes(
        samples,
        played.expected,
        kv_reads=played.pulse.read + played.pulse.wrong,
        kv_wrong=played.pulse.wrong,
    )


def _o2(played: Played, samples: Sequence[Sample], cluster: Cluster) -> Judgement:
    assert played.run is not None
    allowance_s = scheduling_allowance_s(played.run, cluster.limits)
    return judge_cache_wait(samples, cluster.limits, allowance_s=allowance_s)


def _o3(played: Played, samples: Sequence[Sample], cluster: Cluster) -> Judgement:
    return judge_contiguous_reuse(
        samples, played.expected, page_tokens=cluster.limits.page_tokens
    )


def _o4(played: Played, samples: Sequence[Sample], cluster: Cluster) -> Judgement:
    return judge_no_failures(samples)


def _o5(played: Played, samples: Sequence[Sample], cluster: Cluster) -> Judgement:
    alone = played.local_only
    if alone is None or played.run is None:
        return inconclusive("O5", "cost over local-only", "there is no such arm")
    return judge_cost_per_request(
        samples,
        alone.samples,
        cluster.limits,
        allowance_s=scheduling_allowance_s(played.run, cluster.limits),
    )


def _o11(played: Played, samples: Sequence[Sample], cluster: Cluster) -> Judgement:
    return judge_conservation(cluster.conservation())


def _recovery(played: Played, samples: Sequence[Sample], cluster: Cluster) -> Judgement:
    """The hit rate is back in time; a load that ended sooner cannot tell that it is
    not."""
    before = [s for s in samples if s.done_s < played.first_fault_s]
    healed_s = played.last_undone_s
    judgement = judge_recovery(
        "recovery",
        samples,
        former=hit_rate(before) if before else math.nan,
        healed_at_s=healed_s,
        budget_s=played.recovery_slo_s,
        window=RECOVERY_WINDOW,
    )
    last_s = max((sample.intended_s for sample in samples), default=-math.inf)
    seen_s = last_s - healed_s
    if judgement.verdict is Verdict.FAIL and seen_s < played.recovery_slo_s:
        reason = f"the load ended {seen_s:.1f} s after the last fault"
        return downgraded(judgement, reason)
    return judgement


_JUDGES: dict[Oracle, Callable[[Played, Sequence[Sample], Cluster], Judgement]] = {
    "O1": _o1,
    "O2": _o2,
    "O3": _o3,
    "O4": _o4,
    "O5": _o5,
    "O11": _o11,
    "recovery": _recovery,
}
