from __future__ import annotations

import json
import random
import threading
import time

import pytest

from refimpl.core.codes import Code

PAGES = 32


def test_pages_come_from_l1_then_l2_then_l3_with_the_right_bytes(rig, kit):
    r, keys = rig(), kit.chain(PAGES)

    assert r.run(keys).outcome == "miss"
    assert r.run(keys).l1_pages == PAGES
    r.cache.drain(3)
    r.cache.flush(["l1"])
    assert r.run(keys).l2_pages == PAGES
    r.cache.flush()
    reuse = r.run(keys)
    assert (reuse.l3_pages, reuse.outcome) == (PAGES, "complete")
    assert set(reuse.stores) <= set(r.storage.stores)
    r.clean()


def test_a_longer_prompt_reuses_the_shared_prefix_and_writes_only_the_rest(rig, kit):
    r, keys = rig(), kit.chain(PAGES)
    r.store(keys)
    longer = keys + kit.chain(8, "more", keys[-32:])
    r.storage.calls.clear()
    reuse = r.run(longer)
    r.cache.drain(3)

    assert reuse.l3_pages == PAGES
    assert [n for kind, n in r.storage.calls if kind == "put"] == [8]
    assert len(r.storage.objects) == PAGES + 8


@pytest.mark.parametrize("lost", [0, 13, PAGES - 1])
def test_a_lost_page_ends_the_reused_prefix_there(rig, kit, lost):
    r, keys = rig(), kit.chain(PAGES)
    r.store(keys)
    r.storage.drop(keys[lost * 32 : lost * 32 + 32])

    assert r.run(keys).l3_pages == lost
    r.clean()


def test_pages_evicted_between_query_and_read_shrink_the_reuse(rig, kit):
    def fault(kind, key, store, cancel, timeout_s):
        return Code.OBJECT_NOT_FOUND if kind == "get" and key == victim else None

    r, keys = rig(fault=fault), kit.chain(PAGES)
    victim = b""
    r.store(keys)
    victim = keys[9 * 32 : 10 * 32]
    reuse = r.run(keys)

    assert (reuse.l3_pages, reuse.touched_fault) == (9, False)
    assert r.counter("miss_keys") > 0
    r.clean()


def test_nothing_is_asked_below_the_threshold(rig, kit):
    r = rig(prefetch={"threshold_tokens": 256})

    assert r.run(kit.chain(3)).outcome == "below_threshold"
    assert not [c for c in r.storage.calls if c[0] != "put"]


def test_an_empty_prompt_is_served(rig):
    r = rig()

    assert r.run(b"").outcome == "none"
    r.clean()


def test_a_blackholed_store_costs_at_most_the_deadline_and_the_rest_is_used(rig, kit):
    r, keys = rig(), kit.chain(PAGES)
    r.store(keys)
    victim = r.storage.store_of(keys[20 * 32 :])
    first = next(
        i for i in range(PAGES) if r.storage.store_of(keys[i * 32 :]) == victim
    )
    r.storage.fault = kit.blackhole(victim)
    reuse = r.run(keys)

    assert reuse.outcome == "timeout"
    assert reuse.touched_fault
    assert reuse.wait_s <= reuse.deadline_s + r.settings.prefetch.poll_s
    assert reuse.l3_pages == first
    r.clean()


def test_a_store_that_ignores_its_deadline_and_the_cancel_costs_no_more(rig, kit):
    release = threading.Event()
    r, keys = rig(), kit.chain(PAGES)
    r.store(keys)

    def hang(kind, key, store, cancel, timeout_s):
        if kind == "get":
            release.wait(5)
            return Code.RPC_TIMEOUT
        return None

    r.storage.fault = hang
    reuse = r.run(keys)
    pages = r.cache.state()["pages"]["l2"]

    assert reuse.outcome == "timeout"
    assert reuse.wait_s <= reuse.deadline_s + 2 * r.settings.prefetch.poll_s
    assert pages["in_flight"] == PAGES, "the I/O owns them until its get returns"
    assert r.cache.state()["occupancy"]["tokens"] == 0
    release.set()
    r.clean()


