"""HiCache's numbers as Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from refimpl.hicache.hicache import HiCache


class HiCacheCollector(Collector):
    """Reads the state at every scrape; register it once."""

    def __init__(self, cache: HiCache, group: str = "") -> None:
        self._cache = cache
        self._group = group

    def describe(self) -> list[Metric]:
        """Names depend on what happened; nothing is promised beforehand."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Breaker, pages, occupancy and all counters."""
        state = self._cache.state()
        breaker = state["breaker"]
        gauge = GaugeMetricFamily(
            "hicache_breaker_state",
            "0 closed, 1 open, 2 half open",
            labels=["group"],
        )
        gauge.add_metric([self._group], breaker["gauge"])
        yield gauge
        yield self._transitions(breaker["transitions"])
        yield GaugeMetricFamily(
            "hicache_quarantined_endpoints",
            "stores whose replicas are skipped",
            value=len(state["quarantine"]["blocked"]),
        )
        yield GaugeMetricFamily(
            "hicache_prefetch_tokens_occupied",
            "tokens that prefetches hold",
            value=state["occupancy"]["tokens"],
        )
        pages = GaugeMetricFamily("hicache_pages", "pages", labels=["tier", "state"])
        for tier, counts in state["pages"].items():
            for name in ("free", "used", "in_flight"):
                pages.add_metric([tier, name], counts[name])
        yield pages
        yield from _counters(state["counters"])

    def _transitions(self, transitions: list[dict[str, str]]) -> Metric:
        family = CounterMetricFamily(
            "hicache_breaker_transitions",
            "changes of state, of those still in the log",
            labels=["group", "from", "to", "reason"],
        )
        counts: dict[tuple[str, str, str], int] = {}
        for move in transitions:
            key = (move["from"], move["to"], move["reason"])
            counts[key] = counts.get(key, 0) + 1
        for (source, to, reason), count in counts.items():
            family.add_metric([self._group, source, to, reason], count)
        return family


def _counters(counters: dict[str, int | dict[str, int]]) -> Iterator[Metric]:
    for name, value in counters.items():
        full = f"hicache_{name}"
        if isinstance(value, int):
            yield CounterMetricFamily(full, full, value=value)
            continue
        family = CounterMetricFamily(full, full, labels=["label"])
        for label, count in value.items():
            family.add_metric([label], count)
        yield family
