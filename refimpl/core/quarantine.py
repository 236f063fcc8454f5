"""Endpoints that are skipped for a while: one sick store must not cost the pool.

A store whose heartbeat is fine and whose data path is dead stays readable for the
master (Mooncake#2704). The readers notice first: they skip its replicas, try it with
one probe at a time, and take it back after good ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Self

from refimpl.core.scaling import scale


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSettings:
    """Three probe intervals after its fault ends an endpoint is back, at the latest:

    one failing probe may just have begun, then two good ones follow, half an interval
    apart, each within half an interval.
    """

    probe_interval_s: float = 1.0
    probe_deadline_s: float = 0.5
    probes_to_admit: int = 2
    share: float = 0.8
    """Of the recent faults that must name an endpoint before it alone is blamed."""
    consecutive_faults: int = 3
    """Fast faults in a row of an endpoint; one read deadline is enough by itself."""
    min_samples: int = 10
    fault_ratio: float = 0.5
    window_s: float = 10.0
    faults_kept: int = 64
    events_kept: int = 256
    endpoints_kept: int = 4096

    def scaled(self, factor: float) -> Self:
        """Every duration times `factor`."""
        return scale(self, factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEvent:
    """An endpoint went into quarantine, came back, or left the cluster meanwhile."""

    at: float
    endpoint: str
    kind: str
    """quarantined | readmitted | gone | released"""
    reason: str


class _Ward:
    """One quarantined endpoint: when the next probe is due, and who probes now."""

    __slots__ = ("good", "lease_until", "next_probe", "since")

    def __init__(self, now: float, settings: QuarantineSettings) -> None:
        self.since = now
        self.good = 0
        self.next_probe = now + settings.probe_interval_s
        self.lease_until = float("-inf")


class Quarantine:
    """Which endpoints to avoid, whom to probe, whom to take back.

    It also keeps a short record of every endpoint's results, for whoever decides
    (`FaultRouter`). The caller serialises the calls.
    """

    def __init__(self, settings: QuarantineSettings) -> None:
        self.settings = settings
        self.events: deque[QuarantineEvent] = deque(maxlen=settings.events_kept)
        self._wards: dict[str, _Ward] = {}
        self._results: dict[str, deque[tuple[float, bool]]] = {}

    def blocked(self, now: float) -> frozenset[str]:
        """Endpoints whose replicas are to be skipped at this instant."""
        del now
        return frozenset(self._wards)

    @property
    def known(self) -> int:
        """Endpoints that ever gave a result and were not forgotten since."""
        return len(self._results.keys() | self._wards.keys())

    def record(self, endpoint: str, ok: bool, now: float) -> None:
        """A result of an endpoint; of a quarantined one: the result of its probe."""
        ward = self._wards.get(endpoint)
        if ward is None:
            self._note(endpoint, ok, now)
        elif ward.lease_until > float("-inf"):
            self._judge(endpoint, ward, ok, now)

    def isolate(self, endpoint: str, now: float, reason: str) -> None:
        """Puts an endpoint into quarantine."""
        if endpoint not in self._wards:
            self._wards[endpoint] = _Ward(now, self.settings)
            self._log(now, endpoint, "quarantined", reason)

    def probe(self, endpoint: str, now: float) -> bool:
        """True when the caller shall probe now: one at a time, and only when due."""
        ward = self._wards.get(endpoint)
        if ward is None or now < ward.next_probe or now < ward.lease_until:
            return False
        ward.lease_until = now + self.settings.probe_deadline_s
        ward.next_probe = now + self.settings.probe_interval_s
        return True

    def abandon(self, endpoint: str, now: float) -> None:
        """A probe that told nothing: the slot comes back, the next one is due soon."""
        ward = self._wards.get(endpoint)
        if ward is not None:
            ward.lease_until = float("-inf")
            ward.next_probe = now + self.settings.probe_interval_s / 2

    def forget(self, endpoint: str, now: float) -> None:
        """The endpoint left the cluster: nothing of it will be located any more."""
        self._results.pop(endpoint, None)
        if self._wards.pop(endpoint, None) is not None:
            self._log(now, endpoint, "gone", "left the cluster")

    def clear(self, now: float) -> None:
        """Back to the start: everybody is trusted again."""
        for endpoint in list(self._wards):
            self._log(now, endpoint, "released", "cleared")
        self._wards.clear()
        self._results.clear()

    def suspicious(self, endpoint: str, now: float) -> bool:
        """True when the endpoint's own record is bad enough to isolate it."""
        s = self.settings
        recent = [
            ok for at, ok in self._results.get(endpoint, ()) if at > now - s.window_s
        ]
        tail = recent[-s.consecutive_faults :]
        if len(tail) == s.consecutive_faults and not any(tail):
            return True
        bad = recent.count(False)
        return len(recent) >= s.min_samples and bad >= s.fault_ratio * len(recent)

    def _note(self, endpoint: str, ok: bool, now: float) -> None:
        results = self._results.get(endpoint)
        if results is None:
            while len(self._results) >= self.settings.endpoints_kept:
                self._results.pop(next(iter(self._results)))
            results = deque(maxlen=self.settings.faults_kept)
            self._results[endpoint] = results
        results.append((now, ok))

    def _judge(self, endpoint: str, ward: _Ward, ok: bool, now: float) -> None:
        ward.lease_until = float("-inf")
        if not ok:
            ward.good = 0
            return
        ward.good += 1
        ward.next_probe = min(ward.next_probe, now + self.settings.probe_interval_s / 2)
        if ward.good >= self.settings.probes_to_admit:
            del self._wards[endpoint]
            self._results.pop(endpoint, None)
            after_s = now - ward.since
            reason = f"{ward.good} good probes, {after_s:.3f} s after"
            self._log(now, endpoint, "readmitted", reason)

    def _log(self, now: float, endpoint: str, kind: str, reason: str) -> None:
        self.events.append(
            QuarantineEvent(at=now, endpoint=endpoint, kind=kind, reason=reason)
        )
