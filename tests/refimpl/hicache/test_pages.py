from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from refimpl.hicache.pages import POISON, PageOwnershipError, PagePool


def test_allocates_up_to_what_is_free():
    pool = PagePool(4, 16)
    pages = pool.allocate(6)

    assert sorted(pages.tolist()) == [0, 1, 2, 3]
    assert (pool.free, pool.used, pool.in_flight) == (0, 0, 4)


def test_a_double_free_raises():
    pool = PagePool(4, 16)
    pages = pool.allocate(2)
    pool.land(pages)

    with pytest.raises(PageOwnershipError, match="should be in flight and is free"):
        pool.land(pages)


def test_a_page_in_flight_cannot_be_freed_by_the_tree():
    pool = PagePool(4, 16)
    pages = pool.allocate(1)

    with pytest.raises(PageOwnershipError, match="should be used and is in flight"):
        pool.give_back(pages)


def test_a_used_page_cannot_be_landed():
    pool = PagePool(4, 16)
    pages = pool.allocate(1)
    pool.adopt(pages)

    with pytest.raises(PageOwnershipError):
        pool.land(pages)


def test_the_same_page_twice_in_one_call_raises():
    pool = PagePool(4, 16)
    pages = pool.allocate(1)

    with pytest.raises(PageOwnershipError):
        pool.land(np.concatenate([pages, pages]))


def test_poison_makes_a_use_after_free_visible():
    pool = PagePool(2, 8, poison=True)
    pages = pool.allocate(1)
    view = pool.view(int(pages[0]))
    view[:] = b"12345678"
    pool.land(pages)

    assert bytes(view) == bytes([POISON]) * 8


def test_views_are_pieces_of_the_page_without_a_copy():
    pool = PagePool(3, 8)
    pool.view(1, 2, 3)[:] = b"abc"

    assert pool.rows[1].tobytes() == b"\0\0abc\0\0\0"
    assert not pool.rows[0].any()


@pytest.mark.parametrize(("pages", "size"), [(0, 8), (8, 0)])
def test_an_empty_pool_is_refused(pages, size):
    with pytest.raises(ValueError, match="is none"):
        PagePool(pages, size)


class Ownership(RuleBasedStateMachine):
    """Any order of legal moves conserves pages, and no page has two owners."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(8, 4)
        self.flying: set[int] = set()
        self.used: set[int] = set()

    @rule(count=st.integers(0, 5))
    def allocate(self, count) -> None:
        pages = set(self.pool.allocate(count).tolist())
        assert not pages & (self.flying | self.used)
        self.flying |= pages

    @rule(data=st.data(), adopt=st.booleans())
    def arrive(self, data, adopt) -> None:
        some = self._some(data, self.flying)
        (self.pool.adopt if adopt else self.pool.land)(np.array(sorted(some), np.intp))
        self.flying -= some
        if adopt:
            self.used |= some

    @rule(data=st.data())
    def evict(self, data) -> None:
        some = self._some(data, self.used)
        self.pool.give_back(np.array(sorted(some), np.intp))
        self.used -= some

    @invariant()
    def conserves(self) -> None:
        assert self.pool.broken_laws() == []
        assert self.pool.in_flight == len(self.flying)
        assert self.pool.used == len(self.used)

    def _some(self, data, pages: set[int]) -> set[int]:
        return {p for p in sorted(pages) if data.draw(st.booleans())}


TestOwnership = Ownership.TestCase
TestOwnership.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None
)
