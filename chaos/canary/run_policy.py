"""The policy of a live run when the operator names none: what its arms can tell.

Limits are those of a run of a minute or two on a small machine, where a request takes
about a tenth of a second; a longer run, or one on hosts, deserves a file of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos.canary.cluster_arm import (
    BROKEN_LAWS,
    HANGS,
    OPEN_BREAKERS,
    RESIDUAL,
    WRONG_BYTES,
)
from chaos.canary.drills import DRILLS
from chaos.canary.play import ABORTED, BROKEN_ORACLES, UNSTEADY
from chaos.canary.policy import Policy, RelativeRule, Validity, default_policy
from chaos.canary.sides import MOONCAKE, URLS

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LAG = 0.5
"""p99 lag of the load over the median TTFT: both arms are served on this machine, and
a request that is late by half of its own time is no tail yet (1.5 times)."""
_LEAST = 20
"""Requests under a fault: a play of seconds has no more."""
_ALWAYS = (WRONG_BYTES, HANGS, RESIDUAL, BROKEN_LAWS, OPEN_BREAKERS)
_PLAYED = (UNSTEADY, ABORTED, BROKEN_ORACLES)
_DRILLED = tuple(DRILLS)


def policy_for(kinds: Iterable[str], *, played: bool, drilled: bool) -> Policy:
    """The policy of a run: `kinds` of its sides, and whether chaos was played."""
    found = set(kinds)
    if URLS in found:
        return _of_urls()
    invariants = [*_ALWAYS]
    invariants += _PLAYED if played else ()
    invariants += _DRILLED if drilled else ()
    rules = [*_good_day(own=MOONCAKE not in found), *(_bad_day() if played else ())]
    return Policy(
        name="live",
        invariants=tuple(invariants),
        relative=tuple(rules),
        validity=Validity(max_lag_ratio=MAX_LAG),
    )


def _of_urls() -> Policy:
    """Nobody outside knows the right bytes; everything else is the default's."""
    policy = default_policy()
    return policy.model_copy(
        update={"name": "endpoints", "invariants": (HANGS, RESIDUAL)}
    )


def _good_day(*, own: bool) -> list[RelativeRule]:
    """Speed and reuse with nothing broken; `own`: the master counts its calls.

    Quantiles of a few hundred requests are known to a third of themselves, the ratio of
    one request in both arms to a few per cent: the middle is judged paired, the tail by
    the share of requests that are slow by the baseline's measure.
    """
    tail = {"statistic": "exceedance", "quantile": 0.95, "factor": 1.5}
    turns = {"min_samples": 10, "required": own}
    return [
        _rule("ttft_s", statistic="paired", max_ratio=1.10),
        _rule("ttft_s", **tail, max_delta=0.05),
        _rule("hit_rate", max_delta=0.02),
        _rule("error_rate", max_delta=0.02),
        _rule("lookup_ms", statistic="mean", max_ratio=1.7, **turns),
        _rule("stores", statistic="mean", max_ratio=1.2, required=own),
        _rule("rpcs", statistic="mean", max_ratio=1.15, **turns),
    ]


def _bad_day() -> list[RelativeRule]:
    """What requests waited while something was broken.

    A few wait for their whole deadline in any build; who still does when the fault has
    lasted for half its time is counted. With this resolution and factor a wait counts
    from two fifths of its deadline on.
    """
    waits = {"statistic": "exceedance", "quantile": 0.5, "factor": 2.0}
    return [
        _rule("fault_ttft_s", statistic="mean", max_ratio=1.3, min_samples=_LEAST),
        _rule(
            "fault_waited",
            **waits,
            resolution=0.2,
            max_delta=0.25,
            min_samples=_LEAST,
        ),
    ]


def _rule(metric: str, **fields: Any) -> RelativeRule:
    return RelativeRule(metric=metric, **fields)
