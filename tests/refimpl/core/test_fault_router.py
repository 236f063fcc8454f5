from __future__ import annotations

import random

from refimpl.core.breaker import Breaker, BreakerSettings, BreakerState
from refimpl.core.codes import Outcome
from refimpl.core.fault_router import FaultRouter
from refimpl.core.quarantine import Quarantine, QuarantineSettings

STORES = [f"s{i}" for i in range(8)]


def router() -> FaultRouter:
    breaker = Breaker(BreakerSettings(), random.Random(1))
    return FaultRouter(breaker, Quarantine(QuarantineSettings()))


def everybody_answers(r: FaultRouter, now: float = 0.0) -> None:
    r.record(
        r.breaker.admit(now),
        Outcome.SUCCESS,
        now,
        endpoints=dict.fromkeys(STORES, True),
    )


def read(r: FaultRouter, now: float, bad: set[str], **how: bool) -> None:
    admission = r.breaker.admit(now)
    if admission is None:
        return
    names = {name: name not in bad for name in STORES}
    outcome = Outcome.FAULT if bad else Outcome.SUCCESS
    r.record(admission, outcome, now, endpoints=names, **how)


def test_one_bad_endpoint_of_eight_is_quarantined_and_the_breaker_stays_closed():
    r = router()
    for i in range(200):
        read(r, i * 0.05, {"s2"})

    assert r.quarantine.blocked(10.0) == {"s2"}
    assert r.breaker.state is BreakerState.CLOSED
    assert [e.kind for e in r.quarantine.events] == ["quarantined"]


def test_fast_faults_need_a_run_of_three():
    r = router()
    everybody_answers(r)
    read(r, 0.1, {"s2"})
    read(r, 0.2, {"s2"})

    assert not r.quarantine.blocked(0.2)

    read(r, 0.3, {"s2"})

    assert r.quarantine.blocked(0.3) == {"s2"}


def test_one_read_deadline_is_enough():
    r = router()
    everybody_answers(r)
    read(r, 0.1, {"s5"}, read_deadline=True)

    assert r.quarantine.blocked(0.1) == {"s5"}
    assert r.breaker.state is BreakerState.CLOSED


def test_both_stores_of_a_dead_host_are_quarantined():
    r = router()
    everybody_answers(r)
    read(r, 0.1, {"s5", "s6"}, read_deadline=True)

    assert r.quarantine.blocked(0.1) == {"s5", "s6"}


def test_an_outage_of_all_opens_the_breaker():
    r = router()
    everybody_answers(r)
    for i in range(5):
        read(r, 1.0 + i, set(STORES), read_deadline=True)

    assert not r.quarantine.blocked(6.0)
    assert r.breaker.state is BreakerState.OPEN


def test_an_outage_seen_store_by_store_opens_the_breaker():
    r = router()
    everybody_answers(r)
    for i in range(30):
        read(r, 1.0 + i * 0.2, {STORES[i % 8]}, read_deadline=True)

    assert len(r.quarantine.blocked(7.0)) <= 3
    assert r.breaker.state is BreakerState.OPEN


def test_twenty_percent_on_every_store_does_nothing():
    r = router()
    for i in range(500):
        read(r, i * 0.05, {STORES[i // 5 % 8]} if i % 5 == 4 else set())

    assert not r.quarantine.events
    assert not r.breaker.transitions


def test_twenty_percent_of_a_writer_that_uses_one_store_does_nothing():
    r = router()
    for i in range(500):
        now = i * 0.05
        bad = i % 5 == 4
        r.record(
            r.breaker.admit(now),
            Outcome.FAULT if bad else Outcome.SUCCESS,
            now,
            endpoints={"s0": not bad},
        )

    assert not r.quarantine.events
    assert not r.breaker.transitions


def test_sixty_percent_spread_opens_the_breaker():
    r = router()
    everybody_answers(r)
    for i in range(100):
        read(r, i * 0.05, {STORES[i % 8], STORES[(i + 3) % 8]} if i % 5 < 3 else set())

    assert r.breaker.state is BreakerState.OPEN
    assert not r.quarantine.events


def test_late_faults_of_a_quarantined_endpoint_do_not_reach_the_breaker():
    r = router()
    everybody_answers(r)
    read(r, 0.1, {"s1"}, read_deadline=True)
    for i in range(50):
        read(r, 0.2 + i * 0.01, {"s1"}, read_deadline=True)

    assert r.breaker.state is BreakerState.CLOSED
    assert r.quarantine.blocked(1.0) == {"s1"}


def test_faults_that_name_nobody_are_the_pools_own():
    r = router()
    for i in range(20):
        r.record(r.breaker.admit(i / 10), Outcome.FAULT, i / 10)

    assert r.breaker.state is BreakerState.OPEN


def test_a_store_that_others_stand_in_for_is_quarantined_all_the_same():
    r = router()
    everybody_answers(r)
    for i in range(3):
        now = 0.1 * i
        ends = {name: name != "s4" for name in STORES}
        r.record(r.breaker.admit(now), Outcome.SUCCESS, now, endpoints=ends)

    assert r.quarantine.blocked(1.0) == {"s4"}
    assert r.breaker.state is BreakerState.CLOSED
