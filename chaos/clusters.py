"""The clusters of one harness process: at most one runs, and it is used again.

On the local target they share one leased block of addresses and one fault proxy; on
hosts there is no proxy, and every cluster has a target of its own.

Starting a cluster costs seconds of both cores, resetting one costs little, so a
cluster is kept until a test asks for another shape.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from chaos.errors import (
    ChaosError,
    HostUnreachable,
    NeedsNewCluster,
    ProcessFailed,
    ProxyError,
)
from chaos.proxy.process import ProxyProcess, choose_proxy
from chaos.safety.identity import start_ticks_of
from chaos.safety.ledger import Ledger
from chaos.safety.locks import AddressBlock, lease_block
from chaos.safety.proxies import RecordingClient
from chaos.systems import load_system
from chaos.targets.place import Place

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.systems.base import Cluster, ClusterSpec
    from chaos.targets.base import Target

_RENEWED_AFTER = (NeedsNewCluster, ProxyError, ProcessFailed, HostUnreachable)
_LOG = logging.getLogger(__name__)


class Clusters:
    """Makes clusters in one place.

    Nothing is taken or started before the first cluster is asked for.

    Args:
        system: name of the system under test.
        run_dir: logs of the roles go to `cluster-<n>` under it.
        command: how the run was started, for whom it keeps waiting.
        place: the kind of target; its block is the one pinned, or the first free one.
        seed: of the fault proxy's dice.
    """

    def __init__(
        self,
        *,
        system: str,
        run_dir: Path,
        command: str,
        place: Place | None = None,
        seed: int = 0,
    ) -> None:
        self._system = load_system(system)
        self._run_dir = run_dir
        self._command = command
        self._place = place or Place()
        self._seed = seed
        self._count = 0
        self._ledger: Ledger | None = None
        self._block: AddressBlock | None = None
        self._proxy: ProxyProcess | None = None
        self._client: RecordingClient | None = None
        self._cluster: Cluster | None = None
        self._spec: ClusterSpec | None = None
        self._target: Target | None = None

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger.create(command=self._command)
        return self._ledger

    @property
    def proxy(self) -> RecordingClient:
        """The client of the fault proxy, which is started when first needed."""
        if self._client is None:
            self._proxy = choose_proxy(self._seed)
            self._proxy.on_restart = self._record_proxy
            self._record_proxy()
            self._client = RecordingClient(self._proxy.client(), self.ledger)
        return self._client

    @property
    def control(self) -> RecordingClient | None:
        """The fault proxy's client, where faults go through a proxy."""
        return self.proxy if self._place.local else None

    @property
    def target(self) -> Target | None:
        """The target of the running cluster."""
        return self._target

    def get(self, spec: ClusterSpec) -> Cluster:
        """The running cluster of this shape, empty and healthy.

        One that does not reset (a dead writer may hold places until the release time)
        is replaced, together with its proxy server: a Toxiproxy whose control API hangs
        (Toxiproxy#558) never comes back by itself.
        """
        if self._cluster is not None and spec == self._spec and self._reset():
            return self._cluster
        self.stop_cluster()
        self._target = self._new_target()
        self._cluster = self._system.start(spec, self._target, self.control)
        self._spec = spec
        return self._cluster

    def stop_cluster(self) -> None:
        """Stops the running cluster, if any, and what is left of a failed start."""
        cluster, target = self._cluster, self._target
        self._cluster = self._spec = self._target = None
        with contextlib.ExitStack() as stack:
            if target is not None:
                stack.callback(target.close)
            if cluster is not None:
                stack.callback(cluster.stop)

    def close(self) -> None:
        """Stops everything and gives the block back, whatever of it fails."""
        block, self._block = self._block, None
        ledger, self._ledger = self._ledger, None
        with contextlib.ExitStack() as stack:
            if block is not None:
                stack.callback(block.lock.release)
            if ledger is not None:
                stack.callback(ledger.close)
            stack.callback(self._stop_proxy)
            stack.callback(self.stop_cluster)

    def _reset(self) -> bool:
        """False when the running cluster, or its proxy, cannot get back to a beginning.

        A broken law is an error of the test before, and no reason to hide it.
        """
        assert self._cluster is not None
        try:
            self._cluster.reset()
        except _RENEWED_AFTER as error:
            _LOG.warning("a new cluster is started: %s", error)
            with contextlib.suppress(ChaosError):
                self.stop_cluster()
            if isinstance(error, ProxyError):
                self._stop_proxy()
            return False
        except ChaosError:
            self.stop_cluster()
            raise
        return True

    def _record_proxy(self) -> None:
        """Writes the process of a server of ours down, a restarted one once more."""
        pid = self._proxy.pid if self._proxy is not None else None
        ticks = start_ticks_of(pid) if pid is not None else None
        if pid is not None and ticks is not None:
            self.ledger.process("proxy", pid, ticks)

    def _stop_proxy(self) -> None:
        """Ends a server of ours; its proxies end with it, so their rows are struck."""
        proxy, client = self._proxy, self._client
        self._proxy = self._client = None
        if proxy is not None:
            proxy.stop()
        if client is not None and proxy is not None and proxy.pid is not None:
            client.strike_all()

    def _new_target(self) -> Target:
        if self._place.local and self._block is None:
            self._block = lease_block(pinned=self._place.block)
        self._count += 1
        run_dir = self._run_dir / "roles" / f"{os.getpid()}-{self._count}"
        return self._place.target(
            run_dir=run_dir,
            ledger=self.ledger,
            block=self._block,
            command=self._command,
        )
