from __future__ import annotations

import socket

import pytest

from refimpl.transfer.connections import (
    ConnectionPool,
    split_address,
    start_connect,
)


@pytest.fixture
def pair():
    made = []

    def make():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        made.extend((ours, theirs))
        return ours, theirs

    yield make
    for sock in made:
        sock.close()


@pytest.fixture
def pool():
    found = ConnectionPool(per_rail=2, total=3)
    yield found
    found.close()


def test_a_kept_connection_is_given_again(pair, pool):
    ours, _ = pair()
    pool.give(1, "a", ours)

    assert pool.take(1, "a") is ours
    assert pool.take(1, "a") is None


def test_another_segment_behind_the_same_address_gets_nothing(pair, pool):
    ours, _ = pair()
    pool.give(1, "a", ours)

    assert pool.take(2, "a") is None


@pytest.mark.parametrize("end", ["closed", "spoke"])
def test_a_connection_that_is_not_quiet_is_not_given(pair, pool, end):
    ours, theirs = pair()
    pool.give(1, "a", ours)
    if end == "closed":
        theirs.close()
    else:
        theirs.send(b"?")

    assert pool.take(1, "a") is None
    assert ours.fileno() == -1


def test_idle_connections_of_a_rail_are_bounded(pair, pool):
    socks = [pair()[0] for _ in range(3)]
    for sock in socks:
        pool.give(1, "a", sock)

    assert len(pool) == 2
    assert socks[0].fileno() == -1


def test_idle_connections_together_are_bounded_and_the_oldest_go(pair, pool):
    socks = [pair()[0] for _ in range(4)]
    for number, sock in enumerate(socks):
        pool.give(number, "a", sock)

    assert len(pool) == 3
    assert pool.take(0, "a") is None
    assert pool.take(3, "a") is socks[3]


def test_idle_connections_of_one_rail_can_be_given_up(pair, pool):
    (first, _), (second, _), (other, _) = pair(), pair(), pair()
    pool.give(1, "a", first)
    pool.give(1, "a", second)
    pool.give(1, "b", other)

    pool.discard(1, "a")
    pool.discard(1, "never")

    assert first.fileno() == second.fileno() == -1
    assert len(pool) == 1
    assert pool.take(1, "b") is other


def test_addresses_are_split_at_the_last_colon():
    assert split_address("10.0.0.1:80") == ("10.0.0.1", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    with pytest.raises(ValueError):
        split_address("nowhere")


def test_connecting_does_not_wait(silent):
    sock = start_connect(silent, 0)

    assert not sock.getblocking()
    sock.close()
