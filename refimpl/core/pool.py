"""Everything the master knows: objects, segments, clients; one call, one transition.

The pool takes `now` with each call and owns no clock, lock or thread: the shell calls it
under one lock. Only `release` and `heartbeat` may run beside it. Codes and their order
of precedence follow Mooncake's `MasterService`, except where its behaviour loses data:
put tokens (Mooncake#3030), REPLICA_IS_GONE, one sweep for all removals (Mooncake#3395).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from refimpl.core.codes import Code
from refimpl.core.conservation import broken_laws
from refimpl.core.discards import Discards
from refimpl.core.eviction import Evictor, Usage
from refimpl.core.index import mixed
from refimpl.core.liveness import Liveness
from refimpl.core.objects import (
    COMPLETE,
    FREE,
    PIN_HARD,
    PIN_NONE,
    PIN_SOFT,
    PROCESSING,
    REPLICAS_MAX,
    ObjectTable,
    Slots,
)
from refimpl.core.placement import Batch, Placement
from refimpl.core.pool_answers import Codes, Located, Maintenance, PoolStats, Started
from refimpl.core.pool_settings import PoolSettings
from refimpl.core.segments import (
    Freed,
    Segment,
    SegmentInfo,
    SegmentStatus,
    SegmentTable,
)
from refimpl.core.sweep import Sweep

if TYPE_CHECKING:
    import random

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

PARTS_MAX: Final = 64
"""Ranks that may write one object together."""
_NAME_TAKEN_PINGS: Final = 3
_RELEASES_PER_SLICE: Final = 1024
_PINS: Final = {"": PIN_NONE, "soft": PIN_SOFT, "hard": PIN_HARD}

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
        self._objects = ObjectTable(settings.max_objects)
        self._segments = SegmentTable(settings.max_segments)
        self._clients = Liveness(settings.client_ttl_s)
        self._discards = Discards()
        self._placement = Placement(
            settings.allocation_strategy,
            self._segments,
            settings.slow_start_window_s,
            np.random.default_rng(rng.getrandbits(64)),
        )
        self._evictor = Evictor(settings, self._objects, self._segments.ids)
        self._sweep = Sweep(self._objects, self._segments)
        # A token of an earlier master must not fit a put of this one.
        self._next_token = rng.getrandbits(62) + 1
        self._oldest_put = np.inf
        """No put under way started before it."""
        self._counts: Counter[str] = Counter()

    # --- segments and clients ---------------------------------------------------------

    def mount(self, segment: SegmentInfo, client: int, now: float) -> Code:
        """Adds a segment and makes its client known. Mounting again is idempotent."""
        if segment.size <= 0 or segment.id <= 0 or not segment.name or client <= 0:
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
                memory (Mooncake#2187).
        """
        table = self._objects
        slots = table.index.find(keys).astype(np.intp)
        rows = table.gather(slots)
        status = _LOOKUP_CODES.take(table.state.take(slots))
        segment = self._segments.ids.take(rows["segment"])
        parts = table.parts.take(slots)
        readable = (status == Code.OK) & (segment.any(axis=1))
        if not readable.all():
            status[(status == Code.OK) & ~readable] = Code.OBJECT_NOT_FOUND
            for column in (rows, segment, parts):
                column[~readable] = 0
            slots = np.where(readable, slots, -1)
        if grant_lease:
            self._grant(slots, now)
        self._count_lookup(readable, rows["size"])
        offset = rows["offset"].copy()
        offset[segment == 0] = 0
        _readable_first(segment, offset)
        return Located(
            status=status,
            segment=segment,
            offset=offset,
            size=rows["size"].copy(),
            checksum=rows["checksum"].copy(),
            parts=parts,
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
    ) -> Started:
        """Allocates space for new objects, or joins ranks that write one together.

        A key that somebody else is writing is refused until the discard time; then it is
        taken over, and the old buffers wait for the release time before they are used
        again. A batch that asks for two replicas and finds room for one gets one.
        """
        answer = _Starting(len(keys), replicas if 1 <= replicas <= REPLICAS_MAX else 1)
        wrong = not 1 <= replicas <= REPLICAS_MAX or not 1 <= parts <= PARTS_MAX
        if wrong or pin not in _PINS:
            answer.status[:] = Code.INVALID_PARAMS
            return answer.started()
        bad = (sizes == 0) | (sizes % np.uint32(parts) != 0)
        answer.status[bad] = Code.INVALID_PARAMS
        good = np.flatnonzero(~bad)
        first, later = _first_of_each(keys, good)
        fresh = self._settle_existing(keys, sizes, first, parts, now, answer)
        self._start_new(
            fresh,
            keys,
            sizes,
            now,
            answer,
            client,
            host_id,
            replicas,
            parts,
            exclude,
            _PINS[pin],
        )
        for row, of in later:
            answer.repeat(row, of, join=parts > 1 and sizes[row] == sizes[of])
        return answer.started()

    def put_end(
        self,
        keys: Keys,
        tokens: Words,
        checksums: Words,
        now: float,
        *,
        client: int,
        part: int = 0,
    ) -> Codes:
        """Completes puts, or one part of each. Ending twice is OK and changes nothing."""
        slots, status = self._owned(keys, tokens, client)
        table = self._objects
        status[(status == Code.OK) & (table.parts.take(slots) <= part)] = (
            Code.INVALID_PARAMS
        )
        open_ = (status == Code.OK) & (table.state.take(slots) == PROCESSING)
        alive = self._alive(slots)
        gone = open_ & ~alive
        status[gone] = Code.REPLICA_IS_GONE
        self._drop_now(np.unique(slots[gone]))
        self._end_part(slots, checksums, np.flatnonzero(open_ & alive), part, now)
        return status

    def put_revoke(
        self, keys: Keys, tokens: Words, now: float, *, client: int
    ) -> Codes:
        """Gives up puts. Other ranks may still be writing: their space is held back."""
        slots, status = self._owned(keys, tokens, client)
        table = self._objects
        complete = (status == Code.OK) & (table.state.take(slots) == COMPLETE)
        status[complete] = Code.INVALID_WRITE
        chosen = self._only_first(slots, status)
        shared = chosen[table.parts.take(chosen) > 1]
        self._discard(shared)
        self._drop_now(chosen[table.state.take(chosen) != FREE])
        return status

    def remove(self, keys: Keys, now: float, force: bool = False) -> Codes:
        """Removes complete objects; leased ones only by force.

        What was removed under a lease is held back until the lease ends, because
        readers trust it until then.
        """
        table = self._objects
        slots = table.index.find(keys).astype(np.intp)
        status = _LOOKUP_CODES.take(table.state.take(slots))
        leased = (status == Code.OK) & (table.lease.take(slots) > now)
        if not force:
            status[leased] = Code.OBJECT_HAS_LEASE
        chosen = self._only_first(slots, status)
        self._remove_slots(chosen, now)
        return status

    def remove_all(self, now: float) -> int:
        """Removes every complete object without a lease; returns how many."""
        table, removed = self._objects, 0
        for at in range(0, table.high_water, 16_384):
            part = slice(at, min(at + 16_384, table.high_water))
            idle = (table.state[part] == COMPLETE) & (table.lease[part] <= now)
            slots = np.flatnonzero(idle) + at
            self._remove_slots(slots, now)
            removed += len(slots)
        return removed

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
        freed += self._drop(self._dead_puts(now))
        swept, orphans = self._sweep.step()
        freed += self._drop(orphans)
        victims = self._evictor.step(self._usage(), now)
        freed += self._drop(victims)
        return Maintenance(
            again_in_s=self._again_in_s(now),
            freed=freed,
            evicted=len(victims),
            swept=swept,
            unmounted=tuple(segment.info.id for segment in due),
        )

    def release(self, freed: Iterable[Freed]) -> None:
        """Hands buffers back to their allocators. Needs no lock."""
        for group in freed:
            group.segment.inbox.append(group)

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
        if all(s.client != segment.client for s in self._segments.live()):
            self._clients.forget(segment.client)
        self._counts["master_segments_unmounted_total"] += 1

    # --- reading, privately -----------------------------------------------------------

    def _grant(self, slots: Slots, now: float) -> None:
        lease = self._objects.lease
        until = np.maximum(
            lease.take(slots), now + self.settings.default_kv_lease_ttl_s
        )
        lease[slots] = until

    def _count_lookup(self, readable: Flags, sizes: NDArray[np.uint32]) -> None:
        hits = int(np.count_nonzero(readable))
        self._counts["total_get_nums_"] += len(readable)
        self._counts["valid_get_nums_"] += hits
        self._counts["mem_cache_hit_nums_"] += hits
        self._counts["mem_cache_hit_bytes_total"] += int(sizes.sum(dtype=np.uint64))

    def _alive(self, slots: Slots) -> Flags:
        """Whether any replica of these objects is readable or writable."""
        ids = self._segments.ids.take(self._objects.segment[slots])
        alive: Flags = ids.any(axis=1)
        return alive

    # --- writing, privately -----------------------------------------------------------

    def _settle_existing(
        self,
        keys: Keys,
        sizes: NDArray[np.uint32],
        rows: NDArray[np.intp],
        parts: int,
        now: float,
        answer: _Starting,
    ) -> NDArray[np.intp]:
        """Answers rows whose key exists; returns the rows that may start."""
        table = self._objects
        slots = table.index.find(keys[rows]).astype(np.intp)
        found = slots >= 0
        if not found.any():
            return rows
        old, at = slots[found], rows[found]
        alive = self._alive(old)
        processing = table.state.take(old) == PROCESSING
        deadline = table.put_start.take(old) + self.settings.put_start_discard_timeout_s
        overdue = processing & (deadline < now)
        self._drop_now(old[~alive])
        self._discard(old[alive & overdue])
        kept = alive & ~overdue
        joins = kept & processing & (parts > 1) & (table.parts.take(old) == parts)
        joins &= table.size[old] == sizes[at]
        answer.status[at[kept]] = Code.OBJECT_ALREADY_EXISTS
        self._answer_place(answer, at[joins], old[joins])
        return np.concatenate([rows[~found], at[~kept]])

    def _start_new(
        self,
        rows: NDArray[np.intp],
        keys: Keys,
        sizes: NDArray[np.uint32],
        now: float,
        answer: _Starting,
        client: int,
        host_id: str,
        replicas: int,
        parts: int,
        exclude: Collection[int],
        pin: int,
    ) -> None:
        table = self._objects
        room = table.capacity - table.count - self._discards.buffers
        if len(rows) > room:
            rows.sort()
            self._refuse(answer, rows[max(0, room) :])
            rows = rows[: max(0, room)]
        if not len(rows):
            return
        batch = Batch(
            keys=keys[rows],
            sizes=sizes[rows],
            host_id=host_id,
            replicas=replicas,
            exclude=exclude,
        )
        placed = self._placement.place(batch, now)
        got = placed.row[:, 0] != 0
        if replicas > 1:
            short = got & (placed.row[:, 1] == 0)
            self._counts["master_put_start_partial_allocations_total"] += int(
                np.count_nonzero(short)
            )
        self._refuse(answer, rows[~got])
        slots = table.claim(batch.keys[got])
        table.state[slots] = PROCESSING
        table.size[slots] = batch.sizes[got]
        table.checksum[slots] = 0
        table.parts[slots] = parts
        table.part_mask[slots] = 0
        table.token[slots] = self._tokens(len(slots))
        table.writer[slots] = client
        table.put_start[slots] = now
        table.lease[slots] = 0.0
        table.pin[slots] = pin
        table.offset[slots, :replicas] = placed.offset[got]
        table.segment[slots, :replicas] = placed.row[got]
        self._oldest_put = min(self._oldest_put, now)
        self._answer_place(answer, rows[got], slots)

    def _refuse(self, answer: _Starting, rows: NDArray[np.intp]) -> None:
        """No room: eviction is asked for, once there is anything mounted at all."""
        if not len(rows):
            return
        answer.status[rows] = Code.NO_AVAILABLE_HANDLE
        self._counts["master_put_start_alloc_failures_total"] += len(rows)
        self._evictor.needed = len(self._segments) > 0

    def _tokens(self, count: int) -> Words:
        first = self._next_token
        self._next_token += count
        return np.arange(first, first + count, dtype=np.uint64)

    def _answer_place(
        self, answer: _Starting, rows: NDArray[np.intp], slots: Slots
    ) -> None:
        table, replicas = self._objects, answer.segment.shape[1]
        answer.status[rows] = Code.OK
        answer.token[rows] = table.token.take(slots)
        answer.segment[rows] = self._segments.ids.take(table.segment[slots, :replicas])
        answer.offset[rows] = table.offset[slots, :replicas]

    def _owned(self, keys: Keys, tokens: Words, client: int) -> tuple[Slots, Codes]:
        """Slots and codes of puts that this client may end or revoke.

        Ranks that write one object together share its token, so for them the token
        alone is proof.
        """
        table = self._objects
        slots = table.index.find(keys).astype(np.intp)
        status = np.zeros(len(slots), dtype=np.int16)
        status[table.token.take(slots) != tokens] = Code.INVALID_WRITE
        foreign = table.writer.take(slots) != np.uint64(client)
        status[foreign & (table.parts.take(slots) <= 1)] = Code.ILLEGAL_CLIENT
        status[slots < 0] = Code.OBJECT_NOT_FOUND
        return slots, status

    def _end_part(
        self,
        slots: Slots,
        checksums: Words,
        rows: NDArray[np.intp],
        part: int,
        now: float,
    ) -> None:
        table = self._objects
        bit = np.uint64(1 << part)
        rows = rows[(table.part_mask.take(slots[rows]) & bit) == 0]
        slots, position = np.unique(slots[rows], return_index=True)
        table.checksum[slots] ^= checksums[rows[position]]
        table.part_mask[slots] |= bit
        missing = _mask_of(table.parts.take(slots)) & ~table.part_mask.take(slots)
        done = slots[missing == 0]
        table.state[done] = COMPLETE
        table.lease[done] = now
        table.complete += len(done)

    def _only_first(self, slots: Slots, status: Codes) -> Slots:
        """Slots of OK rows; a second row of one slot finds it gone."""
        rows = np.flatnonzero(status == Code.OK)
        chosen, position = np.unique(slots[rows], return_index=True)
        status[np.delete(rows, position)] = Code.OBJECT_NOT_FOUND
        return chosen

    # --- dropping ---------------------------------------------------------------------

    def _drop(self, slots: Slots) -> list[Freed]:
        """Forgets objects; returns the buffers that nobody owns any more."""
        if not len(slots):
            return []
        table = self._objects
        freed = self._buffers(
            table.segment[slots], table.offset[slots], table.size[slots]
        )
        table.drop(slots)
        return freed

    def _drop_now(self, slots: Slots) -> None:
        self.release(self._drop(slots))

    def _discard(self, slots: Slots) -> None:
        """Forgets abandoned puts; their writers may wake up until the release time."""
        if not len(slots):
            return
        release_s = self.settings.put_start_release_timeout_s
        until = float(self._objects.put_start.take(slots).max()) + release_s
        self._counts["master_put_start_discard_cnt"] += len(slots)
        self._hold(self._drop(slots), until)

    def _remove_slots(self, slots: Slots, now: float) -> None:
        lease = self._objects.lease.take(slots)
        leased = lease > now
        if leased.any():
            self._hold(self._drop(slots[leased]), float(lease[leased].max()))
        self._drop_now(slots[~leased])

    def _hold(self, freed: list[Freed], until: float) -> None:
        for group in freed:
            group.segment.releasing -= group.total_bytes
        self._discards.hold(freed, until)

    def _buffers(
        self,
        rows: NDArray[np.uint16],
        offsets: Words,
        sizes: NDArray[np.uint32],
    ) -> list[Freed]:
        """Groups buffers by segment and size; those of removed segments are gone."""
        live = self._segments.ids.take(rows) != 0
        each = np.broadcast_to(sizes[:, None], rows.shape)[live].astype(np.uint64)
        place = (rows[live].astype(np.uint64) << np.uint64(32)) | each
        offset = offsets[live]
        groups = []
        for value, members in _groups(place):
            segment = self._segments.by_row[value >> 32]
            assert segment is not None, "readable row without a segment"
            freed = Freed(segment, value & 0xFFFFFFFF, offset[members])
            segment.releasing += freed.total_bytes
            groups.append(freed)
        return groups

    def _dead_puts(self, now: float) -> Slots:
        """Puts that nobody ended or took over by their release time."""
        nothing = np.zeros(0, dtype=np.intp)
        release_s = self.settings.put_start_release_timeout_s
        if self._oldest_put + release_s > now:
            return nothing
        table = self._objects
        puts = np.flatnonzero(table.state[: table.high_water] == PROCESSING)
        started = table.put_start.take(puts)
        dead = puts[started + release_s <= now][:_RELEASES_PER_SLICE]
        left = started[started + release_s > now]
        if len(dead) + len(left) == len(puts):
            self._oldest_put = float(left.min()) if len(left) else np.inf
        self._counts["master_put_start_discard_cnt"] += len(dead)
        return dead

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
        if self._discards.next_at() <= now:
            return 0.0
        return max(self.settings.eviction_period_s, self._evictor.wait_s(now))

    def _counters(self) -> dict[str, float]:
        evictor, placement = self._evictor, self._placement
        return {
            **dict.fromkeys(_COUNTERS, 0.0),
            **{name: float(value) for name, value in self._counts.items()},
            "master_attempted_evictions_total": evictor.attempted,
            "master_successful_evictions_total": evictor.successful,
            "master_futile_evictions_total": evictor.futile,
            "master_evicted_key_count": evictor.evicted_objects,
            "master_evicted_size_bytes": evictor.evicted_bytes,
            "master_client_expiry_deferred_total": self._clients.deferred,
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
            "master_processing_key_count": table.count - table.complete,
            "master_soft_pin_key_count": float(soft),
            "master_active_clients": len(self._clients),
            "master_cleanup_pending": len(segments.dying),
            "master_put_start_discarded_staging_size": sum(s.quarantined for s in live),
        }


