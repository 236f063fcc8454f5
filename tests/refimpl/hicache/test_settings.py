from __future__ import annotations

import pytest

from refimpl.hicache import HiCacheSettings


def test_one_factor_scales_every_duration_and_the_rate_inversely():
    s = HiCacheSettings(prefill_tokens_per_s=8000.0).scaled(0.1)

    assert s.prefetch.base_s == pytest.approx(0.2)
    assert s.breaker.open_for_s == pytest.approx(0.5)
    assert s.quarantine.probe_interval_s == pytest.approx(0.1)
    assert s.negative_ttl_s == pytest.approx(1.0)
    assert s.put_timeout_s == pytest.approx(0.2)
    assert s.prefill_tokens_per_s == pytest.approx(80_000.0)


def test_what_belongs_to_the_machine_does_not_scale():
    s = HiCacheSettings().scaled(0.01)

    assert s.prefetch.poll_s == 0.02
    assert s.slow_floor_s == 0.1
    assert s.probe_floor_s == s.breaker.probe_deadline_s == 0.25
    assert s.quarantine.probe_deadline_s == 0.1


def test_factor_one_changes_nothing():
    assert HiCacheSettings().scaled(1.0) == HiCacheSettings()
