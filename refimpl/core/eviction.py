"""Which objects go when memory runs short: LRU by last lookup, in bounded slices.

A pass first reads a sample of the table and estimates the lease time below which
enough objects lie, then walks the shards and takes what is older. No slice sorts or
scans the whole table (Mooncake#2560), and a pass that frees nothing makes the next one
wait longer (Mooncake#2187: 649 passes for nothing).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.objects import (
    COMPLETE,
    PIN_HARD,
    PIN_NONE,
    PIN_SOFT,
    ObjectTable,
    Slots,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from refimpl.core.pool_settings import PoolSettings

_EXACT_SLOTS = 16_384
"""Tables up to this size are ordered exactly."""
_SAMPLE_SLOTS = 4096
"""Slots read of a larger table, to estimate its ages."""
_SCAN_SLOTS = 8192
"""Slots looked at in one slice."""
_EVICT_OBJECTS = 256
"""Objects evicted in one slice."""


def target_and_floor(used: float, settings: PoolSettings) -> tuple[float, float]:
    """Shares to evict: wanted, and what a pass must reach (upstream `BatchEvict`)."""
    over = used - settings.eviction_high_watermark_ratio
    target = max(settings.eviction_ratio, over + settings.eviction_ratio)
    return target, max(target * 0.5, over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How full the pool is. Ratios count live segments and the object table."""

    allocated_bytes: int
    capacity_bytes: int
    objects: int
    objects_max: int

    @property
    def bytes_ratio(self) -> float:
        return (
            self.allocated_bytes / self.capacity_bytes if self.capacity_bytes else 0.0
        )

    @property
    def objects_ratio(self) -> float:
        return self.objects / self.objects_max


@dataclass(slots=True)
class _Quota:
    """Bytes and objects that a pass wants, and the least it must reach."""

    wanted_bytes: int = 0
    wanted_objects: int = 0
    floor_bytes: int = 0
    floor_objects: int = 0
    got_bytes: int = 0
    got_objects: int = 0

    def is_met(self) -> bool:
        return self._has(self.wanted_bytes, self.wanted_objects)

    def has_floor(self) -> bool:
        return self._has(self.floor_bytes, self.floor_objects)

    def lower_to_floor(self) -> None:
        """Later phases only make good what the first one fell short of."""
        self.wanted_bytes = self.floor_bytes
        self.wanted_objects = self.floor_objects

    def _has(self, size: int, count: int) -> bool:
        return self.got_bytes >= size and self.got_objects >= count


@dataclass(slots=True)
class _Pass:
    quota: _Quota
    phase: int = 0
    threshold: float = -np.inf
    shards_left: int = 0


