from __future__ import annotations

import threading
import time

import pytest

from refimpl.core.codes import Code

STORES = [f"s{i}" for i in range(8)]
FAST = 0.05


@pytest.fixture
def quick(kit):
    """Breaker and quarantine at a twentieth of their real patience."""
    return {
        "breaker": kit.base.breaker.scaled(FAST),
        "quarantine": kit.base.quarantine.scaled(0.1),
    }


def state(r) -> str:
    return r.cache.state()["breaker"]["state"]


def failing(code: int = Code.TRANSFER_FAIL, stores=STORES):
    def fault(kind, key, store, cancel, timeout_s):
        return code if kind == "exists" or store in stores else None

    return fault


def load(r, kit, count: int, name: str = "load") -> list:
    return [r.run(kit.chain(2, f"{name}{i}")) for i in range(count)]


def test_a_total_outage_opens_it_and_then_nothing_is_sent(rig, kit, quick):
    r = rig(**quick, fault=failing())
    load(r, kit, 30)

    assert kit.until(lambda: state(r) == "open")
    r.storage.calls.clear()
    outcomes = {u.outcome for u in load(r, kit, 5, "while")}
    assert "breaker_open" in outcomes
    transitions = r.cache.state()["breaker"]["transitions"]
    assert transitions[0]["to"] == "open"
    assert r.cache.state()["breaker"]["storage_calls_while_open"] == 0
    assert {kind for kind, _ in r.storage.calls} <= {"canary", "probe"}


def test_it_closes_after_three_good_probes_once_the_outage_is_over(rig, kit, quick):
    r = rig(**quick, fault=failing())
    load(r, kit, 30)
    assert kit.until(lambda: state(r) == "open")
    r.storage.fault = None

    assert kit.until(lambda: state(r) == "closed")
    moves = [t["to"] for t in r.cache.state()["breaker"]["transitions"]]
    assert moves[-2:] == ["half_open", "closed"]
    assert r.run(kit.chain(4, "after")).outcome == "miss"


def test_the_defect_that_never_opens_keeps_sending(rig, kit, quick):
    r = rig(**quick, fault=failing())
    r.failpoints.set("defect.breaker_never_opens", "on")
    load(r, kit, 40)

    assert state(r) == "closed"


@pytest.mark.slow
def test_the_defect_that_never_closes_stays_away(rig, kit, quick):
    r = rig(**quick, fault=failing())
    r.failpoints.set("defect.breaker_never_closes", "on")
    load(r, kit, 30)
    assert kit.until(lambda: state(r) == "open")
    r.storage.fault = None

    assert not kit.until(lambda: state(r) == "closed", 1.0)
    assert r.counter("probes", "success") > 0


def test_twenty_percent_exact_faults_do_nothing(rig, kit):
    r = rig()
    r.failpoints.set("hicache.before_get", "every(5,-800)")
    r.failpoints.set("hicache.put_batch", "every(5,-800)")
    for i in range(40):
        r.store(kit.chain(4, f"p{i}"))
        r.run(kit.chain(4, f"p{i}"))

    assert r.cache.state()["breaker"]["transitions"] == []
    assert r.cache.state()["quarantine"]["events"] == []


def test_sixty_percent_faulty_reads_open_it(rig, kit):
    r = rig()
    for i in range(40):
        r.store(kit.chain(4, f"p{i}"))
    r.cache._gate.reset()
    pattern = "->".join(["2*off", "3*return(-800)"] * 20)
    r.failpoints.set("hicache.before_get", pattern)
    for i in range(40):
        r.run(kit.chain(4, f"p{i}"), commit=False)

    assert state(r) == "open"


def test_one_bad_store_of_eight_is_quarantined_and_comes_back(rig, kit, quick):
    r = rig(**quick)
    prompts = [kit.chain(24, f"p{i}") for i in range(12)]
    for keys in prompts:
        r.store(keys)
    r.storage.fault = failing(stores=["s3"])
    r.storage.fault = lambda kind, key, store, cancel, timeout_s: (
        Code.TRANSFER_FAIL if store == "s3" else None
    )
    for keys in prompts:
        r.run(keys, commit=False)

    q = r.cache.state()["quarantine"]
    assert q["blocked"] == ["s3"]
    assert state(r) == "closed"
    assert [e["kind"] for e in q["events"]] == ["quarantined"]

    time.sleep(0.4)
    assert r.cache.state()["quarantine"]["blocked"] == ["s3"]
    r.storage.fault = None
    ended = time.monotonic()
    assert kit.until(lambda: not r.cache.state()["quarantine"]["blocked"])
    assert time.monotonic() - ended <= 3 * r.settings.quarantine.probe_interval_s + 0.1
    assert r.cache.state()["negative_cache"]["keys"] == 0
    r.cache.flush()
    assert r.run(prompts[0]).l3_pages == 24


def test_a_blackholed_store_costs_one_deadline_an_engine(rig, kit, quick):
    r = rig(**quick)
    prompts = [kit.chain(24, f"p{i}") for i in range(10)]
    for keys in prompts:
        r.store(keys)
    r.storage.fault = kit.blackhole("s3")
    outcomes = [r.run(keys, commit=False).outcome for keys in prompts]

    assert outcomes.count("timeout") == 1
    assert r.cache.state()["quarantine"]["blocked"] == ["s3"]
    assert state(r) == "closed"


