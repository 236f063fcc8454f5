"""HiCache over Mooncake whose calls hang: the deadline holds, the breaker opens."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from refimpl.core.codes import Code

PAGES = 16
SLACK_S = 0.15


@pytest.fixture
def fake(mooncake):
    return mooncake()


@pytest.fixture
def hicache(fake, kit):
    made = []

    def build(**changes):
        made.append(kit.rig_on(fake.storage, replace(kit.base, **changes)))
        return made[-1]

    yield build
    fake.native.let_go()
    for one in made:
        one.close()


def owner(fake, keys, page):
    return fake.native.objects[keys[page * 32 : page * 32 + 32].hex()][0]


def test_pages_go_to_mooncake_and_come_back(hicache, kit):
    r, keys = hicache(), kit.chain(PAGES)
    r.store(keys)
    reuse = r.run(keys)

    assert reuse.l3_pages == PAGES
    assert reuse.outcome == "complete"
    r.clean()


def test_no_request_waits_longer_than_its_deadline_and_a_poll(hicache, fake, kit):
    r, keys = hicache(), kit.chain(PAGES)
    r.store(keys)
    bad = owner(fake, keys, PAGES // 2)
    healthy = next(p for p in range(PAGES) if owner(fake, keys, p) == bad)
    fake.native.hold(bad)
    reuse = r.run(keys, commit=False)

    assert reuse.wait_s <= reuse.deadline_s + r.settings.prefetch.poll_s + SLACK_S
    assert reuse.l3_pages == healthy
    assert fake.hung() == {bad: 1}


def test_a_store_that_hangs_is_avoided_and_costs_the_next_request_nothing(
    hicache, fake, kit
):
    r, keys = hicache(), kit.chain(PAGES)
    r.store(keys)
    bad = owner(fake, keys, PAGES // 2)
    fake.native.hold(bad)
    r.run(keys, commit=False)
    assert kit.until(lambda: r.cache.state()["quarantine"]["blocked"] == [bad])
    r.cache.flush()
    other = kit.chain(PAGES, "other")
    began = time.monotonic()
    r.run(other)
    assert r.cache.drain(3.0)

    assert time.monotonic() - began < 1.0
    assert bad not in {owner(fake, other, p) for p in range(PAGES)}
    assert r.cache.state()["breaker"]["state"] == "closed"


def test_the_breaker_opens_when_all_of_mooncake_hangs_and_closes_afterwards(
    hicache, fake, kit
):
    r = hicache(
        breaker=replace(
            kit.base.breaker, open_for_s=0.1, probe_deadline_s=0.3, probes_to_close=2
        )
    )
    prompts = [kit.chain(PAGES, f"p{n}") for n in range(8)]
    for keys in prompts:
        r.store(keys)
    fake.native.hold("master")
    for endpoint in fake.native.endpoints:
        fake.native.hold(endpoint)
    waits = [r.run(keys, commit=False).wait_s for keys in prompts]
    assert kit.until(lambda: r.cache.state()["breaker"]["transition_count"] >= 1)
    fake.native.let_go()

    assert max(waits) < 0.2 + 0.01 * PAGES * 64 / 1024 + SLACK_S
    assert kit.until(lambda: r.cache.state()["breaker"]["state"] == "closed", 10.0)
    r.cache.flush()
    assert r.run(prompts[0]).l3_pages == PAGES


def test_late_bytes_never_reach_a_page_of_another_request(hicache, fake, kit):
    r, keys = hicache(l2_pages=64), kit.chain(PAGES)
    r.store(keys)
    fake.native.late = b"\xee"
    fake.native.hold(owner(fake, keys, 0))
    r.run(keys, commit=False)
    r.cache.flush()
    after = [kit.chain(PAGES, f"after{n}") for n in range(3)]
    for prompt in after:
        r.run(prompt)
    fake.native.let_go()
    assert kit.until(lambda: not fake.hung())
    for prompt in after:
        r.run(prompt)

    r.clean()


def test_codes_of_a_dead_store_are_faults_of_that_store(hicache, fake, kit):
    r, keys = hicache(), kit.chain(PAGES)
    r.store(keys)
    bad = owner(fake, keys, 0)
    for name, (place, _) in fake.native.objects.items():
        if place == bad:
            fake.native.codes[name] = Code.TRANSFER_FAIL
    read, fake.native.exist = fake.native.exist, lambda names: [1] * len(names)
    reuse = r.run(keys, commit=False)
    fake.native.exist = read

    assert reuse.l3_pages == 0
    assert reuse.touched_fault
    assert r.counter("fault_keys", "TRANSFER_FAIL") >= 1
