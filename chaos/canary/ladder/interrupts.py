"""Signals that ask a ladder to end, as something to wait for and not as an exception.

An exception out of a handler can strike between any two instructions: between the start
of a command and the note that it was started, in the middle of a write. Here a signal
only sets a number and makes a descriptor readable; whoever waits for a command sees it.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The signals while it is open; those of before come back at its end.

    Outside the main thread nothing is installed: `raise_one` is then the only source.
    """

    def __init__(self) -> None:
        self.number = 0
        self._pending = False
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        os.close(self._read)
        os.close(self._write)

    @property
    def pending(self) -> bool:
        """Whether one came that nobody has taken yet."""
        return self._pending

    def take(self) -> int:
        """The signal that came, 0 for none; from now on a further one is news."""
        taken = self.number if self._pending else 0
        self._pending = False
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            return taken
        return taken

    def raise_one(self, number: int) -> None:
        """As if this signal had come."""
        self._handle(number, None)

    def wait(self, descriptor: int, timeout_s: float) -> bool:
        """Waits until a descriptor is readable, for a time, or until a signal comes.

        Returns: whether the descriptor is readable.
        """
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.register(self._read, select.POLLIN)
        ready = poller.poll(max(0.0, timeout_s) * 1000)
        return any(each == descriptor for each, _ in ready)

    def _handle(self, number: int, _frame: object) -> None:
        self.number = self.number or number
        self._pending = True
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            return  # full of signals already: whoever waits will wake
