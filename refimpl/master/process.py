"""The master as a process: bind everything, start, say so, wait, end orderly."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from refimpl.admin import AdminServer
from refimpl.clock import Clock
from refimpl.core.pool import Pool
from refimpl.errors import PortTaken
from refimpl.failpoints import Failpoints
from refimpl.heap import keep_call_memory
from refimpl.master.guarded import GuardedPool
from refimpl.master.heartbeat import Beats, HeartbeatServer, HeartbeatSettings
from refimpl.master.maintenance import Maintenance
from refimpl.master.metrics import CallMetrics
from refimpl.master.pages import Pages
from refimpl.master.service import MasterService
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.role import (
    announce,
    grpc_listen,
    grpc_server,
    listening,
    parse_address,
    port_taken,
    stop_on_signals,
)
from refimpl.security.options import tls_of
from refimpl.security.token import read_token
from refimpl.settings import in_real_time

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import TracebackType

    import grpc

    from refimpl.master.settings import MasterSettings
    from refimpl.security.token import Token

_SERVICE: Final = pool_pb2.DESCRIPTOR.services_by_name["Master"].full_name
_SWITCH_INTERVAL_S: Final = 0.001
_STOP_GRACE_S: Final = 0.3
_BACKLOG: Final = 1024


def run(
    settings: MasterSettings, *, extend: Callable[[grpc.Server], None] | None = None
) -> int:
    """Runs a master until SIGTERM or Ctrl-C.

    Args:
        settings: at factor 1, as the operator wrote them.
        extend: may add further services to the gRPC server before it starts.

    Raises:
        UsageError: an address is bad or taken; nothing has started then.
    """
    stop = stop_on_signals()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    # A thread with something short to do waits this long for the interpreter for each
    # worker that computes. With two clients looking up 8,192 keys at a time the p99 of
    # beats fell from 43 ms (Python's own 5 ms) to 17 ms, and lookups stayed as fast;
    # below, switching costs them more than beats gain.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    keep_call_memory()
    master = Master(settings)
    if extend:
        extend(master.server)
    # What was imported lives as long as the process: a full collection during a lookup
    # should not walk it again each time.
    gc.collect()
    gc.freeze()
    with master:
        announce("master", settings.name, master.addresses)
        stop.wait()
    return 0


class Master:
    """Every part of a running master; a context manager that ends them in order.

    Args:
        settings: at factor 1, as the operator wrote them.

    Raises:
        UsageError: an address is bad or taken, a token or a TLS file is no good.
    """

    def __init__(self, settings: MasterSettings) -> None:
        self._settings = settings
        self._tls = tls_of(settings, "server")
        self._token = read_token(settings.token_file)
        self._failpoints = Failpoints.from_env()
        self._clock = Clock(self._failpoints)
        self._beats = Beats()
        self._shared = GuardedPool(
            Pool(settings.pool(), _dice(settings.seed)), self._beats, self._clock
        )
        self._maintenance = Maintenance(self._shared, tick_s=settings.tick_s())
        self._health = health.HealthServicer()
        with ExitStack() as stack:
            self._bind(stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        self._heartbeat.start()
        self._maintenance.start()
        self.server.start()
        self._admin.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _bind(self, stack: ExitStack) -> None:
        """Takes every port; `stack` frees them, last taken first."""
        settings, real = self._settings, in_real_time(self._settings)
        view = time.time_ns() // 1_000_000
        metrics = CallMetrics()
        pages = Pages(
            settings=settings,
            view=view,
            shared=self._shared,
            beats=self._beats,
            maintenance=self._maintenance,
            metrics=metrics,
        )
        registry = CollectorRegistry()
        registry.register(pages)
        self._admin = _admin(settings, registry, self._failpoints, pages, self._token)
        stack.callback(self._admin.close)
        listener = _listener(settings.heartbeat_listen)
        self._heartbeat = HeartbeatServer(
            listener,
            self._beats,
            view=view,
            clock=self._clock,
            settings=HeartbeatSettings(idle_s=3 * real.client_ttl_s),
            signed=self._tls is not None,
        )
        stack.callback(self._heartbeat.stop)
        stack.callback(self._maintenance.stop)
        service = MasterService(
            self._shared,
            self._failpoints,
            metrics,
            lease_s=real.default_kv_lease_ttl_s,
            about={
                "heartbeat": _address_of(listener),
                "time_scale": settings.time_scale,
                "view": view,
            },
            signed_beats=self._tls is not None,
        )
        self.server = grpc_server(threads=settings.rpc_threads)
        stack.callback(self._stop_server)
        pool_pb2_grpc.add_MasterServicer_to_server(  # type: ignore[no-untyped-call]
            service, self.server
        )
        _add_standard_services(self.server, self._health)
        self.addresses = {
            "listen": grpc_listen(
                self.server,
                settings.listen,
                "the gRPC service (--listen)",
                tls=self._tls,
            ),
            **self._listen_to_operators(),
            "heartbeat": _address_of(listener),
            "admin": self._admin.address,
            "pid": os.getpid(),
        }

    def _listen_to_operators(self) -> dict[str, str]:
        """The same service on a second address, when there is one."""
        listen = self._settings.management_listen
        if not listen:
            return {}
        what = "the gRPC service (--management-listen)"
        found = grpc_listen(self.server, listen, what, tls=self._tls)
        return {"management": found}

    def _stop_server(self) -> None:
        """Refuses new calls, lets those under way end, wakes those that sleep."""
        self._health.enter_graceful_shutdown()
        self._failpoints.clear()
        self.server.stop(_STOP_GRACE_S).wait(timeout=2 * _STOP_GRACE_S)


def _dice(seed: int) -> random.Random:
    return random.Random(seed) if seed else random.Random()


def _admin(
    settings: MasterSettings,
    registry: CollectorRegistry,
    failpoints: Failpoints,
    pages: Pages,
    token: Token | None,
) -> AdminServer:
    try:
        return AdminServer(
            settings.admin_listen,
            "master",
            registry,
            failpoints,
            pages.state,
            {
                "role": pages.role,
                "get_all_keys": pages.object_names,
                "get_all_segments": pages.segment_names,
                "conservation": pages.conservation,
            },
            queries={"query_segment": pages.query_segment},
            token=token,
        )
    except PortTaken as error:
        what = "the admin door (--admin-listen)"
        raise PortTaken(
            what=what, address=error.address, reason=error.reason
        ) from error


def _listener(listen: str) -> socket.socket:
    """A listening socket of the heartbeat door.

    Raises:
        UsageError: the address is bad or taken.
    """
    what = "the heartbeats (--heartbeat-listen)"
    host, port = parse_address(listen, what)
    try:
        return listening(host, port, backlog=_BACKLOG)
    except OSError as error:
        raise port_taken(error, what, listen) from error


def _address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _add_standard_services(
    server: grpc.Server, servicer: health.HealthServicer
) -> None:
    """gRPC health checking and reflection."""
    serving = health_pb2.HealthCheckResponse.SERVING
    for name in ("", _SERVICE):
        servicer.set(name, serving)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    names = (_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
