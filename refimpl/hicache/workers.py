"""A bounded pool of threads that no exception can end (sglang#38428)."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from refimpl.hicache.counters import Counters

_Job = TypeVar("_Job")


class Workers(Generic[_Job]):
    """Threads that run `work` for every job, from one bounded queue.

    They are daemons: a backend that never returns must not hold the process back.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        queued: int,
        work: Callable[[_Job], None],
        counters: Counters,
    ) -> None:
        self._work = work
        self._counters = counters
        self._queue: queue.Queue[_Job | None] = queue.Queue(queued)
        self._closed = False
        self._threads = [
            threading.Thread(target=self._loop, name=f"{name}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> int:
        """Threads that run."""
        return sum(thread.is_alive() for thread in self._threads)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return self._queue.qsize()

    def submit(self, job: _Job) -> bool:
        """Queues a job; False when the queue is full or closed."""
        if self._closed:
            return False
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            return False
        return True

    def drain(self) -> list[_Job]:
        """Takes all waiting jobs out of the queue."""
        jobs: list[_Job] = []
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return jobs
            if job is not None:
                jobs.append(job)

    def close(self, timeout_s: float) -> int:
        """Ends the threads; answers how many are stuck in a job after `timeout_s`."""
        self._closed = True
        self.drain()
        for _ in self._threads:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                break
        for thread in self._threads:
            thread.join(timeout_s / len(self._threads))
        return self.alive

    def _loop(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=1.0)
            except queue.Empty:
                if self._closed:
                    return
                continue
            if job is None:
                return
            try:
                self._work(job)
            except Exception as error:
                # The thread must live on; the type is counted, the job is over.
                self._counters.label("exceptions", type(error).__name__)
