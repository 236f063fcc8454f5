"""The engine as a process: bind, build, say so, wait, end orderly.

It never waits for the master: it serves local-only until the pool answers.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from prometheus_client import CollectorRegistry

from refimpl.admin import AdminServer
from refimpl.engine.cache_metrics import CacheCollector
from refimpl.engine.engine import Engine, ModelSettings
from refimpl.engine.ledger import LedgerCollector
from refimpl.engine.levers import EngineLevers
from refimpl.engine.service import ControlGuard, EngineService
from refimpl.engine.settings import hicache_settings
from refimpl.engine.storage import open_storage
from refimpl.failpoints import Failpoints
from refimpl.heap import share_one_heap
from refimpl.hicache import HiCache
from refimpl.proto import pool_pb2_grpc
from refimpl.role import (
    announce,
    grpc_listen,
    grpc_server,
    parse_address,
    stop_on_signals,
)
from refimpl.security.token import is_loopback, read_token

if TYPE_CHECKING:
    from types import TracebackType

    from refimpl.engine.settings import EngineSettings

_CONTROL_THREADS: Final = 16
"""Beside one thread for every request inside: control is never starved by prefill."""
_STOP_GRACE_S: Final = 0.5
_STOP_MOST_S: Final = 8.0
_SWITCH_INTERVAL_S: Final = 0.001


def run(settings: EngineSettings) -> int:
    """Runs an engine until SIGTERM or Ctrl-C.

    Raises:
        UsageError: an address is bad or taken, or the page cannot be cut.
    """
    stop = stop_on_signals()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    # A poll of 20 ms must not wait 5 ms for each thread that computes.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    share_one_heap()
    with EngineProcess(settings) as process:
        announce("engine", settings.name, process.addresses)
        stop.wait()
        _end_at_the_latest(_STOP_MOST_S)
    return 0


class EngineProcess:
    """Every part of a running engine; a context manager that ends them in order.

    Args:
        settings: at factor 1, as the operator wrote them.

    Raises:
        UsageError: an address is bad or taken.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._failpoints = Failpoints.from_env(rng=random.Random(settings.seed))
        with ExitStack() as stack:
            self._build(stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        self._server.start()
        self._admin.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _build(self, stack: ExitStack) -> None:
        """Takes ports and builds the parts; `stack` ends them, last made first."""
        settings = self._settings
        self._token = read_token(settings.token_file)
        cache_settings = hicache_settings(settings)
        storage, client = open_storage(
            settings, cache_settings, self._failpoints, stack
        )
        cache = HiCache(
            storage,
            cache_settings,
            time.monotonic,
            self._failpoints,
            random.Random(settings.seed),
        )
        stack.callback(cache.close)
        engine = Engine(_model_settings(settings), cache)
        stack.callback(engine.close)
        levers = EngineLevers(
            chosen=settings,
            cache_settings=cache_settings,
            engine=engine,
            cache=cache,
            client=client,
        )
        registry = CollectorRegistry()
        registry.register(LedgerCollector(engine.ledger, levers.gauges))
        registry.register(CacheCollector(cache.state))
        self._admin = AdminServer(
            settings.admin_listen,
            "engine",
            registry,
            self._failpoints,
            levers.state,
            {"settings": levers.settings},
            token=self._token,
        )
        stack.callback(self._admin.close)
        self._listen(EngineService(engine, levers, self._guard()))
        stack.callback(self._stop_serving, engine)
        stack.callback(self._failpoints.clear)

    def _guard(self) -> ControlGuard:
        """Who may pull at levers: off loopback nobody without the token."""
        host, _ = parse_address(self._settings.listen, "the gRPC service (--listen)")
        return ControlGuard(token=self._token, open_door=is_loopback(host))

    def _listen(self, service: EngineService) -> None:
        settings = self._settings
        self._server = grpc_server(threads=settings.max_requests + _CONTROL_THREADS)
        pool_pb2_grpc.add_EngineServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]
        what = "the gRPC service (--listen)"
        self.addresses = {
            "listen": grpc_listen(self._server, settings.listen, what),
            "admin": self._admin.address,
            "pid": os.getpid(),
        }

    def _stop_serving(self, engine: Engine) -> None:
        """Refuses new calls; those inside are called off and still get an answer."""
        stopped = self._server.stop(_STOP_GRACE_S)
        engine.close()
        stopped.wait(_STOP_MOST_S)


def _model_settings(settings: EngineSettings) -> ModelSettings:
    return ModelSettings(
        fingerprint=settings.fingerprint,
        page_bytes=settings.page_bytes,
        prefill_tokens_per_s=settings.prefill_rate,
        prefill_slots=settings.prefill_slots,
        capacity=settings.max_requests,
        policy=settings.policy,
        poll_s=settings.poll_s,
    )


def _end_at_the_latest(seconds: float) -> None:
    """Ends the process orderly enough should its parts hang on their way down.

    A storage call that never returns holds a thread that Python would join for ever.
    """

    def end() -> None:
        sys.stderr.write(f"refimpl engine: not down after {seconds:g} s, leaving\n")
        sys.stderr.flush()
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
