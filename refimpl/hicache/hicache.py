"""The hierarchical cache of one engine: L1 and L2 in pages, L3 the pool.

The scheduler calls `begin` when a request enters its queue, looks with `ready`, takes
what has arrived with `finish`, and ends with exactly one of `commit` and `abort`. None
of these waits for the network, whatever the pool does.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

from refimpl.core.prefetch import Occupancy, Policy, may_terminate
from refimpl.failpoints import Failpoints
from refimpl.hicache.counters import Counters
from refimpl.hicache.gate import BreakerHandle, Gate
from refimpl.hicache.layout import layout_of
from refimpl.hicache.loader import Loader
from refimpl.hicache.prober import Prober
from refimpl.hicache.request import Outcome, Prefetch, Reuse, split_keys
from refimpl.hicache.settings import HiCacheSettings
from refimpl.hicache.tiers import Tiers
from refimpl.hicache.writeback import WriteBack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from refimpl.hicache.storage.base import Storage
    from refimpl.hicache.tiers import Fill

_IDLE_S = 0.25
_CLOSE_S = 2.0


def _nobody() -> None:
    """Nobody wants to know."""


class HiCache:
    """Thread-safe. `on_ready` is called, from a thread of the cache and without any of
    its locks, when a prefetch may have become ready."""

    def __init__(
        self,
        storage: Storage,
        settings: HiCacheSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        failpoints: Failpoints | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.settings = settings = settings or HiCacheSettings()
        self.on_ready: Callable[[], None] = _nobody
        self._storage = storage
        self._clock = clock
        self._counters = Counters()
        points = failpoints or Failpoints()
        layout = layout_of(settings)
        limit = settings.prefetch.capacity_ratio * settings.l2_pages
        self._occupancy = Occupancy(int(limit * settings.page_tokens))
        self._tiers = Tiers(settings)
        self._live: set[Prefetch] = set()
        self._wake = threading.Event()
        self._news = False
        self._closed = False
        self._gate = Gate(
            settings, clock, points, rng or random.Random(0), self._counters
        )
        self._loader = Loader(
            settings,
            layout,
            storage,
            self._tiers,
            self._gate,
            self._occupancy,
            self._counters,
            points,
            clock,
            self._tell,
        )
        self._writeback = WriteBack(
            settings,
            layout,
            storage,
            self._tiers,
            self._gate,
            self._counters,
            points,
        )
        self._prober = Prober(
            settings, storage, self._gate, self._counters, self._wake.set
        )
        self._keeper = threading.Thread(
            target=self._keep, name="hicache-keeper", daemon=True
        )
        self._keeper.start()

    @property
    def breaker(self) -> BreakerHandle:
        """State and lever of the breaker."""
        return self._gate.breaker

    # --- the scheduler's side ---

    def begin(self, request_id: str, page_keys: bytes, policy: str = "") -> Prefetch:
        """Looks into L1 and L2 and starts the prefetch of the rest.

        Args:
            request_id: for reports.
            page_keys: packed keys of all whole pages of the prompt, root first.
            policy: of the prefetch; "" is the configured one.

        Raises:
            ValueError: an unknown policy, or no whole number of keys.
        """
        keys = split_keys(page_keys)
        chosen = Policy(policy or self.settings.prefetch.policy)
        op = Prefetch(request_id, keys, chosen, self._clock())
        with self._tiers.lock:
            self._live.add(op)
            self._tiers.match(op)
            self._loader.start(op)
        self._wake.set()
        return op

    def ready(self, prefetch: Prefetch, now: float) -> bool:
        """True when the request may go on with what has arrived."""
        with self._tiers.lock:
            if prefetch.ended or self._loader.due(prefetch, now) is not None:
                return True
            return may_terminate(
                prefetch.policy,
                complete=False,
                elapsed_s=0.0,
                deadline_s=prefetch.deadline_s,
            )

    def finish(self, prefetch: Prefetch) -> Reuse:
        """Ends the prefetch if it runs, and hands out what is there."""
        with self._tiers.lock:
            if not prefetch.ended:
                why = self._loader.due(prefetch, self._clock())
                self._loader.terminate(prefetch, why or Outcome.BEST_EFFORT)
            self._count_reuse(prefetch)
            return Reuse(
                l1_pages=prefetch.counts["l1"],
                l2_pages=prefetch.counts["l2"],
                l3_pages=prefetch.counts["l3"],
                outcome=prefetch.outcome.value,
                wait_s=prefetch.ended_at - prefetch.started_at,
                deadline_s=prefetch.deadline_s,
                stores=tuple(prefetch.stores),
                touched_fault=prefetch.touched_fault,
                pages=[tier.pool.view(page) for tier, page in prefetch.held],
            )

    def commit(self, prefetch: Prefetch, fill: Fill) -> None:
        """After prefill: inserts the prefix into L1 and L2 and writes back.

        Args:
            prefetch: its pages lose their protection.
            fill: `fill(keys, out)` writes the bytes of recomputed pages.
        """
        try:
            with self._tiers.lock:
                live = prefetch in self._live
            if live and prefetch.keys:
                self._tiers.insert(prefetch.keys, fill)
                self._writeback.offer(prefetch.keys)
        finally:
            self.abort(prefetch)

    def abort(self, prefetch: Prefetch) -> None:
        """Lets go of everything, at any point; a second time does nothing."""
        with self._tiers.lock:
            self._loader.terminate(prefetch, Outcome.ABORTED)
            self._tiers.let_go(prefetch)
            self._live.discard(prefetch)

    # --- the operator's side ---

    def flush(self, tiers: Iterable[str] = ("l1", "l2")) -> dict[str, int]:
        """Empties local tiers; answers the pages that left each index.

        Raises:
            ValueError: no such tier.
        """
        known = {"l1": self._tiers.l1, "l2": self._tiers.l2}
        names = list(tiers)
        for name in names:
            if name not in known:
                raise ValueError(f"no tier {name!r}; there are l1 and l2")
        with self._tiers.lock:
            return {name: known[name].flush() for name in names}

    def reset(self) -> None:
        """Empty, trusting, counting from zero. Requests under way end as aborted."""
        with self._tiers.lock:
            for op in list(self._live):
                self.abort(op)
        self._writeback.clear()
        self.flush()
        self._gate.reset()
        self._counters.clear()

    def drain(self, timeout_s: float) -> bool:
        """Waits until nothing is written back or read; True when that is so."""
        limit = self._clock() + timeout_s
        pause = threading.Event()
        while self._clock() < limit:
            if not self._busy():
                return True
            pause.wait(0.002)
        return not self._busy()

    def state(self) -> dict[str, Any]:
        """Ledger and counters, JSON-able; times are on the cache's clock."""
        gate = self._gate.state()
        with self._tiers.lock:
            return {
                **gate,
                "pages": self._tiers.state(),
                "occupancy": {
                    "tokens": self._occupancy.tokens,
                    "limit_tokens": self._occupancy.limit_tokens,
                },
                "requests": len(self._live),
                "prefetches": len(self._loader.active),
                "writeback": {"pending": self._writeback.pending},
                "counters": self._counters.snapshot(),
                "threads": {
                    "prefetch": self._loader.workers.alive,
                    "writeback": self._writeback.workers.alive,
                    "keeper": int(self._keeper.is_alive()),
                    "probes": self._prober.running,
                },
                "broken_laws": self.broken_laws(),
            }

    def broken_laws(self) -> list[str]:
        """Conservation (O11): empty, or what does not add up, in words."""
        with self._tiers.lock:
            idle = not self._live and not self._busy()
            broken = self._tiers.l1.broken_laws(idle=idle)
            broken += self._tiers.l2.broken_laws(idle=idle)
            held = sum(op.occupied_tokens for op in self._loader.active)
            if held != self._occupancy.tokens:
                broken.append(
                    f"occupancy is {self._occupancy.tokens} tokens, "
                    f"prefetches hold {held}"
                )
        return broken

    def close(self) -> None:
        """Ends the threads and the storage; a stuck backend is left behind."""
        self._closed = True
        with self._tiers.lock:
            for op in list(self._live):
                self.abort(op)
        self._wake.set()
        self._keeper.join(_CLOSE_S)
        self._writeback.close(_CLOSE_S)
        self._loader.workers.close(_CLOSE_S)
        self._prober.close(_CLOSE_S)
        self._storage.close()

    # --- inside ---

    def _busy(self) -> bool:
        with self._tiers.lock:
            flying = self._tiers.l2.pool.in_flight + self._tiers.l1.pool.in_flight
            return bool(self._loader.active or self._writeback.pending or flying)

    def _count_reuse(self, op: Prefetch) -> None:
        size = self.settings.page_tokens
        for tier, pages in op.counts.items():
            self._counters.label("reused_tokens", tier, pages * size)
        self._counters.add("requested_tokens", len(op.keys) * size)

    def _tell(self) -> None:
        """Some prefetch has ended; the keeper tells the scheduler, without a lock."""
        self._news = True
        self._wake.set()

    def _keep(self) -> None:
        """Lets time act: deadlines, lost calls, probes, news to the scheduler."""
        poll_s = self.settings.prefetch.poll_s
        waiting = False
        while not self._closed:
            self._wake.wait(poll_s / 2 if waiting else _IDLE_S)
            self._wake.clear()
            try:
                waiting = self._keep_once()
            except Exception as error:
                # The keeper must live: without it no deadline is kept.
                self._counters.label("exceptions", type(error).__name__)

    def _keep_once(self) -> bool:
        now = self._clock()
        with self._tiers.lock:
            for op in list(self._loader.active):
                if (why := self._loader.due(op, now)) is not None:
                    self._loader.terminate(op, why)
            active = bool(self._loader.active)
        self._gate.settle_overdue()
        waiting = self._gate.tick()
        self._prober.run_due()
        if self._news:
            self._news = False
            self.on_ready()
        return active or waiting