def test_a_late_read_never_lands_in_a_reused_page(rig, kit):
    release = threading.Event()
    r = rig(l2_pages=PAGES + 16, poison_free_pages=False)
    keys, other = kit.chain(PAGES), kit.chain(PAGES, "other")
    r.store(keys)

    def late(kind, key, store, cancel, timeout_s):
        if kind == "get":
            release.wait(5)

    r.storage.fault = late
    r.storage.obeys_cancel = False
    op = r.cache.begin("r", keys)
    assert r.wait(op).l3_pages == 0
    r.cache.abort(op)
    r.storage.fault = None
    r.run(other)
    release.set()
    assert kit.until(lambda: r.cache.state()["pages"]["l2"]["in_flight"] == 0)

    r.cache.flush(["l1"])
    r.run(other)
    r.clean()


@pytest.mark.parametrize("defect", [False, True])
def test_a_store_slower_than_the_deadline_corrupts_only_with_the_defect(
    rig, kit, defect
):
    def slow(kind, key, store, cancel, timeout_s):
        if kind == "get" and key == first:
            end = time.monotonic() + min(0.35, timeout_s)
            while time.monotonic() < end and not cancel.is_set():
                time.sleep(0.001)

    r = rig(l1_pages=8, l2_pages=PAGES, poison_free_pages=False)
    keys = kit.chain(PAGES)
    first = keys[:32]
    r.store(keys)
    if defect:
        r.failpoints.set("defect.page_released_early", "on")
    r.storage.fault = slow
    r.run(keys)
    assert kit.until(lambda: not r.cache._gate._calls and not r.cache._busy())
    r.storage.fault = None
    r.cache.flush(["l1"])

    if defect:
        with pytest.raises(AssertionError, match="wrong bytes"):
            r.run(keys, commit=False)
    else:
        r.run(keys, commit=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pages", "expected"), [(4, 0.2025), (16, 0.21), (128, 0.28), (2048, 1.0)]
)
def test_the_deadline_follows_the_tokens_found(rig, kit, pages, expected):
    settings = {"per_ki_token_s": 0.01 if pages < 2000 else 0.1}
    r = rig(l1_pages=2100, l2_pages=8200, prefetch=settings)
    keys = kit.chain(pages)
    r.store(keys)
    r.storage.fault = kit.blackhole(*r.storage.stores)
    reuse = r.run(keys)

    assert reuse.deadline_s == pytest.approx(expected)
    assert reuse.outcome == "timeout"
    assert expected * 0.85 <= reuse.wait_s <= expected + 0.05
    r.clean()


def test_a_hung_query_costs_exactly_the_base(rig, kit):
    r = rig()

    def fault(kind, key, store, cancel, timeout_s):
        if kind == "exists":
            time.sleep(timeout_s)
            return Code.RPC_TIMEOUT
        return None

    r.storage.fault = fault
    reuse = r.run(kit.chain(128))

    assert reuse.deadline_s == pytest.approx(0.2)
    assert reuse.outcome == "timeout"
    assert 0.17 <= reuse.wait_s <= 0.22


@pytest.mark.slow
def test_the_defect_that_ignores_deadlines_waits_longer_than_the_deadline(rig, kit):
    r, keys = rig(), kit.chain(PAGES)
    r.store(keys)
    r.storage.fault = kit.blackhole(*r.storage.stores)
    r.failpoints.set("defect.deadline_ignored", "on")

    reuse = r.run(keys)

    assert reuse.wait_s > 2 * reuse.deadline_s


