"""The store as a process: take ports, then memory, serve, be known, drain, end."""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from refimpl.admin import AdminServer
from refimpl.clock import Clock
from refimpl.failpoints import Failpoints
from refimpl.role import STOP_SIGNALS, announce, ignore_signals
from refimpl.security.options import data_secret_of, tls_of
from refimpl.security.token import read_token
from refimpl.settings import in_real_time
from refimpl.store.memory import SegmentMemory, pin_to_node, require_memory
from refimpl.store.pulse import Pulse
from refimpl.store.registration import Registration, new_segment_id
from refimpl.store.server import DataServer

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from prometheus_client.metrics_core import Metric

    from refimpl.store.settings import StoreSettings

_LOG: Final = logging.getLogger(__name__)
_KEY_BYTES: Final = 32
"""Of the key that heartbeats are signed with."""
_PINGS_TO_MOUNT: Final = 5
"""Ping intervals that the ready line waits for the first mount."""
_LAST_READS_S: Final = 5.0
"""How long reads in flight may take after the grace."""
_RENEW_S: Final = 1.0


def run(settings: StoreSettings, listeners: Mapping[str, socket.socket]) -> int:
    """Runs a store until SIGTERM or Ctrl-C, and drains.

    Args:
        settings: at factor 1, as the operator wrote them.
        listeners: by rail name.

    Raises:
        UsageError: the admin address is taken, or the host is short of memory.
    """
    signals = _Signals()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    with Store(settings, listeners) as store:
        store.wait_mounted()
        announce("store", settings.name, store.facts())
        while not signals.first.wait(store.settings.ping_interval_s):
            store.pulse.check()
        store.drain(signals.second)
        ignore_signals()
    return 0


class _Signals:
    """The first SIGTERM begins the drain; the second ends its grace, never a read."""

    def __init__(self) -> None:
        self.first = threading.Event()
        self.second = threading.Event()
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        (self.second if self.first.is_set() else self.first).set()


class Store:
    """Every part of a running store; a context manager that ends them in order.

    Args:
        settings: at factor 1, as the operator wrote them.
        listeners: by rail name; they belong to the store from now on.
    """

    def __init__(
        self, settings: StoreSettings, listeners: Mapping[str, socket.socket]
    ) -> None:
        self.settings = in_real_time(settings)
        self.failpoints = Failpoints.from_env()
        segment = new_segment_id()
        tls = tls_of(settings, "client")
        beat_key = secrets.token_bytes(_KEY_BYTES) if tls else b""
        with ExitStack() as stack:
            self.server = DataServer(
                segment,
                listeners,
                self.failpoints,
                max_connections=settings.max_connections,
                idle_s=self.settings.idle_s,
                secret=data_secret_of(settings.data_secret_file),
            )
            stack.callback(self.server.close)
            require_memory(settings.size)
            registry = CollectorRegistry()
            registry.register(_StoreMetrics(self.server))
            self.admin = AdminServer(
                settings.admin_listen,
                "store",
                registry,
                self.failpoints,
                self.state,
                token=read_token(settings.token_file),
            )
            stack.callback(self.admin.close)
            self.cpus = pin_to_node(settings.numa_node)
            self.memory = SegmentMemory(
                settings.size,
                huge_pages=settings.hugepages,
                numa_node=settings.numa_node,
                prefault=settings.prefault == "on",
            )
            self._stack = stack.pop_all()
        self.registration = Registration(
            self.settings,
            self.rails,
            lambda number: self.server.renew(number, _RENEW_S),
            segment=segment,
            client=secrets.randbits(63) | 1,
            clock=Clock(self.failpoints),
            tls=tls,
            beat_key=beat_key,
        )
        self.pulse = Pulse(
            self.settings,
            self.registration.client,
            self.registration.remount,
            key=beat_key,
        )

    @property
    def rails(self) -> dict[str, str]:
        """What clients are told, by rail name: a proxy may stand before a listener."""
        bound = self.server.addresses
        return {r.name: r.advertise or bound[r.name] for r in self.settings.rails}

    def __enter__(self) -> Self:
        self.server.start(self.memory.view)
        self.admin.start()
        self.registration.start()
        self.pulse.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.registration.leave()
        self.pulse.stop()
        self._stack.close()
        # A connection that would not end keeps its view; the kernel frees the rest.
        with suppress(BufferError):
            self.memory.close()

    def wait_mounted(self) -> bool:
        """Waits for the first mount, but not for ever: masters may come later."""
        patience_s = _PINGS_TO_MOUNT * self.settings.ping_interval_s
        return self.registration.first_mount.wait(patience_s)

    def drain(self, hurry: threading.Event) -> None:
        """No new allocations, reads served for the grace, then out of the pool."""
        grace_s = self.settings.grace_s
        self.registration.drain(grace_s)
        hurry.wait(grace_s)
        self.registration.leave()
        if not self.server.wait_idle(_LAST_READS_S):
            _LOG.warning("requests still in flight after %g s", _LAST_READS_S)

    def facts(self) -> dict[str, Any]:
        """For the ready line."""
        return {
            "pid": os.getpid(),
            "rails": self.rails,
            "listen": self.server.addresses,
            "admin": self.admin.address,
            "segment": f"{self.registration.segment:016x}",
            "mounted": self.registration.is_mounted,
            "size": self.settings.size,
            "cpus": self.cpus,
            **dataclasses.asdict(self.memory.facts),
        }

    def state(self) -> dict[str, Any]:
        """For the admin page."""
        registration = self.registration
        return {
            "name": self.settings.name,
            "host_id": self.settings.host_id or self.settings.name,
            "segment": f"{registration.segment:016x}",
            "client": f"{registration.client:016x}",
            "mounted": registration.is_mounted,
            "mounts": registration.mounts,
            "heartbeat": {
                "pid": self.pulse.pid,
                "said": self.pulse.last_said,
                "starts": self.pulse.starts,
                "refuted": registration.hints_refuted,
            },
            "threads": threading.active_count(),
            "fds": len(list(Path("/proc/self/fd").iterdir())),
            "monotonic_s": time.monotonic(),
            **self.server.snapshot(),
        }


_COUNTED: Final = (
    "bytes_in",
    "bytes_out",
    "requests",
    "errors",
    "refused",
    "not_authenticated",
)


class _StoreMetrics:
    """The data server's counters for Prometheus, read when asked."""

    def __init__(self, server: DataServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Families with a sample per rail."""
        found = self._server.snapshot()
        connections = GaugeMetricFamily(
            "store_connections", "data connections", value=found["connections"]
        )
        yield connections
        for field in _COUNTED:
            family = CounterMetricFamily(
                f"store_{field}", f"{field} of a rail", labels=["rail"]
            )
            for rail, counters in found["rails"].items():
                family.add_metric([rail], counters[field])
            yield family
