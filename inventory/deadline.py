"""A deadline that many steps share, and a way to put one on calls that have none.

Name resolution, SSH agents and several waits inside an SSH library cannot be told how
long they may take. `within` runs such a call in a thread of its own and leaves it when
the time is up; whoever calls it then closes what the thread waits for.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A moment on a clock; `total_s` is what the messages name."""

    at: float
    total_s: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(
        cls, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> Deadline:
        return cls(at=clock() + seconds, total_s=seconds, clock=clock)

    def left_s(self) -> float:
        """Never negative."""
        return max(0.0, self.at - self.clock())


class _Result(Generic[T]):
    """What a call in another thread gave, or how it failed."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._values: list[T] = []
        self._error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self._values.append(self._call())
        except BaseException as error:  # raised again by `get`
            self._error = error
        finally:
            self.done.set()

    def get(self) -> T:
        error, self._error = self._error, None  # no cycle with its own traceback
        if error is not None:
            raise error
        return self._values[0]


def within(deadline: Deadline, call: Callable[[], T], name: str) -> T:
    """The result of the call.

    Raises:
        OutOfTime: it was not there in time; the call may still go on.
    """
    result = _Result(call)
    threading.Thread(target=result.run, name=name, daemon=True).start()
    if not result.done.wait(deadline.left_s()):
        raise OutOfTime(name)
    return result.get()


class OutOfTime(Exception):
    """A call did not return before its deadline."""