@pytest.mark.parametrize("pending", ["none", "main", "sidecar"])
@pytest.mark.parametrize("policy", ["best_effort", "wait_complete", "timeout"])
def test_nine_cells_of_policy_and_pending_pool(rig, kit, policy, pending):
    r = rig(sidecar_bytes=64, prefetch={"max_s": 0.4})
    keys = kit.chain(PAGES)
    r.store(keys)
    if pending == "main":
        r.failpoints.set("hicache.before_get", "sleep(350)")
    if pending == "sidecar":
        r.failpoints.set("hicache.sidecar", "sleep(350)")
    op = r.cache.begin("r", keys, policy)
    began = time.monotonic()
    if policy == "best_effort":
        assert r.cache.ready(op, time.monotonic())
        reuse = r.cache.finish(op)
        assert reuse.l3_pages in (0, PAGES)
    else:
        reuse = r.wait(op)
        complete = pending == "none" or policy == "wait_complete"
        assert reuse.l3_pages == (PAGES if complete else 0)
        assert reuse.outcome == ("complete" if complete else "timeout")
    took = time.monotonic() - began
    r.check(keys, reuse)
    r.cache.abort(op)

    if policy == "timeout":
        assert took <= reuse.deadline_s + 0.12
    if policy == "wait_complete" and pending != "none":
        assert took >= 0.3
    r.clean()


def test_a_missing_sidecar_page_clamps_the_prefix(rig, kit):
    r = rig(sidecar_bytes=64)
    keys = kit.chain(PAGES)
    r.store(keys)
    sidecar = r.cache._loader._layout.components[-1]
    gone = sidecar.keys(keys)[20 * 32 : 21 * 32]

    def fault(kind, key, store, cancel, timeout_s):
        return Code.OBJECT_NOT_FOUND if kind == "get" and key == gone else None

    r.storage.fault = fault

    assert r.run(keys).l3_pages == 20
    r.clean()


def test_a_missing_component_of_one_rank_shortens_the_prefix_for_all(rig, kit):
    names = tuple(f"rank{i}_{c}" for i in range(4) for c in "kv")
    r = rig(components=names)
    keys = kit.chain(PAGES)
    r.store(keys)
    assert len(r.storage.objects) == PAGES * 8
    component = r.cache._loader._layout.components[5]
    r.storage.drop(component.keys(keys)[17 * 32 : 18 * 32])

    assert r.run(keys).l3_pages == 17
    r.clean()


def test_several_ranks_write_parts_of_one_object(rig, kit):
    r = rig(ranks=4, sidecar_bytes=64)
    keys = kit.chain(8)
    r.store(keys)

    assert all(len(parts) == 4 for parts in r.storage.objects.values())
    assert r.run(keys).l3_pages == 8
    r.clean()


def test_misses_evict_nothing(rig, kit):
    r = rig(l1_pages=64, l2_pages=64)
    r.run(kit.chain(64, "resident"))
    r.cache.drain(3)
    before = r.cache.state()["pages"]["l2"]["evictions"]
    for i in range(20):
        r.run(kit.chain(32, f"miss{i}"), commit=False)

    assert r.cache.state()["pages"]["l2"]["evictions"] == before
    r.clean()


def test_hits_without_room_are_unfulfilled_not_missed(rig, kit):
    r = rig(l1_pages=100, l2_pages=100)
    keys = kit.chain(80, "wanted")
    r.store(keys)
    op = r.cache.begin("holder", kit.chain(70, "held"))
    r.wait(op)
    r.cache.commit(op, kit.fill)
    holder = r.cache.begin("holder", kit.chain(70, "held"))
    r.cache.flush(["l1"])
    r.cache.abort(holder)
    holder = r.cache.begin("holder", kit.chain(70, "held"))
    r.wait(holder)
    r.cache.drain(3)
    reuse = r.run(keys, commit=False)

    assert reuse.outcome == "unfulfilled"
    assert reuse.l3_pages == 30
    assert r.counter("unfulfilled_tokens") == 50 * 64
    r.cache.abort(holder)
    r.clean()


def test_reads_are_rate_limited_by_the_tokens_in_progress(rig, kit):
    r = rig(l2_pages=64, prefetch={"capacity_ratio": 0.5})
    prompts = [kit.chain(20, f"p{i}") for i in range(4)]
    for keys in prompts:
        r.store(keys)
    r.failpoints.set("hicache.before_get", "sleep(100)")
    ops = []
    for i, keys in enumerate(prompts):
        ops.append(r.cache.begin("r", keys))
        if i < 2:
            assert kit.until(
                lambda n=i: r.counter("storage_operations", "get") == n + 1
            )
    outcomes = [r.wait(op).outcome for op in ops]
    for op in ops:
        r.cache.abort(op)

    assert outcomes == ["complete", "complete", "rate_limited", "rate_limited"]
    r.clean()


