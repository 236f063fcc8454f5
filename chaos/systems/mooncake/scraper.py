"""What the masters say of themselves, read again and again beside a run.

A thread of its own, so that a master that hangs never makes a test wait; what was read
goes to whoever listens (the history of the run) and the latest is kept.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.systems.mooncake.admin import Admin

    Sink = Callable[[str, Mapping[str, Any]], object]

INTERVAL_S: Final = 1.0
_END_TIMEOUT_S: Final = 5.0


class Scraper:
    """Reads every master once in an interval, while it runs.

    What did not change since the last reading is not told again.
    """

    def __init__(
        self, doors: Mapping[str, Admin], *, interval_s: float = INTERVAL_S
    ) -> None:
        self.latest: dict[str, Mapping[str, Any]] = {}
        self._doors = doors
        self._interval_s = interval_s
        self._sink: Sink | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="mooncake-scraper", daemon=True
        )

    def start(self, sink: Sink) -> None:
        """Begins to read; a second call only changes who listens."""
        self._sink = sink
        if not self._thread.is_alive() and not self._stop.is_set():
            self._thread.start()

    def close(self) -> None:
        """Ends the thread. Safe to call twice, and when it never began."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_END_TIMEOUT_S)

    def read(self) -> None:
        """One reading of every master."""
        for master, door in self._doors.items():
            found = door.snapshot()
            if found != self.latest.get(master):
                self.latest[master] = found
                if self._sink is not None:
                    self._sink(master, found)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.read()
