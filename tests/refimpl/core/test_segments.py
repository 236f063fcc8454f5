from __future__ import annotations

import numpy as np
import pytest

from refimpl.core.segments import Freed, SegmentInfo, SegmentStatus, SegmentTable

PAGE = 4096


def info(number, **changes):
    whole = {
        "id": number,
        "name": f"store-{number}",
        "host_id": "host",
        "size": 8 * PAGE,
        "rails": (("tcp0", "127.0.0.1:1"),),
    }
    return SegmentInfo(**{**whole, **changes})


@pytest.fixture
def table():
    return SegmentTable(4)


def test_a_row_reads_as_its_segments_identity_until_the_removal(table):
    segment = table.mount(info(77), client=1, fresh_until=0.0)
    before = int(table.ids[segment.row])
    table.remove(segment)

    assert (before, int(table.ids[segment.row])) == (77, 0)
    assert table.get(77) is None
    assert table.named("store-77") is None


def test_row_zero_is_no_segment(table):
    rows = {table.mount(info(n), client=1, fresh_until=0.0).row for n in range(1, 5)}

    assert rows == {1, 2, 3, 4}
    assert table.full


def test_a_row_is_not_used_again_before_its_sweep(table):
    segments = [table.mount(info(n), client=1, fresh_until=0.0) for n in range(1, 5)]
    table.remove(segments[0])
    full_before = table.full
    table.recycle({segments[0].row})

    assert full_before
    assert table.mount(info(9), client=1, fresh_until=0.0).row == segments[0].row


def test_a_mount_that_finds_no_memory_takes_no_row(table, monkeypatch):
    def short(size):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("refimpl.core.segments.OffsetAllocator", short)
        for number in range(1, 9):
            with pytest.raises(MemoryError):
                table.mount(info(number), client=1, fresh_until=0.0)

    assert not table.full
    assert table.mount(info(1), client=1, fresh_until=0.0).row == 1


def test_only_rows_that_wait_for_a_sweep_can_be_recycled(table):
    segment = table.mount(info(1), client=1, fresh_until=0.0)

    with pytest.raises(AssertionError):
        table.recycle({segment.row})


def test_what_a_store_claims_of_its_own_state_is_not_believed(table):
    mounted = table.mount(
        info(1, allocated=99, status="UNMOUNTING"), client=1, fresh_until=0.0
    )

    described = mounted.described()

    assert (described.allocated, described.status) == (0, "OK")


def test_a_draining_segment_is_live_but_not_open(table):
    segment = table.mount(info(1), client=1, fresh_until=0.0)
    version = table.version
    table.drain(segment, deadline=5.0)

    assert table.live() == [segment]
    assert table.open() == []
    assert table.version > version
    assert segment.status is SegmentStatus.GRACEFULLY_UNMOUNTING
    assert (table.due(4.9), table.due(5.0)) == ([], [segment])


def test_released_buffers_are_taken_in_when_the_segment_settles(table):
    segment = table.mount(info(1), client=1, fresh_until=0.0)
    offsets = segment.allocator.allocate_many(PAGE, 8)
    freed = Freed(segment, PAGE, offsets[:3])
    segment.releasing += freed.total_bytes
    segment.inbox.append(freed)
    before = segment.allocator.allocated
    table.settle()

    assert (before, segment.allocator.allocated) == (8 * PAGE, 5 * PAGE)
    assert segment.releasing == 0


def test_a_host_is_remembered_after_its_segments_are_gone(table):
    table.remove(table.mount(info(1, host_id="gone"), client=1, fresh_until=0.0))

    assert table.saw_host("gone")
    assert not table.saw_host("never")


def test_capacity_and_allocation_count_live_segments_only(table):
    first, second = (table.mount(info(n), client=1, fresh_until=0.0) for n in (1, 2))
    for segment in (first, second):
        segment.allocator.allocate_many(PAGE, 2)
    table.remove(first)

    assert table.capacity_bytes() == 8 * PAGE
    assert table.allocated_bytes() == 2 * PAGE


def test_a_removed_segment_takes_late_releases_without_harm(table):
    segment = table.mount(info(1), client=1, fresh_until=0.0)
    offsets = segment.allocator.allocate_many(PAGE, 1)
    table.remove(segment)
    segment.inbox.append(Freed(segment, PAGE, offsets))

    table.settle()

    assert np.array_equal(table.ids, np.zeros(5))
