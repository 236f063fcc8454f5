"""Settings of the master: upstream's defaults, one factor for every duration."""

from __future__ import annotations

import dataclasses

from refimpl.master.settings import MasterSettings


def test_doors_are_on_loopback_unless_told_otherwise() -> None:
    settings = MasterSettings()

    assert settings.listen == "127.0.0.1:50051"
    assert settings.heartbeat_listen == "127.0.0.1:50052"
    assert settings.admin_listen == "127.0.0.1:9003"


def test_every_duration_of_the_pool_scales_but_the_poll() -> None:
    whole = dataclasses.asdict(MasterSettings().pool())
    tenth = dataclasses.asdict(MasterSettings(time_scale=0.1).pool())
    durations = {n for n in whole if n.endswith("_s")} - {"eviction_period_s"}

    assert all(abs(tenth[n] - whole[n] / 10) < 1e-9 for n in durations)
    assert tenth["eviction_period_s"] == whole["eviction_period_s"]
    assert tenth["eviction_ratio"] == whole["eviction_ratio"]


def test_expiry_ticks_every_second_but_ten_times_in_a_ttl() -> None:
    assert MasterSettings().tick_s() == 1.0
    assert MasterSettings(client_ttl_s=2.0).tick_s() == 0.2
    assert MasterSettings(time_scale=0.05).tick_s() == 0.05
