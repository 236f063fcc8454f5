"""A small stock of pipes for splice(2): bytes cross the proxy without a copy.

A link borrows a pipe only while bytes are in it, so a few serve any number of
connections. The stock is made at the start and restored at every return: descriptors
come back to the baseline by themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass

#: Pipes kept open; more are made on demand, up to MAX_LENT at a time.
STOCK = 4
#: The kernel lets one user hold 64 MiB of pipe buffers by default; 0 never splices.
MAX_LENT = 48
PIPE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Pipe:
    """The two ends of a pipe, both non-blocking."""

    read_fd: int
    write_fd: int

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)


class PipePool:
    """Lends pipes; `lend` answers None when there are no more: then copy."""

    def __init__(self, *, max_lent: int = MAX_LENT) -> None:
        self.max_lent = max_lent if hasattr(os, "splice") else 0
        self._idle: list[Pipe] = []
        self.lent = 0
        if self.max_lent:
            self._idle = [_new_pipe() for _ in range(STOCK)]

    def lend(self) -> Pipe | None:
        if self.lent >= self.max_lent:
            return None
        try:
            pipe = self._idle.pop() if self._idle else _new_pipe()
        except OSError:
            return None  # out of descriptors: the caller copies instead
        self.lent += 1
        return pipe

    def give_back(self, pipe: Pipe, *, dirty: bool = False) -> None:
        """Takes a pipe back; one that may still hold bytes is closed, never reused."""
        self.lent -= 1
        if dirty or len(self._idle) >= STOCK:
            pipe.close()
        else:
            self._idle.append(pipe)
        if dirty and len(self._idle) < STOCK:
            self._idle.append(_new_pipe())

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _new_pipe() -> Pipe:
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # Over the user's soft limit a small pipe carries the same bytes, slower.
    with contextlib.suppress(OSError):
        fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return Pipe(read_fd, write_fd)
