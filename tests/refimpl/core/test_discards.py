from __future__ import annotations

import numpy as np

from refimpl.core.discards import Discards
from refimpl.core.segments import Freed, SegmentInfo, SegmentTable


def a_segment():
    info = SegmentInfo(id=1, name="s", host_id="h", size=1 << 20, rails=())
    return SegmentTable(1).mount(info, client=1, fresh_until=0.0)


def group(segment, buffers):
    freed = Freed(segment, 64, np.arange(buffers, dtype=np.uint64) * 64)
    segment.releasing += freed.total_bytes
    return freed


def test_buffers_come_out_at_their_time_the_earliest_first():
    segment, discards = a_segment(), Discards()
    late, early = group(segment, 1), group(segment, 2)
    discards.hold([late], until=9.0)
    discards.hold([early], until=5.0)

    assert discards.next_at() == 5.0
    assert discards.due(4.9, 10) == []
    assert discards.due(9.0, 10) == [early, late]
    assert discards.next_at() == float("inf")


def test_one_slice_takes_out_a_bounded_number_of_groups():
    segment, discards = a_segment(), Discards()
    for _ in range(5):
        discards.hold([group(segment, 1)], until=1.0)

    assert [len(discards.due(1.0, 2)) for _ in range(4)] == [2, 2, 1, 0]


def test_held_bytes_are_quarantined_and_then_on_their_way():
    segment, discards = a_segment(), Discards()
    discards.hold([group(segment, 3)], until=1.0)
    held = (segment.quarantined, segment.releasing, discards.buffers)
    discards.due(1.0, 10)

    assert held == (192, 0, 3)
    assert (segment.quarantined, segment.releasing, discards.buffers) == (0, 192, 0)
