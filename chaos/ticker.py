"""Calls something now and then, e.g. to show how long a fault has lasted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Ticker:
    """One thread, there only between `start` and `stop`; both may be called often."""

    def __init__(self, act: Callable[[], object], every_s: float = 0.5) -> None:
        self._act = act
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._stop.clear()
            thread = threading.Thread(target=self._run, name="ticker", daemon=True)
            self._thread = thread
            thread.start()

    def stop(self) -> None:
        """Returns when the last call has ended."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._act()
