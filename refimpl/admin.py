"""The admin door of every role: health, metrics, state and failpoints over HTTP.

Whoever reaches it may switch faults on: off loopback it exists behind a token only, and
with a token every request, also for `/health` and `/metrics`, carries
`Authorization: Bearer TOKEN` or is answered 401. Answers are JSON except `/metrics`,
which is Prometheus text.

| request | answer |
|---|---|
| `GET /health` | `{"status": "ok", "role": ...}` |
| `GET /metrics` | Prometheus text of the registry |
| `GET /state` | the role's ledger and counters |
| `GET /failpoints` | `{name: {"spec", "hits", "calls"}}` |
| `GET /failpoints/NAME` | one of them, 404 when it is not set |
| `PUT /failpoints/NAME` | body is the spec; answers what is now set, 400 when bad |
| `DELETE /failpoints[/NAME]` | 204 |
| `GET /PAGE` | a page of the role's own: text, or JSON when it is not a text |
| `GET /PAGE?NAME=VALUE` | likewise, of a page that is asked with a query |
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from refimpl.errors import UsageError
from refimpl.role import parse_address, port_taken
from refimpl.security.token import require_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from prometheus_client import CollectorRegistry

    from refimpl.failpoints import Failpoints
    from refimpl.security.token import Token

_BODY_LIMIT_BYTES: Final = 4096
_IDLE_TIMEOUT_S: Final = 5.0
_CONNECTIONS: Final = 16
_QUERY_FIELDS: Final = 16
_JSON: Final = "application/json"
_TOLD: Final = 200
"""Characters of a path that an answer repeats."""


class AdminServer:
    """Serves the admin door from its own threads, from `start` until `close`.

    Args:
        listen: HOST:PORT, a loopback address unless there is a token; port 0 takes a
            free one.
        role: kind of the role, told by `/health`.
        registry: metrics to expose.
        failpoints: the process's failpoints.
        state: called for each `GET /state`, in a thread of this server.
        pages: further pages of the role by name, called likewise.
        queries: pages that are called with the fields of the query.
        token: what every request has to show; None asks for nothing.

    Raises:
        UsageError: the address is not a loopback one, and there is no token.
        PortTaken: somebody else listens there.
    """

    def __init__(
        self,
        listen: str,
        role: str,
        registry: CollectorRegistry,
        failpoints: Failpoints,
        state: Callable[[], dict[str, Any]],
        pages: Mapping[str, Callable[[], Any]] | None = None,
        *,
        queries: Mapping[str, Callable[[Mapping[str, str]], Any]] | None = None,
        token: Token | None = None,
    ) -> None:
        host, port = parse_address(listen, "admin address")
        require_token(host, token, "the admin door (--admin-listen)")
        self.token = token
        self.denied = 0
        """Requests without the right token."""
        try:
            self._server = _Server(("127.0.0.1" if host == "localhost" else host, port))
        except OSError as error:
            raise port_taken(error, "the admin door", listen) from error
        self._server.door = self
        self.role = role
        self.registry = registry
        self.failpoints = failpoints
        self.pages = {**(pages or {}), "state": state}
        self.queries = dict(queries or {})
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="admin",
            daemon=True,
        )

    def start(self) -> None:
        """Begins to answer; until then connections wait in the kernel's queue."""
        self._thread.start()

    def close(self) -> None:
        """Stops answering and frees the port. Safe to call twice, or unstarted."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """HTTP server whose number of threads is bounded and that asks no DNS."""

    daemon_threads = True
    block_on_close = False
    door: AdminServer

    def __init__(self, address: tuple[str, int]) -> None:
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        host, port = address
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host.strip("[]"), port), _Handler)

    def server_bind(self) -> None:
        """Binds without the reverse look-up of the base class."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread a connection; too many are closed at once."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves one connection and gives its slot back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is no news; the reply was its own."""


class _Handler(BaseHTTPRequestHandler):
    """One request a connection (HTTP/1.0): no idle connection outlives its test."""

    server: _Server
    timeout = _IDLE_TIMEOUT_S

    def do_GET(self) -> None:
        """Answers health, metrics, state and failpoints."""
        if not self._admitted():
            return
        door = self.server.door
        match self._path():
            case ["health"]:
                self._json(HTTPStatus.OK, {"status": "ok", "role": door.role})
            case ["metrics"]:
                self._metrics()
            case ["failpoints"]:
                self._json(HTTPStatus.OK, door.failpoints.snapshot())
            case ["failpoints", name] if name in (all_ := door.failpoints.snapshot()):
                self._json(HTTPStatus.OK, all_[name])
            case [page] if page in door.pages:
                self._page(door.pages[page])
            case [page] if page in door.queries:
                self._page(lambda: door.queries[page](self._query()))
            case _:
                self._not_found()

    def do_PUT(self) -> None:
        """Sets a failpoint to the spec in the body."""
        if not self._admitted():
            return
        match self._path():
            case ["failpoints", name]:
                self._set_failpoint(name)
            case _:
                self._not_found()

    def do_DELETE(self) -> None:
        """Clears one failpoint or all."""
        if not self._admitted():
            return
        match self._path():
            case ["failpoints"]:
                self.server.door.failpoints.clear()
            case ["failpoints", name]:
                self.server.door.failpoints.clear(name)
            case _:
                self._not_found()
                return
        self._send(HTTPStatus.NO_CONTENT, b"", _JSON)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keeps requests out of the role's output."""

    def _admitted(self) -> bool:
        """Looks at the token, before anything else of the request is."""
        door = self.server.door
        if door.token is None or door.token.admits(self.headers.get("Authorization")):
            return True
        door.denied += 1
        self._skip_body()
        problem = {"error": "missing or wrong token; send Authorization: Bearer TOKEN"}
        self._json(HTTPStatus.UNAUTHORIZED, problem)
        return False

    def _skip_body(self) -> None:
        """Takes a small body in: closing before would reset the answer away."""
        length = self.headers.get("Content-Length", "0")
        size = int(length) if length.isdecimal() and len(length) < 10 else 0
        with contextlib.suppress(OSError):
            self.rfile.read(min(size, _BODY_LIMIT_BYTES))

    def _path(self) -> list[str]:
        path = self.path.partition("?")[0]
        return [unquote(part) for part in path.split("/") if part]

    def _query(self) -> dict[str, str]:
        """Fields of the query; of a repeated one the last, of too many none."""
        text = self.path.partition("?")[2]
        try:
            return dict(parse_qsl(text, max_num_fields=_QUERY_FIELDS))
        except ValueError:
            return {}

    def _set_failpoint(self, name: str) -> None:
        length = self.headers.get("Content-Length", "0")
        is_number = length.isdecimal() and len(length) < 10
        size = int(length) if is_number else _BODY_LIMIT_BYTES + 1
        if size > _BODY_LIMIT_BYTES:
            self._json(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                {"error": f"a spec has at most {_BODY_LIMIT_BYTES} bytes"},
            )
            return
        points = self.server.door.failpoints
        try:
            points.set(name, self.rfile.read(size).decode("utf-8", "replace"))
        except UsageError as error:
            self._json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        self._json(HTTPStatus.OK, points.snapshot().get(name, {}))

    def _metrics(self) -> None:
        from prometheus_client import generate_latest

        body = generate_latest(self.server.door.registry)
        self._send(HTTPStatus.OK, body, "text/plain; version=0.0.4; charset=utf-8")

    def _page(self, page: Callable[[], Any]) -> None:
        try:
            content = page()
        except Exception as error:  # the door tells the caller instead of dying
            problem = {"error": f"{type(error).__name__}: {error}"}
            self._json(HTTPStatus.INTERNAL_SERVER_ERROR, problem)
            return
        if isinstance(content, str):
            self._send(HTTPStatus.OK, content.encode(), "text/plain; charset=utf-8")
        else:
            self._json(HTTPStatus.OK, content)

    def _not_found(self) -> None:
        self._json(HTTPStatus.NOT_FOUND, {"error": f"nothing at {self.path[:_TOLD]}"})

    def _json(self, status: HTTPStatus, document: Any) -> None:
        self._send(status, json.dumps(document, default=str).encode(), _JSON)

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if status == HTTPStatus.UNAUTHORIZED:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            self.wfile.write(body)
