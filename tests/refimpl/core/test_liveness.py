from __future__ import annotations

import pytest

from refimpl.core.liveness import Liveness

TTL_S = 10.0


def monitored(*clients, at=0.0):
    liveness = Liveness(TTL_S)
    for client in clients:
        liveness.register(client, at)
    return liveness


def run(liveness, until, beating=(), start=0):
    """One tick and one beat a second; returns (second, expired) for each expiry."""
    events = []
    for second in range(start, until + 1):
        for client in beating:
            liveness.heartbeat(client, float(second))
        if expired := liveness.expire(float(second)):
            events.append((second, sorted(expired)))
    return events


def test_an_unknown_client_has_to_mount_again():
    liveness = monitored(1)

    assert (liveness.heartbeat(1, 1.0), liveness.heartbeat(2, 1.0)) == (True, False)


def test_who_left_or_expired_is_known_no_more():
    liveness = monitored(1, 2, 3)
    liveness.forget(1)
    run(liveness, 10, beating=(2,))

    assert liveness.known() == {2}


def test_exactly_the_silent_client_expires_after_its_ttl():
    liveness = monitored(1, 2, 3)

    assert run(liveness, 15, beating=(1, 2)) == [(10, [3])]
    assert not liveness.heartbeat(3, 16.0)
    assert liveness.deferred == 0


def test_a_master_that_was_stopped_expires_nobody_and_counts_one_deferral():
    liveness = monitored(1, 2, 3)
    run(liveness, 5, beating=(1, 2, 3))

    at_wake_up = liveness.expire(17.0)

    assert (at_wake_up, liveness.deferred) == ([], 1)
    assert run(liveness, 40, beating=(1, 2, 3), start=18) == []


def test_a_late_tick_is_forgiven_even_when_the_beats_were_handed_on_first():
    liveness = monitored(1)
    run(liveness, 5, beating=(1,))
    liveness.heartbeat(1, 16.5)

    assert (liveness.expire(17.0), liveness.deferred) == ([], 1)


def test_clients_that_died_in_the_stall_expire_one_ttl_later():
    liveness = monitored(1, 2, 3)
    run(liveness, 5, beating=(1, 2, 3))
    liveness.expire(17.0)

    assert run(liveness, 40, beating=(1, 2), start=18) == [(27, [3])]


def test_silence_of_most_clients_is_deferred_once_and_then_believed():
    liveness = monitored(1, 2, 3, 4)

    assert run(liveness, 60, beating=(1,)) == [(20, [2, 3, 4])]
    assert liveness.deferred == 1


def test_silence_of_everybody_is_deferred_once_and_then_believed():
    liveness = monitored(1, 2)

    assert run(liveness, 60) == [(20, [1, 2])]


@pytest.mark.parametrize("clients", [(1,), (1, 2)])
def test_one_silent_client_of_at_most_two_is_no_stall(clients):
    liveness = monitored(*clients)

    assert run(liveness, 30, beating=clients[1:]) == [(10, [1])]


def test_a_second_stall_after_recovery_is_forgiven_again():
    liveness = monitored(1, 2, 3)
    run(liveness, 5, beating=(1, 2, 3))
    liveness.expire(17.0)
    run(liveness, 20, beating=(1, 2, 3), start=18)

    assert (liveness.expire(33.0), liveness.deferred) == ([], 2)


def test_a_monitor_that_is_always_late_still_expires_the_dead():
    liveness = monitored(1, 2, 3)
    expired = []
    for tick in range(1, 8):
        now = tick * 8.0
        liveness.heartbeat(1, now)
        liveness.heartbeat(2, now)
        expired += liveness.expire(now)

    assert expired == [3]


def test_an_old_beat_never_shortens_a_deadline():
    liveness = monitored(1, at=5.0)
    liveness.heartbeat(1, 2.0)

    assert liveness.silence_s(1, 6.0) == 1.0


def test_a_client_that_left_in_order_is_not_waited_for():
    liveness = monitored(1, 2)
    liveness.forget(1)

    assert run(liveness, 9) == []
    assert liveness.silence_s(1, 1.0) == float("inf")
