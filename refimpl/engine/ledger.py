"""What an engine counted since its start or the last reset, for state and metrics."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.core import Metric

TTFT_BUCKETS_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Ledger:
    """Counters by kind and label; every method takes one short lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._ttft_buckets = [0] * (len(TTFT_BUCKETS_S) + 1)
        self._ttft_sum_s = 0.0

    def add(self, kind: str, label: str, amount: int = 1) -> None:
        """Adds to one counter, e.g. `("tokens", "l3", 512)`."""
        with self._lock:
            self._counts.setdefault(kind, Counter())[label] += amount

    def observe_ttft(self, seconds: float) -> None:
        """Notes one time to first token (modelled)."""
        place = sum(seconds > bound for bound in TTFT_BUCKETS_S)
        with self._lock:
            self._ttft_buckets[place] += 1
            self._ttft_sum_s += seconds

    def snapshot(self) -> dict[str, dict[str, int]]:
        """All counters by kind and label."""
        with self._lock:
            return {kind: dict(counts) for kind, counts in self._counts.items()}

    def ttft(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative histogram buckets and the sum in seconds, for Prometheus."""
        bounds = [*(str(b) for b in TTFT_BUCKETS_S), "+Inf"]
        with self._lock:
            total, rows = 0, []
            for bound, count in zip(bounds, self._ttft_buckets, strict=True):
                total += count
                rows.append((bound, float(total)))
            return rows, self._ttft_sum_s

    def clear(self) -> None:
        """All counters to zero."""
        with self._lock:
            self._counts.clear()
            self._ttft_buckets = [0] * len(self._ttft_buckets)
            self._ttft_sum_s = 0.0


class LedgerCollector(Collector):
    """The ledger and the gauges of an engine as Prometheus metrics.

    Args:
        ledger: the counters.
        gauges: asked at each scrape; name -> value.
    """

    def __init__(
        self, ledger: Ledger, gauges: Callable[[], Mapping[str, float]]
    ) -> None:
        self._ledger = ledger
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """One scrape."""
        for kind, counts in self._ledger.snapshot().items():
            name = f"refimpl_engine_{kind}"
            family = CounterMetricFamily(name, f"Engine {kind}.", labels=["kind"])
            for label, value in counts.items():
                family.add_metric([label], value)
            yield family
        yield self._histogram()
        for gauge, level in self._gauges().items():
            yield GaugeMetricFamily(f"refimpl_engine_{gauge}", gauge, value=level)

    def _histogram(self) -> Metric:
        buckets, total_s = self._ledger.ttft()
        family = HistogramMetricFamily(
            "refimpl_engine_ttft_modelled_seconds",
            "Entry to first token; its prefill part is modelled.",
        )
        family.add_metric([], buckets, total_s)
        return family
