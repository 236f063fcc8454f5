"""The heartbeat door: answers, bounds, and what it does with nonsense."""

from __future__ import annotations

import errno
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from refimpl.master.heartbeat import (
    MAGIC,
    REPLY,
    REQUEST,
    STATUS_NEED_REMOUNT,
    STATUS_OK,
    Beats,
    HeartbeatServer,
    HeartbeatSettings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

VIEW = 77


@contextmanager
def door(beats: Beats, **bounds: float) -> Iterator[HeartbeatServer]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = HeartbeatServer(
        listener,
        beats,
        view=VIEW,
        clock=time.monotonic,
        settings=HeartbeatSettings(**bounds),
    )
    server.address = listener.getsockname()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def connect(server: HeartbeatServer) -> socket.socket:
    sock = socket.create_connection(server.address, timeout=2.0)
    sock.settimeout(2.0)
    return sock


def receive(sock: socket.socket, size: int = REPLY.size) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            break
        data += part
    return data


def closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_known_client_is_ok_and_unknown_must_remount() -> None:
    beats = Beats()
    beats.publish(frozenset({7}))
    with door(beats) as server, connect(server) as sock:
        sock.sendall(REQUEST.pack(MAGIC, 7, 1))
        known = REPLY.unpack(receive(sock))
        sock.sendall(REQUEST.pack(MAGIC, 8, 1))
        unknown = REPLY.unpack(receive(sock))

    assert known == (MAGIC, 7, STATUS_OK, VIEW)
    assert unknown == (MAGIC, 8, STATUS_NEED_REMOUNT, VIEW)
    assert set(beats.drain()) == {7}


def test_beats_that_arrive_in_pieces_or_together_are_answered_in_order() -> None:
    beats = Beats()
    beats.publish(frozenset({1, 2}))
    two = REQUEST.pack(MAGIC, 1, 1) + REQUEST.pack(MAGIC, 2, 2)
    with door(beats) as server, connect(server) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(two), 5):
            sock.sendall(two[at : at + 5])
        replies = receive(sock, 2 * REPLY.size)

    assert [r[1] for r in REPLY.iter_unpack(replies)] == [1, 2]


@pytest.mark.parametrize(
    "nonsense",
    [b"GET / HTTP/1.1\r\n\r\n", b"x", MAGIC + b"\0" * 16 + b"y", b"MQHEART2" * 3],
)
def test_nonsense_closes_only_its_own_connection(nonsense: bytes) -> None:
    beats = Beats()
    beats.publish(frozenset({1}))
    with door(beats) as server, connect(server) as good, connect(server) as bad:
        bad.sendall(nonsense)
        receive(bad)
        is_closed = closed(bad)
        good.sendall(REQUEST.pack(MAGIC, 1, 1))
        answer = receive(good)

    assert is_closed
    assert REPLY.unpack(answer)[2] == STATUS_OK


def test_one_connection_too_many_is_closed_and_the_others_stay() -> None:
    beats = Beats()
    beats.publish(frozenset({1}))
    with (
        door(beats, max_connections=2) as server,
        connect(server) as first,
        connect(server) as second,
    ):
        for sock in (first, second):
            sock.sendall(REQUEST.pack(MAGIC, 1, 1))
            receive(sock)
        with connect(server) as third:
            is_closed = closed(third)
        first.sendall(REQUEST.pack(MAGIC, 1, 2))
        answer = receive(first)

    assert is_closed
    assert len(answer) == REPLY.size


def test_silent_and_trickling_connections_are_reaped() -> None:
    beats = Beats()
    with door(beats, idle_s=0.05) as server, connect(server) as sock:
        sock.sendall(MAGIC[:3])
        is_closed = closed(sock)

    assert is_closed


def test_stop_closes_what_is_open_and_may_be_called_twice() -> None:
    beats = Beats()
    with door(beats) as server, connect(server) as sock:
        sock.sendall(REQUEST.pack(MAGIC, 1, 1))
        receive(sock)
        server.stop()

        assert closed(sock)
        assert server.connections == 0


def test_drain_hands_each_beat_on_once() -> None:
    beats = Beats()
    beats.publish(frozenset({1, 2}))
    beats.beat(1, 10.0)
    beats.beat(2, 10.5)
    first = beats.drain()
    beats.beat(2, 11.0)

    assert first == {1: 10.0, 2: 10.5}
    assert beats.drain() == {2: 11.0}
    assert beats.drain() == {}


def test_clients_that_are_not_known_take_no_memory() -> None:
    beats = Beats()
    beats.publish(frozenset({1}))
    for client in range(1000):
        beats.beat(client, 1.0)
    beats.publish(frozenset())
    beats.drain()

    assert beats.refused == 999
    assert beats.drain() == {}
    assert len(beats._heard) == 0


class _Crowded(socket.socket):
    """A listener that finds no descriptor for a caller while `full`."""

    full = True
    asked = 0

    def accept(self):
        self.asked += 1
        if self.full:
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def test_without_descriptors_the_door_neither_spins_nor_stays_shut() -> None:
    beats = Beats()
    beats.publish(frozenset({1}))
    listener = _Crowded(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = HeartbeatServer(listener, beats, view=VIEW, clock=time.monotonic)
    server.address = listener.getsockname()
    server.start()
    try:
        with connect(server) as sock:
            time.sleep(0.3)
            tries = listener.asked
            listener.full = False
            sock.sendall(REQUEST.pack(MAGIC, 1, 1))
            answer = receive(sock)
    finally:
        server.stop()

    assert 1 <= tries <= 3
    assert REPLY.unpack(answer)[2] == STATUS_OK
