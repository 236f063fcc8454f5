"""Everything that a client has between `setup` and `close`."""

from __future__ import annotations

import ipaddress
import random
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from refimpl.admin import AdminServer
from refimpl.compat.link import Link
from refimpl.compat.memory import LocalBuffer, RegisteredMemory
from refimpl.compat.put_sessions import PutSessions
from refimpl.compat.read_sessions import ReadSessions
from refimpl.compat.segment import Segment, client_name, heartbeat_of
from refimpl.failpoints import Failpoints

if TYPE_CHECKING:
    from refimpl.compat.options import Options


class Connected:
    """A client that is set up. Owns its processes, sockets and threads.

    Raises:
        RpcFailed: no master answers.
        RefimplError: the segment did not start, the HTTP port is taken, or a secret
            of the environment is no good.
        OSError: no free port for the client's name.
    """

    def __init__(self, options: Options) -> None:
        master = options.master_server_addr
        self.name = client_name(options.local_hostname, random.Random())
        host_id = host_of(self.name)
        self.memory = RegisteredMemory()
        self.buffer = LocalBuffer(options.local_buffer_size)
        with ExitStack() as stack:
            self.link = Link(
                master,
                tenant=options.tenant_id,
                host_id=host_id,
                timeout_s=options.timeout_s,
            )
            stack.callback(self.link.close)
            self.segment: Segment | None = None
            if options.global_segment_size:
                self.segment = Segment(
                    name=self.name,
                    size=options.global_segment_size,
                    master=master,
                    heartbeat=heartbeat_of(self.link.facts, master),
                    host_id=host_id,
                    time_scale=self.link.facts.time_scale,
                )
                stack.callback(self.segment.close)
            self.read_sessions = ReadSessions(self.link)
            self.put_sessions = PutSessions(self.link)
            stack.callback(self.put_sessions.close)
            if options.enable_client_http_server:
                stack.callback(self._serve(options.client_http_port).close)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Gives everything back, last taken first. Safe to call twice."""
        self._stack.close()

    def _serve(self, port: int) -> AdminServer:
        """`/health`, `/metrics` and `/state` of this client, on loopback."""
        door = AdminServer(
            f"127.0.0.1:{port}",
            "client",
            CollectorRegistry(),
            Failpoints(),
            self._state,
        )
        door.start()
        return door

    def _state(self) -> dict[str, Any]:
        return {"name": self.name, **self.link.pool.stats()}


def host_of(name: str) -> str:
    """The failure domain of a client: its host, but each of loopback is its own.

    Upstream takes loopback names for unknown hosts; here replicas shall not end up in
    two segments of one process only because all are called "localhost".
    """
    host = name.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return name
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host
    return name if loopback else host
