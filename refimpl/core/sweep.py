"""Cleaning up after removed segments: one sweep for all of them, slice by slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.objects import COMPLETE, NO_SEGMENT, ObjectTable, Slots

if TYPE_CHECKING:
    from refimpl.core.segments import SegmentTable

_SCAN_SLOTS = 8192
_DROP_OBJECTS = 256


class Sweep:
    """Walks the shards once for the rows that were dying when the walk began.

    Rows removed meanwhile wait for the next walk. A put under way loses its mention but
    stays, so that its end is answered with REPLICA_IS_GONE.
    """

    def __init__(self, objects: ObjectTable, segments: SegmentTable) -> None:
        self._objects = objects
        self._segments = segments
        self._rows: set[int] = set()
        self._at = 0

    @property
    def pending(self) -> bool:
        """Whether removed segments may still be mentioned."""
        return bool(self._segments.dying)

    def step(self) -> tuple[int, Slots]:
        """Cleans one slice; returns slots scanned, and objects with no replica left."""
        nothing = np.zeros(0, dtype=np.intp)
        if not self.pending:
            return 0, nothing
        if not self._rows:
            self._rows = set(self._segments.dying)
            self._at = 0
        begin, found, dropped = self._at, [nothing], 0
        end = min(begin + _SCAN_SLOTS, self._objects.high_water)
        while self._at < end and dropped < _DROP_OBJECTS:
            orphans = self._clean(slice(self._at, min(self._at + 1024, end)))
            found.append(orphans)
            dropped += len(orphans)
            self._at = min(self._at + 1024, end)
        if self._at >= self._objects.high_water:
            self._segments.recycle(self._rows)
            self._rows = set()
        return self._at - begin, np.concatenate(found)

    def _clean(self, part: slice) -> Slots:
        """Clears mentions of dead rows in these slots; returns the orphans."""
        segment = self._objects.segment[part]
        mentions = segment != NO_SEGMENT
        dead = mentions & (self._segments.ids.take(segment) == 0)
        if not dead.any():
            return np.zeros(0, dtype=np.intp)
        segment[dead] = NO_SEGMENT
        orphaned = dead.any(axis=1) & ~(segment != NO_SEGMENT).any(axis=1)
        orphaned &= self._objects.state[part] == COMPLETE
        slots: Slots = np.flatnonzero(orphaned) + part.start
        return slots
