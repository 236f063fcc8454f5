"""The clock that a role reads, and the failpoint that steps it.

Roles measure time with the monotonic clock, which no operator sets; but a machine that
was suspended, migrated or restored jumps all the same, and so does every system that
reads wall time. `clock.step` makes a role live through such a jump without touching the
host: `1*return(5000)` puts its clock 5 s forward, once; `1*return(-5000)->return(0)`
makes it stand still for 5 s, because the state machines behind it rely on time that
never goes back, and is over sooner when the failpoint is cleared. A step forward stays
when the failpoint goes: a monotonic clock has no right time to return to.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from refimpl.failpoints import Failpoints

FAILPOINT: Final = "clock.step"
_MS_PER_S = 1000


class Clock:
    """Seconds that never go back; a read costs one look-up until the first step.

    Args:
        failpoints: of the role; the answer of `clock.step` is a step in milliseconds.
        base: seconds, like `time.monotonic`.
    """

    def __init__(
        self, failpoints: Failpoints, base: Callable[[], float] = time.monotonic
    ) -> None:
        self._failpoints = failpoints
        self._base = base
        self._lock = threading.Lock()
        self._stepped = False
        self._offset_s = 0.0
        self._last_s = float("-inf")

    def __call__(self) -> float:
        step_ms = self._failpoints.hit(FAILPOINT)
        if step_ms is None and not self._stepped:
            return self._base()
        return self._after(step_ms or 0)

    def _after(self, step_ms: int) -> float:
        with self._lock:
            base_s = self._base()
            if not self._stepped:
                self._stepped, self._last_s = True, base_s
            self._offset_s += step_ms / _MS_PER_S
            now_s = base_s + self._offset_s
            if now_s < self._last_s:
                now_s = self._last_s
                if not self._failpoints.enabled(FAILPOINT):
                    self._offset_s = now_s - base_s
            self._last_s = now_s
            return now_s
