"""A pulse on every store: single keys are written to it and read back, all the time.

Engines keep most pages near themselves, so on a good day some stores carry nothing, and
a fault on a quiet link would have no effect that anybody could measure. The pulse also
reads directly, so that O1 does not rest on engines alone. One thread a store, so that a
silent one holds up nobody but its own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from chaos.safety.abort import RunWindow
    from chaos.systems.base import Cluster, KvProbe

MAX_STORES = 16
"""Larger clusters have a pulse on the first ones that are named only."""
KEYS = 4
VALUE_BYTES = 16 << 10
_TIMEOUT_S = 0.5
_JOIN_S = 5.0


@dataclass(slots=True)
class PulseCount:
    """What the pulse saw: keys read well, keys with wrong bytes, calls that failed."""

    read: int = 0
    wrong: int = 0
    failed: int = 0


class Pulse:
    """Runs while its block does.

    Args:
        cluster: its stores are written to by local-first placement, from their hosts.
        every_s: real seconds between two pulses of one store.
        stores: those that matter, first the ones that faults are on.
        window: is told of wrong bytes at once.
        name: part of every key, so that two runs never read each other's.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        every_s: float,
        stores: tuple[str, ...],
        window: RunWindow,
        name: str,
    ) -> None:
        self.count = PulseCount()
        self._cluster = cluster
        self._every_s = every_s
        self._window = window
        self._name = name
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._body, args=(store,), name=f"pulse-{store}")
            for store in (stores[:MAX_STORES] if every_s > 0 else ())
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.daemon = True
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _body(self, store: str) -> None:
        host = self._cluster.host_of(store)
        probe = self._cluster.kv()
        turn = 0
        try:
            while not self._ended.is_set():
                self._beat(probe, host, f"pulse-{self._name}-{store}-{turn}")
                turn += 1
                self._ended.wait(self._every_s)
        finally:
            probe.close()

    def _beat(self, probe: KvProbe, host: str, name: str) -> None:
        """Writes and reads a few keys; a call that fails is what faults are for."""
        names = [f"{name}-{number}" for number in range(KEYS)]
        try:
            probe.write(names, size_bytes=VALUE_BYTES, timeout_s=_TIMEOUT_S, host=host)
            codes, wrong = probe.read(
                names, size_bytes=VALUE_BYTES, timeout_s=_TIMEOUT_S
            )
        except Exception:  # counted: a probe may not reach anything under a fault
            with self._lock:
                self.count.failed += 1
            return
        if wrong:
            self._window.wrong_read(wrong)
        with self._lock:
            self.count.read += sum(code == 0 for code in codes)
            self.count.wrong += wrong
