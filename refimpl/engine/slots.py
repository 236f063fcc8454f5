"""The prefill slots of an engine and the queue in front of them.

FIFO by entry, among the requests that may start: one whose prefetch is still under way
keeps its place but blocks nobody (as SGLang's scheduler, which skips it in its pass).
"""

from __future__ import annotations

import heapq
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refimpl.engine.ticket import Ticket


class QueueFull(Exception):
    """More requests than the engine takes; the client should come back later."""


class DuplicateRequest(Exception):
    """A request of this id is being served; ids must be unique while active."""


class PrefillSlots:
    """Who is in the engine, who may start, who runs; safe from every thread.

    Args:
        slots: prefills at one time.
        capacity: requests in the engine at one time, whatever they do.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        self.slots = slots
        self.capacity = capacity
        self._lock = threading.Lock()
        self._emptied = threading.Condition(self._lock)
        self._free = slots
        self._serial = 0
        self._inside: dict[str, Ticket] = {}
        self._eligible: list[tuple[int, Ticket]] = []

    def enter(self, ticket: Ticket) -> None:
        """Takes the request in and gives it its place.

        Raises:
            QueueFull: `capacity` requests are inside.
            DuplicateRequest: one of this id is inside.
        """
        with self._lock:
            if ticket.request_id in self._inside:
                raise DuplicateRequest(ticket.request_id)
            if len(self._inside) >= self.capacity:
                raise QueueFull(f"{self.capacity} requests are in the engine")
            self._serial += 1
            ticket.serial = self._serial
            self._inside[ticket.request_id] = ticket

    def acquire(self, ticket: Ticket) -> None:
        """Waits for a slot; raises Cancelled when the request is called off."""
        with self._lock:
            heapq.heappush(self._eligible, (ticket.serial, ticket))
            self._grant()
        ticket.wait_for(lambda: ticket.granted)

    def release(self, ticket: Ticket) -> None:
        """Gives the slot back if the request holds one."""
        with self._lock:
            self._release(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Forgets the request, wherever it stands. Safe to call twice."""
        with self._lock:
            if self._inside.get(ticket.request_id) is ticket:
                del self._inside[ticket.request_id]
                if not self._inside:
                    self._emptied.notify_all()
            self._eligible = [e for e in self._eligible if e[1] is not ticket]
            heapq.heapify(self._eligible)
            self._release(ticket)

    def find(self, request_id: str) -> Ticket | None:
        """The request of this id while it is inside."""
        with self._lock:
            return self._inside.get(request_id)

    def inside(self) -> list[Ticket]:
        """All requests that are inside, in the order of their entry."""
        with self._lock:
            return list(self._inside.values())

    def wait_empty(self, timeout_s: float) -> bool:
        """Waits until nobody is inside; False when the time is over before."""
        with self._lock:
            return self._emptied.wait_for(lambda: not self._inside, timeout_s)

    def counts(self) -> dict[str, int]:
        """Gauges: inside, waiting (for cache or slot), running, free slots."""
        with self._lock:
            running = self.slots - self._free
            return {
                "inside": len(self._inside),
                "eligible": len(self._eligible),
                "running": running,
                "free_slots": self._free,
            }

    def _release(self, ticket: Ticket) -> None:
        if ticket.granted:
            ticket.granted = False
            self._free += 1
            self._grant()

    def _grant(self) -> None:
        while self._free and self._eligible:
            _, ticket = heapq.heappop(self._eligible)
            ticket.granted = True
            self._free -= 1
            ticket.wake()
