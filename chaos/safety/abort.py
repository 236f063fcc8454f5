"""Abort conditions: what ends a scenario at once, whatever it was about to prove. Pure.

An operator says beforehand how much harm is too much (AWS FIS calls it a stop
condition). The run's window of recent requests is read again and again while a fault
is active; the first condition that trips has the faults undone before anything else.
Too few samples trip nothing, and a condition that never had enough was blind: the
player tells that as INCONCLUSIVE.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING

from chaos.judge.limit import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KEPT = 20_000
"""Requests that a window remembers at most; older ones are forgotten first."""


@unique
class Measure(Enum):
    """What a condition looks at."""

    ERROR_RATE = "error_rate"
    TTFT_P99 = "ttft_p99"
    HIT_RATE = "hit_rate"
    NOT_HEALTHY = "role_not_healthy"
    WRONG_BYTES = "wrong_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A limit on one measure. Durations are real seconds, after time scaling.

    `limit` is a share for rates, seconds for TTFT and for how long a role may be
    unhealthy, a count for wrong bytes. Rates and TTFT are taken over `window_s`.
    """

    measure: Measure
    limit: float
    window_s: float = 10.0
    samples: int = 10

    def __str__(self) -> str:
        side = "below" if self.measure is Measure.HIT_RATE else "above"
        return f"{self.measure.value} {side} {number(self.limit, self.unit)}"

    @property
    def unit(self) -> str:
        if self.measure in (Measure.ERROR_RATE, Measure.HIT_RATE):
            return "share"
        return "" if self.measure is Measure.WRONG_BYTES else "s"

    def broken_by(self, value: float) -> bool:
        if self.measure is Measure.HIT_RATE:
            return value < self.limit
        return value > self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request that has ended; `at_s` is when, on the run's clock."""

    at_s: float
    ok: bool
    ttft_s: float
    reused: int = 0
    asked: int = 0
    wrong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a condition is read from: ended requests, open ones, ailing roles.

    `waiting_s` has the age of every request under way: a system that hangs answers
    nothing, and would never show in the tail of what it answered. `unhealthy_s` says
    for how long each role has not been well that no fault is on.
    """

    now_s: float
    seen: Sequence[Seen] = ()
    waiting_s: Sequence[float] = ()
    unhealthy_s: dict[str, float] | None = None
    wrong: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A condition read once: the value (NaN when it could not be told)."""

    condition: Condition
    at_s: float
    value: float
    samples: int
    detail: str = ""

    @property
    def known(self) -> bool:
        return not math.isnan(self.value)

    @property
    def tripped(self) -> bool:
        return self.known and self.condition.broken_by(self.value)

    def __str__(self) -> str:
        value = number(self.value, self.condition.unit)
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.condition}: {value}, n={self.samples}{detail}"


def read(condition: Condition, snapshot: Snapshot) -> Reading:
    """The value of one condition now."""
    value, samples, detail = _READERS[condition.measure](condition, snapshot)
    return Reading(
        condition=condition,
        at_s=snapshot.now_s,
        value=value,
        samples=samples,
        detail=detail,
    )


def read_all(conditions: Iterable[Condition], snapshot: Snapshot) -> list[Reading]:
    """Every condition, also after one has tripped: the report shows them all."""
    return [read(condition, snapshot) for condition in conditions]


class RunWindow:
    """The recent past of a load; its threads write, the player reads."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._lock = threading.Lock()
        self._seen: deque[Seen] = deque(maxlen=kept)
        self._open: dict[str, float] = {}
        self._unhealthy: dict[str, float] = {}
        self._wrong = 0

    def sent(self, request_id: str, at_s: float) -> None:
        """A request is under way since that instant."""
        with self._lock:
            self._open[request_id] = at_s

    def ended(self, request_id: str, seen: Seen | None) -> None:
        """A request is over; None when it tells nothing (shed, or spared)."""
        with self._lock:
            self._open.pop(request_id, None)
            if seen is not None:
                self._seen.append(seen)
                self._wrong += seen.wrong

    def wrong_read(self, count: int) -> None:
        """Direct reads with bytes that were not theirs."""
        with self._lock:
            self._wrong += count

    def healthy(self, ailing: Iterable[str], now_s: float) -> None:
        """These roles are not well now, all others are."""
        names = set(ailing)
        with self._lock:
            self._unhealthy = {
                name: self._unhealthy.get(name, now_s) for name in sorted(names)
            }

    def snapshot(self, now_s: float) -> Snapshot:
        with self._lock:
            return Snapshot(
                now_s=now_s,
                seen=tuple(self._seen),
                waiting_s=tuple(now_s - at_s for at_s in self._open.values()),
                unhealthy_s={
                    name: now_s - at_s for name, at_s in self._unhealthy.items()
                },
                wrong=self._wrong,
            )


_Value = tuple[float, int, str]


def _recent(condition: Condition, snapshot: Snapshot) -> list[Seen]:
    since_s = snapshot.now_s - condition.window_s
    return [seen for seen in snapshot.seen if seen.at_s >= since_s]


def _error_rate(condition: Condition, snapshot: Snapshot) -> _Value:
    rows = _recent(condition, snapshot)
    if len(rows) < condition.samples:
        return math.nan, len(rows), ""
    failed = sum(not row.ok for row in rows)
    return failed / len(rows), len(rows), f"{failed} failed"


def _ttft_p99(condition: Condition, snapshot: Snapshot) -> _Value:
    """Ended requests by their TTFT; open ones count once they are over the limit."""
    waited = [row.ttft_s for row in _recent(condition, snapshot)]
    over = [age_s for age_s in snapshot.waiting_s if age_s > condition.limit]
    waited += over
    if len(waited) < condition.samples:
        return math.nan, len(waited), ""
    rank = math.ceil(0.99 * len(waited)) - 1
    return sorted(waited)[rank], len(waited), f"{len(over)} of them still wait"


def _hit_rate(condition: Condition, snapshot: Snapshot) -> _Value:
    rows = [row for row in _recent(condition, snapshot) if row.ok]
    asked = sum(row.asked for row in rows)
    if len(rows) < condition.samples or not asked:
        return math.nan, len(rows), ""
    return sum(row.reused for row in rows) / asked, len(rows), ""


def _not_healthy(condition: Condition, snapshot: Snapshot) -> _Value:
    ailing = snapshot.unhealthy_s or {}
    longest = max(ailing, key=lambda name: ailing[name], default="")
    return ailing.get(longest, 0.0), len(ailing), longest


def _wrong_bytes(condition: Condition, snapshot: Snapshot) -> _Value:
    """Of the whole run: one wrong byte never grows old."""
    return float(snapshot.wrong), len(snapshot.seen), ""


_READERS = {
    Measure.ERROR_RATE: _error_rate,
    Measure.TTFT_P99: _ttft_p99,
    Measure.HIT_RATE: _hit_rate,
    Measure.NOT_HEALTHY: _not_healthy,
    Measure.WRONG_BYTES: _wrong_bytes,
}
