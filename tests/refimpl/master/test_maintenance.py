"""Housekeeping: when ticks and slices are due, and what holds no lock."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from refimpl.master.guarded import GuardedPool
from refimpl.master.heartbeat import Beats
from refimpl.master.maintenance import Maintenance


class FakePool:
    """Notes what it is asked, and whether its lock is held meanwhile."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.beats: dict[int, float] = {}
        self.again_in_s = 0.5
        self.shared: GuardedPool
        self.locked_at_release: list[bool] = []
        self.to_expire: list[int] = []
        self.known = {1}

    def maintain(self, _now):
        self.calls.append("maintain")
        return SimpleNamespace(again_in_s=self.again_in_s, freed=["buffers"])

    def release(self, freed) -> None:
        assert freed == ["buffers"]
        self.calls.append("release")
        self.locked_at_release.append(self.shared._lock.locked())

    def heartbeat(self, client, at) -> bool:
        self.beats[client] = at
        return client in self.known

    def clients(self):
        return frozenset(self.known)

    def expire(self, _now):
        self.calls.append("expire")
        self.known -= set(self.to_expire)
        return self.to_expire

    def mount(self, _segment, _client, _now) -> int:
        return 0

    def unmount(self, _id, _client, _now, _grace_s) -> int:
        return 0

    def segments(self):
        return []


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def parts():
    pool, beats, clock = FakePool(), Beats(), Clock()
    shared = GuardedPool(pool, beats, clock)
    pool.shared = shared
    return SimpleNamespace(
        pool=pool,
        beats=beats,
        clock=clock,
        shared=shared,
        maintenance=Maintenance(shared, tick_s=1.0),
    )


def test_ticks_come_at_their_period_and_slices_at_every_step(parts) -> None:
    for _ in range(4):
        parts.maintenance.step()
        parts.clock.now += 0.5

    assert parts.pool.calls.count("expire") == 2
    assert parts.pool.calls.count("maintain") == 4


def test_buffers_are_released_outside_the_lock(parts) -> None:
    parts.maintenance.step()

    assert parts.pool.locked_at_release == [False]


def test_next_step_is_when_the_pool_says_but_never_after_the_next_tick(parts) -> None:
    parts.pool.again_in_s = 0.25
    soon = parts.maintenance.step()
    parts.pool.again_in_s = 30.0
    late = parts.maintenance.step()
    parts.pool.again_in_s = 0.0
    at_once = parts.maintenance.step()

    assert soon == 0.25
    assert late == 1.0
    assert 0.0 < at_once <= 0.001


def test_tick_hands_beats_to_the_pool_with_the_time_they_were_heard(parts) -> None:
    parts.shared.mount(SimpleNamespace(id=1), 1)
    parts.beats.beat(1, 99.5)
    parts.maintenance.step()

    assert parts.pool.beats == {1: 99.5}


def test_expired_client_has_to_remount(parts) -> None:
    parts.shared.mount(SimpleNamespace(id=1), 1)
    was_known = parts.beats.beat(1, 99.0)
    parts.pool.to_expire = [1]
    parts.maintenance.step()

    assert was_known
    assert not parts.beats.beat(1, 100.0)
    assert parts.shared.urgent.is_set()


def test_client_that_the_pool_forgot_has_to_remount(parts) -> None:
    parts.shared.mount(SimpleNamespace(id=1), 1)
    parts.pool.known = set()
    parts.beats.beat(1, 99.0)
    parts.maintenance.step()

    assert not parts.beats.beat(1, 100.0)


def test_thread_survives_a_broken_slice_and_counts_it(parts, caplog) -> None:
    broken = threading.Event()

    def maintain(_now):
        broken.set()
        raise RuntimeError("on purpose")

    parts.pool.maintain = maintain
    maintenance = Maintenance(parts.shared, tick_s=0.005)
    maintenance.start()
    assert broken.wait(20.0)
    del parts.pool.maintain
    ends = time.monotonic() + 20.0
    while not maintenance.slices and time.monotonic() < ends:
        time.sleep(0.005)
    maintenance.stop()

    assert maintenance.failures >= 1
    assert maintenance.slices >= 1
    assert "on purpose" in caplog.text


def test_urgent_work_is_looked_at_before_its_time(parts) -> None:
    parts.pool.again_in_s = 30.0
    parts.maintenance.start()
    ends = time.monotonic() + 20.0
    while not parts.maintenance.slices and time.monotonic() < ends:
        time.sleep(0.002)
    began = time.monotonic()
    parts.shared.urgent.set()
    while parts.maintenance.slices < 2 and time.monotonic() < ends:
        time.sleep(0.002)
    took_s = time.monotonic() - began
    parts.maintenance.stop()

    assert took_s < 10.0, "far from the 30 s that it would have waited"


def test_stop_may_be_called_unstarted_and_twice(parts) -> None:
    parts.maintenance.stop()
    parts.maintenance.stop()
