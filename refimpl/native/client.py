"""The little that we use of Mooncake's own client, as a seam, and how it is opened.

The native calls know no deadline of ours and may hang for a minute; whoever calls them
does so in a lane (`lanes.py`). Names and codes are upstream's (`mooncake.store`).
"""

from __future__ import annotations

import http.client
import importlib
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from refimpl.core.codes import Code
from refimpl.role import parse_address
from refimpl.security.token import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from refimpl.native.memory import SharedMemory

    Opener = Callable[[], "Native"]

_LOCAL_BUFFER_BYTES = 16 << 20
_KNOCK_S = 0.5
_ANSWER_BYTES = 4096
_BIND = "MC_TCP_BIND_ADDRESS"


class NotConnected(Exception):
    """Mooncake's client could not be set up: usually the master is not there yet."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(f"setup of Mooncake's client failed with {code} {why}".strip())
        self.code = code


class Native(Protocol):
    """Blocking calls without a deadline; codes are per name, in order."""

    def register(self, memory: SharedMemory) -> int:
        """Makes memory usable for `read` and `write`: 0 or a code."""
        ...

    def exist(self, names: Sequence[str]) -> Sequence[int]:
        """1 there, 0 not there, negative a code. Grants leases (Mooncake#2187)."""
        ...

    def places(self, names: Sequence[str]) -> Sequence[str]:
        """The endpoint that a read of each name would go to, "" where not known."""
        ...

    def read(
        self, names: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]
    ) -> Sequence[int]:
        """Bytes read into registered memory, or a negative code."""
        ...

    def write(
        self,
        names: Sequence[str],
        addresses: Sequence[int],
        sizes: Sequence[int],
        *,
        replicas: int,
        segment: str,
    ) -> Sequence[int]:
        """0 or a code; `segment` is tried first, "" leaves the place to the master."""
        ...

    def remove(self, name: str) -> int:
        """0 or a code; a lease does not hinder it."""
        ...

    def make_way(self, thread: int) -> None:
        """Nobody waits any more for the call of this thread (its native id)."""
        ...

    def wait(self) -> None:
        """Blocks until the client is gone, by its own end or by `close`."""
        ...

    def close(self) -> None: ...


class Gone(Exception):
    """The client ended before it answered: it was killed, or native code broke down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """Arguments of `setup`: a client that contributes no memory of its own."""

    master: str
    metadata: str = "P2PHANDSHAKE"
    host: str = "127.0.0.1"
    protocol: str = "tcp"
    admin: str = ""
    """HOST:PORT of the master's admin HTTP: a better proof that it is there."""


def load(options: NativeOptions) -> Any:
    """The wheel's module, told to stay on loopback where the host is.

    Raises:
        ImportError, OSError: the wheel or its library is not installed.
    """
    if is_loopback(options.host):
        # Else Mooncake advertises the first address of the machine that is no loopback.
        os.environ.setdefault(_BIND, options.host)
    return importlib.import_module("mooncake.store")


class MooncakeClient:
    """The calls of `Native` on the wheel; memory by its address in this process.

    Raises:
        NotConnected: no master answered.
    """

    def __init__(self, module: Any, options: NativeOptions) -> None:
        self._module = module
        self._store = module.MooncakeDistributedStore()
        code = self._store.setup(
            options.host,
            options.metadata,
            0,
            _LOCAL_BUFFER_BYTES,
            options.protocol,
            "",
            options.master,
        )
        if code:
            self._store.close()
            raise NotConnected(int(code))

    def register(self, address: int, size_bytes: int) -> int:
        return int(self._store.register_buffer(address, size_bytes))

    def exist(self, names: Sequence[str]) -> Sequence[int]:
        found: Sequence[int] = self._store.batch_is_exist(list(names))
        return found

    def places(self, names: Sequence[str]) -> Sequence[str]:
        described = self._store.batch_get_replica_desc(list(names))
        return [self._place(described.get(name, ())) for name in names]

    def read(
        self, names: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]
    ) -> Sequence[int]:
        codes: Sequence[int] = self._store.batch_get_into(
            list(names), list(addresses), list(sizes)
        )
        return codes

    def write(
        self,
        names: Sequence[str],
        addresses: Sequence[int],
        sizes: Sequence[int],
        *,
        replicas: int,
        segment: str,
    ) -> Sequence[int]:
        config = self._module.ReplicateConfig()
        config.replica_num = replicas
        if segment:
            config.preferred_segment = segment
        codes: Sequence[int] = self._store.batch_put_from(
            list(names), list(addresses), list(sizes), config
        )
        return codes

    def remove(self, name: str) -> int:
        return int(self._store.remove(name, True))

    def close(self) -> None:
        self._store.close()

    def _place(self, replicas: Sequence[Any]) -> str:
        """The first complete replica in memory: upstream tries no other."""
        for replica in replicas:
            complete = replica.status == self._module.ReplicaStatus.COMPLETE
            if complete and replica.is_memory_replica():
                described = replica.get_memory_descriptor().buffer_descriptor
                return str(described.transport_endpoint)
        return ""


def knock(master: str, timeout_s: float = _KNOCK_S) -> None:
    """Whether anybody listens there at all.

    `setup` tries for a minute and a half and hears nobody meanwhile: it is not called
    before the master is there.

    Raises:
        NotConnected: nobody does.
    """
    host, port = parse_address(master.rpartition("://")[2].partition(",")[0], "master")
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        raise NotConnected(Code.RPC_FAIL, f"({master}: {error})") from error


def knock_at_admin(admin: str, timeout_s: float = _KNOCK_S) -> None:
    """Whether the master is at work, not only its port open: it may be stopped, or
    somebody may stand before it.

    Raises:
        NotConnected: it does not answer.
    """
    host, port = parse_address(admin, "the admin of Mooncake (--mooncake-admin)")
    door = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        door.request("GET", "/health")
        door.getresponse().read(_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise NotConnected(Code.RPC_FAIL, f"({admin}: {error!r})") from error
    finally:
        door.close()


def code_of_exist(found: int) -> int:
    """`exist` as a code of the house."""
    if found > 0:
        return Code.OK
    return Code.OBJECT_NOT_FOUND if found == 0 else found
