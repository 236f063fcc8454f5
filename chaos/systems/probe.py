"""The harness's own kv client as a role of its own, for targets with hosts.

There the pool is reachable from a host on its planes only, and the harness stands
outside of them. `python -m chaos.systems.probe` runs the system's client on a host and
answers on the management plane; `RemoteProbe` is its other end. Both speak one JSON
line a call: `{"token", "probe", "host", "call", "args", "named"}`, answered by
`{"result"}`, `{"error"}`, or `{"not_here": [capability, reason]}` for what the client
cannot do. A probe (a number of the harness) is one client of the
system; `close` ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hmac
import ipaddress
import itertools
import json
import os
import queue
import signal
import socket
import socketserver
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from chaos.errors import HarnessError, NotHere, UsageError
from chaos.systems import load_system
from chaos.systems.base import ClusterSpec
from chaos.systems.seen import SeeingProbe, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.systems.base import KvProbe

TOKEN: Final = "MOONQUAKE_PROBE_TOKEN"  # noqa: S105 - the name of a variable
READY: Final = "moonquake probe ready "
_LINE_BYTES: Final = 16 << 20
_CONNECTIONS: Final = 256
_PROBES: Final = 256
_CONNECT_TIMEOUT_S: Final = 5.0
_GRACE_S: Final = 10.0
_CALLS: Final = frozenset(
    {
        "write",
        "write_part",
        "read",
        "join",
        "read_paths",
        "read_by",
        "exists",
        "remove",
        "owners",
        "start_write",
        "end_write",
        "close",
    }
)
_numbers = itertools.count(1)


class RemoteProbe:
    """A `KvProbe` whose client runs on a host; threads may share it."""

    def __init__(self, address: str, token: str, host: str = "") -> None:
        self._address = address
        self._token = token
        self._host = host
        self._probe = next(_numbers)
        self._idle: queue.SimpleQueue[_Line] = queue.SimpleQueue()

    def join(self) -> None:
        """Starts the client now and not with the first call, if it has a start."""
        self._call("join")

    def write(
        self,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        replicas: int = 1,
        host: str = "",
        variant: int = 0,
    ) -> list[int]:
        return self._codes(
            "write",
            list(names),
            size_bytes=size_bytes,
            timeout_s=timeout_s,
            replicas=replicas,
            host=host,
            variant=variant,
        )

    def write_part(
        self,
        names: Sequence[str],
        part: int,
        parts: int,
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
    ) -> list[int]:
        return self._codes(
            "write_part",
            list(names),
            part,
            parts,
            size_bytes=size_bytes,
            timeout_s=timeout_s,
        )

    def read(
        self,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        variant: int | None = 0,
    ) -> tuple[list[int], int]:
        codes, wrong = self._call(
            "read",
            list(names),
            size_bytes=size_bytes,
            timeout_s=timeout_s,
            variant=variant,
        )
        return list(codes), int(wrong)

    def read_paths(self) -> list[str]:
        """See `SeeingProbe`; none where the client over there cannot look."""
        return [str(path) for path in self._call("read_paths")]

    def read_by(
        self,
        path: str,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        among: Sequence[str] = (),
    ) -> list[Seen]:
        rows = self._call(
            "read_by",
            path,
            list(names),
            size_bytes=size_bytes,
            timeout_s=timeout_s,
            among=list(among),
        )
        return [Seen.from_row(row) for row in rows]

    def exists(self, names: Sequence[str], *, timeout_s: float = 2.0) -> list[int]:
        return self._codes("exists", list(names), timeout_s=timeout_s)

    def remove(self, names: Sequence[str], *, timeout_s: float = 2.0) -> list[int]:
        return self._codes("remove", list(names), timeout_s=timeout_s)

    def owners(
        self, names: Sequence[str], *, timeout_s: float = 2.0
    ) -> list[tuple[str, ...]]:
        found = self._call("owners", list(names), timeout_s=timeout_s)
        return [tuple(one) for one in found]

    def start_write(
        self, name: str, *, size_bytes: int = 16 << 10, timeout_s: float = 2.0
    ) -> tuple[int, int]:
        code, token = self._call(
            "start_write", name, size_bytes=size_bytes, timeout_s=timeout_s
        )
        return int(code), int(token)

    def end_write(self, name: str, token: int, *, timeout_s: float = 2.0) -> int:
        return int(self._call("end_write", name, token, timeout_s=timeout_s))

    def close(self) -> None:
        """Ends the client on its host, which may be gone, and our connections."""
        with contextlib.suppress(HarnessError):
            self._call("close")
        while not self._idle.empty():
            self._idle.get().close()

    def _codes(self, call: str, *args: Any, **named: Any) -> list[int]:
        return [int(code) for code in self._call(call, *args, **named)]

    def _call(self, call: str, *args: Any, **named: Any) -> Any:
        """One call on a connection of its own; used again when it went well.

        Raises:
            HarnessError: The probe does not answer, or its client broke.
            NotHere: The client cannot do it.
        """
        asked = {
            "token": self._token,
            "probe": self._probe,
            "host": self._host,
            "call": call,
            "args": args,
            "named": named,
        }
        limit_s = float(named.get("timeout_s", 0.0)) + _GRACE_S
        line = self._line()
        try:
            answer = line.ask(asked, limit_s)
        except (OSError, ValueError) as error:
            line.close()
            message = f"the probe at {self._address} does not answer {call}: {error!r}"
            raise HarnessError(message) from error
        self._idle.put(line)
        if "not_here" in answer:
            capability, reason = answer["not_here"]
            raise NotHere(capability=capability, target="", reason=reason)
        if "error" in answer:
            message = f"the probe's {call} broke: {answer['error']}"
            raise HarnessError(message)
        return answer["result"]

    def _line(self) -> _Line:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            pass
        try:
            return _Line(self._address)
        except OSError as error:
            message = f"nobody answers at the probe's {self._address}: {error}"
            raise HarnessError(message) from error


class _Line:
    """One connection: a JSON line there, a JSON line back."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def ask(self, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        self._socket.settimeout(limit_s)
        self._socket.sendall(_encoded(document))
        line = self._file.readline(_LINE_BYTES)
        if not line.endswith(b"\n"):
            message = "the connection ended"
            raise ConnectionError(message)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class ProbeServer:
    """Serves the clients of a system to whoever has the token.

    Args:
        listen: HOST:PORT.
        make: a client of the system for a writer on a host.
        token: what callers must show.

    Raises:
        UsageError: It would be open to the network without a token.
    """

    def __init__(
        self, listen: str, make: Callable[[str], KvProbe], token: str = ""
    ) -> None:
        host, _, port = listen.rpartition(":")
        if not token and not ipaddress.ip_address(host).is_loopback:
            problem = f"the probe's address {listen} is not a loopback one"
            raise UsageError(problem, f"set {TOKEN}")
        self._make = make
        self._token = token
        self._lock = threading.Lock()
        self._probes: dict[int, KvProbe] = {}
        self._server = _Server((host, int(port)), _Handler)
        self._server.owner = self
        self.address = "{}:{}".format(*self._server.server_address[:2])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="probe", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends every client and frees the port. Safe to call twice, or unstarted."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        with self._lock:
            probes, self._probes = list(self._probes.values()), {}
        for probe in probes:
            probe.close()

    def answer(self, line: bytes) -> dict[str, Any]:
        """What a line of a caller is answered; an error of the client is told."""
        try:
            asked = json.loads(line)
            if not hmac.compare_digest(str(asked["token"]), self._token):
                return {"error": "a wrong token"}
            return {"result": self._act(asked)}
        except NotHere as error:
            return {"not_here": [error.capability, error.reason]}
        except Exception as error:  # the caller is told, the server goes on
            return {"error": f"{type(error).__name__}: {error}"}

    def _act(self, asked: dict[str, Any]) -> Any:
        number, call = int(asked["probe"]), str(asked["call"])
        if call not in _CALLS:
            raise UsageError(f"no call is named {call!r}")
        if call == "close":
            with self._lock:
                probe = self._probes.pop(number, None)
            if probe is not None:
                probe.close()
            return None
        probe = self._probe(number, str(asked["host"]))
        if call == "join":
            getattr(probe, "join", lambda: None)()
            return None
        if call == "read_paths" and not isinstance(probe, SeeingProbe):
            return []
        answer = getattr(probe, call)(*asked["args"], **asked["named"])
        return [seen.to_row() for seen in answer] if call == "read_by" else answer

    def _probe(self, number: int, host: str) -> KvProbe:
        with self._lock:
            if number not in self._probes:
                if len(self._probes) >= _PROBES:
                    raise UsageError(f"{_PROBES} probes are open", "close some")
                self._probes[number] = self._make(host)
            return self._probes[number]


