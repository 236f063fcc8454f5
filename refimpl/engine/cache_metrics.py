"""HiCache's own document as Prometheus metrics, the breaker under its public names."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.core import Metric

GROUP: Final = "default"
"""The one group of stores that an engine talks to."""


class CacheCollector(Collector):
    """Reads `HiCache.state()` at each scrape.

    The cache keeps a bounded log of transitions; the counters here are added up from
    what is new in it, so that they never go down. Between two scrapes more than the log
    holds would be lost; a breaker changes state a few times a minute at most.
    """

    def __init__(self, state: Callable[[], Mapping[str, Any]]) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._seen = 0
        self._transitions: Counter[tuple[str, str, str]] = Counter()

    def collect(self) -> Iterable[Metric]:
        """One scrape."""
        state = self._state()
        breaker = state["breaker"]
        yield _gauge("hicache_breaker_state", "0 closed, 1 open, 2 half-open.", breaker)
        yield self._transition_family(breaker)
        for name, value in state["counters"].items():
            yield _counter(f"hicache_{name}", value)

    def _transition_family(self, breaker: Mapping[str, Any]) -> Metric:
        with self._lock:
            self._take_new(breaker)
            rows = list(self._transitions.items())
        family = CounterMetricFamily(
            "hicache_breaker_transitions",
            "Changes of the breaker's state.",
            labels=["group", "from", "to", "reason"],
        )
        for labels, count in rows:
            family.add_metric([GROUP, *labels], count)
        return family

    def _take_new(self, breaker: Mapping[str, Any]) -> None:
        count, log = breaker["transition_count"], breaker["transitions"]
        new = count - self._seen if count >= self._seen else count  # less: a reset
        self._seen = count
        for entry in log[max(0, len(log) - new) :] if new else ():
            self._transitions[entry["from"], entry["to"], entry["reason"]] += 1


def _gauge(name: str, about: str, breaker: Mapping[str, Any]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=["group"])
    family.add_metric([GROUP], breaker["gauge"])
    return family


def _counter(name: str, value: int | Mapping[str, int]) -> Metric:
    about = f"{name.replace('_', ' ')}."
    if isinstance(value, int):
        return CounterMetricFamily(name, about, value=value)
    family = CounterMetricFamily(name, about, labels=["kind"])
    for label, count in value.items():
        family.add_metric([label], count)
    return family
