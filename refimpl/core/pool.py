"""Everything the master knows: objects, segments, clients; one call, one transition.

The pool takes `now` with each call and owns no clock, lock or thread: the shell calls
it under one lock. Only `release` and `heartbeat` may run beside it. Codes and their
order of precedence follow Mooncake's `MasterService`, except where that loses data or
time: put tokens (Mooncake#3030), REPLICA_IS_GONE, sliced sweeps (Mooncake#3395).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from refimpl.core.codes import Code
from refimpl.core.conservation import broken_laws
from refimpl.core.discards import Discards
from refimpl.core.eviction import Evictor, Usage
from refimpl.core.liveness import Liveness
from refimpl.core.objects import (
    COMPLETE,
    FREE,
    PIN_SOFT,
    PROCESSING,
    REPLICAS_MAX,
    ObjectTable,
    Slots,
)
from refimpl.core.placement import Placement
from refimpl.core.pool_answers import Codes, Located, Maintenance, PoolStats, Started
from refimpl.core.pool_settings import PoolSettings
from refimpl.core.puts import PARTS_MAX, PutRequest, Puts, only_first
from refimpl.core.reclaim import Reclaim, release
from refimpl.core.segments import (
    SEGMENT_BYTES_MAX,
    Freed,
    Segment,
    SegmentInfo,
    SegmentStatus,
    SegmentTable,
)
from refimpl.core.sweep import Sweep

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterable, Sequence

__all__ = [
    "PARTS_MAX",
    "REPLICAS_MAX",
    "Freed",
    "Located",
    "Maintenance",
    "Pool",
    "PoolSettings",
    "PoolStats",
    "SegmentInfo",
    "Started",
]

_NAME_TAKEN_PINGS: Final = 3
_RELEASES_PER_SLICE: Final = 1024
_NAMES_PER_SLICE: Final = 16_384

Keys = NDArray[np.uint64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]


def _lookup_codes() -> Codes:
    codes = np.zeros(3, dtype=np.int16)
    codes[FREE] = Code.OBJECT_NOT_FOUND
    codes[PROCESSING] = Code.REPLICA_IS_NOT_READY
    codes[COMPLETE] = Code.OK
    return codes


_LOOKUP_CODES: Final = _lookup_codes()


class Pool:
    """The pool's state machine.

    Args:
        settings: see `PoolSettings`.
        rng: draws the lots of placement and the base of put tokens.
    """

    def __init__(self, settings: PoolSettings, rng: random.Random) -> None:
        self.settings = settings
        self._objects = ObjectTable(settings.max_objects, settings.max_names_bytes)
        self._segments = SegmentTable(settings.max_segments)
        self._clients = Liveness(settings.client_ttl_s)
        self._discards = Discards()
        self._reclaim = Reclaim(
            self._objects,
            self._segments,
            self._discards,
            settings.put_start_release_timeout_s,
        )
        self._placement = Placement(
            settings.allocation_strategy,
            self._segments,
            settings.slow_start_window_s,
            np.random.default_rng(rng.getrandbits(64)),
        )
        self._evictor = Evictor(settings, self._objects, self._segments.ids)
        self._sweep = Sweep(self._objects, self._segments)
        self._puts = Puts(
            self._objects,
            self._segments,
            self._discards,
            self._reclaim,
            self._placement,
            discard_s=settings.put_start_discard_timeout_s,
            first_token=rng.getrandbits(62) + 1,
        )
        self._counts: Counter[str] = Counter()

    # --- segments and clients ---------------------------------------------------------

    def mount(self, segment: SegmentInfo, client: int, now: float) -> Code:
        """Adds a segment and makes its client known. Mounting again is idempotent."""
        if segment.id <= 0 or not segment.name or client <= 0:
            return Code.INVALID_PARAMS
        if not 0 < segment.size <= SEGMENT_BYTES_MAX:
            return Code.INVALID_PARAMS
        mounted = self._segments.get(segment.id)
        if mounted is not None:
            return self._mount_again(mounted, client, now)
        namesake = self._segments.named(segment.name)
        if namesake is not None:
            if self._is_fresh_owner(namesake, client, now):
                return Code.SEGMENT_ALREADY_EXISTS
            self._remove_segment(namesake)
        if self._segments.full:
            return Code.UNAVAILABLE_IN_CURRENT_STATUS
        joins_filled_pool = self._segments.allocated_bytes() > 0
        fresh_until = now + self.settings.slow_start_s if joins_filled_pool else now
        self._segments.mount(segment, client, fresh_until)
        self._clients.register(client, now)
        return Code.OK

    def unmount(
        self, segment_id: int, client: int, now: float, grace_s: float = 0.0
    ) -> Code:
        """Removes a segment, at once or after a grace in which it stays readable."""
        segment = self._segments.get(segment_id)
        if segment is None:
            return Code.OK
        if segment.client != client:
            return Code.ILLEGAL_CLIENT
        if grace_s > 0:
            self._segments.drain(segment, now + grace_s)
        else:
            self._remove_segment(segment)
        return Code.OK

    def segments(self) -> list[SegmentInfo]:
        """Readable segments as they are now."""
        self._segments.settle()
        return [segment.described() for segment in self._segments.live()]

    def heartbeat(self, client: int, now: float) -> bool:
        """Returns False when the client has to mount again (NEED_REMOUNT)."""
        return self._clients.heartbeat(client, now)

    def clients(self) -> frozenset[int]:
        """Clients whose heartbeats are answered with OK."""
        return self._clients.known()

    def expire(self, now: float) -> list[int]:
        """Expires silent clients; their segments become unreadable at once."""
        expired = self._clients.expire(now)
        gone = set(expired)
        for segment in self._segments.live() if gone else ():
            if segment.client in gone:
                self._remove_segment(segment)
        self._counts["master_clients_expired_total"] += len(expired)
        return expired

    # --- reading ----------------------------------------------------------------------

    def lookup(self, keys: Keys, now: float, grant_lease: bool = True) -> Located:
        """Locates a batch and leases what is readable.

        Args:
            keys: (n, 4) words; duplicates are fine.
            now: seconds.
            grant_lease: False for an existence probe, which must keep nothing in
                memory (Mooncake#2187) and is no get that could hit.
        """
        table = self._objects
        slots, rows = table.locate(keys)
        states = table.state.take(slots)
        placed = rows["segment"]
        if grant_lease and len(slots) and not placed[:, 1].any():
            first = self._segments.ids.take(placed[:, 0])
            if states.min() == COMPLETE and first.all():  # no state is above it
                return self._all_located(slots, rows, first, now)
        status = _LOOKUP_CODES.take(states)
        segment = self._segments.ids.take(placed)
        parts = table.parts.take(slots)
        readable = (status == Code.OK) & ((segment[:, 0] | segment[:, 1]) != 0)
        if not readable.all():
            status[(status == Code.OK) & ~readable] = Code.OBJECT_NOT_FOUND
            for column in (rows, segment, parts):
                column[~readable] = 0
            slots = np.where(readable, slots, -1)
        if grant_lease:
            self._grant(slots, now)
            hits = int(np.count_nonzero(readable))
            self._count_hits(len(readable), hits, rows["size"])
        offset = rows["offset"] * (segment != 0)
        _readable_first(segment, offset)
        return Located(
            status=status,
            segment=segment,
            offset=offset,
            size=rows["size"].copy(),
            checksum=rows["checksum"].copy(),
            parts=parts,
        )

    def _all_located(
        self, slots: Slots, rows: NDArray[np.void], segment: Words, now: float
    ) -> Located:
        """The common answer: all is there and readable, in one replica each."""
        count = len(slots)
        self._grant(slots, now)
        self._count_hits(count, count, rows["size"])
        return Located(
            status=np.zeros(count, dtype=np.int16),
            segment=segment.reshape(count, 1),
            offset=rows["offset"][:, :1],
            size=rows["size"],
            checksum=rows["checksum"],
            parts=self._objects.parts.take(slots),
        )

    # --- writing ----------------------------------------------------------------------

    def put_start(
        self,
        keys: Keys,
        sizes: NDArray[np.uint32],
        now: float,
        *,
        client: int,
        host_id: str,
        replicas: int = 1,
        parts: int = 1,
        exclude: Collection[int] = frozenset(),
        pin: str = "",
        prefer: Sequence[int] = (),
        names: Sequence[str] = (),
    ) -> Started:
        """Allocates space for new objects, or joins ranks that write one together.

        A key that somebody else is writing is refused until the discard time; then it
        is taken over, and the old buffers wait for the release time before they are
        used again. An object that asks for two replicas and finds room for one gets
        one. `prefer` names segments to try first; `names`, one a key, are kept for
        `names`.
        """
        request = PutRequest(
            keys=keys,
            sizes=sizes,
            client=client,
            host_id=host_id,
            replicas=replicas,
            parts=parts,
            exclude=exclude,
            pin=pin,
            prefer=prefer,
            names=names,
        )
        started = self._puts.start(request, now)
        self._evictor.needed |= self._puts.wants_eviction
        self._puts.wants_eviction = False
        return started

    def put_end(
        self,
        keys: Keys,
        tokens: Words,
        checksums: Words,
        now: float,
        *,
        client: int,
        part: int = 0,
        any_token: bool = False,
    ) -> Codes:
        """Completes puts, or one part of each. Ending twice is OK, without effect.

        `any_token` is the defect of Mooncake#3030 on purpose: a stale end counts.
        """
        return self._puts.end(
            keys,
            tokens,
            checksums,
            now,
            client=client,
            part=part,
            any_token=any_token,
        )

    def put_revoke(
        self,
        keys: Keys,
        tokens: Words,
        now: float,
        *,
        client: int,
        any_token: bool = False,
    ) -> Codes:
        """Gives up puts. Other ranks may still be writing: their space is held back."""
        return self._puts.revoke(keys, tokens, client=client, any_token=any_token)

    def remove(self, keys: Keys, now: float, force: bool = False) -> Codes:
        """Removes complete objects; leased ones only by force.

        What was removed under a lease is held back until the lease ends, because
        readers trust it until then.
        """
        table = self._objects
        slots, rows = table.locate(keys)
        status = _LOOKUP_CODES.take(table.state.take(slots))
        segment = self._segments.ids.take(rows["segment"])
        gone = (status == Code.OK) & ((segment[:, 0] | segment[:, 1]) == 0)
        status[gone] = Code.OBJECT_NOT_FOUND
        leased = (status == Code.OK) & (table.lease.take(slots) > now)
        if not force:
            status[leased] = Code.OBJECT_HAS_LEASE
        self._reclaim.drop_leased(only_first(slots, status), now)
        return status

    def remove_all(self, now: float, force: bool = False) -> int:
        """Removes every complete object without a lease; returns how many.

        By force those that readers hold go as well; their bytes are held back until
        the leases end.

        An operator's call: it walks the whole table at once.
        """
        table, removed = self._objects, 0
        for at in range(0, table.high_water, 16_384):
            part = slice(at, min(at + 16_384, table.high_water))
            chosen = table.state[part] == COMPLETE
            if not force:
                chosen &= table.lease[part] <= now
            slots = np.flatnonzero(chosen) + at
            self._reclaim.drop_leased(slots, now)
            removed += len(slots)
        return removed

    def names(self, cursor: int) -> tuple[list[str], int]:
        """Names of readable objects in one slice of the table, and the next cursor.

        A cursor of 0 begins, and means the end when it comes back. What is written or
        removed between two calls may be missed or be told twice.
        """
        table = self._objects
        end = min(cursor + _NAMES_PER_SLICE, table.high_water)
        if cursor >= end:
            return [], 0
        part = slice(cursor, end)
        segment = self._segments.ids.take(table.segment[part])
        readable = table.state[part] == COMPLETE
        readable &= np.bitwise_or.reduce(segment, axis=1) != 0
        slots = (np.flatnonzero(readable) + cursor).tolist()
        return list(table.names.within(slots)), end if end < table.high_water else 0

    # --- housekeeping -----------------------------------------------------------------

    def maintain(self, now: float) -> Maintenance:
        """One bounded slice: graces, releases, dead puts, the sweep, eviction."""
        self._segments.settle()
        due = self._segments.due(now)
        for segment in due:
            self._remove_segment(segment)
        freed = self._discards.due(now, _RELEASES_PER_SLICE)
        self._counts["master_put_start_release_cnt"] += sum(
            len(group.offsets) for group in freed
        )
        freed += self._reclaim.drop_dead_puts(now)
        swept, orphans = self._sweep.step()
        freed += self._reclaim.drop(orphans)
        victims = self._evictor.step(self._usage(), now)
        freed += self._reclaim.drop(victims)
        return Maintenance(
            again_in_s=self._again_in_s(now),
            freed=freed,
            evicted=len(victims),
            swept=swept,
            unmounted=tuple(segment.info.id for segment in due),
        )

    def release(self, freed: Iterable[Freed]) -> None:
        """Hands buffers back to their allocators. Needs no lock."""
        release(freed)

    def stats(self, now: float) -> PoolStats:
        """Counters and gauges, from live state, under upstream's names."""
        self._segments.settle()
        return PoolStats(
            counters=self._counters(),
            gauges=self._gauges(now),
            segments=tuple(s.described() for s in self._segments.live()),
        )

    def conservation(self) -> list[str]:
        """Broken conservation laws in words; empty when all hold. Reads everything."""
        self._segments.settle()
        return broken_laws(self._objects, self._segments, self._discards)

    # --- segments, privately ----------------------------------------------------------

    def _mount_again(self, segment: Segment, client: int, now: float) -> Code:
        if segment.client != client:
            return Code.SEGMENT_ALREADY_EXISTS
        if segment.status is not SegmentStatus.OK:
            return Code.UNAVAILABLE_IN_CURRENT_STATUS
        self._clients.register(client, now)
        return Code.OK

    def _is_fresh_owner(self, segment: Segment, client: int, now: float) -> bool:
        """Whether another client holds this name and was heard lately."""
        if segment.client == client:
            return False
        taken_s = _NAME_TAKEN_PINGS * self.settings.ping_interval_s
        return self._clients.silence_s(segment.client, now) < taken_s

    def _remove_segment(self, segment: Segment) -> None:
        self._segments.remove(segment)
        if not self._segments.owned_by(segment.client):
            self._clients.forget(segment.client)
        self._counts["master_segments_unmounted_total"] += 1

    # --- reading, privately -----------------------------------------------------------

    def _grant(self, slots: Slots, now: float) -> None:
        lease = self._objects.lease
        until = np.maximum(
            lease.take(slots), now + self.settings.default_kv_lease_ttl_s
        )
        lease[slots] = until

    def _count_hits(self, asked: int, hits: int, sizes: NDArray[np.uint32]) -> None:
        self._counts["total_get_nums_"] += asked
        self._counts["valid_get_nums_"] += hits
        self._counts["mem_cache_hit_nums_"] += hits
        self._counts["mem_cache_hit_bytes_total"] += int(sizes.sum(dtype=np.uint64))

    # --- housekeeping, privately ------------------------------------------------------

    def _usage(self) -> Usage:
        return Usage(
            allocated_bytes=self._segments.allocated_bytes(),
            capacity_bytes=self._segments.capacity_bytes(),
            objects=self._objects.count,
            objects_max=self._objects.capacity,
        )

    def _again_in_s(self, now: float) -> float:
        if self._evictor.busy or self._sweep.pending:
            return 0.0
        if self._discards.next_at() <= now or self._reclaim.has_dead_puts(now):
            return 0.0
        return max(self.settings.eviction_period_s, self._evictor.wait_s(now))

    def _counters(self) -> dict[str, float]:
        evictor, placement = self._evictor, self._placement
        return {
            **dict.fromkeys(_COUNTERS, 0.0),
            **{name: float(value) for name, value in self._counts.items()},
            "master_put_start_alloc_failures_total": self._puts.refused,
            "master_put_start_partial_allocations_total": self._puts.partial,
            "master_put_start_discard_cnt": self._reclaim.discarded,
            "master_attempted_evictions_total": evictor.attempted,
            "master_successful_evictions_total": evictor.successful,
            "master_futile_evictions_total": evictor.futile,
            "master_evicted_key_count": evictor.evicted_objects,
            "master_evicted_size_bytes": evictor.evicted_bytes,
            "master_client_expiry_deferred_total": self._clients.deferred,
            "master_names_dropped_total": self._objects.names.dropped,
            "master_local_first_puts_total": placement.asked,
            "master_local_first_local_total": placement.local,
            "master_local_first_unmatched_total": placement.unmatched,
        }

    def _gauges(self, now: float) -> dict[str, float]:
        table, segments = self._objects, self._segments
        live = segments.live()
        soft = np.count_nonzero(table.pin[: table.high_water] == PIN_SOFT)
        return {
            "master_allocated_bytes": segments.allocated_bytes(),
            "master_total_capacity_bytes": segments.capacity_bytes(),
            "master_key_count": table.count,
            "master_named_key_count": table.names.count,
            "master_names_bytes": table.names.bytes,
            "master_processing_key_count": table.count - table.complete,
            "master_soft_pin_key_count": float(soft),
            "master_active_clients": len(self._clients),
            "master_cleanup_pending": len(segments.dying),
            "master_eviction_backoff_seconds": self._evictor.wait_s(now),
            "master_put_start_discarded_staging_size": sum(s.quarantined for s in live),
        }


_COUNTERS: Final = (
    "total_get_nums_",
    "valid_get_nums_",
    "mem_cache_hit_nums_",
    "mem_cache_hit_bytes_total",
    "master_clients_expired_total",
    "master_segments_unmounted_total",
    "master_put_start_release_cnt",
)


def _readable_first(segment: Words, offset: Words) -> None:
    """Moves a second replica forward where the first one is gone."""
    late = (segment[:, 0] == 0) & (segment[:, 1] != 0)
    if late.any():
        segment[late] = segment[late, ::-1]
        offset[late] = offset[late, ::-1]
