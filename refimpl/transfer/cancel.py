"""Cancellation that wakes a selector at once."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Cancel:
    """An event with a file descriptor: readable from the moment that it is set.

    Safe from every thread, in every order; after `close` it stays in its last state.
    Callbacks serve what cannot wait on a descriptor (an RPC in flight).
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._is_set = False
        self._callbacks: list[Callable[[], object]] = []

    def set(self) -> None:
        """Cancels; again is harmless."""
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def is_set(self) -> bool:
        """True from `set` on, for ever."""
        return self._is_set

    def fileno(self) -> int:
        """For selectors; -1 after `close`."""
        return self._fd

    def call_when_set(self, callback: Callable[[], object]) -> None:
        """Calls back once when set, at once when it is already."""
        with self._lock:
            if not self._is_set:
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], object]) -> None:
        """Takes a callback back; unknown ones are ignored."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def close(self) -> None:
        """Frees the descriptor."""
        with self._lock:
            fd, self._fd = self._fd, -1
            self._callbacks.clear()
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Cancel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A cancel that its request forgot must not leak a descriptor.
        if getattr(self, "_fd", -1) >= 0:
            self.close()
