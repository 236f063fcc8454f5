from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl.core.allocator import ALIGNMENT, OffsetAllocator, aligned

KIB = 1024


def test_equal_buffers_fill_the_segment_without_gap_or_overlap():
    allocator = OffsetAllocator(64 * KIB)

    offsets = allocator.allocate_many(4 * KIB, 20)

    assert sorted(offsets.tolist()) == list(range(0, 64 * KIB, 4 * KIB))
    assert (allocator.free_bytes, allocator.allocated) == (0, 64 * KIB)


def test_a_buffer_that_does_not_fit_is_refused():
    allocator = OffsetAllocator(KIB)

    assert allocator.allocate(KIB + 1) is None
    assert allocator.allocated == 0


def test_allocated_counts_the_bytes_asked_for_and_free_the_bytes_occupied():
    allocator = OffsetAllocator(KIB)
    allocator.allocate(100)

    assert (allocator.allocated, allocator.free_bytes) == (100, KIB - 128)


def test_buffers_start_on_cache_lines():
    offsets = OffsetAllocator(64 * KIB).allocate_many(100, 50)

    assert (offsets % ALIGNMENT == 0).all()


def test_neighbours_freed_apart_serve_a_larger_buffer():
    allocator = OffsetAllocator(64 * KIB)
    small = allocator.allocate_many(KIB, 64)
    allocator.free_many(small[10:14], KIB)
    allocator.free(int(small[14]), KIB)

    offset = allocator.allocate(5 * KIB)

    assert offset == int(small[10:15].min())


def test_freed_pages_are_reused_before_fresh_space_is_cut():
    allocator = OffsetAllocator(64 * KIB)
    first = allocator.allocate_many(KIB, 8)
    allocator.free_many(first[:4], KIB)

    assert set(allocator.allocate_many(KIB, 4).tolist()) == set(first[:4].tolist())


def test_a_double_free_of_a_page_is_a_bug_that_shows_at_once():
    allocator = OffsetAllocator(64 * KIB)
    offset = allocator.allocate(8 * KIB)
    allocator.allocate(8 * KIB)
    allocator.free(offset, 8 * KIB)

    with pytest.raises(AssertionError, match="double free"):
        allocator.free(offset, 8 * KIB)


def test_a_double_free_inside_one_batch_shows():
    allocator = OffsetAllocator(64 * KIB)
    offset = allocator.allocate_many(8 * KIB, 4)[0]

    with pytest.raises(AssertionError, match="double free"):
        allocator.free_many(np.array([offset, offset], dtype=np.uint64), 8 * KIB)


def test_a_double_free_of_a_tiny_buffer_shows_when_holes_are_merged():
    allocator = OffsetAllocator(KIB)
    tiny = allocator.allocate_many(64, 16)
    allocator.free(int(tiny[3]), 64)
    allocator.free(int(tiny[3]), 64)

    with pytest.raises(AssertionError, match="overlap"):
        allocator.allocate(128)


def test_a_free_outside_of_the_segment_shows():
    allocator = OffsetAllocator(KIB)

    with pytest.raises(AssertionError, match="outside"):
        allocator.free(KIB, 64)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 900), st.integers(1, 9)),
            st.tuples(st.just("give"), st.integers(0, 99), st.integers(1, 9)),
        ),
        max_size=40,
    )
)
def test_buffers_and_holes_always_tile_the_segment(steps):
    allocator, live = OffsetAllocator(16 * KIB), {}
    for step, number, count in steps:
        if step == "take":
            offsets = allocator.allocate_many(number, count)
            live.update(dict.fromkeys(offsets.tolist(), number))
            if len(offsets) < count:
                assert allocator.allocate(16 * KIB) is None
        else:
            for offset in sorted(live)[number % 7 :: 3][:count]:
                allocator.free(offset, live.pop(offset))
        starts, lengths = allocator.holes()
        ranges = [(offset, aligned(size)) for offset, size in live.items()]
        ranges += zip(starts.tolist(), lengths.tolist(), strict=True)
        end = 0
        for start, length in sorted(ranges):
            assert start == end
            end = start + length
        assert end == 16 * KIB
        assert allocator.allocated == sum(live.values())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.randoms())
def test_everything_given_back_is_one_hole_again(sizes, rng):
    allocator = OffsetAllocator(64 * KIB)
    taken = [(allocator.allocate(size * 50), size * 50) for size in sizes]
    rng.shuffle(taken)
    for offset, size in taken:
        allocator.free(offset, size)

    starts, lengths = allocator.holes()

    assert (starts.tolist(), lengths.tolist()) == ([0], [64 * KIB])
