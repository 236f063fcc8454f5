"""The stock of pipes, and what a relay does when it is empty."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
import threading
from pathlib import Path

import pytest

from chaos.proxy.http import HttpServer
from chaos.proxy.loop import Loop
from chaos.proxy.pipes import STOCK, PipePool
from chaos.proxy.server import ProxyServer


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_stock_is_restored_whatever_was_lent():
    with contextlib.closing(PipePool()) as pool:
        before = descriptors()
        lent = [pool.lend() for _ in range(STOCK + 5)]
        for pipe in lent:
            assert pipe is not None
            pool.give_back(pipe)

        assert descriptors() == before
        assert pool.lent == 0


def test_a_dirty_pipe_is_never_lent_again():
    with contextlib.closing(PipePool()) as pool:
        before = descriptors()
        pipe = pool.lend()
        assert pipe is not None
        os.write(pipe.write_fd, b"left over")
        pool.give_back(pipe, dirty=True)

        for _ in range(STOCK):
            lent = pool.lend()
            assert lent is not None
            with pytest.raises(BlockingIOError):
                os.read(lent.read_fd, 1)
            pool.give_back(lent)
        assert descriptors() == before


def test_no_more_are_lent_than_allowed():
    with contextlib.closing(PipePool(max_lent=2)) as pool:
        lent = [pool.lend() for _ in range(3)]

        assert lent[2] is None
        for pipe in lent[:2]:
            assert pipe is not None
            pool.give_back(pipe)
        assert pool.lend() is not None
        pool.lent = 0


@contextlib.contextmanager
def server_in_a_thread(pipes: PipePool):
    loop = Loop()
    server = ProxyServer(loop, pipes=pipes)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    api = HttpServer(loop, listener, server.handle)
    bell, ringer = socket.socketpair()
    loop.register(bell.fileno(), lambda _: loop.stop(), select.EPOLLIN)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield port
    finally:
        ringer.send(b"x")
        thread.join()
        api.close()
        server.close()
        loop.close()
        bell.close()
        ringer.close()


def create_proxy(port: int, upstream: socket.socket) -> tuple[str, int]:
    body = {"name": "p", "upstream": f"127.0.0.1:{upstream.getsockname()[1]}"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as api:
        api.request("POST", "/proxies", json.dumps(body))
        listen = json.loads(api.getresponse().read())["listen"]
    host, _, number = listen.rpartition(":")
    return host, int(number)


@pytest.mark.parametrize("max_lent", [0, 1, 2])
def test_blocked_connections_beyond_the_stock_are_copied_and_lose_nothing(max_lent):
    with (
        server_in_a_thread(PipePool(max_lent=max_lent)) as port,
        socket.create_server(("127.0.0.1", 0)) as upstream,
        contextlib.ExitStack() as ends,
    ):
        address = create_proxy(port, upstream)
        pairs = []
        for number in range(4):
            near = ends.enter_context(socket.create_connection(address, timeout=5))
            far = ends.enter_context(upstream.accept()[0])
            far.setblocking(False)
            sent = bytearray()
            fill(far, bytes([number, 255 - number]) * 32_768, sent)
            pairs.append((near, far, sent))
        for near, far, sent in pairs:
            far.shutdown(socket.SHUT_WR)
            received = bytearray()
            while piece := near.recv(1 << 20):
                received += piece
            assert received == sent


def fill(sock: socket.socket, pattern: bytes, sent: bytearray) -> None:
    """Sends until nothing goes any more, a little while long."""
    for _ in range(400):
        try:
            sent += pattern[: sock.send(pattern)]
        except BlockingIOError:
            if not select.select([], [sock], [], 0.05)[1]:
                return


def test_bytes_left_in_the_pipe_of_a_dead_connection_reach_nobody_else():
    with (
        server_in_a_thread(PipePool(max_lent=1)) as port,
        socket.create_server(("127.0.0.1", 0)) as upstream,
        contextlib.ExitStack() as ends,
    ):
        address = create_proxy(port, upstream)
        near = ends.enter_context(socket.create_connection(address, timeout=5))
        far = ends.enter_context(upstream.accept()[0])
        far.setblocking(False)
        fill(far, b"stale" * 10_000, bytearray())
        near.close()
        far.close()

        for _ in range(STOCK + 1):
            near = ends.enter_context(socket.create_connection(address, timeout=5))
            far = ends.enter_context(upstream.accept()[0])
            far.sendall(b"fresh")
            assert near.recv(5) == b"fresh"
