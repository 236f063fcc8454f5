"""A small HTTP/1.1 server on the proxy's loop: requests with a length, keep-alive.

Everything has a bound: head and body size, connections, how long a request may take to
come in. It answers in order and never waits for anything but the next bytes.
"""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.proxy.loop import Loop

MAX_HEAD_BYTES = 16 << 10
MAX_BODY_BYTES = 1 << 20
MAX_CONNECTIONS = 128
_MOST_DIGITS = 9
IDLE_S = 120.0
_REASONS = {
    200: "OK",
    201: "Created",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A whole request; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """An answer; `content_type` is left out together with an empty body."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class BadRequest(Exception):
    """A request that cannot be read; the connection ends after the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpServer:
    """Serves `handle` on a listening socket that it takes over."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        handle: Callable[[HttpRequest], HttpResponse],
    ) -> None:
        listener.setblocking(False)
        self.handle = handle
        self.loop = loop
        self._listener = listener
        self._peers: dict[int, _Peer] = {}
        loop.register(listener.fileno(), self._on_acceptable, select.EPOLLIN)

    def close(self) -> None:
        self.loop.unregister(self._listener.fileno())
        self._listener.close()
        for peer in list(self._peers.values()):
            peer.close()

    def forget(self, fd: int) -> None:
        self._peers.pop(fd, None)

    def _on_acceptable(self, _: int) -> None:
        try:
            sock, _address = self._listener.accept()
        except OSError:
            return  # gone already, or no descriptors: the client tries again
        if len(self._peers) >= MAX_CONNECTIONS:
            oldest = min(self._peers.values(), key=lambda peer: peer.active_at)
            oldest.close()
        self._peers[sock.fileno()] = _Peer(self, sock)


class _Peer:
    """One client of the API."""

    def __init__(self, server: HttpServer, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.active_at = server.loop.clock()
        self._server = server
        self._sock = sock
        self._fd = sock.fileno()
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._closing = False
        server.loop.register(self._fd, self._on_event, select.EPOLLIN)
        self._idle = server.loop.at(self.active_at + IDLE_S, self._check_idle)

    def close(self) -> None:
        if self._fd < 0:
            return
        self._server.loop.unregister(self._fd)
        self._server.forget(self._fd)
        self._idle.cancel()
        self._sock.close()
        self._fd = -1

    def _check_idle(self) -> None:
        loop = self._server.loop
        if loop.clock() >= self.active_at + IDLE_S:
            self.close()
        else:
            self._idle = loop.at(self.active_at + IDLE_S, self._check_idle)

    def _on_event(self, mask: int) -> None:
        self.active_at = self._server.loop.clock()
        try:
            if mask & select.EPOLLIN and not self._closing:
                self._read()
            elif mask & (select.EPOLLERR | select.EPOLLHUP):
                self.close()
                return
            self._write()
        except OSError:
            self.close()

    def _read(self) -> None:
        data = self._sock.recv(64 << 10)
        if not data:
            self._closing = True
            return
        self._incoming += data
        try:
            while (request := _parse(self._incoming)) is not None:
                self._answer(request)
        except BadRequest as problem:
            self._closing = True
            text = f"{problem}\n".encode()
            self._outgoing += _encode(
                HttpResponse(
                    status=problem.status, body=text, content_type="text/plain"
                ),
                close=True,
            )

    def _answer(self, request: HttpRequest) -> None:
        close = request.headers.get("connection", "").lower() == "close"
        self._closing |= close
        self._outgoing += _encode(self._server.handle(request), close=close)

    def _write(self) -> None:
        if self._outgoing:
            try:
                sent = self._sock.send(self._outgoing)
            except BlockingIOError:
                sent = 0
            del self._outgoing[:sent]
        if self._outgoing:
            self._server.loop.modify(self._fd, select.EPOLLOUT)
        elif self._closing:
            self.close()
        else:
            self._server.loop.modify(self._fd, select.EPOLLIN)


def _parse(buffer: bytearray) -> HttpRequest | None:
    """Takes one whole request from the front of the buffer, None when there is none."""
    end = buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if end < 0:
        if len(buffer) >= MAX_HEAD_BYTES:
            raise BadRequest(431, "request head too large")
        return None
    lines = buffer[:end].decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest(400, "malformed request line")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if parts[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    size = _body_size(headers)
    if len(buffer) < end + 4 + size:
        return None
    body = bytes(buffer[end + 4 : end + 4 + size])
    del buffer[: end + 4 + size]
    path = parts[1].partition("?")[0]
    return HttpRequest(method=parts[0], path=path, headers=headers, body=body)


def _body_size(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise BadRequest(411, "send a Content-Length")
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdecimal()):
        raise BadRequest(400, "malformed Content-Length")
    # Python refuses to read numbers of more than 4,300 digits.
    if len(text) > _MOST_DIGITS or int(text) > MAX_BODY_BYTES:
        raise BadRequest(413, "request body too large")
    return int(text)


def _encode(response: HttpResponse, *, close: bool) -> bytes:
    reason = _REASONS.get(response.status, "Unknown")
    lines = [f"HTTP/1.1 {response.status} {reason}"]
    if response.status != 204:
        lines.append(f"Content-Length: {len(response.body)}")
    if response.body:
        lines.append(f"Content-Type: {response.content_type}")
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    if close:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + response.body