def test_a_storm_of_misses_is_not_rate_limited(rig, kit):
    r = rig(l2_pages=64, prefetch={"capacity_ratio": 0.5})
    r.storage.fault = lambda *_: time.sleep(0.01)
    ops = [r.cache.begin("r", kit.chain(40, f"p{i}")) for i in range(20)]
    outcomes = {r.wait(op).outcome for op in ops}
    for op in ops:
        r.cache.abort(op)

    assert outcomes == {"miss"}
    r.clean()


def test_aborts_at_random_points_leave_nothing_behind(rig, kit):
    rng = random.Random(11)

    def slow(kind, key, store, cancel, timeout_s):
        time.sleep(rng.choice((0, 0, 0, 0.0005)))
        return rng.choice((None, None, None, None, Code.TRANSFER_FAIL))

    r = rig(l2_pages=256)
    prompts = [kit.chain(24, f"p{i}") for i in range(6)]
    for keys in prompts:
        r.store(keys)
    r.storage.fault = slow
    for i in range(200):
        op = r.cache.begin(f"r{i}", prompts[i % 6], ("timeout", "wait_complete")[i % 2])
        time.sleep(rng.choice((0, 0.0002, 0.002)))
        if rng.random() < 0.3:
            r.check(prompts[i % 6], r.cache.finish(op))
        r.cache.abort(op)
        if i % 10 == 0:
            r.cache.flush()
            r.cache._gate.reset()
    r.storage.fault = None
    r.clean()
    r.cache.reset()

    assert r.run(prompts[0]).l3_pages == 24
    pages = r.cache.state()["pages"]["l2"]
    assert pages["free"] + pages["used"] == 256


def test_an_abort_twice_and_after_commit_does_nothing(rig, kit):
    r, keys = rig(), kit.chain(PAGES)
    op = r.cache.begin("r", keys)
    r.wait(op)
    r.cache.commit(op, kit.fill)
    r.cache.abort(op)
    r.cache.abort(op)
    r.clean()


def test_a_failing_fill_leaves_no_page_behind(rig, kit):
    r, keys = rig(), kit.chain(PAGES)
    op = r.cache.begin("r", keys)
    r.wait(op)

    def broken(keys, out):
        raise RuntimeError("no bytes")

    with pytest.raises(RuntimeError, match="no bytes"):
        r.cache.commit(op, broken)
    r.clean()


def test_one_timeout_per_prefix_then_the_prefix_is_not_asked_for(rig, kit):
    r, keys = rig(stores=1), kit.chain(PAGES)
    r.store(keys)
    r.storage.fault = kit.blackhole("s0")
    waits, outcomes = [], []
    for _ in range(10):
        reuse = r.run(keys, commit=False)
        waits.append(reuse.wait_s)
        outcomes.append(reuse.outcome)

    assert outcomes.count("timeout") == 1
    assert sum(waits) <= 0.3
    assert r.counter("storage_operations", "get") == 1


def test_requests_that_arrive_together_share_one_timeout(rig, kit):
    r, keys = rig(stores=1), kit.chain(PAGES)
    r.store(keys)
    r.storage.fault = kit.blackhole("s0")
    ops = [r.cache.begin(f"r{i}", keys) for i in range(20)]
    reuses = [r.wait(op) for op in ops]
    for op in ops:
        r.cache.abort(op)

    assert [u.outcome for u in reuses].count("timeout") == 1
    assert all(u.touched_fault for u in reuses)
    assert r.counter("storage_operations", "get") == 1
    r.clean()


def test_requests_that_arrive_together_share_one_read(rig, kit):
    r, keys = rig(), kit.chain(PAGES)
    r.store(keys)
    r.failpoints.set("hicache.before_get", "sleep(20)")
    ops = [r.cache.begin(f"r{i}", keys) for i in range(10)]
    reuses = [r.wait(op) for op in ops]
    for op, reuse in zip(ops, reuses, strict=True):
        r.check(keys, reuse)
        r.cache.abort(op)

    assert all(u.l2_pages + u.l3_pages == PAGES for u in reuses)
    assert r.counter("storage_operations", "get") == 1
    r.clean()


