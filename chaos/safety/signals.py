"""SIGTERM and SIGHUP end a run orderly: faults reverted, roles stopped, report written.

pytest answers SIGINT with teardown, but SIGTERM and SIGHUP kill it where it stands and
leave the fault in. Things that do not work: `atexit` (not run on a signal), raising
SystemExit (pytest reports an internal error and loses the report), a handler that
reverts by itself (it interrupts the very code that holds the locks). What works is
`pytest.exit`, raised in the main thread, which unwinds through every fixture; where it
is lost in a destructor, as Ctrl-C may be too, the signal comes again.
The second signal does not wait: roles and proxies die with us, and `chaos recover`
cleans up the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from chaos.safety.lost import LostSignals

if TYPE_CHECKING:
    from collections.abc import Callable

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_SIGNAL_BASE = 128


class SignalGuard:
    """Installs the handlers and puts the old ones back.

    Args:
        workers: Pids of xdist workers, told as well, because the controller waits for
            their current tests. Asked at the time of the signal.
        hard_exit: What the second signal does (a seam for tests).
    """

    def __init__(
        self,
        *,
        workers: Callable[[], list[int]] = list,
        hard_exit: Callable[[int], Any] = os._exit,
    ) -> None:
        self.aborted = threading.Event()
        self.number = 0
        self._workers = workers
        self._hard_exit = hard_exit
        self._previous: dict[int, Any] = {}
        self._told_again = False
        self._lost = LostSignals(self._number_of, prepare=self._expect_again)

    def install(self) -> None:
        """Takes the signals over; does nothing outside the main thread."""
        if self._previous or threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        self._lost.install()

    def uninstall(self) -> None:
        """Gives the signals back to whoever had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        self._lost.uninstall()

    @property
    def installed(self) -> bool:
        return bool(self._previous)

    @property
    def exit_code(self) -> int:
        """128 + signal, once one came."""
        return _SIGNAL_BASE + self.number

    def insist(self) -> None:
        """Ends the run again, where a first end was taken for an error of a test.

        `pytest.exit` raises an `Exception`, so code that catches everything keeps it.
        """
        if self.aborted.is_set():
            self._exit()

    def _number_of(self, error: BaseException) -> int:
        if isinstance(error, KeyboardInterrupt):
            return signal.SIGINT
        return self.number if isinstance(error, pytest.exit.Exception) else 0

    def _expect_again(self) -> None:
        self._told_again = self.aborted.is_set()

    def _handle(self, number: int, _frame: object) -> None:
        if self._told_again:
            self._told_again = False
            self._exit()
        if self.aborted.is_set():
            self._hard_exit(_SIGNAL_BASE + number)
            return
        self.number = number
        self.aborted.set()
        for pid in self._workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        self._exit()

    def _exit(self) -> NoReturn:
        name = signal.Signals(self.number).name
        pytest.exit(f"{name}: faults reverted, run ended", returncode=self.exit_code)
