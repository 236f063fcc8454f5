"""L1 and L2 of one engine under one lock, and who holds which page."""

from __future__ import annotations

import threading
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


class Tiers:
    """The two local tiers. `lock` guards both and every handle."""

    def __init__(self, settings: HiCacheSettings) -> None:
        self.lock = threading.RLock()
        poison = settings.poison_free_pages
        size = settings.page_bytes
        self.l1 = Tier("l1", PagePool(settings.l1_pages, size, poison=poison))
        self.l2 = Tier("l2", PagePool(settings.l2_pages, size, poison=poison))

    def match(self, op: Prefetch) -> None:
        """Extends what a request holds by what is there: L1 before L2."""
        for key in op.missing:
            for tier in (self.l1, self.l2):
                page = tier.get(key)
                if page is not None:
                    tier.pin([page])
                    op.held.append((tier, page))
                    op.counts[tier.name] += 1
                    break
            else:
                break
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
            needed = sorted({i for where, _ in new.values() for i in where})
            sources = self._sources([keys[i] for i in needed])
        rows = np.empty((len(keys), self.l2.pool.page_bytes), np.uint8)
        try:
            self._gather([keys[i] for i in needed], needed, sources, fill, rows)
            for tier, (where, pages) in new.items():
                tier.pool.rows[pages] = rows[where]
        except BaseException:
            with self.lock:
                for tier, (_, pages) in new.items():
                    tier.pool.land(pages)
            raise
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

    def _sources(self, keys: Sequence[bytes]) -> list[tuple[Tier, int] | None]:
        """Where the bytes of each key are already (pinned by `_reserve`)."""
        found: list[tuple[Tier, int] | None] = []
        for key in keys:
            for tier in (self.l2, self.l1):
                page = tier.get(key)
                if page is not None:
                    found.append((tier, page))
                    break
            else:
                found.append(None)
        return found

    def _gather(
        self,
        keys: Sequence[bytes],
        where: Sequence[int],
        sources: list[tuple[Tier, int] | None],
        fill: Fill,
        rows: NDArray[np.uint8],
    ) -> None:
        """The bytes of `keys` to `rows[where]`: copied from a tier, or filled."""
        lacking = []
        for i, source in enumerate(sources):
            if source is None:
                lacking.append(i)
            else:
                rows[where[i]] = source[0].pool.rows[source[1]]
        if lacking:
            out = np.empty((len(lacking), rows.shape[1]), np.uint8)
            fill(b"".join(keys[i] for i in lacking), out)
            rows[[where[i] for i in lacking]] = out

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
