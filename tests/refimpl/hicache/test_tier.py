from __future__ import annotations

import pytest

from refimpl.hicache.pages import PagePool
from refimpl.hicache.tier import Tier


def tier(pages: int = 4) -> Tier:
    return Tier("l2", PagePool(pages, 8, poison=True))


def put(t: Tier, *keys: bytes) -> None:
    t.insert(list(keys), t.allocate(len(keys)))
    t.touch(keys)


def test_eviction_takes_the_oldest_leaf_first():
    t = tier()
    put(t, b"a", b"ab", b"abc")
    put(t, b"x")
    t.allocate(2)

    assert [k for k in (b"a", b"ab", b"abc", b"x") if t.get(k) is not None] == [
        b"a",
        b"x",
    ] or t.get(b"a") is not None
    assert t.get(b"abc") is None
    assert t.evictions == 2


def test_a_parent_outlives_its_child():
    t = tier(3)
    put(t, b"a", b"ab", b"abc")
    for gone in (b"abc", b"ab", b"a"):
        t.allocate(1)
        assert t.get(gone) is None

    assert len(t) == 0


def test_touching_a_prefix_keeps_it():
    t = tier(3)
    put(t, b"a", b"ab")
    put(t, b"x")
    t.touch([b"a", b"ab"])
    t.allocate(1)

    assert t.get(b"x") is None
    assert t.get(b"ab") is not None


def test_pinned_pages_are_not_evicted():
    t = tier(2)
    put(t, b"a", b"ab")
    t.pin([t.get(b"a"), t.get(b"ab")])

    assert len(t.allocate(1)) == 0
    assert t.evictions == 0


def test_a_flushed_page_leaves_the_pool_with_its_last_pin():
    t = tier(2)
    put(t, b"a", b"b")
    page = t.get(b"a")
    t.pin([page, page])

    assert t.flush() == 2
    assert t.get(b"a") is None
    assert (t.pool.free, t.pool.used) == (1, 1)
    assert t.broken_laws(idle=False) == []
    t.unpin([page])
    assert t.pool.used == 1
    t.unpin([page])
    assert t.pool.free == 2
    assert t.broken_laws(idle=True) == []


def test_unpinning_too_often_raises():
    t = tier(2)
    put(t, b"a")

    with pytest.raises(AssertionError, match="unpinned"):
        t.unpin([t.get(b"a")])


def test_broken_laws_names_leaks():
    t = tier(2)
    t.allocate(1)

    assert "in flight" in t.broken_laws(idle=True)[0]
    assert t.broken_laws(idle=False) == []
