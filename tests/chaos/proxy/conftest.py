"""Servers to test against, and a rig that holds both ends of proxied connections."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import socket
import time
from urllib.parse import urlsplit

import pytest

from chaos.proxy.process import ProxyProcess, find_toxiproxy

_names = itertools.count()


def call(url: str, method: str, path: str, body=None, headers=None):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)
    with contextlib.closing(connection):
        payload = body if isinstance(body, str | None) else json.dumps(body)
        connection.request(method, path, payload, headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text


def receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def silent(sock: socket.socket, for_s: float = 0.15) -> bool:
    """Whether nothing, not even an end, arrives for so long."""
    sock.settimeout(for_s)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(5.0)
    return False


def ended(sock: socket.socket) -> str:
    """How a connection ended: "closed", "reset", or "data" when it did not."""
    try:
        return "data" if sock.recv(1) else "closed"
    except (ConnectionResetError, BrokenPipeError):
        return "reset"


def eventually(true, within_s: float = 5.0):
    """Polls until it holds; the value then."""
    deadline = time.monotonic() + within_s
    while not (value := true()):
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.005)
    return value


class Rig:
    """An upstream that only listens: tests accept and hold both ends themselves."""

    receive = staticmethod(receive)
    silent = staticmethod(silent)
    ended = staticmethod(ended)
    eventually = staticmethod(eventually)

    def __init__(self, server: ProxyProcess) -> None:
        self.server = server
        self.client = server.client()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.listener.settimeout(5.0)
        self.upstream = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self._proxies: list[str] = []
        self._open: list[socket.socket] = [self.listener]

    def proxy(self, *toxics):
        info = self.client.create(
            f"proxy-{os.getpid()}-{next(_names)}", "127.0.0.1:0", self.upstream, toxics
        )
        self._proxies.append(info.name)
        return info

    def dial(self, info) -> socket.socket:
        sock = socket.create_connection(info.address, timeout=5.0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.append(sock)
        return sock

    def accept(self) -> socket.socket:
        sock, _ = self.listener.accept()
        sock.settimeout(5.0)
        self._open.append(sock)
        return sock

    def connect(self, info) -> tuple[socket.socket, socket.socket]:
        """(client end, server end) of a new connection through the proxy."""
        near = self.dial(info)
        return near, self.accept()

    def call(self, method: str, path: str, body=None):
        """One raw API call: (status, parsed JSON or text)."""
        return call(self.server.url, method, path, body)

    def close(self) -> None:
        for sock in self._open:
            sock.close()
        for name in self._proxies:
            self.client.delete(name)


@pytest.fixture(scope="session")
def embedded_server():
    with ProxyProcess.start(seed=7) as server:
        yield server


@pytest.fixture(scope="session")
def real_server():
    url = os.environ.get("TOXIPROXY_URL", "")
    if url:
        yield ProxyProcess(url, "toxiproxy")
        return
    binary = find_toxiproxy()
    if binary is None:
        pytest.skip(
            "no real Toxiproxy: set TOXIPROXY_URL or MOONQUAKE_TOXIPROXY, or put"
            " toxiproxy-server on PATH (scripts/build-toxiproxy DIR builds it)"
        )
    with ProxyProcess.start_toxiproxy(binary, seed=7) as server:
        yield server


@pytest.fixture
def ours(embedded_server):
    """A rig on the embedded server."""
    rig = Rig(embedded_server)
    yield rig
    rig.close()


@pytest.fixture(params=["embedded", "real"])
def rig(request):
    """A rig on each server in turn: what must be the same on both."""
    rig = Rig(request.getfixturevalue(f"{request.param}_server"))
    yield rig
    rig.close()


@pytest.fixture
def dead_address():
    """An address that is held and refuses: nobody can start to listen there."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture
def raw_call():
    """One HTTP call to any server: (url, method, path, body, headers)."""
    return call
