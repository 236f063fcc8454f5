"""The pool's conservation laws: every byte and slot has exactly one owner.

Reads and sorts the whole table: for the end of a test or an operator's question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from refimpl.core.allocator import ALIGNMENT
from refimpl.core.objects import COMPLETE, FREE, ObjectTable

if TYPE_CHECKING:
    from refimpl.core.discards import Discards
    from refimpl.core.segments import Segment, SegmentTable

Ranges = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Starts and sizes."""


def broken_laws(
    objects: ObjectTable, segments: SegmentTable, discards: Discards
) -> list[str]:
    """Returns the broken laws in words."""
    broken = _slots(objects)
    for segment in segments.live():
        broken += _bytes(segment, objects, discards)
    return broken


def _slots(objects: ObjectTable) -> list[str]:
    used = np.flatnonzero(objects.state[: objects.high_water] != FREE)
    complete = int(np.count_nonzero(objects.state == COMPLETE))
    found = objects.index.find(objects.keys[used])
    cells = objects.index.occupied()
    laws = (
        (
            len(used) == objects.count,
            f"{objects.count} slots counted, {len(used)} used",
        ),
        (
            complete == objects.complete,
            f"{objects.complete} objects counted complete, {complete} are",
        ),
        (cells == len(used), f"{cells} keys indexed, {len(used)} slots used"),
        (bool((found == used).all()), "a key is not found at its slot"),
        (objects.state[-1] == FREE, "the absent slot is in use"),
    )
    return [text for holds, text in laws if not holds]


def _bytes(segment: Segment, objects: ObjectTable, discards: Discards) -> list[str]:
    name, allocator = segment.info.name, segment.allocator
    starts, sizes = _owned(segment, objects, discards)
    owned = int(sizes.sum(dtype=np.uint64)) + segment.releasing
    broken = []
    if owned != allocator.allocated:
        broken.append(f"{name}: {allocator.allocated} B allocated, {owned} B owned")
    if not 0 <= allocator.allocated <= segment.info.size:
        broken.append(
            f"{name}: allocated {allocator.allocated} B of {segment.info.size}"
        )
    lengths = -(-sizes.astype(np.int64) // ALIGNMENT) * ALIGNMENT
    hole_starts, hole_lengths = allocator.holes()
    if segment.releasing == 0:
        every = np.concatenate([lengths.astype(np.uint64), hole_lengths])
        broken += _tiling(
            name, np.concatenate([starts, hole_starts]), every, segment.info.size
        )
    return broken


def _owned(segment: Segment, objects: ObjectTable, discards: Discards) -> Ranges:
    """Buffers of objects in this segment, then those held back."""
    used = slice(0, objects.high_water)
    here = objects.segment[used] == segment.row
    sizes = np.broadcast_to(objects.size[used, None], here.shape)[here]
    starts = [objects.offset[used][here]]
    each = [sizes.astype(np.uint64)]
    for group in discards.held():
        if group.segment is segment:
            starts.append(group.offsets)
            each.append(np.full(len(group.offsets), group.size, dtype=np.uint64))
    return np.concatenate(starts), np.concatenate(each)


def _tiling(
    name: str, starts: NDArray[np.uint64], lengths: NDArray[np.uint64], size: int
) -> list[str]:
    """Buffers and holes must cover the segment without gap or overlap."""
    order = starts.argsort()
    starts, ends = starts[order], (starts + lengths)[order]
    covered = len(ends) > 0 and bool((ends[:-1] == starts[1:]).all())
    usable = size // ALIGNMENT * ALIGNMENT
    if usable and not (covered and starts[0] == 0 and ends[-1] == usable):
        return [f"{name}: buffers and holes overlap or leave a gap"]
    return []
