"""Which bytes of a segment are free: exact-size holes first, coalescing on demand.

Free ranges are kept by their exact length, many offsets in one numpy array, because a
pool of pages frees and takes thousands of equal buffers at a time. Freeing only files
the holes; neighbours are merged when a length is asked for that no hole can serve.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes; buffers start on cache lines."""

_GRANULE_BITS = 12
_STARTS_PER_GRANULE = (1 << _GRANULE_BITS) // ALIGNMENT
_CHUNKS_MAX = 64

Offsets = NDArray[np.uint64]


def aligned(size: int) -> int:
    """Bytes that a buffer of `size` occupies."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class OffsetAllocator:
    """Hands out offsets of one segment of `size` bytes.

    `allocated` is the sum of the sizes asked for. A free of a buffer that is not
    allocated raises AssertionError: at once when no buffer starts in its 4 KiB
    granule, otherwise when holes are merged and overlap.
    """

    __slots__ = (
        "_dirty",
        "_free",
        "_holes",
        "_lengths",
        "_starts",
        "allocated",
        "size",
    )

    def __init__(self, size: int) -> None:
        usable = size // ALIGNMENT * ALIGNMENT
        self.size = size
        self.allocated = 0
        self._free = usable
        self._dirty = False
        self._holes: dict[int, list[Offsets]] = {}
        self._lengths: list[int] = []
        granules = usable >> _GRANULE_BITS
        self._starts = np.zeros(granules + 1, dtype=np.uint8)
        if usable:
            self._file(usable, np.zeros(1, dtype=np.uint64))

    @property
    def free_bytes(self) -> int:
        """Bytes in holes, whether or not one of them is large enough."""
        return self._free

    def allocate(self, size: int) -> int | None:
        """Returns an offset, or None when no hole is large enough."""
        offsets = self.allocate_many(size, 1)
        return int(offsets[0]) if offsets.size else None

    def allocate_many(self, size: int, count: int) -> Offsets:
        """Returns up to `count` offsets for buffers of one size, as many as fit."""
        assert size > 0, "a buffer holds at least one byte"
        length = aligned(size)
        pieces: list[Offsets] = []
        missing = count
        while missing > 0:
            piece = self._cut(length, missing)
            if piece.size == 0:
                break
            pieces.append(piece)
            missing -= piece.size
        if not pieces:
            return np.zeros(0, dtype=np.uint64)
        offsets = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        np.add.at(self._starts, self._granules(offsets), 1)
        self._free -= length * offsets.size
        self.allocated += size * offsets.size
        return offsets

    def free(self, offset: int, size: int) -> None:
        """Gives one buffer back."""
        self.free_many(np.array([offset], dtype=np.uint64), size)

    def free_many(self, offsets: Offsets, size: int) -> None:
        """Gives buffers of one size back."""
        length = aligned(size)
        if not offsets.size:
            return
        assert int(offsets.max()) + length <= self.size, "free outside of the segment"
        granules = self._granules(offsets)
        np.subtract.at(self._starts, granules, 1)
        legal = self._starts.take(granules) <= _STARTS_PER_GRANULE
        assert legal.all(), "double free: no buffer starts here"
        self.allocated -= size * offsets.size
        self._free += length * offsets.size
        assert self.allocated >= 0, "double free: more freed than allocated"
        self._dirty = True
        self._file(length, offsets)

    def holes(self) -> tuple[Offsets, Offsets]:
        """Merged free ranges as (starts, lengths), ascending. For checks."""
        self._coalesce()
        starts, lengths = self._all_holes()
        order = starts.argsort()
        return starts[order], lengths[order]

    @staticmethod
    def _granules(offsets: Offsets) -> NDArray[np.intp]:
        return (offsets >> np.uint64(_GRANULE_BITS)).astype(np.intp)

    def _cut(self, length: int, count: int) -> Offsets:
        """Cuts up to `count` pieces out of the smallest holes that fit."""
        at = bisect_left(self._lengths, length)
        if at == len(self._lengths) and self._dirty and self._free >= length:
            self._coalesce()
            at = bisect_left(self._lengths, length)
        if at == len(self._lengths):
            return np.zeros(0, dtype=np.uint64)
        hole = self._lengths[at]
        fit = hole // length
        starts = self._take(hole, -(-count // fit))
        if hole == length:
            return starts
        return self._carve(starts, hole, length, count)

    def _carve(self, starts: Offsets, hole: int, length: int, count: int) -> Offsets:
        fit = hole // length
        whole, rest = divmod(min(count, fit * starts.size), fit)
        step = np.uint64(length)
        pieces = []
        if whole:
            inside = np.arange(fit, dtype=np.uint64) * step
            pieces.append((starts[:whole, None] + inside).ravel())
            self._file(hole - fit * length, starts[:whole] + np.uint64(fit * length))
        if rest:
            last = starts[whole]
            pieces.append(last + np.arange(rest, dtype=np.uint64) * step)
            left = np.array([last + np.uint64(rest * length)], dtype=np.uint64)
            self._file(hole - rest * length, left)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _file(self, length: int, starts: Offsets) -> None:
        if not length:
            return
        chunks = self._holes.get(length)
        if chunks is None:
            self._holes[length] = [starts]
            insort(self._lengths, length)
            return
        chunks.append(starts)
        if len(chunks) > _CHUNKS_MAX:
            chunks[:] = [np.concatenate(chunks)]

    def _take(self, length: int, count: int) -> Offsets:
        """Takes up to `count` holes of exactly this length, the latest first."""
        chunks = self._holes[length]
        taken = []
        while count and chunks:
            last = chunks.pop()
            if last.size > count:
                chunks.append(last[:-count])
                last = last[-count:]
            taken.append(last)
            count -= last.size
        if not chunks:
            del self._holes[length]
            del self._lengths[bisect_left(self._lengths, length)]
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def _all_holes(self) -> tuple[Offsets, Offsets]:
        starts = [np.concatenate(chunks) for chunks in self._holes.values()]
        lengths = [
            np.full(len(group), length, dtype=np.uint64)
            for length, group in zip(self._holes, starts, strict=True)
        ]
        if not starts:
            empty = np.zeros(0, dtype=np.uint64)
            return empty, empty
        return np.concatenate(starts), np.concatenate(lengths)

    def _coalesce(self) -> None:
        """Merges neighbouring holes; O(holes log holes), all in numpy."""
        self._dirty = False
        starts, lengths = self._all_holes()
        if not starts.size:
            return
        order = starts.argsort()
        starts, lengths = starts[order], lengths[order]
        ends = starts + lengths
        assert (ends[:-1] <= starts[1:]).all(), "double free: holes overlap"
        heads = np.flatnonzero(np.r_[True, starts[1:] != ends[:-1]])
        starts, lengths = starts[heads], np.add.reduceat(lengths, heads)
        order = lengths.argsort(kind="stable")
        starts, lengths = starts[order], lengths[order]
        cuts = np.flatnonzero(lengths[1:] != lengths[:-1]) + 1
        self._lengths = [int(lengths[at]) for at in (0, *cuts)]
        groups = np.split(starts, cuts)
        self._holes = {
            length: [group] for length, group in zip(self._lengths, groups, strict=True)
        }
