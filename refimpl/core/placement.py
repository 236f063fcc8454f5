"""Where new objects go: `random`, `free_ratio_first` or `local_first`.

local_first keeps a batch together: on a segment of the writer's own host, else on the
hosts in an order that is fixed per writer and different between writers (rendezvous,
blake2b(writer || host)). Upstream walks the sorted host list instead, so that
neighbours share their fallback. A host, not a segment, is what fails (Mooncake#1168).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from refimpl.core.allocator import aligned
from refimpl.core.index import mixed
from refimpl.core.objects import NO_SEGMENT
from refimpl.core.segments import Segment, SegmentTable

_FAIR_SHARES_MAX = 2
_FREE_RATIO_SAMPLES = 6
_ORDERS_CACHED = 4096
_ROUND_ODD = np.uint64(0x9E3779B97F4A7C15)

Members = NDArray[np.intp]
"""Rows of the batch."""
Choose = Callable[[Members, list[Segment], int], NDArray[np.intp]]
"""(rows of the batch, candidates, round) -> a candidate for each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What is to be placed."""

    keys: NDArray[np.uint64]
    sizes: NDArray[np.uint32]
    host_id: str
    replicas: int
    exclude: Collection[int]
    prefer: Sequence[int] = ()
    """Ids of segments to try first, in this order, whatever the strategy says."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows of the segment table and offsets, (n, replicas); row 0 is "not placed"."""

    row: NDArray[np.uint16]
    offset: NDArray[np.uint64]


def rendezvous(writer: str, hosts: Iterable[str]) -> list[str]:
    """The hosts in this writer's order; removing one moves no other."""
    prefix = len(writer.encode()).to_bytes(4, "little") + writer.encode()

    def rank(host: str) -> tuple[bytes, str]:
        return blake2b(prefix + host.encode(), digest_size=8).digest(), host

    return sorted(hosts, key=rank)


