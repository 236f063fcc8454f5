"""One tier: a page pool and the index of the pages it holds.

A page key is the hash of its whole prefix, so a flat index is enough to be a tree.
Every access touches a prefix from its root, parents last, which keeps parents younger
than their children: the eviction of the oldest goes leaf first by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from refimpl.hicache.pages import PagePool


class Tier:
    """Index, pins and eviction over one pool; the caller serialises the calls.

    A pinned page is never evicted. A page flushed while pinned leaves the index at once
    and the pool when its last pin goes.
    """

    def __init__(self, name: str, pool: PagePool) -> None:
        self.name = name
        self.pool = pool
        self.evictions = 0
        self.pins: NDArray[np.int32] = np.zeros(pool.total, np.int32)
        self.stored: NDArray[np.bool_] = np.zeros(pool.total, np.bool_)
        """Pages that are known to be in the pool of the cluster as well."""
        self._index: dict[bytes, int] = {}
        self._keys: list[bytes | None] = [None] * pool.total

    def __len__(self) -> int:
        return len(self._index)

    def get(self, key: bytes) -> int | None:
        """The page of a key."""
        return self._index.get(key)

    def insert(self, keys: Sequence[bytes], pages: NDArray[np.intp]) -> None:
        """Takes pages in flight over, under keys that it does not hold yet."""
        self.pool.adopt(pages)
        for key, page in zip(keys, pages.tolist(), strict=True):
            assert key not in self._index
            self._index[key] = page
            self._keys[page] = key
        self.stored[pages] = False

    def touch(self, keys: Iterable[bytes]) -> None:
        """Makes the pages of one prefix, root first, the youngest, children first."""
        index = self._index
        for key in reversed(list(keys)):
            page = index.pop(key, None)
            if page is not None:
                index[key] = page

    def pin(self, pages: Sequence[int] | NDArray[np.intp]) -> None:
        """Protects pages, once more each."""
        np.add.at(self.pins, np.asarray(pages, np.intp), 1)

    def unpin(self, pages: Sequence[int] | NDArray[np.intp]) -> None:
        """Takes one protection back; a flushed page goes with its last one."""
        which = np.asarray(pages, np.intp)
        np.subtract.at(self.pins, which, 1)
        assert not (self.pins[which] < 0).any(), "unpinned more often than pinned"
        gone = [p for p in set(which.tolist()) if self._orphan(p)]
        if gone:
            self.pool.give_back(np.array(gone, np.intp))

    def allocate(self, count: int) -> NDArray[np.intp]:
        """Up to `count` pages in flight, evicting the oldest unpinned if need be."""
        if count > self.pool.free:
            self._evict(count - self.pool.free)
        return self.pool.allocate(count)

    def flush(self) -> int:
        """Empties the index; pinned pages follow when they are let go."""
        pages = np.fromiter(self._index.values(), np.intp, len(self._index))
        for page in pages.tolist():
            self._keys[page] = None
        self._index.clear()
        self.pool.give_back(pages[self.pins[pages] == 0])
        return len(pages)

    def broken_laws(self, *, idle: bool) -> list[str]:
        """What does not add up, in words; `idle` says that nobody holds a page."""
        broken = [f"{self.name}: {law}" for law in self.pool.broken_laws()]
        orphans = sum(self._keys[p] is None for p in np.flatnonzero(self.pins).tolist())
        if len(self._index) + orphans != self.pool.used:
            broken.append(
                f"{self.name}: {len(self._index)} indexed + {orphans} flushed "
                f"but held != {self.pool.used} used"
            )
        if idle and self.pins.any():
            broken.append(f"{self.name}: {int((self.pins > 0).sum())} pages pinned")
        if idle and self.pool.in_flight:
            broken.append(f"{self.name}: {self.pool.in_flight} pages in flight")
        return broken

    def _orphan(self, page: int) -> bool:
        return self.pins[page] == 0 and self._keys[page] is None

    def _evict(self, count: int) -> None:
        chosen: list[bytes] = []
        for key, page in self._index.items():
            if self.pins[page] == 0:
                chosen.append(key)
                if len(chosen) == count:
                    break
        pages = np.array([self._index.pop(key) for key in chosen], np.intp)
        for page in pages.tolist():
            self._keys[page] = None
        self.pool.give_back(pages)
        self.evictions += len(pages)
