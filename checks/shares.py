"""Shares independent jobs out over forked processes, for the same results as one.

Jobs are numbers. Who is free takes the next from a pipe that holds one byte for each,
so nobody waits for another as long as there is work. A helper keeps what it made until
there are no jobs left and sends it then; what a helper that died has not sent is done
by the process that asked, so a result never depends on who made it.
"""

from __future__ import annotations

import marshal
import os
import signal
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
MOST_JOBS = 256
"""One byte names a job, and a pipe takes as many at once on every system."""
_CHUNK = 1 << 20
_SIZE = struct.Struct("<Q")


def shared_out(
    jobs: int,
    do: Callable[[int], T],
    *,
    helpers: int,
    encode: Callable[[T], Any],
    decode: Callable[[int, Any], T],
    meanwhile: Callable[[], None],
) -> list[T]:
    """The results of `do(0)` to `do(jobs - 1)`, in this order.

    Args:
        jobs: at most `MOST_JOBS`.
        helpers: how many further processes; with 0 all is done here. There are none
            where this process cannot be forked safely: it has threads.
        encode: makes of a result what `marshal` takes, in the helper.
        decode: its inverse, here; it is told the job too.
        meanwhile: what only this process can do; it is done before it takes jobs.
    """
    queue = _queue(jobs)
    safe = hasattr(os, "fork") and threading.active_count() == 1
    forked: list[_Helper] = []
    results: dict[int, T] = {}
    try:
        forked.extend(_Helper(queue, do, encode) for _ in range(helpers if safe else 0))
        meanwhile()
        for job in _taken(queue):
            results[job] = do(job)
        for helper in forked:
            for job, encoded in helper.sent():
                results[job] = decode(job, encoded)
    finally:
        os.close(queue)
        for helper in forked:
            helper.end()
    return [results[job] if job in results else do(job) for job in range(jobs)]


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _queue(jobs: int) -> int:
    """The end of a pipe from which every job can be taken once."""
    queue, fill = os.pipe()
    try:
        os.write(fill, bytes(range(jobs)))
    finally:
        os.close(fill)
    return queue


def _taken(queue: int) -> Iterator[int]:
    while taken := os.read(queue, 1):
        yield taken[0]


class _Helper:
    """A forked process that takes jobs and sends what it made of them."""

    def __init__(
        self, queue: int, do: Callable[[int], T], encode: Callable[[T], Any]
    ) -> None:
        self._results, results = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._results)
            _help(queue, do, encode, results)
        os.close(results)

    def sent(self) -> Iterator[tuple[int, Any]]:
        """Every result that arrived whole."""
        with (
            os.fdopen(self._results, "rb", closefd=False) as stream,
            suppress(EOFError, ValueError, TypeError),
        ):
            while True:
                # Whole at once: from a file, marshal asks for a few bytes each.
                (size,) = _SIZE.unpack(_exactly(stream, _SIZE.size))
                job, encoded = marshal.loads(_exactly(stream, size))  # noqa: S302 - ours
                yield job, encoded

    def end(self) -> None:
        """Ends it, if it has not ended, and waits for it."""
        os.close(self._results)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    """So many bytes; EOFError where the helper ended before."""
    found = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found


def _help(
    queue: int, do: Callable[[int], T], encode: Callable[[T], Any], results: int
) -> None:
    """The life of a helper. It ends without the exit handlers of its parent."""
    code = 1
    try:
        made = [marshal.dumps((job, encode(do(job)))) for job in _taken(queue)]
        with os.fdopen(results, "wb", buffering=_CHUNK) as stream:
            for each in made:
                stream.write(_SIZE.pack(len(each)))
                stream.write(each)
        code = 0
    finally:
        os._exit(code)