class Placement:
    """Places batches; counts what an operator should know about locality.

    Args:
        strategy: one of `STRATEGIES` of the pool settings.
        table: the segments.
        window_s: over which slow start counts shares.
        rng: of the strategies that draw lots.
    """

    def __init__(
        self,
        strategy: str,
        table: SegmentTable,
        window_s: float,
        rng: np.random.Generator,
    ) -> None:
        self._strategy = strategy
        self.table = table
        self._rng = rng
        self._window = _Window(window_s)
        self._orders: dict[str, list[list[Segment]]] = {}
        self._orders_version = -1
        self.unmatched = 0
        """local_first: objects of writers whose host never had a segment here."""
        self.local = 0
        """local_first: objects placed on the writer's own host."""
        self.asked = 0
        """local_first: objects asked for."""

    def place(self, batch: Batch, now: float) -> Placed:
        """Allocates what fits; distinct hosts for the replicas of one object."""
        n = len(batch.sizes)
        placed = Placed(
            np.zeros((n, batch.replicas), dtype=np.uint16),
            np.zeros((n, batch.replicas), dtype=np.uint64),
        )
        total_bytes = int(batch.sizes.sum(dtype=np.uint64)) * batch.replicas
        self._window.begin(now, total_bytes, self.table)
        for segment in self.table.open():
            segment.settle()
        run = _Run(self, batch, placed, now)
        for size, members in _by_size(batch.sizes):
            run.first(size, members)
            if batch.replicas > 1:
                run.second(size, members)
        return placed

    def could_hold(self, sizes: NDArray[np.uint32], exclude: Collection[int]) -> bool:
        """Whether eviction could make room for one of these refused objects.

        Without this question a writer that can reach no store, or that asks for more
        than a store holds, would have the whole cache evicted for nothing.
        """
        if not sizes.size:
            return False
        smallest = int(sizes.min())
        return any(
            s.info.size >= smallest and s.info.id not in exclude
            for s in self.table.open()
        )

    def admitted(self, segment: Segment, size: int, count: int, now: float) -> int:
        """How many of `count` buffers slow start lets this segment take.

        Slow start says who comes first, never that nobody takes a write: what no other
        segment takes is offered again without it. A fleet whose stores were all
        restarted lately has only fresh segments, and a small object is more than the
        share of one.
        """
        if segment.fresh_until <= now:
            return count
        return min(count, self._window.left(segment) // size)

    def local_order(self, host_id: str, candidates: Collection[int]) -> _Order | None:
        """The writer's segments, host by host; None for a writer of no known host."""
        if not host_id or not self.table.saw_host(host_id):
            return None
        if self._orders_version != self.table.version:
            self._orders = {}
            self._orders_version = self.table.version
        hosts = self._orders.get(host_id)
        if hosts is None:
            if len(self._orders) >= _ORDERS_CACHED:
                self._orders.clear()
            hosts = self._orders[host_id] = self._ranked(host_id)
        return _Order(hosts, candidates)

    def chooser(self, batch: Batch) -> Choose:
        """How rows of a batch are spread when no order of hosts applies."""
        if self._strategy == "random":
            return self._choose_any
        if self._strategy == "free_ratio_first":
            return self._choose_emptiest
        words = mixed(batch.keys)

        def by_key(
            rows: Members, candidates: list[Segment], round_: int
        ) -> NDArray[np.intp]:
            drawn = (words[rows] + np.uint64(round_)) * _ROUND_ODD
            high = drawn >> np.uint64(32)
            return (high % np.uint64(len(candidates))).astype(np.intp)

        return by_key

    @property
    def is_local_first(self) -> bool:
        return self._strategy == "local_first"

    def _ranked(self, host_id: str) -> list[list[Segment]]:
        by_host: dict[str, list[Segment]] = {}
        for segment in sorted(self.table.open(), key=lambda s: s.info.name):
            by_host.setdefault(segment.info.host_id, []).append(segment)
        local = by_host.pop(host_id, None)
        remote = [by_host[host] for host in rendezvous(host_id, by_host)]
        return remote if local is None else [local, *remote]

    def _choose_any(
        self, rows: Members, candidates: list[Segment], round_: int
    ) -> NDArray[np.intp]:
        return self._rng.integers(0, len(candidates), len(rows))

    def _choose_emptiest(
        self, rows: Members, candidates: list[Segment], round_: int
    ) -> NDArray[np.intp]:
        ratios = np.array([s.allocator.free_bytes / s.info.size for s in candidates])
        samples = min(_FREE_RATIO_SAMPLES, len(candidates))
        drawn = self._rng.integers(0, len(candidates), (len(rows), samples))
        best = ratios[drawn].argmax(axis=1)
        chosen: NDArray[np.intp] = drawn[np.arange(len(rows)), best]
        return chosen


class _Window:
    """Bytes placed lately, by which slow start measures a fair share."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._ends_at = -np.inf
        self._total = 0
        self._segments = 1
        self._members: set[int] = set()
        self._version = -1

    def begin(self, now: float, batch_bytes: int, table: SegmentTable) -> None:
        """Counts a batch; starts a new window when the last one is over."""
        segments = table.open()
        self._segments = max(1, len(segments))
        if now >= self._ends_at:
            self._ends_at = now + self._window_s
            self._total = 0
            self._members.clear()
            self._version = -1
        if table.version != self._version:
            self._version = table.version
            self._admit(segments)
        self._total += batch_bytes

    def left(self, segment: Segment) -> int:
        """Bytes that this segment may still take in the window."""
        return max(0, self._most() - segment.window_bytes)

    def _admit(self, segments: list[Segment]) -> None:
        """Who joins within a window has no share of what was placed before."""
        for segment in segments:
            if segment.info.id not in self._members:
                self._members.add(segment.info.id)
                segment.window_bytes = self._most()

    def _most(self) -> int:
        return self._total * _FAIR_SHARES_MAX // self._segments


@dataclass(frozen=True, slots=True)
class _Order:
    """Segments host by host, the writer's own host first if it has one."""

    hosts: list[list[Segment]]
    candidates: Collection[int]

    def rotated(self, turn: int) -> list[Segment]:
        """The candidates in order; `turn` rotates the segments inside each host."""
        ordered = []
        for segments in self.hosts:
            at = turn % len(segments)
            ordered += segments[at:] + segments[:at]
        return [s for s in ordered if s.row in self.candidates]


class _Run:
    """One batch under way."""

    def __init__(
        self, placement: Placement, batch: Batch, placed: Placed, now: float
    ) -> None:
        self._placement = placement
        self._batch = batch
        self._placed = placed
        self._now = now
        self._open = [
            s for s in placement.table.open() if s.info.id not in batch.exclude
        ]
        by_id = {s.info.id: s for s in self._open} if batch.prefer else {}
        self._preferred = [by_id[i] for i in batch.prefer if i in by_id]
        self._turn = (
            int(mixed(batch.keys[:1])[0] >> np.uint64(32)) if len(batch.keys) else 0
        )
        self._bytes = int(batch.sizes.sum(dtype=np.uint64))
        self._choose = placement.chooser(batch)
        self._slow_start = True

    def first(self, size: int, members: Members) -> None:
        """Places the first replica of objects of one size."""
        left = self._fill_preferred(size, members, 0, self._preferred)
        self._fill(size, left, 0, self._open)
        if self._placement.is_local_first:
            self._count_local(members)

    def second(self, size: int, members: Members) -> None:
        """Places the second replica on another host, where there is one."""
        rows = self._placed.row[members, 0]
        for row in np.unique(rows[rows != NO_SEGMENT]):
            segment = self._placement.table.by_row[int(row)]
            assert segment is not None, "placed on a segment that is gone"
            others = [s for s in self._preferred if s is not segment]
            left = self._fill_preferred(size, members[rows == row], 1, others)
            self._fill(size, left, 1, self._beside(segment))

    def _beside(self, segment: Segment) -> list[Segment]:
        host = segment.info.host_id
        others = [s for s in self._open if s.info.host_id != host]
        return others or [s for s in self._open if s is not segment]

    def _fill_preferred(
        self, size: int, members: Members, replica: int, preferred: list[Segment]
    ) -> Members:
        """What the writer asked for by name, as far as there is room; the rest."""
        for segment in preferred:
            if members.size:
                members = self._take(segment, size, members, replica)
        return members

    def _fill(
        self, size: int, members: Members, replica: int, candidates: list[Segment]
    ) -> None:
        """Places what fits, first as slow start wants it, then the rest without it."""
        left = self._fill_once(size, members, replica, candidates)
        if left.size and any(s.fresh_until > self._now for s in candidates):
            self._slow_start = False
            self._fill_once(size, left, replica, candidates)
            self._slow_start = True

    def _fill_once(
        self, size: int, members: Members, replica: int, candidates: list[Segment]
    ) -> Members:
        if self._placement.is_local_first:
            rows = {s.row for s in candidates}
            order = self._placement.local_order(self._batch.host_id, rows)
            if order is not None:
                ordered = order.rotated(self._turn)
                return self._fill_in_order(size, members, replica, ordered)
        return self._fill_spread(size, members, replica, list(candidates))

    def _fill_in_order(
        self, size: int, members: Members, replica: int, ordered: list[Segment]
    ) -> Members:
        """The first segment with room for the whole batch, then whoever has some."""
        roomy = next((s for s in ordered if self._has_room(s)), None)
        if roomy is not None:
            ordered = [roomy, *(s for s in ordered if s is not roomy)]
        for segment in ordered:
            if not members.size:
                break
            members = self._take(segment, size, members, replica)
        return members

    def _fill_spread(
        self, size: int, members: Members, replica: int, candidates: list[Segment]
    ) -> Members:
        """Each object draws a segment; those whose segment is full draw again."""
        length = aligned(size)
        candidates = [s for s in candidates if s.allocator.free_bytes >= length]
        round_ = 0
        while members.size and candidates:
            chosen = self._choose(members, candidates, round_)
            left, full = [], set()
            for at in np.flatnonzero(np.bincount(chosen, minlength=len(candidates))):
                group = members[chosen == at]
                rest = self._take(candidates[at], size, group, replica)
                if rest.size:
                    left.append(rest)
                    full.add(int(at))
            candidates = [s for at, s in enumerate(candidates) if at not in full]
            members = np.concatenate(left) if left else members[:0]
            round_ += 1
        return members

    def _has_room(self, segment: Segment) -> bool:
        if segment.allocator.free_bytes < aligned(self._bytes):
            return False
        return (
            self._is_exempt(segment)
            or self._placement.admitted(segment, self._bytes, 1, self._now) > 0
        )

    def _take(
        self, segment: Segment, size: int, members: Members, replica: int
    ) -> Members:
        """Puts as many members there as fit and slow start allows; returns the rest."""
        count = len(members)
        if not self._is_exempt(segment):
            count = self._placement.admitted(segment, size, count, self._now)
        if not count:
            return members
        offsets = segment.allocator.allocate_many(size, count)
        got = members[: offsets.size]
        self._placed.row[got, replica] = segment.row
        self._placed.offset[got, replica] = offsets
        segment.window_bytes += size * int(offsets.size)
        return members[offsets.size :]

    def _is_exempt(self, segment: Segment) -> bool:
        """Locality is asked for, not attracted by emptiness: no slow start."""
        return (
            not self._slow_start
            or segment in self._preferred
            or (
                self._placement.is_local_first
                and self._batch.host_id != ""
                and segment.info.host_id == self._batch.host_id
            )
        )

    def _count_local(self, members: Members) -> None:
        placement, host_id = self._placement, self._batch.host_id
        placement.asked += len(members)
        if not host_id or not placement.table.saw_host(host_id):
            placement.unmatched += len(members)
            return
        for segment in self._open:
            if segment.info.host_id == host_id:
                here = self._placed.row[members, 0] == segment.row
                placement.local += int(np.count_nonzero(here))


def _by_size(sizes: NDArray[np.uint32]) -> Iterator[tuple[int, Members]]:
    """Rows of each distinct size; one group, without sorting, when all are equal."""
    if not sizes.size:
        return
    if (sizes == sizes[0]).all():
        yield int(sizes[0]), np.arange(sizes.size)
        return
    values, inverse = np.unique(sizes, return_inverse=True)
    for at, size in enumerate(values):
        yield int(size), np.flatnonzero(inverse == at)
