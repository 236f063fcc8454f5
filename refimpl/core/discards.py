"""Buffers that somebody may still write to or read from, and until when.

An abandoned writer may be stopped and go on later: its buffer must belong to nobody
until the release time (Mooncake#974). The same holds for readers of a removed object.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from refimpl.core.segments import Freed


class Discards:
    """Freed buffers held back until their time; the pool bounds how many."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Freed]] = []
        self._order = count()
        self.buffers = 0

    def hold(self, freed: Iterable[Freed], until: float) -> None:
        """Keeps these buffers from their allocators until then."""
        for group in freed:
            heapq.heappush(self._heap, (until, next(self._order), group))
            self.buffers += int(group.offsets.size)
            group.segment.quarantined += group.total_bytes
            group.segment.releasing -= group.total_bytes

    def due(self, now: float, groups_max: int) -> list[Freed]:
        """Takes out up to `groups_max` groups whose time has come."""
        groups: list[Freed] = []
        while self._heap and self._heap[0][0] <= now and len(groups) < groups_max:
            group = heapq.heappop(self._heap)[2]
            self.buffers -= int(group.offsets.size)
            group.segment.quarantined -= group.total_bytes
            group.segment.releasing += group.total_bytes
            groups.append(group)
        return groups

    def next_at(self) -> float:
        """When the next group is due; infinite when there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def held(self) -> list[Freed]:
        """Every group held, for checks."""
        return [group for _, _, group in self._heap]
