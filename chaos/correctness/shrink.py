"""Makes a failing schedule minimal: delta debugging over its steps. Pure.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002): take
chunks away, ever smaller ones, as long as what is left still fails, until no single
step can go. Then keys within steps, one at a time. A test is expensive (a whole play)
and may be a race, so tests are bounded, and what was tested before is not tested again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.correctness.schedule import Step

    Steps = tuple[Step, ...]

T = TypeVar("T")

MAX_TESTS: Final = 200


@dataclass(slots=True)
class Budget:
    """How many tests there may still be; `ended` may end it earlier (a deadline)."""

    tests: int = MAX_TESTS
    ended: Callable[[], bool] = lambda: False
    spent: int = 0

    @property
    def left(self) -> bool:
        return self.spent < self.tests and not self.ended()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The smallest failing steps found; `minimal` says that no single one can go.

    `failed` are all parts that did, the smallest first: of a race the smallest may fail
    by luck, and a larger one every time.
    """

    steps: Steps
    tests: int
    minimal: bool
    failed: tuple[Steps, ...] = ()


def shrink(
    steps: Steps,
    fails: Callable[[Steps], bool],
    budget: Budget | None = None,
    *,
    guesses: Sequence[Steps] = (),
) -> Shrunk:
    """The smallest part of `steps` that still fails, as far as the budget goes.

    Args:
        steps: fail as a whole; that is not tested again.
        fails: plays steps and says whether they still fail in the same way.
        budget: of plays.
        guesses: parts that may well fail; the first that does is cut down further.
    """
    spend = budget if budget is not None else Budget()
    test = _Tested(fails, spend)
    begin = next((part for part in guesses if spend.left and test(part)), steps)
    fewer = ddmin(begin, test, spend)
    smaller = _fewer_keys(fewer, test, spend)
    return Shrunk(
        steps=smaller, tests=spend.spent, minimal=spend.left, failed=test.failed
    )


def ddmin(
    items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool], budget: Budget
) -> tuple[T, ...]:
    """A part of `items` that fails, of which no single item can go (1-minimal)."""
    parts = 2
    while len(items) >= 2 and budget.left:
        chunks = _chunks(items, parts)
        smaller = next(
            (
                rest
                for rest in _candidates(chunks)
                if len(rest) < len(items) and budget.left and fails(rest)
            ),
            None,
        )
        if smaller is not None:
            was_chunk = len(smaller) <= len(items) // parts + 1
            parts = 2 if was_chunk else max(parts - 1, 2)
            items = smaller
        elif parts >= len(items):
            break
        else:
            parts = min(2 * parts, len(items))
    if len(items) == 1 and budget.left and fails(()):
        return ()
    return items


class _Tested:
    """Remembers what was tested; a test is counted once."""

    def __init__(self, fails: Callable[[Steps], bool], budget: Budget) -> None:
        self._fails = fails
        self._budget = budget
        self._known: dict[str, bool] = {}
        self._failed: list[Steps] = []

    def __call__(self, steps: Steps) -> bool:
        key = repr(steps)
        if key not in self._known:
            if not self._budget.left:
                return False
            self._budget.spent += 1
            self._known[key] = self._fails(steps)
            self._failed += [steps] * self._known[key]
        return self._known[key]

    @property
    def failed(self) -> tuple[Steps, ...]:
        """What failed, the smallest first."""
        return tuple(sorted(self._failed, key=_size))


def _size(steps: Steps) -> tuple[int, int]:
    """Of steps, and of keys in them."""
    return len(steps), sum(len(step.keys) for step in steps)


def _chunks(items: Sequence[T], parts: int) -> list[tuple[T, ...]]:
    """The items in so many parts, as equal as may be."""
    size, more = divmod(len(items), parts)
    chunks, start = [], 0
    for number in range(parts):
        end = start + size + (number < more)
        chunks.append(tuple(items[start:end]))
        start = end
    return [chunk for chunk in chunks if chunk]


def _candidates(chunks: list[tuple[T, ...]]) -> list[tuple[T, ...]]:
    """Each chunk by itself, then everything but one chunk, the last one first.

    What comes late in a schedule seldom matters for what was seen before.
    """
    without = [
        tuple(item for other in (*chunks[:at], *chunks[at + 1 :]) for item in other)
        for at in reversed(range(len(chunks)))
    ]
    return [*chunks, *without] if len(chunks) == 2 else without


def _fewer_keys(steps: Steps, test: Callable[[Steps], bool], budget: Budget) -> Steps:
    """Takes keys out of steps, one at a time, as long as it still fails."""
    at = 0
    while at < len(steps):
        step = steps[at]
        for key in step.keys if len(step.keys) > 1 else ():
            left = tuple(other for other in steps[at].keys if other != key)
            if not left:
                break
            smaller = dataclasses.replace(steps[at], keys=left)
            candidate = (*steps[:at], smaller, *steps[at + 1 :])
            if budget.left and test(candidate):
                steps = candidate
        at += 1
    return steps
