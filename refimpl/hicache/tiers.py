"""L1 and L2 of one engine under one lock, and who holds which page."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from refimpl.hicache.pages import PagePool
from refimpl.hicache.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from refimpl.hicache.request import Prefetch
    from refimpl.hicache.settings import HiCacheSettings

    Fill = Callable[[bytes, NDArray[np.uint8]], object]

_CHUNK_PAGES = 128
"""Pages filled and copied at a time outside the lock."""
_SCRATCH_KEPT = 4
"""Chunks of memory kept for that: fresh pages would cost more than the copy. A chunk a
thread would grow with the callers, each of whom has a thread of its own."""


class Tiers:
    """The two local tiers. `lock` guards both and every handle."""

    def __init__(self, settings: HiCacheSettings) -> None:
        self.lock = threading.RLock()
        self._scratch: deque[NDArray[np.uint8]] = deque(maxlen=_SCRATCH_KEPT)
        poison = settings.poison_free_pages
        size = settings.page_bytes
        self.l1 = Tier("l1", PagePool(settings.l1_pages, size, poison=poison))
        self.l2 = Tier("l2", PagePool(settings.l2_pages, size, poison=poison))

    def match(self, op: Prefetch) -> None:
        """Extends what a request holds by what is there: L1 before L2."""
        found: dict[Tier, list[int]] = {self.l1: [], self.l2: []}
        for key in op.missing:
            for tier, pages in found.items():
                page = tier.get(key)
                if page is not None:
                    pages.append(page)
                    op.held.append((tier, page))
                    break
            else:
                break
        for tier, pages in found.items():
            tier.pin(pages)
            op.counts[tier.name] += len(pages)
        reused = op.keys[: len(op.held)]
        self.l1.touch(reused)
        self.l2.touch(reused)

    def let_go(self, op: Prefetch) -> None:
        """Takes the protection of a request's pages back, once."""
        if op.released:
            return
        op.released = True
        for tier in (self.l1, self.l2):
            tier.unpin([page for owner, page in op.held if owner is tier])
        op.held = []

    def insert(self, keys: Sequence[bytes], fill: Fill) -> None:
        """Puts a whole prefix into both tiers, as far as there is room.

        A tier that has run out of room takes nothing more of this prefix: pages behind
        a gap could never be reached.

        Args:
            keys: all pages of the prefix, root first.
            fill: writes the bytes of pages that no tier has.
        """
        pinned: dict[str, list[int]] = {"l1": [], "l2": []}
        open_tiers = [self.l1, self.l2]
        try:
            for start in range(0, len(keys), _CHUNK_PAGES):
                chunk = keys[start : start + _CHUNK_PAGES]
                self._insert_chunk(open_tiers, chunk, fill, pinned)
                open_tiers = [t for t in open_tiers if t.get(chunk[-1]) is not None]
                if not open_tiers:
                    break
        finally:
            with self.lock:
                self.l1.unpin(pinned["l1"])
                self.l2.unpin(pinned["l2"])
                self.l1.touch(keys)
                self.l2.touch(keys)

    def _insert_chunk(
        self,
        tiers: Sequence[Tier],
        keys: Sequence[bytes],
        fill: Fill,
        pinned: dict[str, list[int]],
    ) -> None:
        with self.lock:
            new = {t: self._reserve(t, keys, pinned) for t in tiers}
            sources = {
                i: self._source(keys[i])
                for i in sorted({i for where, _ in new.values() for i in where})
            }
        scratch = self._take_scratch()
        try:
            rows, at = self._gather(keys, sources, fill, scratch)
            for tier, (where, pages) in new.items():
                tier.pool.rows[pages] = rows[[at[i] for i in where]]
        except BaseException:
            with self.lock:
                for tier, (_, pages) in new.items():
                    tier.pool.land(pages)
            raise
        finally:
            self._scratch.append(scratch)
        with self.lock:
            for tier, (where, pages) in new.items():
                self._settle(tier, [keys[i] for i in where], pages, pinned)

    def _reserve(
        self, tier: Tier, keys: Sequence[bytes], pinned: dict[str, list[int]]
    ) -> tuple[list[int], NDArray[np.intp]]:
        """Pins the pages that are there and allocates the rest, root first."""
        found = [tier.get(key) for key in keys]
        there = [page for page in found if page is not None]
        tier.pin(there)
        pinned[tier.name] += there
        where = [i for i, page in enumerate(found) if page is None]
        pages = tier.allocate(len(where))
        return where[: len(pages)], pages

    def _settle(
        self,
        tier: Tier,
        keys: list[bytes],
        pages: NDArray[np.intp],
        pinned: dict[str, list[int]],
    ) -> None:
        """Indexes new pages; somebody may have been faster with some of them."""
        fresh = np.array([tier.get(key) is None for key in keys], np.bool_)
        tier.pool.land(pages[~fresh])
        kept = pages[fresh]
        tier.insert([k for k, new in zip(keys, fresh, strict=True) if new], kept)
        tier.pin(kept)
        pinned[tier.name] += kept.tolist()

    def _source(self, key: bytes) -> tuple[Tier, int] | None:
        """Where the bytes of a key are already (pinned by `_reserve`)."""
        for tier in (self.l2, self.l1):
            page = tier.get(key)
            if page is not None:
                return tier, page
        return None

    def _gather(
        self,
        keys: Sequence[bytes],
        sources: dict[int, tuple[Tier, int] | None],
        fill: Fill,
        scratch: NDArray[np.uint8],
    ) -> tuple[NDArray[np.uint8], dict[int, int]]:
        """The bytes of some keys, copied from a tier or filled, and their rows."""
        lacking = [i for i, source in sources.items() if source is None]
        copied = [(i, s) for i, s in sources.items() if s is not None]
        rows = scratch[: len(sources)]
        if lacking:
            fill(b"".join(keys[i] for i in lacking), rows[: len(lacking)])
        for row, (_, (tier, page)) in enumerate(copied, len(lacking)):
            rows[row] = tier.pool.rows[page]
        order = lacking + [i for i, _ in copied]
        return rows, {i: row for row, i in enumerate(order)}

    def _take_scratch(self) -> NDArray[np.uint8]:
        """A chunk of memory that nobody else uses now."""
        try:
            return self._scratch.pop()
        except IndexError:
            return np.empty((_CHUNK_PAGES, self.l2.pool.page_bytes), np.uint8)

    def state(self) -> dict[str, dict[str, int]]:
        """Page counts by tier."""
        with self.lock:
            return {
                tier.name: {
                    "free": tier.pool.free,
                    "used": tier.pool.used,
                    "in_flight": tier.pool.in_flight,
                    "total": tier.pool.total,
                    "pinned": int((tier.pins > 0).sum()),
                    "evictions": tier.evictions,
                }
                for tier in (self.l1, self.l2)
            }
