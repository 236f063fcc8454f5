"""A store that one engine keeps away from: when, how, and when it is back (H11, A2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos.judge.breaker import changes_of
from chaos.judge.limit import at_most, none_of
from chaos.steps import ask, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chaos.judge.verdict import Judgement
    from chaos.load.sample import Sample
    from chaos.systems.base import Cluster, Request

DETECT_S = 5.0
"""Seconds at factor 1 within which a sick store is quarantined (A2)."""
PROBES_TO_RETURN = 3
"""Probe intervals after its fault ended in which a store is taken back (A2)."""


def is_blocked(cluster: Cluster, engine: str, store: str) -> bool:
    """Whether an engine keeps away from a store at this instant."""
    blocked: Sequence[str] = _quarantine(cluster, engine)["blocked"]
    return store in blocked


def ask_until(
    cluster: Cluster,
    engine: str,
    requests: Sequence[Request],
    state: Callable[[], bool],
) -> list[Sample]:
    """Asks one after the other until a state of the cluster is there."""
    samples = []
    for request in requests:
        samples.append(ask(cluster, engine, request))
        if state():
            break
    return samples


def wait_readmitted(cluster: Cluster, engine: str, store: str) -> None:
    """Waits until an engine uses a store again."""
    wait_for(
        lambda: not is_blocked(cluster, engine, store),
        f"{engine} to take {store} back",
    )


def judge_quarantined(
    cluster: Cluster, engine: str, store: str, *, since_s: float
) -> list[Judgement]:
    """A2: quarantined within 5 s at factor 1, and nobody else."""
    events = _quarantine(cluster, engine)["events"]
    mine = [e["at"] for e in events if _is(e, store, "quarantined")]
    others = [e for e in events if e["endpoint"] != store]
    return [
        at_most(
            "A2",
            f"{store} is quarantined in time",
            min(mine) - since_s if mine else float("inf"),
            DETECT_S * cluster.spec.time_scale,
            samples=1,
            unit="s",
        ),
        none_of("A2", "and no other store", len(others), of=len(events), what="events"),
    ]


def judge_readmitted(
    cluster: Cluster, engine: str, store: str, *, healed_s: float
) -> Judgement:
    """A2: taken back within three probe intervals of the end of the fault."""
    events = _quarantine(cluster, engine)["events"]
    back = [e["at"] for e in events if _is(e, store, "readmitted")]
    return at_most(
        "A2",
        f"{store} is taken back in time",
        max(back) - healed_s if back else float("inf"),
        PROBES_TO_RETURN * cluster.limits.quarantine_probe_interval_s,
        samples=1,
        unit="s",
    )


def judge_breakers_stayed_closed(cluster: Cluster, *, since_s: float) -> Judgement:
    """The scope of one bad endpoint is that endpoint: no breaker opened since then."""
    logs = [_cache(cluster, engine)["breaker"] for engine in cluster.engines]
    changes = [
        change
        for log in logs
        for change in changes_of(log["transitions"], since_s=since_s)
    ]
    return none_of(
        "O6",
        "one bad store opens no breaker",
        len(changes),
        of=len(cluster.engines),
        what="transitions",
        reason=", ".join(f"{change.target}: {change.reason}" for change in changes),
    )


def _is(event: Mapping[str, Any], store: str, kind: str) -> bool:
    return bool(event["endpoint"] == store and event["kind"] == kind)


def _quarantine(cluster: Cluster, engine: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _cache(cluster, engine)["quarantine"]
    return found


def _cache(cluster: Cluster, engine: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = cluster.engine_state(engine)["hicache"]
    return found
