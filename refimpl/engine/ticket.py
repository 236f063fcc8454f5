"""A request's place in the engine: what it waits on, and how it is called off."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Cancelled(Exception):
    """The request was aborted, by the client or because the engine ends."""


class Ticket:
    """Held by the thread that serves a request; any other thread may `cancel` it.

    Args:
        request_id: the client's name of the request.
        entered_s: instant of entry, on the engine's clock.
    """

    __slots__ = ("_wake", "entered_s", "granted", "reason", "request_id", "serial")

    def __init__(self, request_id: str, entered_s: float) -> None:
        self.request_id = request_id
        self.entered_s = entered_s
        self.serial = 0
        """Place in the queue, given by `PrefillSlots.enter`."""
        self.granted = False
        """Holds a prefill slot; written under the lock of `PrefillSlots`."""
        self.reason = ""
        """Why it was called off; empty while it was not."""
        self._wake = threading.Event()

    def cancel(self, reason: str) -> None:
        """Calls the request off; the first reason stays. Harmless when it is done."""
        if not self.reason:
            self.reason = reason
        self._wake.set()

    def wake(self) -> None:
        """Makes the serving thread look again at what it waits for."""
        self._wake.set()

    def check(self) -> None:
        """Raises Cancelled when the request was called off."""
        if self.reason:
            raise Cancelled(self.reason)

    def wait_for(self, is_true: Callable[[], bool]) -> None:
        """Waits until the condition holds; whoever makes it true calls `wake`."""
        while True:
            self.check()
            if is_true():
                return
            self._wake.wait()
            self._wake.clear()

    def wait_until(self, instant_s: float, now: Callable[[], float]) -> None:
        """Waits until an instant of the clock `now`, or raises Cancelled before."""
        while True:
            self.check()
            left_s = instant_s - now()
            if left_s <= 0:
                return
            self._wake.wait(left_s)
            self._wake.clear()
