"""What the master tells over its admin door: metrics, role, state, segments."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from refimpl.master.metrics import segment_families, value_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric

    from refimpl.core.pool_answers import PoolStats
    from refimpl.master.guarded import GuardedPool
    from refimpl.master.heartbeat import Beats
    from refimpl.master.maintenance import Maintenance
    from refimpl.master.metrics import CallMetrics
    from refimpl.master.settings import MasterSettings

CHECKED_OBJECTS: Final = 32_768
"""Objects whose laws are checked for each state page: about 20 ms."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The parts of a master, read when somebody asks; a Prometheus collector."""

    settings: MasterSettings
    view: int
    """Number of this master's term."""
    shared: GuardedPool
    beats: Beats
    maintenance: Maintenance
    metrics: CallMetrics

    def collect(self) -> Iterator[Metric]:
        """Every metric family, for one scrape."""
        stats = self._stats()
        values = {**stats.counters, **stats.gauges, **self._own()}
        held: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for segment in stats.segments:
            held[segment.name] += segment.allocated
            sizes[segment.name] += segment.size
        yield from self.metrics.collect()
        yield from value_families(values)
        yield from segment_families({n: (held[n], sizes[n]) for n in sizes})

    def role(self) -> str:
        """Who leads, in upstream's one word: a single master always does."""
        return "leader"

    def object_names(self) -> str:
        """Names of the readable objects that have one, one a line (upstream's form).

        Read slice by slice: no call waits for the whole listing.
        """
        lines: list[str] = []
        cursor = 0
        while True:
            with self.shared.locked() as (pool, _):
                names, cursor = pool.names(cursor)
            lines += (f"{_one_line(name)}\n" for name in names)
            if not cursor:
                return "".join(lines)

    def query_segment(self, query: Mapping[str, str]) -> str:
        """Bytes used and in all of `?segment=NAME` (upstream's form).

        Raises:
            LookupError: no such segment is mounted.
        """
        name = query.get("segment", "")
        with self.shared.locked() as (pool, _):
            found = [s for s in pool.segments() if s.name == name]
        if not found:
            raise LookupError("failed to query segment: no segment of this name")
        used, size = found[0].allocated, found[0].size
        return f"{name}\nUsed(bytes): {used}\nCapacity(bytes) : {size}\n"

    def segment_names(self) -> str:
        """Names of the live segments, one a line (upstream's form)."""
        with self.shared.locked() as (pool, _):
            segments = pool.segments()
        return "".join(f"{segment.name}\n" for segment in segments)

    def conservation(self) -> list[str]:
        """Broken laws in words. Reads the whole table while every call waits."""
        with self.shared.locked() as (pool, _):
            return pool.conservation()

    def state(self) -> dict[str, Any]:
        """Ledger and counters, with the broken laws of conservation in words.

        Above `CHECKED_OBJECTS` the laws are None, not checked: whoever polls this page
        must not stop the pool. The page `/conservation` checks a table of any size.
        """
        stats = self._stats()
        small = stats.gauges["master_key_count"] <= CHECKED_OBJECTS
        broken = self.conservation() if small else None
        return {
            "name": self.settings.name,
            "view": self.view,
            "settings": dataclasses.asdict(self.settings),
            "counters": stats.counters,
            "gauges": stats.gauges,
            "segments": [dataclasses.asdict(segment) for segment in stats.segments],
            "conservation": broken,
            "calls": self.metrics.snapshot(),
            "own": self._own(),
        }

    def _stats(self) -> PoolStats:
        with self.shared.locked() as (pool, now):
            return pool.stats(now)

    def _own(self) -> dict[str, float]:
        """What the threads around the pool count."""
        return {
            "master_ping_requests_total": self.beats.answered + self.beats.refused,
            "master_ping_failures_total": self.beats.refused,
            "master_ping_forged_total": self.beats.forged,
            "master_maintenance_slices_total": self.maintenance.slices,
            "master_maintenance_failures_total": self.maintenance.failures,
            "master_maintenance_longest_slice_seconds": (
                self.maintenance.longest_slice_s
            ),
        }


def _one_line(name: str) -> str:
    """A name that writers chose: whatever could end the line stands as an escape."""
    return name if name.isprintable() else ascii(name)[1:-1]
