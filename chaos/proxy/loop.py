"""One thread, one epoll, one heap of timers: the engine room of the fault proxy.

Everything, data and control, runs on this loop. A control call therefore changes all
live connections between two events, without a lock that a blocked data path could
hold: that is where Toxiproxy's hanging removals came from (Toxiproxy#159, #558).

Sockets of the data path are registered edge-triggered, once, for both directions; a
turn of the loop gives each of them a bounded piece of work, so nobody starves.
"""

from __future__ import annotations

import heapq
import select
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Handler = Callable[[int], None]

#: Longest time the loop sleeps when no timer is armed, seconds.
IDLE_S = 60.0
#: Cancelled timers tolerated in the heap before it is rebuilt.
MAX_CANCELLED = 1024


class Timer:
    """A call at an instant, until it is cancelled."""

    __slots__ = ("_loop", "callback", "cancelled", "when")

    def __init__(self, loop: Loop, when: float, callback: Callable[[], None]) -> None:
        self._loop = loop
        self.when = when
        self.callback = callback
        self.cancelled = False

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when

    def cancel(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            self._loop.forget_cancelled()


class Loop:
    """Dispatches descriptor events, timers, and work put off to the next turn."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[Timer] = []
        self._cancelled = 0
        self._soon: deque[Callable[[], None]] = deque()
        self._running = False

    def register(self, fd: int, handler: Handler, mask: int) -> None:
        self._epoll.register(fd, mask)
        self._handlers[fd] = handler

    def modify(self, fd: int, mask: int) -> None:
        self._epoll.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        """Forgets a descriptor; one that was never registered is no error."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Calls once when the clock reads `when` or later (granularity 1 ms)."""
        timer = Timer(self, when, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def soon(self, callback: Callable[[], None]) -> None:
        """Calls in the next turn, after the events that wait now."""
        self._soon.append(callback)

    def run(self) -> None:
        self._running = True
        while self._running:
            self.turn()

    def turn(self) -> None:
        """Waits for the next event or timer and handles what is ready."""
        handlers = self._handlers
        for fd, mask in self._epoll.poll(self._patience()):
            handler = handlers.get(fd)
            if handler is not None:
                handler(mask)
        if self._timers:
            self._fire(self.clock())
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def stop(self) -> None:
        """Lets `run` return after the turn it is in."""
        self._running = False

    def close(self) -> None:
        self._handlers.clear()
        self._timers.clear()
        self._soon.clear()
        self._epoll.close()

    def forget_cancelled(self) -> None:
        """Counts a cancelled timer; rebuilds the heap when there are too many."""
        self._cancelled += 1
        if self._cancelled > MAX_CANCELLED:
            self._timers = [timer for timer in self._timers if not timer.cancelled]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _patience(self) -> float:
        if self._soon:
            return 0.0
        while self._timers and self._timers[0].cancelled:
            heapq.heappop(self._timers)
            self._cancelled = max(0, self._cancelled - 1)
        if not self._timers:
            return IDLE_S
        return min(IDLE_S, max(0.0, self._timers[0].when - self.clock()))

    def _fire(self, now: float) -> None:
        while self._timers and self._timers[0].when <= now:
            timer = heapq.heappop(self._timers)
            if timer.cancelled:
                self._cancelled = max(0, self._cancelled - 1)
                continue
            timer.cancelled = True
            timer.callback()
