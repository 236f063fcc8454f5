"""HiCache over real processes: a master and four stores, at a third of real time."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import replace

import pytest

from refimpl.client import ClientSettings, PoolClient
from refimpl.cluster import LocalCluster, UpSettings
from refimpl.core.prefetch import PrefetchSettings
from refimpl.hicache import HiCacheSettings
from refimpl.hicache.storage.pool import PoolStorage

pytestmark = pytest.mark.slow

FACTOR = 0.33
SETTINGS = HiCacheSettings(
    page_bytes=4096,
    prefill_tokens_per_s=8000.0,
    prefetch=PrefetchSettings(threshold_tokens=64),
).scaled(FACTOR)


@pytest.fixture(scope="module")
def cluster():
    cluster = LocalCluster(
        UpSettings(stores=4, engines=0, time_scale=FACTOR, placement="random")
    )
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def pool(cluster, kit):
    """A rig on the real pool."""
    made = []

    def build(**changes):
        client = PoolClient(
            cluster.addresses["master"]["listen"],
            host_id="host-0",
            settings=ClientSettings().scaled(FACTOR),
        )
        made.append(kit.rig_on(PoolStorage(client), replace(SETTINGS, **changes)))
        return made[-1]

    yield build
    for one in made:
        one.close()


@pytest.fixture
def paused(cluster, freeze):
    """Stops stores; they go on at the end of the test, or when asked."""
    stopped = set()

    def stop(*numbers):
        for number in numbers:
            pid = cluster.of_kind("store")[number].pid
            freeze(pid)
            stopped.add(pid)

    def resume():
        while stopped:
            os.kill(stopped.pop(), signal.SIGCONT)

    yield stop, resume
    resume()


def breaker(r) -> str:
    return r.cache.state()["breaker"]["state"]


def blocked(r) -> list[str]:
    return r.cache.state()["quarantine"]["blocked"]


@pytest.mark.parametrize(
    "changes", [{}, {"ranks": 2}, {"components": ("k", "v"), "sidecar_bytes": 512}]
)
def test_pages_survive_the_way_there_and_back(pool, kit, changes):
    r = pool(**changes)
    keys = kit.chain(64, f"there-{sorted(changes)}")
    r.store(keys)
    reuse = r.run(keys)

    assert (reuse.l3_pages, reuse.outcome) == (64, "complete")
    assert set(reuse.stores) <= {f"store-{i}" for i in range(4)}
    r.clean()


def test_another_engine_reads_what_this_one_wrote(pool, kit):
    keys = kit.chain(32, "shared")
    pool().store(keys)

    assert pool().run(keys).l3_pages == 32


def test_a_paused_store_costs_one_deadline_and_comes_back(pool, paused, kit):
    stop, resume = paused
    r = pool()
    prompts = [kit.chain(32, f"pause{i}") for i in range(8)]
    for keys in prompts:
        r.store(keys)
    stop(1)
    reuses = [r.run(keys, commit=False) for keys in prompts[:6]]
    resume()
    ended = time.monotonic()

    assert [u.outcome for u in reuses].count("timeout") == 1
    assert max(u.wait_s - u.deadline_s for u in reuses) <= 5 * SETTINGS.prefetch.poll_s
    assert breaker(r) == "closed"
    assert kit.until(lambda: not blocked(r))
    assert time.monotonic() - ended <= 3 * SETTINGS.quarantine.probe_interval_s + 0.5
    assert r.run(prompts[7]).l3_pages == 32
    r.clean()


def test_an_outage_of_all_stores_opens_the_breaker_and_it_closes(pool, paused, kit):
    stop, resume = paused
    r = pool()
    prompts = [kit.chain(32, f"outage{i}") for i in range(12)]
    for keys in prompts:
        r.store(keys)
    stop(0, 1, 2, 3)
    began = time.monotonic()
    while breaker(r) == "closed" and time.monotonic() - began < 8:
        r.run(random.Random(0).choice(prompts), commit=False)
        r.cache._gate._negative.clear()
    opened = time.monotonic() - began
    operations = r.cache.state()["counters"]["storage_operations"]
    reuse = r.run(prompts[0], commit=False)
    after = r.cache.state()["counters"]["storage_operations"]
    resume()

    assert opened <= 5.0 * FACTOR + 1.0
    assert reuse.outcome == "breaker_open"
    assert {k: after[k] for k in ("exists", "get", "put")} == {
        k: operations[k] for k in ("exists", "get", "put")
    }
    assert kit.until(lambda: breaker(r) == "closed", 15)
    r.cache.flush()
    assert r.run(prompts[1]).l3_pages == 32
    r.clean()


def test_a_master_that_hangs_costs_the_base_and_then_nothing(
    cluster, pool, paused, kit, freeze
):
    r = pool()
    keys = kit.chain(32, "master")
    r.store(keys)
    pid = cluster.of_kind("master")[0].pid
    freeze(pid)
    try:
        reuse = r.run(keys, commit=False)
        assert reuse.outcome == "timeout"
        assert reuse.deadline_s == pytest.approx(SETTINGS.prefetch.base_s)
        assert reuse.wait_s <= reuse.deadline_s + 5 * SETTINGS.prefetch.poll_s
        assert kit.until(lambda: breaker(r) != "closed", 6)
    finally:
        os.kill(pid, signal.SIGCONT)

    assert kit.until(lambda: breaker(r) == "closed", 15)
    assert kit.until(lambda: r.run(keys, commit=False).l3_pages == 32)
    r.clean()
