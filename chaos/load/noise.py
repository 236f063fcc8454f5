"""How late this machine wakes a sleeper: the scheduling noise beside a single request.

Load has its own lag; a request that a test sends alone has none, yet the timers of the
engine run on the same busy cores. A thread that sleeps and notes how late it woke
measures that. What it says is printed beside O2 and is bounded there by one poll.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_S = 0.005
# 200 wake-ups a second for ten minutes; older ones are forgotten.
KEPT = 120_000


class NoiseProbe:
    """Measures while its `with` block runs; `worst_s` may be read at any time."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._clock = clock
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._late: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._thread = threading.Thread(target=self._body, name="noise", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join(1.0)

    def worst_s(
        self, start_s: float = float("-inf"), end_s: float = float("inf")
    ) -> float:
        """The latest wake-up noted between two instants of the clock; 0 without any."""
        noted = list(self._late)
        return max((late for at, late in noted if start_s <= at <= end_s), default=0.0)

    def _body(self) -> None:
        before = self._clock()
        while not self._wait(STEP_S):
            now = self._clock()
            self._late.append((now, max(0.0, now - before - STEP_S)))
            before = self._clock()
