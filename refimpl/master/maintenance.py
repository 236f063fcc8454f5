"""The master's housekeeping thread: expiry ticks and bounded slices of clean-up.

It takes the same lock as the calls do, but each time only for one bounded slice, and it
hands freed buffers back to their allocators outside of it. When the whole process was
stopped and goes on (Mooncake#3937), the pool sees from the late tick that it was itself
the one who was silent, and expires nobody.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from refimpl.master.guarded import GuardedPool

_LOG: Final = logging.getLogger(__name__)
_BREATH_S: Final = 0.001
"""Shortest pause between two slices: whoever waits for the lock gets it meanwhile."""
_URGENT_S: Final = 0.01
"""Shortest pause before an urgent slice (upstream's eviction period); never scaled."""
_STEPS_S: Final = 1.0
"""Longest pause, whatever the pool says; never scaled."""


class Maintenance:
    """Runs ticks and slices in a thread of its own, or `step` by step.

    Args:
        shared: the pool behind its lock.
        tick_s: seconds between two expiry ticks.
    """

    def __init__(self, shared: GuardedPool, *, tick_s: float) -> None:
        self._shared = shared
        self._tick_s = tick_s
        self._tick_at = shared.clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="maintenance", daemon=True
        )
        self.slices = 0
        self.failures = 0
        self.longest_slice_s = 0.0

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the slice under way; idempotent."""
        self._stop.set()
        self._shared.urgent.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def step(self) -> float:
        """One tick when it is due and one slice; returns the seconds until the next."""
        now = self._shared.clock()
        if now >= self._tick_at:
            self._shared.tick()
            self._tick_at = now + self._tick_s
        with self._shared.locked() as (pool, began):
            done = pool.maintain(began)
            took_s = self._shared.clock() - began
        pool.release(done.freed)
        self.slices += 1
        self.longest_slice_s = max(self.longest_slice_s, took_s)
        until_tick_s = self._tick_at - self._shared.clock()
        return max(_BREATH_S, min(done.again_in_s, until_tick_s, _STEPS_S))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                wait_s = self.step()
            except Exception:  # housekeeping must go on; the counter is exposed
                self.failures += 1
                _LOG.exception("a slice of maintenance broke")
                wait_s = self._tick_s
            if self._shared.urgent.wait(wait_s):
                self._shared.urgent.clear()
                self._stop.wait(min(_URGENT_S, wait_s))