_COUNTERS: Final = (
    "total_get_nums_",
    "valid_get_nums_",
    "mem_cache_hit_nums_",
    "mem_cache_hit_bytes_total",
    "master_clients_expired_total",
    "master_segments_unmounted_total",
    "master_put_start_alloc_failures_total",
    "master_put_start_partial_allocations_total",
    "master_put_start_discard_cnt",
    "master_put_start_release_cnt",
)


class _Starting:
    """The answer of a `put_start` while it is made."""

    def __init__(self, n: int, replicas: int) -> None:
        self.status = np.zeros(n, dtype=np.int16)
        self.token = np.zeros(n, dtype=np.uint64)
        self.segment = np.zeros((n, replicas), dtype=np.uint64)
        self.offset = np.zeros((n, replicas), dtype=np.uint64)

    def repeat(self, row: int, of: int, *, join: bool) -> None:
        """Answers the second row of one key as a call after the first one would."""
        if self.status[of] == Code.OK and not join:
            self.status[row] = Code.OBJECT_ALREADY_EXISTS
            return
        for column in (self.status, self.token, self.segment, self.offset):
            column[row] = column[of]

    def started(self) -> Started:
        return Started(
            status=self.status,
            token=self.token,
            segment=self.segment,
            offset=self.offset,
        )


