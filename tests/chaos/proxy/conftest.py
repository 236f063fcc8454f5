"""Servers to test against, and a rig that holds both ends of proxied connections."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from chaos.proxy.process import ProxyProcess, find_toxiproxy

_names = itertools.count()
NO_ANSWER = 0


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


def eventually(true, within_s: float = 20.0):
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


class FakeToxiproxy:
    """One proxy "p" and its toxics, with the ways of a server not to be trusted."""

    def __init__(self) -> None:
        self.toxics: dict[str, dict] = {}
        self.proxy = {"name": "p", "listen": "127.0.0.1:1", "upstream": "u:1"}
        self.enabled = True
        self.exists = True
        self.calls: list[str] = []
        self.add_status = 200
        self.stores = True
        self.alters: dict[str, int] = {}
        self.delete_status = 204
        self.delete_hangs = False
        self.frees_on_disable = True
        self.disable_status = 200
        self.recreate_status = 201
        self.hangs = False
        self.restarts = 0
        self.freed = threading.Event()
        self.ended = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(size) or b"null")
                fake.calls.append(f"{self.command} {self.path}")
                status, answer = fake.answer(self.command, self.path, body)
                if status == NO_ANSWER:
                    return
                payload = json.dumps(answer).encode() if answer is not None else b""
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(payload)))
                    self.end_headers()
                    self.wfile.write(payload)
                except OSError:
                    return  # the client gave up: that is what the test is about

            do_GET = do_POST = do_DELETE = do

            def log_message(self, *_) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.freed.set()
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def wire(self) -> dict:
        toxics = list(self.toxics.values())
        return self.proxy | {"enabled": self.enabled, "toxics": toxics}

    def restart(self) -> None:
        """As a restarted server: it answers, and has nothing."""
        self.restarts += 1
        self.ended.set()
        self.hangs = self.delete_hangs = self.exists = False
        self.toxics.clear()
        self.enabled = True

    def answer(self, method: str, path: str, body):
        parts = path.strip("/").split("/")
        if self.hangs and parts[0] == "proxies":
            self.ended.wait(10.0)
            return NO_ANSWER, None
        if path == "/version":
            return 200, {"version": "2.12.0"}
        if parts == ["reset"]:
            return 204, None
        if parts == ["proxies"]:
            return self._index(method)
        if parts == ["proxies", "p"]:
            return self._proxy(method, body)
        if parts == ["proxies", "p", "toxics"]:
            return self._toxics(method, body)
        return self._toxic(method, parts[3])

    def _index(self, method):
        if method == "POST":
            self.exists = self.recreate_status == 201
            return self.recreate_status, self.wire()
        return 200, {"p": self.wire()}

    def _proxy(self, method, body):
        if method == "DELETE":
            self.exists = False
            self.toxics.clear()
            self.freed.set()
            return 204, None
        if method == "POST":
            if self.disable_status != 200:
                return self.disable_status, {"error": "no", "status": 500}
            self.enabled = body["enabled"]
            if not self.enabled and self.frees_on_disable:
                self.delete_hangs = False
                self.freed.set()
        return 200, self.wire()

    def _toxics(self, method, body):
        if method == "POST":
            if self.stores:
                toxic = body | {"attributes": body["attributes"] | self.alters}
                self.toxics[body["name"]] = toxic
            return self.add_status, body
        return 200, list(self.toxics.values())

    def _toxic(self, method, name):
        if method == "DELETE":
            if self.delete_hangs:
                self.freed.wait(5.0)
                return 500, None
            if self.delete_status == 204:
                self.toxics.pop(name, None)
            return self.delete_status, None
        return 404, {"error": "toxic not found", "status": 404}


@pytest.fixture
def fake():
    fake = FakeToxiproxy()
    yield fake
    fake.close()


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
