"""The HTTP server at its bounds and with clients that are slow, rude or wrong."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from chaos.proxy.http import MAX_BODY_BYTES, MAX_CONNECTIONS, MAX_HEAD_BYTES


@pytest.fixture
def dial(ours):
    parts = urlsplit(ours.server.url)
    sockets = []

    def connect() -> socket.socket:
        sock = socket.create_connection((parts.hostname, parts.port), timeout=5)
        sockets.append(sock)
        return sock

    yield connect
    for sock in sockets:
        sock.close()


def answer(sock: socket.socket) -> bytes:
    data = bytearray()
    while piece := sock.recv(65_536):
        data += piece
    return bytes(data)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2.0 x\r\n\r\n", 400),
        (b"POST /reset HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /reset HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (
            b"POST /reset HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
            % (MAX_BODY_BYTES + 1),
            413,
        ),
        (b"GET /" + b"x" * MAX_HEAD_BYTES, 431),
    ],
)
def test_a_request_that_cannot_be_is_answered_and_closed(dial, request_, status):
    sock = dial()
    sock.sendall(request_)

    assert answer(sock).startswith(b"HTTP/1.1 %d " % status)


def test_a_request_that_comes_byte_by_byte_is_answered(dial):
    sock = dial()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"GET /version HTTP/1.1\r\nConnection: close\r\n\r\n":
        sock.send(bytes([byte]))

    assert b'"version":' in answer(sock)


def test_requests_in_one_packet_are_answered_in_order(dial):
    sock = dial()
    one = b"GET /version HTTP/1.1\r\n\r\n"
    last = b"GET /none HTTP/1.1\r\nConnection: close\r\n\r\n"
    sock.sendall(one + one + last)

    text = answer(sock)

    assert text.count(b"HTTP/1.1 200 OK") == 2
    assert text.rindex(b"404 Not Found") > text.rindex(b"200 OK")


def test_the_longest_idle_client_makes_room_for_the_next(ours, dial):
    first = dial()
    others = [dial() for _ in range(MAX_CONNECTIONS + 5)]

    assert ours.call("GET", "/version")[0] == 200
    assert answer(first) == b""
    assert len(others) > MAX_CONNECTIONS


def test_a_client_that_only_connects_does_not_hold_up_others(ours, dial):
    dial().send(b"GET /ver")

    assert ours.call("GET", "/version")[0] == 200
