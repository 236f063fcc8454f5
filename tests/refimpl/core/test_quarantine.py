from __future__ import annotations

import pytest

from refimpl.core.quarantine import Quarantine, QuarantineSettings


def ward(**changes: object) -> Quarantine:
    q = Quarantine(QuarantineSettings(**changes))
    q.isolate("s2", 0.0, "test")
    return q


def test_an_isolated_endpoint_is_blocked():
    assert ward().blocked(0.0) == {"s2"}


def test_probes_are_due_one_interval_apart_and_one_at_a_time():
    q = ward()

    assert not q.probe("s2", 0.99)
    assert q.probe("s2", 1.0)
    assert not q.probe("s2", 1.1)
    q.record("s2", False, 1.2)
    assert not q.probe("s2", 1.9)
    assert q.probe("s2", 2.0)


def test_good_probes_take_it_back_and_a_bad_one_starts_over():
    q = ward()
    for at, ok in ((1.0, True), (1.5, False), (2.5, True), (3.0, True)):
        assert q.probe("s2", at)
        q.record("s2", ok, at)

    assert q.blocked(3.0) == frozenset()
    assert [e.kind for e in q.events] == ["quarantined", "readmitted"]


@pytest.mark.parametrize("ends_at", [10.0, 10.3, 10.5, 10.99])
def test_is_back_within_three_intervals_after_the_fault_ends(ends_at):
    q = ward()
    now, running = 0.0, None
    while q.blocked(now):
        if running is None and q.probe("s2", now):
            running = now
        healthy = running is not None and running >= ends_at
        if running is not None and (healthy or now - running >= 0.49):
            q.record("s2", healthy, now)
            running = None
        now += 0.01
        assert now < 20

    assert now <= ends_at + 3.0


def test_a_lost_probe_is_replaced_after_its_lease():
    q = ward()

    assert q.probe("s2", 1.0)
    assert q.probe("s2", 2.0)


def test_an_inconclusive_probe_is_tried_again_soon():
    q = ward()
    assert q.probe("s2", 1.0)
    q.abandon("s2", 1.1)

    assert q.probe("s2", 1.6)


def test_results_of_others_calls_do_not_count_as_probes():
    q = ward()
    for i in range(10):
        q.record("s2", True, i / 10)

    assert q.blocked(1.0) == {"s2"}


def test_an_endpoint_that_left_is_forgotten():
    q = ward()
    q.forget("s2", 1.0)

    assert not q.blocked(1.0)
    assert q.events[-1].kind == "gone"


def test_endpoints_and_events_stay_bounded():
    q = Quarantine(QuarantineSettings(endpoints_kept=16, events_kept=8))
    for i in range(100):
        q.record(f"s{i}", True, 0.0)
        q.isolate(f"x{i}", 0.0, "test")
        q.forget(f"x{i}", 0.0)

    assert q.known == 16
    assert len(q.events) == 8


def test_a_bad_ratio_is_suspicious_without_a_run():
    q = Quarantine(QuarantineSettings())
    for i in range(10):
        q.record("s1", i % 2 == 0, i / 10)

    assert q.suspicious("s1", 1.0)
    assert not q.suspicious("s1", 30.0)
