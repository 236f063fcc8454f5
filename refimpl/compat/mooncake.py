"""`MooncakeDistributedStore` over the reference pool: upstream's calls and codes.

What differs on purpose is written where it differs; in short:

- every call has one deadline (`REFIMPL_COMPAT_TIMEOUT_S`, 10 s) where upstream has
  timers of 30 and 60 s, and another replica is read where there is one;
- bytes are verified by a checksum whenever a whole object is read;
- a segment is a store process of its own (`refimpl store`), not part of the client;
- memory replicas only, at most two; RDMA is spoken by nobody: `protocol` is accepted.

Tensors, SSD offload, the dummy client, copy and move tasks are not there.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from typing import TYPE_CHECKING, Any, Final

from refimpl.client.rpc import RpcFailed
from refimpl.compat.connected import Connected
from refimpl.compat.options import DEFAULT_TENANT, Options
from refimpl.compat.reading import Reading
from refimpl.compat.writing import Writing
from refimpl.core.codes import Code
from refimpl.errors import RefimplError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOG: Final = logging.getLogger(__name__)
_BAD: Final = int(Code.INVALID_PARAMS)
HEALTHY, NOT_SET_UP, MASTER_UNREACHABLE = 0, 1, 2


class MooncakeDistributedStore(Reading, Writing):
    """A client of the pool, contributing a segment when it is given a size.

    Made without arguments; `setup` connects it, `close` gives everything back, and so
    does the garbage collector or the end of the process. Safe from several threads.
    """

    def __init__(self) -> None:
        self._now: Connected | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    # Life.

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Connects; 0 or a code. Either a dictionary, or upstream's arguments.

        Raises:
            TypeError: arguments that upstream has not, or one is missing.
        """
        if self._now is not None:
            _LOG.error("setup: this client is set up; close it first")
            return _BAD
        try:
            self._now = Connected(_options(args, kwargs))
        except ValueError as error:
            _LOG.error("setup: %s", error)
            return _BAD
        except RpcFailed as error:
            _LOG.error("setup: %s", error)
            return int(error.code)
        except (RefimplError, OSError) as error:
            _LOG.error("setup: %s", error)
            return int(Code.INTERNAL_ERROR)
        self._finalizer = weakref.finalize(self, self._now.close)
        return 0

    def close(self) -> int:
        """Gives everything back; the objects of its segment are gone then."""
        if self._finalizer is not None:
            self._finalizer()
        self._now = None
        return 0

    def health_check(self) -> int:
        """0 healthy, 1 not set up or closed, 2 the master does not answer."""
        if self._now is None:
            return NOT_SET_UP
        return HEALTHY if self._now.link.is_healthy() else MASTER_UNREACHABLE

    def get_hostname(self) -> str:
        """ "host:port" of this client, which is the name of its segment."""
        return "" if self._now is None else self._now.name

    # Memory.

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Lets calls by address touch this memory; regions may not overlap."""
        if self._now is None:
            return _BAD
        return int(self._now.memory.register(buffer_ptr, size))

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Takes that back, for the region that begins there."""
        if self._now is None:
            return _BAD
        return int(self._now.memory.unregister(buffer_ptr))

    # Removal.

    def remove(self, key: str, force: bool = False) -> int:
        """Removes an object; one that a reader holds only by force."""
        return self.batch_remove([key], force)[0]

    def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
        """Removes objects; a code each."""
        if self._now is None:
            return [_BAD] * len(keys)
        return self._now.link.remove(keys, force=force) if keys else []

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes objects whose name the pattern is found in; how many, or a code."""
        if self._now is None:
            return _BAD
        return int(self._now.link.remove_matching(regex_pattern, force=force))

    def remove_all(self, force: bool = False) -> int:
        """Removes all objects that no reader holds; how many, or a code."""
        if self._now is None:
            return _BAD
        return int(self._now.link.remove_all(force=force))

    def batch_replica_clear(self, keys: list[str], segment_name: str = "") -> list[str]:
        """Removes objects without a lease; the names of those that went.

        The pool does not part with single replicas: with a segment's name, objects
        that have no other replica go, and the others stay whole.
        """
        if self._now is None:
            return []
        chosen = keys
        if segment_name:
            replicas = self.batch_get_replica_desc(keys)
            chosen = [k for k in keys if _only_in(replicas.get(k, []), segment_name)]
        codes = self.batch_remove(chosen)
        return [k for k, code in zip(chosen, codes, strict=True) if code == Code.OK]


def _options(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Options:
    """Both forms of `setup`.

    Raises:
        TypeError: neither fits.
        ValueError: a value makes no sense.
    """
    if len(args) + len(kwargs) == 1:
        config = args[0] if args else kwargs.get("config")
        if isinstance(config, dict):
            return Options.of(config)
    bound = inspect.signature(_arguments).bind(*args, **kwargs)
    return _arguments(*bound.args, **bound.kwargs)


def _arguments(
    local_hostname: str,
    metadata_server: str,
    global_segment_size: int,
    local_buffer_size: int,
    protocol: str,
    rdma_devices: str,
    master_server_addr: str,
    engine: object = None,
    enable_ssd_offload: bool = False,
    ssd_offload_path: str = "",
    tenant_id: str = DEFAULT_TENANT,
    enable_client_http_server: bool = False,
    client_http_port: int = 9300,
) -> Options:
    """Upstream's arguments, in their order."""
    for name, value in (
        ("global_segment_size", global_segment_size),
        ("local_buffer_size", local_buffer_size),
    ):
        if not isinstance(value, int) or value < 0:
            raise TypeError(f"{name} is a number of bytes, not {value!r}")
    if enable_ssd_offload:
        raise ValueError("enable_ssd_offload: the reference system has no SSD tier")
    return Options(
        local_hostname=local_hostname,
        global_segment_size=global_segment_size,
        local_buffer_size=local_buffer_size,
        protocol=protocol,
        master_server_addr=master_server_addr,
        tenant_id=tenant_id or DEFAULT_TENANT,
        enable_client_http_server=enable_client_http_server,
        client_http_port=client_http_port,
    )


def _only_in(replicas: list[Any], segment_name: str) -> bool:
    return [replica.segment_name for replica in replicas] == [segment_name]
