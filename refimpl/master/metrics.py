"""What the master counts, under upstream's names (Mooncake `master_metric_manager`).

Counters are plain integers behind one short lock, turned into Prometheus families when
somebody scrapes: a call costs about a microsecond here. The gauges of the pool are read
from live state at each scrape: a new term cannot count capacity twice (Mooncake#3154).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from prometheus_client import Metric

BATCH_CALLS: Final = (
    "batch_get_replica_list",
    "batch_exist_key",
    "batch_put_start",
    "batch_put_end",
    "batch_put_revoke",
    "batch_remove",
)
"""Calls with one code a key: requests, failures, partial successes, items."""
SINGLE_CALLS: Final = (
    "remove_all",
    "get_all_keys",
    "service_ready",
    "mount_segment",
    "unmount_segment",
    "get_all_segments",
)
"""Calls with one code."""
_SIZES_BYTES: Final = tuple(float(1 << shift) for shift in range(12, 30, 2))
"""4 KiB to 256 MiB."""
_BUCKETS_S: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
)  # fmt: skip


@dataclass(slots=True)
class CallCount:
    """Counters of one call by name."""

    requests: int = 0
    failures: int = 0
    partial_successes: int = 0
    items: int = 0
    failed_items: int = 0


@dataclass(slots=True)
class _Histogram:
    """Counts by bucket; the last one has no upper edge."""

    name: str
    about: str
    edges: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    def family(self) -> Metric:
        """For one scrape: cumulative, as Prometheus wants it."""
        names = [*(str(edge) for edge in self.edges), "+Inf"]
        running = map(float, accumulate(self.counts))
        buckets = list(zip(names, running, strict=True))
        return HistogramMetricFamily(
            self.name, self.about, buckets=buckets, sum_value=self.total
        )


def _histogram(name: str, about: str, edges: tuple[float, ...]) -> _Histogram:
    return _Histogram(name, about, edges, [0] * (len(edges) + 1))


class CallMetrics:
    """Counts calls and times lookups."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = {name: CallCount() for name in (*BATCH_CALLS, *SINGLE_CALLS)}
        self._lookup = _histogram(
            "master_batch_get_replica_list_latency_seconds",
            "time of a batched lookup inside the service",
            _BUCKETS_S,
        )
        self._sizes = _histogram(
            "master_value_size_bytes", "sizes of the objects started", _SIZES_BYTES
        )

    def answered(self, call: str, items: int, failed: int) -> None:
        """Counts a call that was answered with `failed` bad codes of `items`."""
        with self._lock:
            count = self._calls[call]
            count.requests += 1
            count.items += items
            count.failed_items += failed
            if failed:
                count.partial_successes += failed < items
                count.failures += failed == items

    def refused(self, call: str) -> None:
        """Counts a call that could not be answered key by key."""
        with self._lock:
            self._calls[call].requests += 1
            self._calls[call].failures += 1

    def lookup_took(self, seconds: float) -> None:
        """Counts the time of one lookup inside the service."""
        bucket = bisect_left(_BUCKETS_S, seconds)
        with self._lock:
            self._lookup.counts[bucket] += 1
            self._lookup.total += seconds

    def values_started(self, sizes: NDArray[np.uint32]) -> None:
        """Counts the sizes of objects that found a place, in bytes."""
        buckets = np.searchsorted(_SIZES_BYTES, sizes)
        counts = np.bincount(buckets, minlength=len(_SIZES_BYTES) + 1).tolist()
        with self._lock:
            held = self._sizes.counts
            self._sizes.counts = [a + b for a, b in zip(held, counts, strict=True)]
            self._sizes.total += int(sizes.sum(dtype=np.uint64))

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Counters by call, for the state page."""
        with self._lock:
            return {
                name: {field: getattr(count, field) for field in CallCount.__slots__}
                for name, count in self._calls.items()
                if count.requests
            }

    def collect(self) -> Iterator[Metric]:
        """The families of calls, for one scrape."""
        with self._lock:
            calls = {n: _copy(c) for n, c in self._calls.items()}
            histograms = [self._lookup.family(), self._sizes.family()]
        for name, count in calls.items():
            yield from _call_families(name, count)
        yield from histograms


def value_families(values: Mapping[str, float]) -> Iterator[Metric]:
    """One family for each value by its full name."""
    for name, value in values.items():
        yield _plain(name, value)


def segment_families(
    segments: Mapping[str, tuple[float, float]],
) -> Iterator[Metric]:
    """Bytes allocated and bytes in all, by segment name."""
    about = (
        ("segment_allocated_bytes", "bytes allocated in a segment"),
        ("segment_total_capacity_bytes", "bytes of a segment"),
    )
    for at, (name, text) in enumerate(about):
        family = GaugeMetricFamily(name, text, labels=["segment"])
        for segment, values in segments.items():
            family.add_metric([segment], values[at])
        yield family


def _copy(count: CallCount) -> CallCount:
    return CallCount(*(getattr(count, field) for field in CallCount.__slots__))


def _call_families(name: str, count: CallCount) -> Iterator[Metric]:
    fields = CallCount.__slots__ if name in BATCH_CALLS else ("requests", "failures")
    for what in fields:
        yield _plain(f"master_{name}_{what}_total", getattr(count, what))


def _plain(name: str, value: float) -> Metric:
    """A counter when its name says so; some of upstream's have no `_total`."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(name, name.replace("_", " "), value=value)
