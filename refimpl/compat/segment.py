"""The segment that a client contributes: a store process that lives as long as it.

Upstream's client holds its segment in its own process. Here it is a store of its own,
`refimpl store`, named like the client: it ends orderly when the client is closed, and
dies with the client's process. The kernel ties a child to the thread that started it,
so a thread of our own does, and stays until the segment is closed.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from refimpl.errors import RefimplError
from refimpl.processes import RoleProcess

if TYPE_CHECKING:
    import random

    from refimpl.client import MasterFacts

PORTS: Final = range(12300, 14301)
"""Where upstream's clients take a port when none is given."""
_TRIES: Final = 16
_READY_S: Final = 60.0
"""Faulting in many gigabytes takes its time."""
_STOP_S: Final = 15.0


class SegmentFailed(RefimplError):
    """The store of a client's segment did not start; its last words follow."""


class Segment:
    """A store process under the name of the client.

    Args:
        name: "host:port", where it listens and what it is called.
        size: bytes.
        master: HOST:PORT of the master's RPC.
        heartbeat: HOST:PORT of its heartbeats.
        host_id: failure domain.
        time_scale: of the pool.

    Raises:
        SegmentFailed: it did not get ready.
    """

    def __init__(
        self,
        *,
        name: str,
        size: int,
        master: str,
        heartbeat: str,
        host_id: str,
        time_scale: float,
    ) -> None:
        self.name = name
        self._flags = [
            *("--host-id", host_id, "--size", str(size)),
            *("--rail", f"tcp={address_of(name)}"),
            *("--master", master, "--heartbeat", heartbeat),
            *("--admin-listen", "127.0.0.1:0", "--time-scale", str(time_scale)),
            # Upstream's segments cost no memory before they are written to either.
            *("--grace-s", "0", "--prefault", "off"),
        ]
        self._process: RoleProcess | None = None
        self._started = threading.Event()
        self._close = threading.Event()
        self._problems: list[Exception] = []
        self._keeper = threading.Thread(
            target=self._keep, name=f"segment {name}", daemon=True
        )
        self._keeper.start()
        self._started.wait()
        for problem in self._problems:
            self._keeper.join()
            raise SegmentFailed(f"segment {name}: {problem}") from problem

    @property
    def pid(self) -> int:
        """Process id of the store."""
        assert self._process is not None, "segment did not start"
        return self._process.pid

    def close(self) -> None:
        """Takes the segment out of the pool and ends its process."""
        self._close.set()
        self._keeper.join()

    def _keep(self) -> None:
        """Starts the store and outlives it: it would die with this thread."""
        try:
            self._start()
        except Exception as error:  # told to the thread that waits for us
            self._problems.append(error)
            self._close.set()
        self._started.set()
        self._close.wait()
        if self._process is not None:
            self._process.stop(time.monotonic() + _STOP_S)

    def _start(self) -> None:
        self._process = RoleProcess("store", self.name, self._flags)
        facts = self._process.wait_ready(_READY_S)
        if not facts.get("mounted"):
            raise SegmentFailed("the master did not take it in time")


def client_name(local_hostname: str, dice: random.Random) -> str:
    """ "host:port" of a client: the given port, else one of `PORTS` that is free.

    Raises:
        OSError: none of some ports drawn is free.
    """
    host, _, port = local_hostname.rpartition(":")
    if host and port.isdecimal():
        return local_hostname
    for candidate in dice.sample(PORTS, _TRIES):
        name = f"{local_hostname}:{candidate}"
        if _is_free(address_of(name)):
            return name
    raise OSError(f"no free port of {PORTS.start} to {PORTS.stop - 1} found")


def address_of(name: str) -> str:
    """Where a client of this name listens; "localhost" is the IPv4 one."""
    host, _, port = name.rpartition(":")
    return f"127.0.0.1:{port}" if host == "localhost" else name


def heartbeat_of(facts: MasterFacts, master: str) -> str:
    """Where heartbeats go; a master bound to every address is dialled as its RPC is."""
    host, _, port = facts.heartbeat.rpartition(":")
    if host.strip("[]") in ("0.0.0.0", "::", ""):
        host = master.rpartition(":")[0]
    return f"{host}:{port}"


def _is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            # A name that is not of this machine cannot be probed; a store that is to
            # listen there says so itself.
            return error.errno != errno.EADDRINUSE
    return True
