"""Segments: the memory that stores contribute, and their removal in O(1).

Objects name a segment by its row. A row is readable as long as `ids[row]` is not 0, so
removing a segment makes all its replicas unreadable by one store, whatever it holds.
The row is given to another segment only after a sweep has cleared every mention of it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from enum import Enum, unique
from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.allocator import OffsetAllocator, Offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Freed",
    "OffsetAllocator",
    "Segment",
    "SegmentInfo",
    "SegmentStatus",
    "SegmentTable",
]

SEGMENT_BYTES_MAX = 1 << 42
"""4 TiB: the allocator's map of a segment takes a byte for each 4 KiB of it."""
_HOSTS_REMEMBERED = 65_536


@unique
class SegmentStatus(Enum):
    """Upstream's words for the life of a segment."""

    OK = "OK"
    GRACEFULLY_UNMOUNTING = "GRACEFULLY_UNMOUNTING"
    """Readable, takes nothing new, goes at its deadline."""
    UNMOUNTING = "UNMOUNTING"
    """Unreadable; mentions of it are still being swept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """A segment as stores, clients and the wire know it."""

    id: int
    """New with every mount: the identity of these bytes."""
    name: str
    host_id: str
    """The failure domain."""
    size: int
    rails: tuple[tuple[str, str], ...]
    """(name, "host:port") of each rail."""
    numa_node: int = -1
    allocated: int = 0
    status: str = SegmentStatus.OK.value


@dataclass(frozen=True, slots=True)
class Freed:
    """Buffers of one size in one segment that nobody uses any more."""

    segment: Segment
    size: int
    offsets: Offsets

    @property
    def total_bytes(self) -> int:
        return self.size * int(self.offsets.size)


@dataclass(slots=True, eq=False)
class Segment:
    """One mounted segment. `eq=False`: a segment is itself, never an equal one."""

    row: int
    info: SegmentInfo
    client: int
    fresh_until: float
    """Until then it is held to slow start."""
    allocator: OffsetAllocator
    status: SegmentStatus = SegmentStatus.OK
    deadline: float = np.inf
    """When a graceful unmount ends."""
    inbox: deque[Freed] = field(default_factory=deque)
    """Freed buffers on their way back. Appending is atomic, so that `release` needs no
    lock; the allocator takes them in before it is asked for anything."""
    releasing: int = 0
    """Bytes freed but not yet taken in from the inbox."""
    quarantined: int = 0
    """Bytes of abandoned puts that wait for their release time."""
    window_bytes: int = 0
    """Bytes placed here in the current slow-start window."""

    def settle(self) -> None:
        """Takes in what was released."""
        while self.inbox:
            freed = self.inbox.popleft()
            self.releasing -= freed.total_bytes
            self.allocator.free_many(freed.offsets, freed.size)

    def described(self) -> SegmentInfo:
        """The info with what is true now."""
        return replace(
            self.info, allocated=self.allocator.allocated, status=self.status.value
        )


class SegmentTable:
    """Live segments by id, name and row; rows that wait for a sweep."""

    def __init__(self, rows_max: int) -> None:
        self.ids: NDArray[np.uint64] = np.zeros(rows_max + 1, dtype=np.uint64)
        """Instance id of the readable segment in a row, else 0. Row 0 is "none"."""
        self.by_row: list[Segment | None] = [None] * (rows_max + 1)
        self.version = 0
        """Grows whenever the set that may be allocated from changes."""
        self.dying: set[int] = set()
        """Rows of removed segments that objects may still mention."""
        self._by_id: dict[int, Segment] = {}
        self._by_name: dict[str, Segment] = {}
        self._owned: Counter[int] = Counter()
        self._unused = list(range(rows_max, 0, -1))
        self._open: list[Segment] | None = None
        # A dict keeps the order of arrival, so that the oldest host is forgotten.
        self._hosts_seen: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def full(self) -> bool:
        """Whether every row is taken or waits for its sweep."""
        return not self._unused

    def live(self) -> list[Segment]:
        """Readable segments in the order of mounting."""
        return list(self._by_id.values())

    def open(self) -> list[Segment]:
        """Segments that take new objects, in the order of mounting."""
        if self._open is None:
            self._open = [
                s for s in self._by_id.values() if s.status is SegmentStatus.OK
            ]
        return self._open

    def get(self, segment_id: int) -> Segment | None:
        return self._by_id.get(segment_id)

    def named(self, name: str) -> Segment | None:
        return self._by_name.get(name)

    def owned_by(self, client: int) -> int:
        """How many live segments this client contributes."""
        return self._owned[client]

    def saw_host(self, host_id: str) -> bool:
        """Whether a segment of this host was ever mounted here."""
        return host_id in self._hosts_seen

    def mount(self, info: SegmentInfo, client: int, fresh_until: float) -> Segment:
        """Adds a segment whose id and name are not mounted."""
        assert info.id not in self._by_id, "id is mounted"
        assert info.name not in self._by_name, "name is mounted"
        clean = replace(info, allocated=0, status=SegmentStatus.OK.value)
        # First what may fail for want of memory: a row taken before would be lost.
        allocator = OffsetAllocator(info.size)
        row = self._unused.pop()
        segment = Segment(row, clean, client, fresh_until, allocator)
        self.by_row[row] = segment
        self.ids[row] = info.id
        self._by_id[info.id] = segment
        self._by_name[info.name] = segment
        self._owned[client] += 1
        self._remember(info.host_id)
        self._changed()
        return segment

    def drain(self, segment: Segment, deadline: float) -> None:
        """Stops allocation; the segment stays readable until `deadline`."""
        segment.status = SegmentStatus.GRACEFULLY_UNMOUNTING
        segment.deadline = min(segment.deadline, deadline)
        self._changed()

    def remove(self, segment: Segment) -> None:
        """Makes every replica in it unreadable. O(1)."""
        segment.status = SegmentStatus.UNMOUNTING
        self.ids[segment.row] = 0
        self.by_row[segment.row] = None
        self.dying.add(segment.row)
        del self._by_id[segment.info.id]
        del self._by_name[segment.info.name]
        self._owned[segment.client] -= 1
        if not self._owned[segment.client]:
            del self._owned[segment.client]
        self._changed()

    def due(self, now: float) -> list[Segment]:
        """Segments whose grace has ended."""
        return [s for s in self._by_id.values() if s.deadline <= now]

    def recycle(self, rows: set[int]) -> None:
        """Rows that a sweep found unmentioned may be used again."""
        assert rows <= self.dying, "row was not waiting for a sweep"
        self.dying -= rows
        self._unused.extend(rows)

    def settle(self) -> None:
        """Takes in whatever was released to any segment."""
        for segment in self._by_id.values():
            segment.settle()

    def capacity_bytes(self) -> int:
        return sum(s.info.size for s in self._by_id.values())

    def allocated_bytes(self) -> int:
        return sum(s.allocator.allocated for s in self._by_id.values())

    def _remember(self, host_id: str) -> None:
        self._hosts_seen[host_id] = None
        if len(self._hosts_seen) > _HOSTS_REMEMBERED:
            del self._hosts_seen[next(iter(self._hosts_seen))]

    def _changed(self) -> None:
        self.version += 1
        self._open = None