def test_a_put_clears_the_negative_entry_at_once(rig, kit):
    r, keys = rig(stores=2), kit.chain(PAGES)
    r.store(keys)
    r.storage.fault = kit.blackhole("s0", "s1")
    r.run(keys)
    r.storage.fault = None
    assert r.run(kit.chain(4, "x"), commit=False).outcome in ("miss", "breaker_open")
    r.cache._gate.reset()
    r.run(keys)
    r.cache.drain(3)
    r.cache.flush()

    assert r.run(keys).l3_pages == PAGES


def test_exactly_one_load_attempt_a_request(rig, kit):
    r, keys = rig(), kit.chain(PAGES)
    r.store(keys)

    def fault(kind, key, store, cancel, timeout_s):
        return Code.TRANSFER_FAIL if kind == "get" else None

    r.storage.fault = fault
    reuse = r.run(keys, commit=False)

    assert reuse.outcome == "error"
    assert reuse.touched_fault
    assert r.counter("storage_operations", "get") == 1
    r.clean()


def test_hashes_of_local_only_traffic_stay_chains_from_the_root(rig, kit):
    r = rig()
    r.cache.breaker.force("open")
    conversations = [kit.chain(8, f"c{i}") for i in range(10)]
    for keys in conversations:
        assert r.run(keys).outcome == "breaker_open"
    assert not r.storage.calls
    r.cache.breaker.force(None)
    grown = [k + kit.chain(4, "more", k[-32:]) for k in conversations]
    for keys in grown:
        r.run(keys)
    r.cache.drain(3)
    everything = {k[i : i + 32] for k in grown for i in range(0, len(k), 32)}

    assert set(r.storage.objects) == everything
    suffix = rig()
    suffix.storage.objects = r.storage.objects
    assert suffix.run(kit.chain(4, "more")).l3_pages == 0


def test_eviction_under_pressure_never_hands_out_wrong_bytes(rig, kit):
    r = rig(l1_pages=40, l2_pages=90)
    rng = random.Random(5)
    prompts = [kit.chain(rng.randrange(4, 40), f"p{i}") for i in range(30)]
    for _ in range(150):
        r.run(rng.choice(prompts))
    r.clean()


def test_a_prompt_longer_than_both_tiers_is_kept_as_far_as_there_is_room(rig, kit):
    r = rig(l1_pages=8, l2_pages=16)
    keys = kit.chain(40)
    r.run(keys)
    r.cache.drain(3)
    reuse = r.run(keys)

    assert (reuse.l1_pages, reuse.l2_pages) == (8, 8)
    r.clean()


def test_ready_is_announced_without_polling(rig, kit):
    r, keys = rig(), kit.chain(PAGES)
    r.store(keys)
    r.news.clear()
    op = r.cache.begin("r", keys)

    assert kit.until(lambda: r.news.wait(0.1) and r.cache.ready(op, time.monotonic()))
    r.cache.finish(op)
    r.cache.abort(op)


def test_the_state_is_json_and_complete(rig, kit):
    r = rig()
    r.run(kit.chain(PAGES))
    state = json.loads(json.dumps(r.cache.state()))

    assert set(state) >= {
        "breaker",
        "quarantine",
        "negative_cache",
        "pages",
        "occupancy",
        "counters",
        "threads",
        "broken_laws",
    }


def test_unknown_policies_and_tiers_are_refused(rig, kit):
    r = rig()

    with pytest.raises(ValueError, match="sometimes"):
        r.cache.begin("r", kit.chain(1), "sometimes")
    with pytest.raises(ValueError, match="l9"):
        r.cache.flush(["l9"])
    with pytest.raises(ValueError, match="whole number"):
        r.cache.begin("r", b"x" * 33)


def test_close_ends_every_thread(rig, kit):
    before = threading.active_count()
    r = rig()
    r.run(kit.chain(PAGES))
    r.cache.close()

    assert threading.active_count() == before
    assert r.storage.closed
