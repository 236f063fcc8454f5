"""The object table: every key that the master knows, in columns addressed by slot.

What a lookup answers stands in one row of 64 bytes, one cache line; the rest stands in
columns of their own, which sweeps and eviction scan. Everything comes from zeroed
memory, so that a table for a million objects costs only what it holds (at most 200
bytes a key; Mooncake#3452 is a master killed by its metadata).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from refimpl.core.index import KEY_WORDS, KeyIndex
from refimpl.core.names import Names

REPLICAS_MAX = 2
SHARDS = 1024
"""Contiguous slices of the slots, the unit of sweeping and eviction."""

FREE, PROCESSING, COMPLETE = 0, 1, 2
PIN_NONE, PIN_SOFT, PIN_HARD = 0, 1, 2
NO_SEGMENT = 0
"""Row of the segment table that means "no replica here"."""

_ROW = np.dtype(
    [
        ("key", "<u8", (KEY_WORDS,)),
        ("checksum", "<u8"),
        ("offset", "<u8", (REPLICAS_MAX,)),
        ("size", "<u4"),
        ("segment", "<u2", (REPLICAS_MAX,)),
    ]
)

Slots = NDArray[np.intp]


class ObjectTable:
    """Objects in states FREE, PROCESSING and COMPLETE. Slot -1 is for ever FREE."""

    def __init__(self, capacity: int, names_bytes_max: int = 0) -> None:
        self.capacity = capacity
        self.names = Names(capacity, names_bytes_max)
        self.index = KeyIndex(capacity, _ROW.itemsize // 8)
        self._rows = self.index.rows.view(_ROW).reshape(-1)
        self.keys: NDArray[np.uint64] = self._rows["key"]
        self.checksum: NDArray[np.uint64] = self._rows["checksum"]
        self.offset: NDArray[np.uint64] = self._rows["offset"]
        self.size: NDArray[np.uint32] = self._rows["size"]
        self.segment: NDArray[np.uint16] = self._rows["segment"]
        rows = capacity + 1
        self.state = np.zeros(rows, dtype=np.uint8)
        self.parts = np.zeros(rows, dtype=np.uint8)
        self.pin = np.zeros(rows, dtype=np.uint8)
        self.part_mask = np.zeros(rows, dtype=np.uint64)
        self.token = np.zeros(rows, dtype=np.uint64)
        self.writer = np.zeros(rows, dtype=np.uint64)
        self.put_start = np.zeros(rows, dtype=np.float64)
        self.lease = np.zeros(rows, dtype=np.float64)
        """Until when readers may read. PutEnd writes its own instant, which is no
        lease but orders objects that nobody looked up by their age."""
        self.count = 0
        """Slots in use."""
        self.complete = 0
        """Slots in state COMPLETE."""
        self.high_water = 0
        """No slot at or above it was ever used."""
        self._freed = np.zeros(capacity, dtype=np.int32)
        self._freed_count = 0

    @property
    def shard_size(self) -> int:
        """Slots in a shard; the last shards of a small table are empty."""
        return -(-self.capacity // SHARDS)

    def locate(self, keys: NDArray[np.uint64]) -> tuple[Slots, NDArray[np.void]]:
        """Slots of these keys, -1 where absent, and copies of their rows.

        Fields of a row: key, checksum, offset, size, segment.
        """
        slots, rows = self.index.locate(keys)
        return slots, rows.view(_ROW).reshape(-1)

    def claim(self, keys: NDArray[np.uint64]) -> Slots:
        """Takes a slot for each of these absent, distinct keys and indexes it."""
        wanted = len(keys)
        assert self.count + wanted <= self.capacity, "object table is full"
        recycled = min(wanted, self._freed_count)
        self._freed_count -= recycled
        old = self._freed[self._freed_count : self._freed_count + recycled]
        top = self.high_water + wanted - recycled
        slots = np.concatenate([old, np.arange(self.high_water, top)]).astype(np.intp)
        self.high_water = top
        self.count += wanted
        self.index.insert(keys, slots)
        return slots

    def drop(self, slots: Slots) -> None:
        """Forgets the objects at these distinct, used slots."""
        states = self.state.take(slots)
        assert states.all(), "slot is free already"
        self.index.delete_slots(slots)
        self.names.forget(slots)
        self.complete -= int(np.count_nonzero(states == COMPLETE))
        self.count -= len(slots)
        self.state[slots] = FREE
        self.segment[slots] = NO_SEGMENT
        self._freed[self._freed_count : self._freed_count + len(slots)] = slots
        self._freed_count += len(slots)
