"""Runs tasks in lanes until a deadline; what does not come back is abandoned."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from refimpl.core.codes import Code
from refimpl.native.client import Gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from refimpl.hicache.storage.lanes import Job, Lane, Lanes
    from refimpl.transfer.cancel import Cancel

T = TypeVar("T")


def _nothing(_lane: Lane) -> None:
    """A task that brings no bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[T]):
    """One native call. `work` runs in a lane's thread, the rest in the caller's.

    `fill` puts bytes into the lane's memory before; `take` reads the result, and the
    memory, after; `fail` hears the code when there is none. Where the client itself was
    gone none of both is called: that blames no endpoint.
    """

    endpoint: str
    work: Callable[[Lane], T]
    take: Callable[[Job[T]], None]
    fail: Callable[[int], None]
    fill: Callable[[Lane], None] = _nothing


def run_tasks(
    lanes: Lanes,
    tasks: Iterable[Task[Any]],
    *,
    until: float,
    clock: Callable[[], float],
    cancel: Cancel | None = None,
) -> None:
    """Runs all tasks at one time, as far as lanes are free; back at `until`.

    An endpoint whose calls hang already is not asked again, and nobody is when every
    lane hangs: then the answer is a fault at once.
    """
    run = _Run(lanes, tasks, until, clock, cancel)
    lanes.listen(run.bell)
    if cancel is not None:
        cancel.call_when_set(run.bell.set)
    try:
        run.through()
    finally:
        lanes.unlisten(run.bell)
        if cancel is not None:
            cancel.forget(run.bell.set)
        run.give_up()


class _Run:
    """The tasks of one call: those that wait for a lane, and those in one."""

    def __init__(
        self,
        lanes: Lanes,
        tasks: Iterable[Task[Any]],
        until: float,
        clock: Callable[[], float],
        cancel: Cancel | None,
    ) -> None:
        self.bell = threading.Event()
        self._lanes = lanes
        self._until = until
        self._clock = clock
        self._cancel = cancel
        self._waiting: deque[Task[Any]] = deque(tasks)
        self._running: list[tuple[Task[Any], Job[Any]]] = []

    def through(self) -> None:
        """Until all came back, the deadline, or the cancel."""
        while True:
            self.bell.clear()
            self._collect()
            self._start()
            left = self._until - self._clock()
            if not (self._waiting or self._running) or left <= 0 or self._called_off():
                return
            self.bell.wait(left)

    def give_up(self) -> None:
        """Abandons what has not come back and takes what just has."""
        with ExitStack() as stack:  # no lane is lost to what another one's end raises
            for task, job in self._running:
                stack.callback(self._part_with, task, job)
            self._running.clear()
            for task in self._waiting:
                task.fail(Code.RPC_TIMEOUT)
            self._waiting.clear()

    def _part_with(self, task: Task[Any], job: Job[Any]) -> None:
        if self._lanes.abandon(job):
            task.fail(Code.RPC_TIMEOUT)
        else:
            self._take(task, job)

    def _called_off(self) -> bool:
        return self._cancel is not None and self._cancel.is_set()

    def _collect(self) -> None:
        for each in [each for each in self._running if each[1].done]:
            self._running.remove(each)
            self._take(*each)

    def _take(self, task: Task[Any], job: Job[Any]) -> None:
        try:
            if job.error is None:
                task.take(job)
            elif not isinstance(job.error, Gone):
                task.fail(Code.INTERNAL_ERROR)
        finally:
            self._lanes.give_back(job.lane, job.endpoint)

    def _start(self) -> None:
        """Starts what a lane is free for; what cannot be asked fails at once."""
        stuck = self._lanes.stuck
        for _ in range(len(self._waiting)):
            task = self._waiting.popleft()
            if stuck or self._lanes.refuses(task.endpoint):
                task.fail(Code.RPC_TIMEOUT)
                continue
            lane = self._lanes.take(task.endpoint)
            if lane is None:
                self._waiting.append(task)
                continue
            self._launch(task, lane)

    def _launch(self, task: Task[Any], lane: Lane) -> None:
        try:
            task.fill(lane)
        except BaseException:
            self._lanes.give_back(lane, task.endpoint)
            raise
        job = self._lanes.start(lane, task.endpoint, task.work)
        self._running.append((task, job))