def test_an_outage_that_shows_on_one_store_first_opens_it_by_witnesses(rig, kit, quick):
    r = rig(**quick)
    keys = kit.chain(64)
    mine = [keys[i : i + 32] for i in range(0, len(keys), 32)]
    r.store(keys)
    r.storage.store_of = lambda key: "s0" if key in mine else "s1"
    r.storage.fault = kit.blackhole(*STORES)
    r.run(keys, commit=False)

    assert kit.until(lambda: state(r) in ("open", "half_open"))
    assert "canaries" in r.cache.state()["breaker"]["transitions"][0]["reason"]


def test_witnesses_in_health_keep_it_closed(rig, kit, quick):
    r = rig(**quick)
    keys = kit.chain(24)
    r.store(keys)
    r.storage.fault = kit.blackhole("s3")
    r.run(keys, commit=False)
    assert kit.until(lambda: r.counter("storage_operations", "witness") == 1)

    assert r.cache.state()["quarantine"]["blocked"] == ["s3"]
    assert r.cache.state()["breaker"]["transitions"] == []


def test_a_store_that_left_the_cluster_leaves_the_quarantine(rig, kit, quick):
    r = rig(**quick)
    keys = kit.chain(24)
    r.store(keys)
    r.storage.fault = kit.blackhole("s3")
    r.run(keys, commit=False)
    r.storage.stores.remove("s3")

    assert kit.until(lambda: not r.cache.state()["quarantine"]["blocked"])
    assert r.cache.state()["quarantine"]["events"][-1]["kind"] == "gone"


@pytest.mark.slow
def test_a_pool_just_under_the_deadline_for_ever_is_a_fault(rig, kit, quick):
    r = rig(**quick, prefill_tokens_per_s=100_000.0, slow_floor_s=0.02)
    for i in range(30):
        r.store(kit.chain(4, f"p{i}"))
    r.failpoints.set("hicache.before_get", "sleep(40)")
    for i in range(30):
        r.run(kit.chain(4, f"p{i}"), commit=False)
        if state(r) == "open":
            break

    assert state(r) == "open"
    assert r.counter("slow_operations", "get") >= 5


@pytest.mark.parametrize("percent_hit", [5, 20, 80])
def test_misses_never_open_it(rig, kit, percent_hit):
    r = rig()
    r.store(kit.chain(8, "hit"))
    for i in range(60):
        hit = (i * percent_hit) % 100 < percent_hit
        r.run(kit.chain(8, "hit" if hit else f"miss{i}"), commit=False)
        r.cache.flush()

    assert r.cache.state()["breaker"]["transitions"] == []


@pytest.mark.slow
def test_a_backend_that_never_returns_still_opens_it(rig, kit, quick):
    release = threading.Event()
    r = rig(**quick)
    for i in range(6):
        r.store(kit.chain(4, f"p{i}"))

    def hang(kind, key, store, cancel, timeout_s):
        if kind == "get":
            release.wait(10)

    r.storage.fault = hang
    for i in range(6):
        r.run(kit.chain(4, f"p{i}"), commit=False)

    assert kit.until(lambda: state(r) in ("open", "half_open"))
    release.set()
    r.storage.fault = None
    assert kit.until(lambda: state(r) == "closed")
    r.clean()


def test_a_probe_that_hangs_is_replaced_after_its_lease(rig, kit, quick):
    release = threading.Event()
    r = rig(**quick, fault=failing())
    load(r, kit, 30)
    assert kit.until(lambda: state(r) == "open")
    first = []

    def hang_once(kind, key, store, cancel, timeout_s):
        if not first:
            first.append(threading.current_thread())
            release.wait(10)

    r.storage.fault = hang_once
    assert kit.until(lambda: state(r) == "closed")
    release.set()


def test_a_full_pool_at_probe_time_is_inconclusive(rig, kit, quick):
    r = rig(**quick, fault=failing())
    load(r, kit, 30)
    assert kit.until(lambda: state(r) == "open")
    stores = list(r.storage.stores)
    r.storage.stores.clear()
    r.storage.fault = None
    assert kit.until(lambda: r.counter("probes", "admission") > 2)
    assert state(r) == "half_open"

    r.storage.stores[:] = stores
    assert kit.until(lambda: state(r) == "closed")


def test_local_only_by_hand_sends_nothing_and_comes_back_at_once(rig, kit):
    r, keys = rig(), kit.chain(16)
    r.store(keys)
    r.cache.breaker.force("open")
    r.storage.calls.clear()

    assert r.run(keys).outcome == "breaker_open"
    time.sleep(0.05)
    assert not r.storage.calls
    r.cache.breaker.force(None)
    r.cache.flush()
    assert r.run(keys).l3_pages == 16


def test_opening_while_requests_are_under_way_ends_them_in_time(rig, kit):
    r, keys = rig(), kit.chain(200)
    r.store(keys)
    r.failpoints.set("hicache.before_get", "sleep(30)")
    op = r.cache.begin("r", keys)
    assert kit.until(lambda: r.counter("storage_operations", "get") == 1)
    r.cache.breaker.force("open")
    reuse = r.wait(op)
    r.check(keys, reuse)
    r.cache.abort(op)

    assert reuse.outcome == "breaker_open"
    assert r.counter("storage_operations", "get") == 1
    r.clean()


def test_reset_trusts_everybody_again(rig, kit, quick):
    r = rig(**quick, fault=failing())
    load(r, kit, 30)
    assert kit.until(lambda: state(r) == "open")
    r.storage.fault = None
    r.cache.reset()
    fresh = r.cache.state()

    assert fresh["breaker"]["state"] == "closed"
    assert fresh["quarantine"]["blocked"] == []
    assert fresh["negative_cache"]["keys"] == 0
    assert fresh["pages"]["l1"]["used"] == 0
    r.clean()
