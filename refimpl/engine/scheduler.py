"""Watches the prefetches of waiting requests: every poll, and when one reports.

One thread for all of them. It asks each `ready` in the order of entry, as SGLang's
scheduler asks `check_prefetch_progress`; a storage that reports completion
(`notify`) saves the rest of the poll.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from refimpl.engine.ticket import Ticket


class Pollable(Protocol):
    """Something that can be waited for: `is_ready` never blocks."""

    def is_ready(self, now: float) -> bool: ...


class Scheduler:
    """Lets a serving thread wait for its prefetch; `close` ends all waits.

    Args:
        poll_s: granularity of the deadline; never scaled.
        now: the engine's clock.
    """

    def __init__(self, poll_s: float, now: Callable[[], float]) -> None:
        self._poll_s = poll_s
        self._now = now
        self._changed = threading.Condition()
        self._news = False
        self._closed = False
        self._waiting: dict[Ticket, Pollable] = {}
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)
        self._thread.start()

    def await_ready(self, ticket: Ticket, prefetch: Pollable) -> None:
        """Returns when the prefetch may end; raises Cancelled when called off."""
        if prefetch.is_ready(self._now()):
            return
        with self._changed:
            if self._closed:
                return
            self._waiting[ticket] = prefetch
            self._news = True
            self._changed.notify()
        try:
            ticket.wait_for(lambda: ticket not in self._waiting)
        finally:
            with self._changed:
                self._waiting.pop(ticket, None)

    def notify(self) -> None:
        """Some prefetch may have become ready. Cheap; safe from every thread."""
        with self._changed:
            self._news = True
            self._changed.notify()

    @property
    def waiting(self) -> int:
        """Requests that wait for their prefetch."""
        return len(self._waiting)

    def close(self) -> None:
        """Ends the thread; whoever waits goes on as if its prefetch were ready."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        with self._changed:
            left = list(self._waiting)
            self._waiting.clear()
        for ticket in left:
            ticket.wake()

    def _run(self) -> None:
        while (waiting := self._pause()) is not None:
            for ticket, prefetch in waiting:
                if not prefetch.is_ready(self._now()):
                    continue
                with self._changed:
                    self._waiting.pop(ticket, None)
                ticket.wake()

    def _pause(self) -> list[tuple[Ticket, Pollable]] | None:
        """Waits for news or the next poll; whom to ask, None when it is time to end.

        Nobody is asked under this lock: who reports may hold a lock of its own.
        """
        with self._changed:
            if not self._closed and not self._news:
                self._changed.wait(self._poll_s if self._waiting else None)
            self._news = False
            return None if self._closed else list(self._waiting.items())
