"""SIGTERM and SIGHUP end `chaos run` as Ctrl-C does: faults first, then the rest.

The handler raises in the main thread, an exception that no `except Exception` on the
way can swallow, so it unwinds through every fault. One that is lost all the same, in a
destructor, comes again. The second signal does not wait: roles die with us, and
`chaos recover` cleans up the rest.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, Self

from chaos.safety.lost import LostSignals

if TYPE_CHECKING:
    from collections.abc import Callable

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BASE = 128


class Interrupted(KeyboardInterrupt):
    """A signal ended the run; `exit_code` is 128 + its number, as shells expect."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.exit_code = _BASE + number
        super().__init__(signal.Signals(number).name)


class Interrupts:
    """Turns the first signal into `Interrupted`; in the main thread, while it lasts."""

    def __init__(self, *, hard_exit: Callable[[int], Any] = os._exit) -> None:
        self._hard_exit = hard_exit
        self._seen = False
        self._previous: dict[int, Any] = {}
        self._lost = LostSignals(_number_of, prepare=self._forget)

    def __enter__(self) -> Self:
        self._lost.install()
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        self._lost.uninstall()

    def _forget(self) -> None:
        self._seen = False

    def _handle(self, number: int, _frame: object) -> None:
        if self._seen:
            self._hard_exit(_BASE + number)
            return
        self._seen = True
        raise Interrupted(number)


def _number_of(error: BaseException) -> int:
    return error.number if isinstance(error, Interrupted) else 0