class Evictor:
    """Chooses victims slice by slice; the pool drops them and frees their buffers.

    Args:
        settings: watermark, ratio, periods.
        table: the objects.
        ids: `SegmentTable.ids`, to know whose bytes are really freed.
    """

    def __init__(
        self, settings: PoolSettings, table: ObjectTable, ids: NDArray[np.uint64]
    ) -> None:
        self._settings = settings
        self._table = table
        self._ids = ids
        self._pass: _Pass | None = None
        self._cursor = 0
        self._not_before = -np.inf
        self._backoff_s = settings.eviction_period_s
        self.needed = False
        """An allocation failed for want of space since the last successful pass."""
        self.attempted = 0
        self.successful = 0
        self.futile = 0
        self.evicted_objects = 0
        self.evicted_bytes = 0

    @property
    def busy(self) -> bool:
        """Whether a pass is under way."""
        return self._pass is not None

    def wait_s(self, now: float) -> float:
        """Seconds until the next slice is of use."""
        return 0.0 if self.busy else max(0.0, self._not_before - now)

    def step(self, usage: Usage, now: float) -> Slots:
        """Returns the slots to evict in this slice; they are counted as evicted."""
        if self._pass is None and not self._begin(usage, now):
            return np.zeros(0, dtype=np.intp)
        current = self._pass
        assert current is not None
        victims = self._walk(current, now)
        if current.quota.is_met():
            self._finish(current, now)
        elif not current.shards_left:
            self._next_phase(current, now)
        return victims

    def _begin(self, usage: Usage, now: float) -> bool:
        high = self._settings.eviction_high_watermark_ratio
        over_bytes = usage.bytes_ratio > high or self.needed
        over_objects = usage.objects_ratio > high
        if now < self._not_before or not (over_bytes or over_objects):
            return False
        quota = _Quota()
        if over_bytes:
            target, floor = target_and_floor(usage.bytes_ratio, self._settings)
            quota.wanted_bytes = ceil(usage.allocated_bytes * target)
            quota.floor_bytes = ceil(usage.allocated_bytes * floor)
        if over_objects or usage.objects >= usage.objects_max:
            target, floor = target_and_floor(usage.objects_ratio, self._settings)
            quota.wanted_objects = ceil(usage.objects * target)
            quota.floor_objects = ceil(usage.objects * floor)
        self.attempted += 1
        self._pass = _Pass(quota)
        self._aim(self._pass, now)
        return True

    def _aim(self, current: _Pass, now: float) -> None:
        """Sets the lease time below which the rest of the quota should lie."""
        top = self._table.high_water
        stride = 1 if top <= _EXACT_SLOTS else -(-top // _SAMPLE_SLOTS) | 1
        shards = -(-top // self._table.shard_size)
        current.shards_left = shards
        sample = slice(0, top, stride)
        chosen = self._candidates(sample, now, current.phase)
        leases = self._table.lease[sample][chosen]
        if not leases.size:
            # A sparse sample may have missed the few there are.
            current.threshold = now
            current.shards_left = 0 if stride == 1 else shards
            return
        order = leases.argsort(kind="stable")
        weights = self._weights(sample)[chosen][order]
        quota = current.quota
        at = max(
            _enough(weights, (quota.wanted_bytes - quota.got_bytes) / stride),
            _enough(
                np.ones(len(weights)),
                (quota.wanted_objects - quota.got_objects) / stride,
            ),
        )
        current.threshold = float(leases[order[at]])

    def _walk(self, current: _Pass, now: float) -> Slots:
        """Collects victims of consecutive shards until a bound of the slice is hit."""
        found: list[Slots] = []
        scanned = taken = 0
        quota = current.quota
        while current.shards_left and not quota.is_met():
            if scanned >= _SCAN_SLOTS or taken >= _EVICT_OBJECTS:
                break
            at, left = self._cursor, current.shards_left
            shard = self._next_range(current)
            scanned += shard.stop - shard.start
            victims = self._victims(shard, current, now, _EVICT_OBJECTS - taken)
            found.append(victims)
            taken += len(victims)
            if taken >= _EVICT_OBJECTS:
                # There may be more in this shard: the next slice looks again.
                self._cursor, current.shards_left = at, left
        return np.concatenate(found) if found else np.zeros(0, dtype=np.intp)

    def _next_range(self, current: _Pass) -> slice:
        """The next shard, or several at once where shards are small."""
        size = self._table.shard_size
        shards = max(1, 1024 // size)
        top = -(-self._table.high_water // size)
        if self._cursor >= top:
            self._cursor = 0
        shards = min(shards, current.shards_left, top - self._cursor)
        start = self._cursor * size
        self._cursor += shards
        current.shards_left -= shards
        return slice(start, min(start + shards * size, self._table.high_water))

    def _victims(self, shard: slice, current: _Pass, now: float, at_most: int) -> Slots:
        chosen = self._candidates(shard, now, current.phase)
        leases = self._table.lease[shard]
        picked = np.flatnonzero(chosen & (leases <= current.threshold))
        if not picked.size:
            return picked
        weights = self._weights(shard)[picked]
        order = leases[picked].argsort(kind="stable")
        picked, weights = picked[order], weights[order]
        keep = min(at_most, self._within(current.quota, weights))
        picked, weights = picked[:keep], weights[:keep]
        size = int(weights.sum())
        current.quota.got_bytes += size
        current.quota.got_objects += keep
        self.evicted_bytes += size
        self.evicted_objects += keep
        slots: Slots = picked + shard.start
        return slots

    @staticmethod
    def _within(quota: _Quota, weights: NDArray[np.float64]) -> int:
        """How many of these, the oldest first, the quota still asks for."""
        left = quota.wanted_bytes - quota.got_bytes
        by_bytes = 0 if left <= 0 else _enough(weights, left) + 1
        by_objects = max(0, quota.wanted_objects - quota.got_objects)
        return min(len(weights), max(by_bytes, by_objects))

    def _candidates(self, part: slice, now: float, phase: int) -> NDArray[np.bool_]:
        table = self._table
        lease, pin = table.lease[part], table.pin[part]
        chosen: NDArray[np.bool_] = (table.state[part] == COMPLETE) & (lease <= now)
        if phase == _SOFT_TOO:
            chosen &= pin != PIN_HARD
            return chosen
        unpinned = pin == PIN_NONE
        soft = pin == PIN_SOFT
        if soft.any():
            touched = np.maximum(
                table.put_start[part], lease - self._settings.default_kv_lease_ttl_s
            )
            over = touched + self._settings.default_kv_soft_pin_ttl_s <= now
            unpinned |= soft & over
        chosen &= unpinned
        return chosen

    def _weights(self, part: slice) -> NDArray[np.float64]:
        """Bytes that evicting each object frees; none in removed segments."""
        copies = (self._ids.take(self._table.segment[part]) != 0).sum(axis=1)
        weights: NDArray[np.float64] = self._table.size[part] * copies.astype(float)
        return weights

    def _next_phase(self, current: _Pass, now: float) -> None:
        last = (
            _SOFT_TOO if self._settings.allow_evict_soft_pinned_objects else _AIM_AGAIN
        )
        while not current.quota.has_floor() and current.phase < last:
            current.phase += 1
            current.quota.lower_to_floor()
            self._aim(current, now)
            if current.shards_left:
                return
        self._finish(current, now)

    def _finish(self, current: _Pass, now: float) -> None:
        self._pass = None
        if current.quota.got_objects:
            self.successful += 1
            self.needed = False
            self._backoff_s = self._settings.eviction_period_s
        else:
            self.futile += 1
            self.needed = self.needed and self._table.complete > 0
            longest = max(
                self._settings.futile_backoff_max_s, self._settings.eviction_period_s
            )
            self._backoff_s = min(self._backoff_s * 2, longest)
        self._not_before = now + self._backoff_s


_AIM_AGAIN = 1
_SOFT_TOO = 2


def _enough(weights: NDArray[np.float64], wanted: float) -> int:
    """Index of the first element at which the running sum reaches `wanted`."""
    at = int(np.searchsorted(weights.cumsum(), wanted))
    return min(at, len(weights) - 1)
