"""Real put and get probes: is the pool back, is a store back, is it one store alone?

A ping would not do: a store whose heartbeat is fine may have no data path.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from refimpl.core.codes import Code, Outcome, outcome_of
from refimpl.hicache.gate import worst

if TYPE_CHECKING:
    from collections.abc import Callable

    from refimpl.core.breaker import Admission
    from refimpl.hicache.counters import Counters
    from refimpl.hicache.gate import Gate
    from refimpl.hicache.settings import HiCacheSettings
    from refimpl.hicache.storage.base import Storage

_WITNESSES = 3
"""Canaries in a row, each on stores not yet blamed, that must fail as well before a
late read or a store's failure is the pool's."""


class Prober:
    """Starts due probes, each in a thread of its own: a stuck one blocks no other."""

    def __init__(
        self,
        settings: HiCacheSettings,
        storage: Storage,
        gate: Gate,
        counters: Counters,
        done: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._gate = gate
        self._counters = counters
        self._done = done
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def run_due(self) -> None:
        """Starts what is due; never blocks."""
        if self._full():
            return
        if (admission := self._gate.start_probe()) is not None:
            self._spawn(lambda: self._probe_pool(admission))
        while not self._full() and (name := self._gate.due_endpoint()) is not None:
            self._probe_endpoint_soon(name)
        if not self._full() and self._gate.doubted():
            self._spawn(self._ask_witnesses)

    @property
    def running(self) -> int:
        """Probes under way."""
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()]
            return len(self._threads)

    def close(self, timeout_s: float) -> int:
        """Waits for running probes; answers how many are stuck."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout_s / len(threads))
        return self.running

    def _full(self) -> bool:
        return self.running >= self._settings.probe_threads

    def _probe_endpoint_soon(self, name: str) -> None:
        self._spawn(lambda: self._probe_endpoint(name))

    def _spawn(self, probe: Callable[[], None]) -> None:
        thread = threading.Thread(
            target=self._guarded, args=(probe,), name="hicache-probe", daemon=True
        )
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _guarded(self, probe: Callable[[], None]) -> None:
        try:
            probe()
        except Exception as error:
            # A probe that dies gives its slot back when its lease ends.
            self._counters.label("exceptions", type(error).__name__)
        self._done()

    def _probe_pool(self, admission: Admission) -> None:
        if not self._gate.may_probe("probe"):
            return
        timeout_s = self._settings.breaker.probe_deadline_s * 0.9
        result = self._gate.guarded(
            1,
            lambda: self._storage.canary(
                timeout_s=timeout_s, avoid=self._gate.blocked()
            ),
        )
        self._gate.end_probe(admission, result)
        self._counters.label("probes", worst(result.codes).value)

    def _probe_endpoint(self, name: str) -> None:
        if not self._gate.may_probe("endpoint_probe"):
            return
        timeout_s = self._settings.quarantine.probe_deadline_s * 0.9
        result = self._gate.guarded(
            1, lambda: [self._storage.probe(name, timeout_s=timeout_s)], bare=True
        )
        self._gate.end_endpoint_probe(name, int(result.codes[0]))

    def _ask_witnesses(self) -> None:
        """Opens the breaker when other stores fail as well, one after the other."""
        timeout_s = self._settings.quarantine.probe_deadline_s
        avoid = self._gate.blocked()
        failures = 0
        while failures < _WITNESSES:
            if not self._gate.may_probe("witness"):
                return
            asked = avoid
            result = self._gate.guarded(
                1,
                lambda asked=asked: self._storage.canary(  # type: ignore[misc]
                    timeout_s=timeout_s, avoid=asked
                ),
            )
            outcome = worst(result.codes)
            if outcome is not Outcome.FAULT:
                nobody_left = result.codes[0] == Code.NO_AVAILABLE_HANDLE
                if not (failures and nobody_left):
                    return
                break
            failures += 1
            bad = {
                n
                for n, code in result.endpoints.items()
                if outcome_of(code) is Outcome.FAULT
            }
            avoid |= bad
        self._gate.trip(f"{failures} canaries in a row failed after a late read")