def _readable_first(segment: Words, offset: Words) -> None:
    """Moves a second replica forward where the first one is gone."""
    late = (segment[:, 0] == 0) & (segment[:, 1] != 0)
    if late.any():
        segment[late] = segment[late, ::-1]
        offset[late] = offset[late, ::-1]


def _mask_of(parts: NDArray[np.uint8]) -> Words:
    """Bit mask with one bit for each part, 1 to 64 of them."""
    return np.uint64(2**64 - 1) >> (np.uint64(PARTS_MAX) - parts.astype(np.uint64))


def _first_of_each(
    keys: Keys, rows: NDArray[np.intp]
) -> tuple[NDArray[np.intp], list[tuple[int, int]]]:
    """Rows of distinct keys, and (row, row of its first occurrence) of the others."""
    words = mixed(keys[rows])
    words.sort()
    if not (words[1:] == words[:-1]).any():
        return rows, []
    first: dict[bytes, int] = {}
    later = []
    for row in rows.tolist():
        of = first.setdefault(keys[row].tobytes(), row)
        if of != row:
            later.append((row, of))
    return np.array(sorted(first.values()), dtype=np.intp), later


def _groups(values: Words) -> list[tuple[int, NDArray[np.intp] | slice]]:
    """Distinct values with their positions; no sorting when there is but one."""
    if not values.size:
        return []
    if (values == values[0]).all():
        return [(int(values[0]), slice(None))]
    distinct, inverse = np.unique(values, return_inverse=True)
    return [(int(v), np.flatnonzero(inverse == at)) for at, v in enumerate(distinct)]
