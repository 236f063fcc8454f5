"""Forgetting objects: what they occupied goes back, or is held back first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.objects import PROCESSING, ObjectTable, Slots
from refimpl.core.segments import Freed, SegmentTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from refimpl.core.discards import Discards

_DEAD_PUTS_PER_SLICE = 1024


class Reclaim:
    """Drops objects from the table and follows their buffers until they are free.

    Args:
        objects: the table.
        segments: where the buffers lie.
        discards: buffers that somebody may still touch.
        release_s: how long after its start an abandoned put may still be written to.
    """

    def __init__(
        self,
        objects: ObjectTable,
        segments: SegmentTable,
        discards: Discards,
        release_s: float,
    ) -> None:
        self._objects = objects
        self._segments = segments
        self._discards = discards
        self._release_s = release_s
        self._oldest_put = np.inf
        self.discarded = 0
        """Puts that were abandoned: taken over, given up by one of several ranks, or
        dead at their release time."""

    def put_started(self, now: float) -> None:
        """Remembers that no put under way is older than the oldest one told here."""
        self._oldest_put = min(self._oldest_put, now)

    def drop(self, slots: Slots) -> list[Freed]:
        """Forgets objects; returns the buffers that nobody owns any more."""
        if not len(slots):
            return []
        table = self._objects
        freed = self._buffers(
            table.segment[slots], table.offset[slots], table.size[slots]
        )
        table.drop(slots)
        return freed

    def drop_now(self, slots: Slots) -> None:
        """Forgets objects whose buffers may be used again at once."""
        release(self.drop(slots))

    def drop_leased(self, slots: Slots, now: float) -> None:
        """Forgets objects; readers who hold a lease keep the bytes until it ends."""
        lease = self._objects.lease.take(slots)
        leased = lease > now
        if leased.any():
            self._discards.hold(self.drop(slots[leased]), float(lease[leased].max()))
        self.drop_now(slots[~leased])

    def discard(self, slots: Slots) -> None:
        """Forgets abandoned puts; their writers may wake up until the release time."""
        if not len(slots):
            return
        until = float(self._objects.put_start.take(slots).max()) + self._release_s
        self.discarded += len(slots)
        self._discards.hold(self.drop(slots), until)

    def has_dead_puts(self, now: float) -> bool:
        """Whether a put under way may have reached its release time."""
        return self._oldest_put + self._release_s <= now

    def drop_dead_puts(self, now: float) -> list[Freed]:
        """Forgets puts that nobody ended or took over by their release time."""
        if not self.has_dead_puts(now):
            return []
        table = self._objects
        puts = np.flatnonzero(table.state[: table.high_water] == PROCESSING)
        started = table.put_start.take(puts)
        overdue = started + self._release_s <= now
        dead = puts[overdue][:_DEAD_PUTS_PER_SLICE]
        if len(dead) == np.count_nonzero(overdue):
            self._oldest_put = float(started[~overdue].min(initial=np.inf))
        self.discarded += len(dead)
        return self.drop(dead)

    def _buffers(
        self,
        rows: NDArray[np.uint16],
        offsets: NDArray[np.uint64],
        sizes: NDArray[np.uint32],
    ) -> list[Freed]:
        """Groups buffers by segment and size; those of removed segments are gone."""
        live = self._segments.ids.take(rows) != 0
        each = np.broadcast_to(sizes[:, None], rows.shape)[live].astype(np.uint64)
        place = (rows[live].astype(np.uint64) << np.uint64(32)) | each
        offset = offsets[live]
        groups = []
        for value, members in _groups(place):
            segment = self._segments.by_row[value >> 32]
            assert segment is not None, "readable row without a segment"
            freed = Freed(segment, value & 0xFFFFFFFF, offset[members])
            segment.releasing += freed.total_bytes
            groups.append(freed)
        return groups


def release(freed: Iterable[Freed]) -> None:
    """Hands buffers back to their allocators. Needs no lock."""
    for group in freed:
        group.segment.inbox.append(group)


def _groups(values: NDArray[np.uint64]) -> list[tuple[int, NDArray[np.intp] | slice]]:
    """Distinct values with their positions; no sorting when there is but one."""
    if not values.size:
        return []
    if (values == values[0]).all():
        return [(int(values[0]), slice(None))]
    distinct, inverse = np.unique(values, return_inverse=True)
    return [(int(v), np.flatnonzero(inverse == at)) for at, v in enumerate(distinct)]
