"""Prefetch, L3 to L2: query, allocate for what is there, read prefix by prefix.

Runs in threads of its own; the scheduler never waits for it. Every exit goes through
`end`, the one place that gives back occupancy, wakes followers and says "ready".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.codes import Code
from refimpl.core.codes import Outcome as CodeClass
from refimpl.core.prefetch import Policy, common_prefix, deadline_s
from refimpl.hicache.gate import failed
from refimpl.hicache.request import Outcome, Phase, Prefetch
from refimpl.hicache.workers import Workers
from refimpl.transfer.cancel import Cancel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from refimpl.core.prefetch import Occupancy
    from refimpl.failpoints import Failpoints
    from refimpl.hicache.counters import Counters
    from refimpl.hicache.gate import Call, Gate
    from refimpl.hicache.layout import Component, PageLayout
    from refimpl.hicache.settings import HiCacheSettings
    from refimpl.hicache.storage.base import Storage, StorageResult
    from refimpl.hicache.tiers import Tiers

_FAILPOINTS = ("hicache.before_get", "hicache.sidecar")
_FINAL = (Outcome.TIMEOUT, Outcome.BREAKER_OPEN, Outcome.ABORTED)
"""Ends after which the other pools of the page are not read any more."""
_DEADLINE_IGNORED = "defect.deadline_ignored"
_RELEASED_EARLY = "defect.page_released_early"


class Loader:
    """Runs prefetches. Methods that say "locked" need `tiers.lock` held."""

    def __init__(
        self,
        settings: HiCacheSettings,
        layout: PageLayout,
        storage: Storage,
        tiers: Tiers,
        gate: Gate,
        occupancy: Occupancy,
        counters: Counters,
        failpoints: Failpoints,
        clock: Callable[[], float],
        on_end: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._limits = settings.prefetch
        self._layout = layout
        self._storage = storage
        self._tiers = tiers
        self._gate = gate
        self._occupancy = occupancy
        self._counters = counters
        self._failpoints = failpoints
        self._clock = clock
        self._on_end = on_end
        self._loading: dict[bytes, Prefetch] = {}
        self.active: set[Prefetch] = set()
        self.workers: Workers[Prefetch] = Workers(
            "hicache-prefetch",
            settings.prefetch_threads,
            settings.prefetch_queue,
            self._run,
            counters,
        )

    # --- from the scheduler's thread, locked ---

    def start(self, op: Prefetch) -> None:
        """Starts the read of what a request does not hold, or says why not."""
        tokens = len(op.missing) * self._settings.page_tokens
        op.deadline_s = deadline_s(self._limits, 0)
        if reason := self._refusal(op, tokens):
            op.deadline_s = 0.0
            self.end(op, reason)
            return
        self.active.add(op)
        self._lead_or_join(op)

    def terminate(self, op: Prefetch, outcome: Outcome) -> None:
        """Ends a prefetch from outside; the running get is told to stop."""
        if op.ended:
            return
        op.terminated = True
        early = self._failpoints.enabled(_RELEASED_EARLY)
        if op.cancel is not None and not early:
            op.cancel.set()
        asked = op.phase in (Phase.QUERYING, Phase.LOADING)
        op.touched_fault |= asked and outcome is Outcome.TIMEOUT
        op.touched_fault |= op.phase is Phase.JOINED and outcome is not Outcome.ABORTED
        if op.phase is Phase.LOADING and outcome is Outcome.TIMEOUT and op.missing:
            self._gate.remember_failed(op.missing[0])
        if early and len(op.flight):
            self._tiers.l2.pool.land(op.flight)
            op.flight_taken = True
        self.end(op, outcome)

    def due(self, op: Prefetch, now: float) -> Outcome | None:
        """Why a prefetch that has not ended should end now; None: let it go on."""
        if op.policy is Policy.BEST_EFFORT:
            return None
        if op.phase is Phase.JOINED and op.leader is not None:
            patience = min(self._settings.slow_floor_s, self._limits.base_s / 2)
            if now - op.leader.led_at > patience:
                return Outcome.BEST_EFFORT
        if self._unlimited(op):
            return None
        late = now - op.started_at > op.deadline_s
        return Outcome.TIMEOUT if late else None

    def end(self, op: Prefetch, outcome: Outcome) -> None:
        """The one exit of every prefetch."""
        if op.ended:
            return
        op.phase = Phase.ENDED
        op.outcome = outcome
        op.ended_at = self._clock()
        self.active.discard(op)
        self._unlist(op)
        if op.occupied_tokens:
            self._occupancy.give(op.occupied_tokens)
            op.occupied_tokens = 0
        if op.leader is not None and op in op.leader.followers:
            op.leader.followers.remove(op)
        op.leader = None
        followers, op.followers = op.followers, []
        for follower in followers:
            follower.leader = None
            follower.touched_fault |= op.touched_fault
            self._tiers.match(follower)
            self._lead_or_join(follower)
        self._counters.label("prefetch_outcomes", outcome.value)
        self._on_end()

    # --- locked ---

    def _refusal(self, op: Prefetch, tokens: int) -> Outcome | None:
        if not tokens:
            return Outcome.NONE
        if tokens < self._limits.threshold_tokens:
            return Outcome.BELOW_THRESHOLD
        if not self._gate.passes():
            return Outcome.BREAKER_OPEN
        if self._gate.failed_before(op.missing[0])[0]:
            self._counters.add("negative_hits")
            return Outcome.MISS
        return None

    def _lead_or_join(self, op: Prefetch) -> None:
        """Reads, or waits for a request that reads the same pages already.

        Who waits or asks holds no page and so no occupancy: a storm of misses must not
        keep hits out.
        """
        if not op.missing:
            self.end(op, Outcome.COMPLETE)
            return
        leader = self._loading.get(op.missing[0])
        if leader is not None:
            op.phase, op.leader = Phase.JOINED, leader
            leader.followers.append(op)
            self._counters.add("prefetch_joined")
            return
        if self._occupancy.tokens >= self._occupancy.limit_tokens:
            self.end(op, Outcome.RATE_LIMITED)
            return
        op.phase, op.led_at = Phase.QUEUED, self._clock()
        self._list(op)
        if not self.workers.submit(op):
            self.end(op, Outcome.RATE_LIMITED)

    def _list(self, op: Prefetch) -> None:
        """Announces the next page that the prefetch will bring."""
        self._unlist(op)
        if op.missing and op.missing[0] not in self._loading:
            op.loading_key = op.missing[0]
            self._loading[op.loading_key] = op

    def _unlist(self, op: Prefetch) -> None:
        if op.loading_key is not None:
            self._loading.pop(op.loading_key, None)
            op.loading_key = None

    # --- in a worker ---

    def _run(self, op: Prefetch) -> None:
        try:
            outcome = self._load(op)
        except Exception:
            outcome = Outcome.ERROR
            raise
        finally:
            with self._tiers.lock:
                self._land(op)
                self.end(op, outcome)
                cancel, op.cancel = op.cancel, None
            if cancel is not None:
                cancel.close()

    def _load(self, op: Prefetch) -> Outcome:
        with self._tiers.lock:
            if op.called_off():
                return Outcome.ABORTED
            op.phase = Phase.QUERYING
            op.cancel = Cancel()
            self._tiers.match(op)
            if not op.missing:
                return Outcome.COMPLETE
        ended = self._query(op)
        if ended is not None:
            return ended
        with self._tiers.lock:
            if op.called_off():
                return Outcome.ABORTED
            tokens = op.hit_pages * self._settings.page_tokens
            if not self._occupancy.take(tokens):
                return Outcome.RATE_LIMITED
            op.occupied_tokens = tokens
            short = self._allocate(op)
            if not len(op.flight):
                return Outcome.UNFULFILLED
            op.phase = Phase.LOADING
        return self._read_batches(op) or (
            Outcome.UNFULFILLED if short else Outcome.COMPLETE
        )

    def _query(self, op: Prefetch) -> Outcome | None:
        """Counts the leading pages that the pool has; an outcome ends the prefetch."""
        first = len(op.held)
        last = first + self._ask_limit(op, first)
        began = self._clock()
        ended: Outcome | None = Outcome.MISS if last == first else None
        position = first
        while position < last and ended is None:
            stop = min(last, position + self._limits.storage_batch_pages)
            pages, ended = self._exists(op, position, stop)
            position += pages
            if position < stop:
                break
        op.query_s = self._clock() - began
        op.hit_pages = position - first
        tokens = op.hit_pages * self._settings.page_tokens
        with self._tiers.lock:
            op.deadline_s = deadline_s(self._limits, tokens)
        self._counters.add("query_hit_pages", op.hit_pages)
        if op.hit_pages == 0:
            return ended or Outcome.MISS
        if tokens < self._limits.threshold_tokens:
            return ended or Outcome.BELOW_THRESHOLD
        return None

    def _ask_limit(self, op: Prefetch, first: int) -> int:
        """Pages before the first that failed lately: nothing behind it can be used."""
        failed_before = self._gate.failed_before(op.packed(first, len(op.keys)))
        pages = common_prefix([~failed_before])
        if pages < len(failed_before):
            self._counters.add("negative_hits")
        return pages

    def _exists(
        self, op: Prefetch, start: int, stop: int
    ) -> tuple[int, Outcome | None]:
        """Leading pages of a batch that are there, in all components."""
        budget = self._budget(op)
        if budget <= 0:
            return 0, self._out_of_time(op)
        call = self._gate.start("exists", budget)
        if call is None:
            return 0, Outcome.BREAKER_OPEN
        parts = self._layout.components
        keys = b"".join(c.keys(op.packed(start, stop)) for c in parts)
        count = len(parts) * (stop - start)
        result = self._gate.guarded(
            count,
            lambda: self._storage.exists(keys, timeout_s=budget),
            bare=True,
        )
        there = (result.codes >= 0).reshape(len(parts), -1)
        pages = common_prefix(list(there))
        verdict = self._gate.settle(
            call,
            result,
            cancelled=op.called_off(),
            deadline=op.outcome is Outcome.TIMEOUT,
            quiet=pages > 0,
        )
        op.touched_fault |= verdict.fault
        if pages or not verdict.fault:
            return pages, None
        return 0, Outcome.TIMEOUT if verdict.deadline else Outcome.ERROR

    def _allocate(self, op: Prefetch) -> bool:
        """Pages for the hits only; True when there is less room than hits. Locked."""
        wanted = op.hit_pages
        pool = self._tiers.l2
        op.flight = pool.allocate(wanted)
        missing = wanted - len(op.flight)
        if missing:
            tokens = missing * self._settings.page_tokens
            self._counters.add("unfulfilled_tokens", tokens)
        return missing > 0

    def _read_batches(self, op: Prefetch) -> Outcome | None:
        """Reads the pages in flight; an outcome when it ended before their end."""
        while len(op.flight):
            batch = op.flight[: self._limits.storage_batch_pages]
            start = len(op.held)
            arrived, ended = self._read(op, batch, start)
            with self._tiers.lock:
                if op.called_off():
                    return Outcome.ABORTED
                self._take(op, batch[:arrived])
                self._list(op)
            if ended is not None:
                return ended
        return None

    def _read(
        self, op: Prefetch, pages: NDArray[np.intp], start: int
    ) -> tuple[int, Outcome | None]:
        """Reads one batch, pool after pool; pages that arrived in all of them."""
        prefix = len(pages)
        ended: Outcome | None = None
        pools = self._layout.pools
        for i, (name, pool) in enumerate(zip(_FAILPOINTS, pools, strict=False)):
            there, stop = self._read_pool(op, pool, pages[:prefix], start, name)
            prefix = common_prefix([there])
            ended = ended or stop
            if stop in _FINAL and i + 1 < len(pools):
                return 0, ended
            if not prefix:
                break
        if prefix < len(pages) and ended is None:
            ended = Outcome.COMPLETE if start + prefix else Outcome.MISS
        return prefix, ended

    def _read_pool(
        self,
        op: Prefetch,
        pool: Sequence[Component],
        pages: NDArray[np.intp],
        start: int,
        failpoint: str,
    ) -> tuple[NDArray[np.bool_], Outcome | None]:
        none = np.zeros(len(pages), np.bool_)
        budget = self._budget(op)
        if budget <= 0:
            return none, self._out_of_time(op)
        call = self._gate.start("get", budget)
        if call is None:
            return none, Outcome.BREAKER_OPEN
        keys = op.packed(start, start + len(pages))
        result = self._get(op, call, pool, pages, keys, failpoint)
        ok: NDArray[np.bool_] = np.logical_and.reduce(
            (result.codes >= 0).reshape(len(pool), -1), axis=0
        )
        verdict = self._gate.settle(
            call,
            result,
            cancelled=op.called_off(),
            deadline=op.outcome is Outcome.TIMEOUT,
            tokens=len(pages) * self._settings.page_tokens,
            elapsed_s=self._clock() - call.started + op.query_s,
        )
        op.query_s = 0.0
        op.stores.update(dict.fromkeys(result.asked))
        op.touched_fault |= verdict.fault
        self._note_keys(keys, ok, verdict.outcome, avoided=bool(call.avoid))
        if ok.all():
            return ok, None
        if verdict.deadline:
            return ok, Outcome.TIMEOUT
        return ok, Outcome.ERROR if verdict.outcome is CodeClass.FAULT else None

    def _get(
        self,
        op: Prefetch,
        call: Call,
        pool: Sequence[Component],
        pages: NDArray[np.intp],
        keys: bytes,
        failpoint: str,
    ) -> StorageResult:
        """One storage get of all components of one pool."""
        count = len(pool) * len(pages)

        def ask() -> StorageResult:
            code = self._failpoints.hit(failpoint)
            if code is not None and code < 0:
                return failed(count, code)
            budget = self._budget(op)
            if op.called_off() or budget <= 0:
                return failed(count, Code.RPC_TIMEOUT)
            view = self._tiers.l2.pool.view
            return self._storage.get(
                b"".join(c.keys(keys) for c in pool),
                [view(p, c.offset, c.size) for c in pool for p in pages.tolist()],
                timeout_s=budget,
                avoid=call.avoid,
                cancel=op.cancel,
            )

        return self._gate.guarded(count, ask)

    def _note_keys(
        self, keys: bytes, ok: NDArray[np.bool_], outcome: CodeClass, *, avoided: bool
    ) -> None:
        """Keys that failed are not asked for again for a while; good ones are."""
        size = len(keys) // len(ok)
        rows = [keys[i * size : (i + 1) * size] for i in range(len(ok))]
        good = b"".join(row for row, there in zip(rows, ok, strict=True) if there)
        bad = b"".join(row for row, there in zip(rows, ok, strict=True) if not there)
        self._gate.forget_failed(good)
        if bad and outcome is not CodeClass.FAULT:
            self._counters.add("promised_pages_missing", len(bad) // size)
        if bad and (outcome is CodeClass.FAULT or avoided):
            self._gate.remember_failed(bad)

    def _take(self, op: Prefetch, pages: NDArray[np.intp]) -> None:
        """The arrived pages become the tier's, held by this request. Locked."""
        tier = self._tiers.l2
        keys = op.keys[len(op.held) : len(op.held) + len(pages)]
        op.flight = op.flight[len(pages) :]
        for key, page in zip(keys, pages, strict=True):
            mine = np.array([page], np.intp)
            there = tier.get(key)
            if there is None:
                tier.insert([key], mine)
                there = int(page)
            else:
                tier.pool.land(mine)
            tier.stored[there] = True
            tier.pin([there])
            op.held.append((tier, there))
        op.counts["l3"] += len(pages)
        tier.touch(op.keys[: len(op.held)])

    def _land(self, op: Prefetch) -> None:
        """Gives back pages whose get has returned and that nobody wants. Locked."""
        if len(op.flight) and not op.flight_taken:
            self._tiers.l2.pool.land(op.flight)
        op.flight = op.flight[:0]

    # --- time ---

    def _unlimited(self, op: Prefetch) -> bool:
        return op.policy is Policy.WAIT_COMPLETE or self._failpoints.enabled(
            _DEADLINE_IGNORED
        )

    def _budget(self, op: Prefetch) -> float:
        """Seconds that the next storage call may take.

        It ends a little before the deadline, so that what has arrived of a batch is
        known when the deadline comes and can be used.
        """
        if self._unlimited(op) or op.policy is Policy.BEST_EFFORT:
            return self._limits.max_s
        if op.phase is Phase.LOADING and self._failpoints.enabled(_RELEASED_EARLY):
            return self._limits.max_s
        margin = min(self._limits.poll_s, op.deadline_s / 10)
        return op.started_at + op.deadline_s - margin - self._clock()

    def _out_of_time(self, op: Prefetch) -> Outcome:
        return Outcome.ABORTED if op.called_off() else Outcome.TIMEOUT
