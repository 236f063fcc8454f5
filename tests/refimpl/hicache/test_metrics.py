from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from refimpl.hicache.metrics import HiCacheCollector


def test_a_scrape_shows_breaker_pages_and_counters(rig, kit):
    r = rig()
    registry = CollectorRegistry()
    registry.register(HiCacheCollector(r.cache, "g1"))
    r.run(kit.chain(8))
    r.cache.drain(3)
    r.cache.breaker.force("open")
    text = generate_latest(registry).decode()

    assert 'hicache_breaker_state{group="g1"} 1.0' in text
    assert 'hicache_pages{state="used",tier="l2"} 8.0' in text
    assert 'hicache_prefetch_outcomes_total{label="miss"} 1.0' in text
    assert (
        'hicache_breaker_transitions_total{from="closed",group="g1",'
        'reason="operator",to="open"} 1.0' in text
    )
