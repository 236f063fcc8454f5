from __future__ import annotations

from chaos.load.selftest import generator_floor


def test_the_floor_is_measured_on_every_request():
    run = generator_floor(rate_per_s=2000, requests=100)

    assert run.achieved_share == 1.0
    assert len(run.lag_s) == 100
    assert 0 <= run.lag_p99_s < 1.0
