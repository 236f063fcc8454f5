"""Who is to blame for a failed operation: one endpoint, or the pool.

The scope of the breaker must match the scope of the fault (layercache#73): an endpoint
that most recent faults name is quarantined, and only what is spread opens the breaker.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from refimpl.core.breaker import Admission, Breaker, BreakerState, Kind
from refimpl.core.codes import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from refimpl.core.quarantine import Quarantine

_NOBODY: Mapping[str, bool] = {}


class FaultRouter:
    """Sends every result to the endpoint's record first, else to the breaker.

    Less than half of the known endpoints can be in quarantine at a time (one at
    least): more than that is the pool's own failure. An endpoint is isolated when at
    least 80 % of the recent faults name it and its own record is bad: a run of faults,
    a bad ratio, or a single read deadline (each costs a request its whole budget).
    """

    def __init__(self, breaker: Breaker, quarantine: Quarantine) -> None:
        self.breaker = breaker
        self.quarantine = quarantine
        self._faults: deque[tuple[float, frozenset[str]]] = deque(
            maxlen=quarantine.settings.faults_kept
        )

    def record(
        self,
        admission: Admission,
        outcome: Outcome,
        now: float,
        *,
        endpoints: Mapping[str, bool] = _NOBODY,
        slow: bool = False,
        read_deadline: bool = False,
        kind: Kind = Kind.READ,
    ) -> frozenset[str]:
        """Books one result; answers the endpoints that it sent into quarantine.

        An operation may be good although a store in it was not (another replica, or
        another place, served): good for the breaker, bad for that store.
        """
        blocked = self.quarantine.blocked(now)
        fault = outcome is Outcome.FAULT or slow or read_deadline
        bad = frozenset(name for name, ok in endpoints.items() if not ok)
        for name in endpoints.keys() - blocked:
            self.quarantine.record(name, endpoints[name], now)
        isolated: frozenset[str] = frozenset()
        if (fault or bad) and self._counts(admission):
            if bad and bad <= blocked:
                self.breaker.abandon(admission, now)
                return isolated
            isolated = self._isolate(bad - blocked, read_deadline, now)
        if isolated and fault:
            self.breaker.abandon(admission, now)
            return isolated
        self.breaker.record(
            admission,
            outcome,
            now,
            endpoints=endpoints,
            slow=slow,
            read_deadline=read_deadline,
            kind=kind,
        )
        return isolated

    def clear(self) -> None:
        """Forgets the recent faults."""
        self._faults.clear()

    def _counts(self, admission: Admission) -> bool:
        return (
            not admission.probe
            and admission.generation == self.breaker.generation
            and self.breaker.state is BreakerState.CLOSED
        )

    def _isolate(
        self, bad: frozenset[str], read_deadline: bool, now: float
    ) -> frozenset[str]:
        self._faults.append((now, bad))
        blamed = self._blamed(now)
        chosen = frozenset(
            name
            for name in blamed & bad
            if read_deadline or self.quarantine.suspicious(name, now)
        )
        room = max(1, (self.quarantine.known - 1) // 2)
        taken = len(self.quarantine.blocked(now))
        if not chosen or len(blamed) + taken > room:
            return frozenset()
        for name in sorted(chosen):
            why = "read deadline" if read_deadline else "its operations fail"
            self.quarantine.isolate(name, now, why)
            self._excuse(name)
        return chosen

    def _blamed(self, now: float) -> frozenset[str]:
        """Endpoints that at least `share` of the recent faults name."""
        settings = self.quarantine.settings
        while self._faults and self._faults[0][0] <= now - settings.window_s:
            self._faults.popleft()
        named: dict[str, int] = {}
        for _, names in self._faults:
            for name in names:
                named[name] = named.get(name, 0) + 1
        least = settings.share * len(self._faults)
        return frozenset(name for name, count in named.items() if count >= least)

    def _excuse(self, name: str) -> None:
        """Its faults are the endpoint's from now on, not the pool's."""
        kept = [(at, names) for at, names in self._faults if name not in names]
        self._faults = deque(kept, maxlen=self._faults.maxlen)
        self.breaker.forgive(name)
