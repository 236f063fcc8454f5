"""Time on a plot: seconds after the first fault, with the idle stretches folded.

A test fills its pool, asks a healthy arm, starts another cluster: minutes in which
nothing is measured. Drawn to scale, what matters would be a smear; so a stretch in
which nothing happens is folded to a narrow gap, and the axis says how long it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

IDLE_SHARE: Final = 0.06
LEAST_IDLE_S: Final = 0.5
MOST_FOLDS: Final = 12
_TICKS: Final = 6
_INSTANT_S: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """An idle stretch: where it is drawn, and how long it really was."""

    at: float
    seconds: float


class TimeAxis:
    """Maps instants of the run's clock to places on the axis.

    Args:
        busy: stretches (start, end) in which something happened, seconds.
        origin_s: the instant that the labels call 0.
    """

    def __init__(self, busy: Iterable[tuple[float, float]], *, origin_s: float) -> None:
        self.origin_s = origin_s
        self._busy = _merged(busy)
        self._real, self._drawn = _knots(self._busy)

    @property
    def start_s(self) -> float:
        return float(self._real[0])

    @property
    def end_s(self) -> float:
        return float(self._real[-1])

    @property
    def limits(self) -> tuple[float, float]:
        """The range of the axis, with a little room on both sides."""
        room = 0.02 * float(self._drawn[-1]) or 0.5
        return -room, float(self._drawn[-1]) + room

    def place(self, at_s: ArrayLike) -> NDArray[np.float64]:
        """Where instants are drawn; what lies outside is drawn at the edge."""
        return np.interp(np.asarray(at_s, dtype=np.float64), self._real, self._drawn)

    @property
    def folds(self) -> list[Fold]:
        """The stretches that are drawn shorter than they were."""
        return [
            Fold(
                at=float(self.place((before[1] + after[0]) / 2)),
                seconds=after[0] - before[1],
            )
            for before, after in pairwise(self._busy)
        ]

    def ticks(self) -> tuple[list[float], list[str]]:
        """Places and labels of about six ticks, in seconds after the origin."""
        span = float(self._drawn[-1])
        step = _nice(span / _TICKS) if span > 0 else 1.0
        places: list[float] = []
        labels: list[str] = []
        for at_s in self._candidates(step):
            place = float(self.place(at_s))
            if not places or place - places[-1] >= 0.13 * span:
                places.append(place)
                labels.append(_label(at_s - self.origin_s))
        return places, labels

    def _candidates(self, step: float) -> list[float]:
        """Round numbers of seconds inside the busy stretches; their starts else."""
        found = []
        for start_s, end_s in self._busy:
            first = math.ceil((start_s - self.origin_s) / step - 1e-9)
            last = math.floor((end_s - self.origin_s) / step + 1e-9)
            inside = [self.origin_s + i * step for i in range(first, last + 1)]
            found += inside or [start_s]
        return found


def _merged(busy: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches without overlap; those nearer to each other than "idle" are one."""
    spans = sorted(
        (start, max(end, start + _INSTANT_S))
        for start, end in busy
        if math.isfinite(start) and math.isfinite(end)
    )
    if not spans:
        return [(0.0, 1.0)]
    joined = _joined(spans, 0.0)
    total = sum(end - start for start, end in joined)
    merged = _joined(joined, max(LEAST_IDLE_S, IDLE_SHARE * total))
    while len(merged) > MOST_FOLDS + 1:
        gaps = [after[0] - before[1] for before, after in pairwise(merged)]
        merged = _joined(merged, min(gaps))
    return merged


def _joined(
    spans: Iterable[tuple[float, float]], idle_s: float
) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in spans:
        if found and start - found[-1][1] <= idle_s:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _knots(
    busy: list[tuple[float, float]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    total = sum(end - start for start, end in busy)
    gap = IDLE_SHARE * total or 0.1
    real: list[float] = []
    drawn: list[float] = []
    at = 0.0
    for number, (start, end) in enumerate(busy):
        at += gap if number else 0.0
        real += [start, end]
        drawn += [at, at + end - start]
        at = drawn[-1]
    return np.asarray(real), np.asarray(drawn)


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * n for n in (1, 2, 5, 10) if step <= power * n)


def _label(seconds: float) -> str:
    text = f"{seconds:.3g}"
    return "0" if float(text) == 0 else text