class _Server(socketserver.ThreadingTCPServer):
    """One thread a connection, so many at most."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _CONNECTIONS
    owner: ProbeServer

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is no news."""


class _Handler(socketserver.StreamRequestHandler):
    """Answers line after line until the caller goes."""

    server: _Server
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while (line := self.rfile.readline(_LINE_BYTES)).endswith(b"\n"):
            self.wfile.write(_encoded(self.server.owner.answer(line)))


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def command(
    python: str, system: str, listen: str, master: str, spec: ClusterSpec
) -> list[str]:
    """The command line of the probe of a cluster; its token comes by environment."""
    shape = json.dumps({**dataclasses.asdict(spec), "overrides": {}})
    words = ["--system", system, "--listen", listen, "--master", master]
    return [python, "-m", "chaos.systems.probe", *words, "--spec", shape]


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(prog="chaos.systems.probe", description=__doc__)
    for name in ("system", "listen", "master", "spec"):
        parser.add_argument(f"--{name}", required=True)
    asked = parser.parse_args(argv)
    shape = json.loads(asked.spec)
    spec = ClusterSpec(**{**shape, "defects": tuple(shape["defects"])})
    system = load_system(asked.system)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    server = ProbeServer(
        asked.listen,
        lambda host: system.probe(asked.master, host, spec),
        os.environ.get(TOKEN, ""),
    )
    server.start()
    sys.stdout.write(f"{READY}{json.dumps({'listen': server.address})}\n")
    sys.stdout.flush()
    stop.wait()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
