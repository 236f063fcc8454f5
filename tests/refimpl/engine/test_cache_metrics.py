"""HiCache's document as metrics: names, labels, counters that never go down."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from refimpl.engine.cache_metrics import CacheCollector
from refimpl.hicache import HiCache
from refimpl.hicache.storage.memory import MemoryStorage


def _entry(number):
    return {"at": 0.0, "from": "closed", "to": "open", "reason": f"r{number % 2}"}


def _breaker(count, log, gauge=0):
    return {"gauge": gauge, "transition_count": count, "transitions": log}


class _Cache:
    def __init__(self):
        self.state = {"breaker": _breaker(0, []), "counters": {}}
        self.registry = CollectorRegistry()
        self.registry.register(CacheCollector(lambda: self.state))

    def scrape(self):
        return generate_latest(self.registry).decode()


def test_the_breaker_has_its_public_names():
    cache = _Cache()
    cache.state["breaker"] = _breaker(1, [_entry(0)], gauge=1)
    text = cache.scrape()

    assert 'hicache_breaker_state{group="default"} 1.0' in text
    assert (
        "hicache_breaker_transitions_total"
        '{from="closed",group="default",reason="r0",to="open"} 1.0'
    ) in text


def test_transitions_are_counted_once_also_when_the_log_is_full():
    cache = _Cache()
    log = [_entry(n) for n in range(4)]
    cache.state["breaker"] = _breaker(4, log)
    cache.scrape()
    cache.scrape()
    cache.state["breaker"] = _breaker(6, [*log[2:], _entry(4), _entry(6)])
    text = cache.scrape()

    assert 'reason="r0",to="open"} 4.0' in text
    assert 'reason="r1",to="open"} 2.0' in text


def test_a_reset_of_the_cache_takes_nothing_back():
    cache = _Cache()
    cache.state["breaker"] = _breaker(2, [_entry(0), _entry(2)])
    cache.scrape()
    cache.state["breaker"] = _breaker(1, [_entry(4)])

    assert 'reason="r0",to="open"} 3.0' in cache.scrape()


def test_counters_are_plain_or_labelled():
    cache = _Cache()
    cache.state["counters"] = {"miss_keys": 3, "storage_operations": {"get": 2}}
    text = cache.scrape()

    assert "hicache_miss_keys_total 3.0" in text
    assert 'hicache_storage_operations_total{kind="get"} 2.0' in text


def test_it_reads_the_real_cache():
    cache = HiCache(MemoryStorage())
    registry = CollectorRegistry()
    registry.register(CacheCollector(cache.state))
    try:
        cache.breaker.force("open")

        text = generate_latest(registry).decode()
    finally:
        cache.close()

    assert 'hicache_breaker_state{group="default"} 1.0' in text
    assert 'to="open"} 1.0' in text
