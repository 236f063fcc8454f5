"""A signal whose exception was lost is told again.

A handler that raises does so wherever the main thread happens to be. In a destructor or
a callback of a C library nobody can catch the exception: Python writes it down as
"ignored" (`sys.unraisablehook`) and the run goes on with its faults as if nothing had
been asked of it.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN_S = 0.05


class LostSignals:
    """Sends a signal again when the exception of its handler could not be raised.

    Args:
        number_of: The signal that an ignored exception stood for, 0 for any other.
        prepare: Called before it is sent again, so that it is not taken for a second.
        again_s: After so long, when the destructor is over.
    """

    def __init__(
        self,
        number_of: Callable[[BaseException], int],
        *,
        prepare: Callable[[], Any],
        again_s: float = AGAIN_S,
    ) -> None:
        self._number_of = number_of
        self._prepare = prepare
        self._again_s = again_s
        self._before: Callable[[Any], Any] | None = None
        self._hook = self._ignored  # one object, to be known again

    def install(self) -> None:
        if self._before is None:
            self._before = sys.unraisablehook
            sys.unraisablehook = self._hook

    def uninstall(self) -> None:
        """Gives the hook back, unless somebody else took it meanwhile."""
        before, self._before = self._before, None
        if before is not None and sys.unraisablehook is self._hook:
            sys.unraisablehook = before

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.uninstall()

    def _ignored(self, lost: Any) -> None:
        error = lost.exc_value
        number = self._number_of(error) if error is not None else 0
        if number == 0:
            (self._before or sys.__unraisablehook__)(lost)
            return
        self._prepare()
        # not from here: an exception of this hook is ignored as well
        again = threading.Timer(self._again_s, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
