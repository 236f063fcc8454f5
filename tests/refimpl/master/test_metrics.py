"""Counters of calls under upstream's names."""

from __future__ import annotations

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from refimpl.master.metrics import (
    BATCH_CALLS,
    SINGLE_CALLS,
    CallMetrics,
    segment_families,
    value_families,
)


class Only:
    """A collector of given families."""

    def __init__(self, *families) -> None:
        self._families = families

    def collect(self):
        yield from (m for family in self._families for m in family)


def scraped(*families) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(Only(*[list(f) for f in families]))
    rows = generate_latest(registry).decode().splitlines()
    pairs = [r.rpartition(" ") for r in rows if not r.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.parametrize(
    ("items", "failed", "partial", "failures"),
    [(4, 0, 0, 0), (4, 1, 1, 0), (4, 4, 0, 1), (0, 0, 0, 0)],
)
def test_batch_is_a_failure_only_when_no_item_succeeded(
    items, failed, partial, failures
) -> None:
    metrics = CallMetrics()
    metrics.answered("batch_put_start", items, failed)
    found = scraped(metrics.collect())

    assert found["master_batch_put_start_requests_total"] == 1
    assert found["master_batch_put_start_items_total"] == items
    assert found["master_batch_put_start_failed_items_total"] == failed
    assert found["master_batch_put_start_partial_successes_total"] == partial
    assert found["master_batch_put_start_failures_total"] == failures


def test_refused_call_is_a_request_and_a_failure_without_items() -> None:
    metrics = CallMetrics()
    metrics.refused("batch_remove")
    found = scraped(metrics.collect())

    assert found["master_batch_remove_requests_total"] == 1
    assert found["master_batch_remove_failures_total"] == 1
    assert found["master_batch_remove_items_total"] == 0


def test_every_call_is_exposed_before_it_was_ever_made() -> None:
    found = scraped(CallMetrics().collect())

    assert all(f"master_{c}_requests_total" in found for c in BATCH_CALLS)
    assert all(f"master_{c}_failures_total" in found for c in SINGLE_CALLS)
    assert "master_mount_segment_items_total" not in found


def test_latency_histogram_is_cumulative_and_holds_slow_ones() -> None:
    metrics = CallMetrics()
    for seconds in (0.0001, 0.0003, 7.0):
        metrics.lookup_took(seconds)
    found = scraped(metrics.collect())
    name = "master_batch_get_replica_list_latency_seconds"

    assert found[f'{name}_bucket{{le="0.0001"}}'] == 1
    assert found[f'{name}_bucket{{le="0.0005"}}'] == 2
    assert found[f'{name}_bucket{{le="1.0"}}'] == 2
    assert found[f'{name}_bucket{{le="+Inf"}}'] == 3
    assert found[f"{name}_count"] == 3
    assert found[f"{name}_sum"] == pytest.approx(7.0004)


def test_sizes_of_values_are_counted_at_their_edge_and_above_all_edges() -> None:
    metrics = CallMetrics()
    metrics.values_started(np.array([4096, 4097, 1 << 30], dtype=np.uint32))
    metrics.values_started(np.array([], dtype=np.uint32))
    found = scraped(metrics.collect())

    assert found['master_value_size_bytes_bucket{le="4096.0"}'] == 1
    assert found['master_value_size_bytes_bucket{le="16384.0"}'] == 2
    assert found['master_value_size_bytes_bucket{le="+Inf"}'] == 3
    assert found["master_value_size_bytes_sum"] == 4096 + 4097 + (1 << 30)


def test_names_without_total_stay_as_upstream_spells_them() -> None:
    found = scraped(
        value_families({"mem_cache_hit_nums_": 3, "master_x_total": 4}),
        segment_families({"s-1": (5, 9)}),
    )

    assert found["mem_cache_hit_nums_"] == 3
    assert found["master_x_total"] == 4
    assert found['segment_allocated_bytes{segment="s-1"}'] == 5
    assert found['segment_total_capacity_bytes{segment="s-1"}'] == 9


def test_snapshot_names_only_calls_that_were_made() -> None:
    metrics = CallMetrics()
    metrics.answered("batch_put_end", 3, 1)

    assert metrics.snapshot() == {
        "batch_put_end": {
            "requests": 1,
            "failures": 0,
            "partial_successes": 1,
            "items": 3,
            "failed_items": 1,
        }
    }
