"""The pool behind its one lock, with what is published to those who take no lock.

Two things leave the locked section as immutable values that readers may use without
asking: the known clients (for the heartbeat door) and the segment directory (for lookup
answers). Both are replaced as a whole after each change of membership.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from refimpl.core.codes import Code
from refimpl.master.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from refimpl.core.pool import Pool
    from refimpl.core.segments import SegmentInfo
    from refimpl.master.heartbeat import Beats


class GuardedPool:
    """One pool, one lock held for microseconds, one clock.

    Args:
        pool: the state; nobody else may touch it.
        beats: the heartbeat door's side of membership.
        clock: seconds, like `time.monotonic`.
    """

    def __init__(self, pool: Pool, beats: Beats, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._beats = beats
        self._lock = threading.Lock()
        self.clock = clock
        self.directory = Directory({})
        self.urgent = threading.Event()
        """Set to have maintenance look at once: no space, or a segment gone."""

    @contextmanager
    def locked(self) -> Iterator[tuple[Pool, float]]:
        """The pool and the time, for as long as the block runs."""
        with self._lock:
            yield self._pool, self.clock()

    def mount(self, segment: SegmentInfo, client: int, beat_key: bytes = b"") -> Code:
        """Mounts; a client that mounts is a known one from then on.

        `beat_key` is what its heartbeats are signed with, where they are.
        """
        with self.locked() as (pool, now):
            code = pool.mount(segment, client, now)
            if code == Code.OK:
                self._beats.admit(client, beat_key)
                self._publish()
        return code

    def unmount(self, segment_id: int, client: int, grace_s: float) -> Code:
        """Unmounts at once, or after a grace during which it stays readable."""
        with self.locked() as (pool, now):
            code = pool.unmount(segment_id, client, now, grace_s)
            self._publish()
        self.urgent.set()
        return code

    def tick(self) -> list[int]:
        """Hands the beats on, then expires who was silent; returns the expired."""
        with self.locked() as (pool, now):
            for client, at in self._beats.drain().items():
                pool.heartbeat(client, at)
            expired = pool.expire(now)
            self._publish()
        if expired:
            self.urgent.set()
        return expired

    def _publish(self) -> None:
        self.directory = self.directory.renewed(self._pool.segments())
        self._beats.publish(self._pool.clients())
