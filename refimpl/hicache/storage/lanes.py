"""Bounded threads for calls that cannot be ended, each with memory of its own.

A native call works only on the memory of its lane. Who has waited long enough abandons
the call: the lane, thread and memory, is out of use until the call has returned, so
that what it writes late lands where nobody looks. At most `count` calls can hang.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from refimpl.native.memory import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")


class Lane:
    """A thread and its memory; `abandoned`: nobody waits for its call any more."""

    def __init__(self, number: int, memory: NDArray[np.uint8]) -> None:
        self.number = number
        self.memory = memory
        self.address = int(memory.ctypes.data)
        self.abandoned = False
        self.jobs: SimpleQueue[Callable[[], bool] | None] = SimpleQueue()
        self.thread: threading.Thread | None = None

    def run(self) -> None:
        """Works until a job says that its thread should end."""
        while (job := self.jobs.get()) is not None and job():
            pass


class Job(Generic[T]):
    """One call in a lane. `done`: it came back, with `result` or `error`."""

    def __init__(self, lane: Lane, endpoint: str, began: float) -> None:
        self.lane = lane
        self.endpoint = endpoint
        self.began = began
        self.ended = 0.0
        self.done = False
        self.result: T | None = None
        self.error: Exception | None = None


class Lanes:
    """All lanes of one backend. Thread-safe.

    Args:
        count: lanes, and so threads.
        lane_bytes: memory of each.
        clock: for when calls began and ended.
        make_way: told the native id of the thread of each call that is given up.
    """

    def __init__(
        self,
        count: int,
        lane_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        make_way: Callable[[int], None] | None = None,
    ) -> None:
        self.count = count
        self.lane_bytes = lane_bytes
        self.memory = SharedMemory(count * lane_bytes)
        self.most_hung = max(1, count // 8)
        """Of one endpoint; further calls to it are refused while these hang."""
        self.most_used = max(1, count // 2)
        """Of one endpoint: one that hangs leaves lanes for the others."""
        self._clock = clock
        self._make_way = make_way
        self._lock = threading.Lock()
        self._free = [self._lane(number) for number in reversed(range(count))]
        self._used: Counter[str] = Counter()
        self._hung: Counter[str] = Counter()
        self._bells: set[threading.Event] = set()
        self._counts: Counter[str] = Counter()
        self._closed = False

    @property
    def stuck(self) -> bool:
        """Every lane hangs: nothing can be asked now."""
        with self._lock:
            return self._hung.total() >= self.count

    def refuses(self, endpoint: str) -> bool:
        """So many calls to this endpoint hang that one more would tell nothing."""
        with self._lock:
            return self._hung[endpoint] >= self.most_hung

    def listen(self, bell: threading.Event) -> None:
        """Rings whenever a call comes back or a lane becomes free."""
        with self._lock:
            self._bells.add(bell)

    def unlisten(self, bell: threading.Event) -> None:
        """Rings it no more."""
        with self._lock:
            self._bells.discard(bell)

    def take(self, endpoint: str) -> Lane | None:
        """A free lane for a call to this endpoint; None: not now."""
        with self._lock:
            if self._closed or not self._free:
                return None
            if self._used[endpoint] >= self.most_used:
                return None
            self._used[endpoint] += 1
            return self._free.pop()

    def start(self, lane: Lane, endpoint: str, work: Callable[[Lane], T]) -> Job[T]:
        """Runs `work` in the lane; ends with `give_back` or `abandon`."""
        job: Job[T] = Job(lane, endpoint, self._clock())
        if lane.thread is None:
            lane.thread = threading.Thread(
                target=lane.run, name=f"mooncake-lane-{lane.number}", daemon=True
            )
            lane.thread.start()
        lane.jobs.put(lambda: self._work(job, work))
        return job

    def give_back(self, lane: Lane, endpoint: str) -> None:
        """The call came back and its memory was read."""
        with self._lock:
            self._release(lane, endpoint)

    def abandon(self, job: Job[Any]) -> bool:
        """Gives a call up; False: it came back just now, and is to be given back."""
        with self._lock:
            if job.done:
                return False
            job.lane.abandoned = True
            self._hung[job.endpoint] += 1
            self._counts["abandoned"] += 1
            thread = job.lane.thread
        if self._make_way and thread is not None and thread.native_id is not None:
            self._make_way(thread.native_id)
        return True

    def state(self) -> dict[str, Any]:
        """What is free and what hangs, JSON-able."""
        with self._lock:
            return {
                "lanes": self.count,
                "lane_bytes": self.lane_bytes,
                "free": len(self._free),
                "hung": dict(+self._hung),
                **{name: self._counts[name] for name in ("abandoned", "late_returns")},
            }

    def close(self, timeout_s: float) -> int:
        """Ends idle threads; answers how many are in a call and are left behind."""
        with self._lock:
            self._closed = True
            free = list(self._free)
        threads = [lane.thread for lane in free if lane.thread is not None]
        for lane in free:
            lane.jobs.put(None)
        until = self._clock() + timeout_s
        for thread in threads:
            thread.join(max(0.0, until - self._clock()))
        with self._lock:
            return self.count - len(self._free)

    # --- in a lane's thread ---

    def _work(self, job: Job[T], work: Callable[[Lane], T]) -> bool:
        """True when the thread may go on."""
        try:
            job.result = work(job.lane)
        except Exception as error:
            # Whatever a native call raises is that call's result.
            job.error = error
        with self._lock:
            job.ended = self._clock()
            job.done = True
            late = job.lane.abandoned
            if late:
                self._came_back_late(job)
            for bell in self._bells:
                bell.set()
            return not (late or self._closed)

    # --- locked ---

    def _came_back_late(self, job: Job[Any]) -> None:
        """The lane is good again; its thread, which made way, is not."""
        lane = job.lane
        lane.abandoned, lane.thread = False, None
        self._hung[job.endpoint] -= 1
        self._counts["late_returns"] += 1
        self._release(lane, job.endpoint)

    def _release(self, lane: Lane, endpoint: str) -> None:
        self._used[endpoint] -= 1
        if not self._used[endpoint]:
            del self._used[endpoint]
        self._free.append(lane)
        if self._closed and lane.thread is not None:
            lane.jobs.put(None)
        for bell in self._bells:
            bell.set()

    def _lane(self, number: int) -> Lane:
        first = number * self.lane_bytes
        return Lane(number, self.memory.array[first : first + self.lane_bytes])
