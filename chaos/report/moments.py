"""Instants of a run for people: UTC, and how long after something else.

Everything in a run counts seconds on a monotonic clock; `run.json` has one instant on
both clocks, good to the tenth of a second that opening the results took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN = "at an unknown time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Tells instants of the run's clock (seconds) as time of day."""

    started: datetime | None = None
    monotonic_s: float = math.nan

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Self:
        """From `run.json`; whoever wrote something else there gets no times of day."""
        try:
            started = datetime.fromisoformat(str(meta["started"]))
            return cls(started=started, monotonic_s=float(meta["monotonic_s"]))
        except (KeyError, ValueError, TypeError):
            return cls()

    def utc(self, at_s: float | None) -> str:
        """ "23:46:12.34 UTC" """
        if self.started is None or at_s is None:
            return UNKNOWN
        try:
            moment = self.started + timedelta(seconds=at_s - self.monotonic_s)
        except (OverflowError, ValueError):
            return UNKNOWN
        hundredths = moment.microsecond // 10_000
        return f"{moment:%H:%M:%S}.{hundredths:02d} UTC"


def lasted(seconds: float | None) -> str:
    """A duration with three digits that matter: "0.325 s", "41.2 s", "12 min"."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    if abs(seconds) >= 600:
        return f"{seconds / 60:.0f} min"
    if abs(seconds) >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.2f} s" if abs(seconds) >= 1 else f"{seconds:.3f} s"
