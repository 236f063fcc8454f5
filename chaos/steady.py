"""Steady state: is the cluster whole and healthy, as it must be between faults?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chaos.judge.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.systems.base import Cluster

_POLL_S = 0.05


class SteadyState:
    """What the `steady_state` fixture gives: `steady_state()` judges, with a wait.

    Steady means: every role runs, every store is mounted, no breaker is open, no
    conservation law is broken.
    """

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._wait = wait

    def problems(self) -> list[str]:
        """What is not steady now, in words; empty when all is well."""
        cluster = self._cluster()
        roles = (*cluster.masters, *cluster.stores, *cluster.engines)
        dead = [role for role in roles if cluster.process(role) is None]
        if dead:
            return [f"{role} is not running" for role in dead]
        try:
            found = _unmounted(cluster) + _open_breakers(cluster)
            return found + cluster.conservation()
        except Exception as error:  # a system that cannot be asked is not steady
            return [f"could not be asked: {error}"]

    def __call__(self, within_s: float = 10.0, claim: str = "") -> Judgement:
        """Waits until the state is steady and judges how long that took."""
        begin = self._clock()
        while (problems := self.problems()) and self._clock() - begin < within_s:
            self._wait(_POLL_S)
        took_s = self._clock() - begin
        return Judgement(
            oracle="steady",
            claim=claim or "steady state holds",
            verdict=Verdict.FAIL if problems else Verdict.PASS,
            observed="; ".join(problems) if problems else f"after {took_s:.2f} s",
            threshold=f"within {within_s:g} s",
            samples=1,
            reason=problems[0] if problems else "",
            numbers={"took_s": took_s},
        )


def breaker_state(document: dict[str, object]) -> object:
    """The state of the breaker in an engine's state document."""
    breaker = document.get("breaker")
    if isinstance(breaker, dict):
        return breaker.get("state", "unknown")
    return breaker if breaker is not None else "unknown"


def _unmounted(cluster: Cluster) -> list[str]:
    mounted = set(cluster.owned_bytes())
    missing = [store for store in cluster.stores if store not in mounted]
    return [f"{store} is not mounted" for store in missing]


def _open_breakers(cluster: Cluster) -> list[str]:
    states = {
        engine: str(breaker_state(cluster.engine_state(engine)))
        for engine in cluster.engines
    }
    return [
        f"the breaker of {engine} is {state}"
        for engine, state in states.items()
        if state.upper() != "CLOSED"
    ]
