"""The ledger and how Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from refimpl.engine.ledger import Ledger, LedgerCollector


def _scrape(ledger, gauges=dict):
    registry = CollectorRegistry()
    registry.register(LedgerCollector(ledger, gauges))
    return generate_latest(registry).decode()


def test_counters_carry_their_label():
    ledger = Ledger()
    ledger.add("tokens", "l3", 512)
    ledger.add("tokens", "l3", 64)

    assert 'refimpl_engine_tokens_total{kind="l3"} 576.0' in _scrape(ledger)


def test_gauges_are_asked_at_each_scrape():
    text = _scrape(Ledger(), lambda: {"inside": 3})

    assert "refimpl_engine_inside 3.0" in text


def test_the_ttft_histogram_is_cumulative_and_says_modelled():
    ledger = Ledger()
    for seconds in (0.04, 0.05, 0.3, 100.0):
        ledger.observe_ttft(seconds)
    text = _scrape(ledger)

    assert 'refimpl_engine_ttft_modelled_seconds_bucket{le="0.05"} 2.0' in text
    assert 'refimpl_engine_ttft_modelled_seconds_bucket{le="0.5"} 3.0' in text
    assert 'refimpl_engine_ttft_modelled_seconds_bucket{le="+Inf"} 4.0' in text
    assert "refimpl_engine_ttft_modelled_seconds_count 4.0" in text


def test_clear_forgets_everything():
    ledger = Ledger()
    ledger.add("requests", "ok")
    ledger.observe_ttft(1.0)
    ledger.clear()

    assert ledger.snapshot() == {}
    assert ledger.ttft()[1] == 0.0
