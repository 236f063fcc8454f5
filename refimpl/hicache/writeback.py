"""Write-back, L2 to L3: only what is missing, parent before child.

A hole makes every later page of its prefix unreachable (sglang#39444): a batch that
fails is tried again a few times, then the chain stops, what is lost is counted, and the
next touch of the prefix begins again at the hole.

"It exists already" is no proof that a page can be read: an earlier try of our own may
hang half-way, or its store may have died unnoticed. Such pages are looked for once;
what is not there is left for the next touch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.codes import Code
from refimpl.core.prefetch import common_prefix
from refimpl.hicache.gate import failed
from refimpl.hicache.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from refimpl.failpoints import Failpoints
    from refimpl.hicache.counters import Counters
    from refimpl.hicache.gate import Gate
    from refimpl.hicache.layout import Component, PageLayout
    from refimpl.hicache.settings import HiCacheSettings
    from refimpl.hicache.storage.base import Storage, StorageResult
    from refimpl.hicache.tiers import Tiers

_FAILPOINT = "hicache.put_batch"


@dataclass(slots=True, eq=False)
class Task:
    """A prefix to be written; its L2 pages are pinned until the task is over."""

    keys: list[bytes]
    pages: NDArray[np.intp]
    let_go: bool = field(default=False)


class WriteBack:
    """One thread that writes prefixes to the pool in the order of their commits."""

    def __init__(
        self,
        settings: HiCacheSettings,
        layout: PageLayout,
        storage: Storage,
        tiers: Tiers,
        gate: Gate,
        counters: Counters,
        failpoints: Failpoints,
    ) -> None:
        self._settings = settings
        self._layout = layout
        self._storage = storage
        self._tiers = tiers
        self._gate = gate
        self._counters = counters
        self._failpoints = failpoints
        self._stop = threading.Event()
        self._pending = 0
        self._queued: NDArray[np.int32] = np.zeros(tiers.l2.pool.total, np.int32)
        self.workers: Workers[Task] = Workers(
            "hicache-backup", 1, settings.writeback_tasks, self._run, counters
        )

    @property
    def pending(self) -> int:
        """Tasks queued or under way."""
        with self._tiers.lock:
            return self._pending

    def offer(self, keys: Sequence[bytes]) -> None:
        """Queues the pages of a prefix that the pool does not have; never blocks."""
        with self._tiers.lock:
            chain = self._chain(keys)
            lacking = chain[~self._tiers.l2.stored[chain]]
            fresh = lacking[self._queued[lacking] == 0]
            self._note_unreachable(len(keys) - len(chain))
            if not len(fresh):
                return
            if not self._gate.passes():
                self._drop(len(fresh), "breaker_open")
                return
            task = Task(list(keys[: len(chain)]), chain)
            self._tiers.l2.pin(chain)
            self._queued[chain] += 1
            self._pending += 1
            if not self.workers.submit(task):
                self._let_go(task)
                self._drop(len(fresh), "queue_full")

    def clear(self) -> None:
        """Forgets what is queued."""
        for task in self.workers.drain():
            with self._tiers.lock:
                self._let_go(task)

    def close(self, timeout_s: float) -> int:
        """Ends the thread; answers how many are stuck."""
        self._stop.set()
        self.clear()
        return self.workers.close(timeout_s)

    # --- locked ---

    def _chain(self, keys: Sequence[bytes]) -> NDArray[np.intp]:
        pages = []
        for key in keys:
            page = self._tiers.l2.get(key)
            if page is None:
                break
            pages.append(page)
        return np.array(pages, np.intp)

    def _let_go(self, task: Task) -> None:
        if task.let_go:
            return
        task.let_go = True
        self._pending -= 1
        self._queued[task.pages] -= 1
        self._tiers.l2.unpin(task.pages)

    def _drop(self, pages: int, why: str) -> None:
        tokens = pages * self._settings.page_tokens
        self._counters.label("backup_dropped_tokens", why, tokens)

    def _note_unreachable(self, pages: int) -> None:
        if pages:
            self._drop(pages, "not_in_l2")

    # --- in the worker ---

    def _run(self, task: Task) -> None:
        try:
            self._write(task)
        finally:
            with self._tiers.lock:
                self._let_go(task)

    def _write(self, task: Task) -> None:
        with self._tiers.lock:
            start = common_prefix([self._tiers.l2.stored[task.pages]])
        step = self._settings.prefetch.storage_batch_pages
        for first in range(start, len(task.pages), step):
            if self._stop.is_set():
                return
            last = min(len(task.pages), first + step)
            exist = np.zeros(last - first, np.bool_)
            written, open_ = self._write_batch(task, first, last, exist)
            self._mark(task, first, exist[:written])
            if written < last - first:
                self._give_up(len(task.pages) - first - written, open_)
                return

    def _write_batch(
        self, task: Task, first: int, last: int, exist: NDArray[np.bool_]
    ) -> tuple[int, bool]:
        """Leading pages written; True when the breaker ended it.

        Sets a flag in `exist` for every page that is said to exist already.
        """
        parts = [(c, r) for c in self._layout.components for r in range(self._ranks)]
        done = np.zeros((len(parts), last - first), np.bool_)
        for attempt in range(self._settings.put_attempts):
            if attempt:
                self._counters.add("backup_retries")
                self._stop.wait(self._settings.put_backoff_s * 2 ** (attempt - 1))
            for row, (component, rank) in enumerate(parts):
                if done[row].all():
                    continue
                codes = self._put(task, first, done[row], component, rank)
                if codes is None:
                    return common_prefix(list(done)), True
                exist[~done[row]] |= codes == Code.OBJECT_ALREADY_EXISTS
                done[row][~done[row]] = _written(codes)
            if done.all() or self._stop.is_set():
                break
        return common_prefix(list(done)), False

    def _put(
        self,
        task: Task,
        first: int,
        done: NDArray[np.bool_],
        component: Component,
        rank: int,
    ) -> NDArray[np.int16] | None:
        """Writes one part of one component of the pages not done; None: breaker."""
        budget = self._settings.put_timeout_s
        call = self._gate.start("put", budget)
        if call is None:
            return None
        where = np.flatnonzero(~done) + first
        size = component.size // self._ranks
        offset = component.offset + rank * size

        def ask() -> StorageResult:
            code = self._failpoints.hit(_FAILPOINT)
            if code is not None and code < 0:
                return failed(len(where), code)
            view = self._tiers.l2.pool.view
            return self._storage.put(
                component.keys(b"".join(task.keys[i] for i in where)),
                [view(int(task.pages[i]), offset, size) for i in where],
                timeout_s=budget,
                part=rank,
                parts=self._ranks,
                object_bytes=component.size,
                avoid=call.avoid,
            )

        result = self._gate.guarded(len(where), ask)
        self._gate.settle(call, result)
        return result.codes

    def _mark(self, task: Task, first: int, exist: NDArray[np.bool_]) -> None:
        """Pages that the pool has from now on, as far as L2 still holds them."""
        stored = ~exist
        keys = task.keys[first : first + len(exist)]
        self._gate.forget_failed(_packed(keys, stored))
        if exist.any():
            stored[exist] = self._readable(_packed(keys, exist))
        with self._tiers.lock:
            pages = task.pages[first : first + len(exist)][stored]
            self._tiers.l2.stored[pages] = True
        self._counters.add("backup_tokens", len(pages) * self._settings.page_tokens)

    def _readable(self, keys: bytes) -> NDArray[np.bool_]:
        """Pages that the pool really has, and that did not fail lately."""
        readable = ~self._gate.failed_before(keys)
        budget = self._settings.put_timeout_s
        for component in self._layout.components:
            call = self._gate.start("exists", budget)
            if call is None:
                return np.zeros(len(readable), np.bool_)
            asked = component.keys(keys)

            def ask(asked: bytes = asked) -> object:
                return self._storage.exists(asked, timeout_s=budget)

            result = self._gate.guarded(len(readable), ask, bare=True)
            self._gate.settle(call, result)
            readable &= result.codes == Code.OK
        return readable

    def _give_up(self, pages: int, breaker_open: bool) -> None:
        if breaker_open:
            self._drop(pages, "breaker_open")
        else:
            tokens = pages * self._settings.page_tokens
            self._counters.add("backup_failed_tokens", tokens)
            self._counters.add("backup_holes")

    @property
    def _ranks(self) -> int:
        return self._layout.ranks


def _packed(keys: Sequence[bytes], chosen: NDArray[np.bool_]) -> bytes:
    return b"".join(keys[row] for row in np.flatnonzero(chosen).tolist())


def _written(codes: NDArray[np.int16]) -> NDArray[np.bool_]:
    """Somebody else's copy of a page is as good as ours: keys name their bytes."""
    return np.isin(codes, (Code.OK, Code.OBJECT_ALREADY_EXISTS))
