"""The real Mooncake as a system under test: masters, stores and clients as processes.

Every role is a process of the target, ended with the harness. A plain master stands
behind proxies on the local target; stores cannot (see `layout.py`). What Mooncake has
no way to do raises `NotHere` with the reason, and the test that asked is skipped.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos.errors import HarnessError, NeedsNewCluster, NotHere
from chaos.report.redaction import know
from chaos.safety.identity import send_signal, state_of, wait_until
from chaos.systems.engines import (
    CALL_TIMEOUT_S,
    Engines,
    engine_settings,
)
from chaos.systems.layout import MASTER, PROBE
from chaos.systems.mooncake import layout, ports
from chaos.systems.mooncake.admin import Admin
from chaos.systems.mooncake.commands import ROLE_TOKEN, Commands
from chaos.systems.mooncake.engines_over import EnginesOver
from chaos.systems.mooncake.expired import Expired
from chaos.systems.mooncake.limits import limits_of
from chaos.systems.mooncake.masters import Masters, answers
from chaos.systems.mooncake.package import installed
from chaos.systems.mooncake.probe import MooncakeProbe
from chaos.systems.mooncake.scraper import Scraper
from chaos.systems.mooncake.shape import shape_of
from chaos.systems.probe import READY, RemoteProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chaos.hosts.host import Hosts
    from chaos.systems.base import (
        Answer,
        ClusterSpec,
        KvProbe,
        Link,
        Process,
        Request,
    )
    from chaos.systems.mooncake.client import Hang
    from chaos.systems.mooncake.plan import ClientPlan
    from chaos.systems.mooncake.scraper import Sink
    from chaos.targets.base import Target

_READY_TIMEOUT_S: Final = 20.0
_MOUNT_TIMEOUT_S: Final = 30.0
_ETCD_TIMEOUT_S: Final = 15.0
_EMPTY_TIMEOUT_S: Final = 5.0
_CONNECT_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.05
_REMOVED_AT_ONCE: Final = 512
_HELPERS: Final = 8
_REVERTED: Final = "reverted"
_NEVER_SAID: Final = "(a line that nobody prints)"
"""Waited for only of a role that has ended or is late: its last words come with it."""


class MooncakeCluster:
    """One cluster of Mooncake; see `chaos.systems.base.Cluster`.

    Beside the protocol: `package` (version and build), `shape`, `here` (addresses),
    `leader()`, `admin(master)`, `client_plan`, `hangs`, `observe_into(sink)`.
    """

    def __init__(self, spec: ClusterSpec, target: Target, proxy: Any) -> None:
        self.spec = spec
        self.shape = shape_of(spec)
        layout.check(self.shape)
        self.package = installed()
        self._target = target
        self._proxy = proxy
        target.prepare(
            dataclasses.replace(spec, more_roles=layout.more_roles(self.shape))
        )
        local = target.hosts is None
        wanted = layout.wanted(self.shape)
        self.here = layout.Addresses(
            shape=self.shape,
            address=target.address,
            ports=ports.found(wanted, target.address) if local else ports.fixed(wanted),
            local=local,
        )
        inherited = os.environ.get(ROLE_TOKEN, "")
        self._token = inherited or ("" if local else secrets.token_hex(16))
        know(self._token)
        self._engines = Engines(
            service=self.here.service,
            admin=self.here.door,
            settings=engine_settings(spec),
            token=self._token,
        )
        self.limits = limits_of(self.shape)
        self._links = self.here.links()
        self._made: list[str] = []
        self._probes: list[KvProbe] = []
        self._own: KvProbe | None = None
        self._lock = threading.Lock()
        self._sink: Sink | None = None
        self._scratch: Path | None = None
        self._masters = Masters(self.here, self.process)
        self._scraper = Scraper(self._masters.doors)
        logs = {master: target.run_dir / f"{master}.err" for master in self.masters}
        self._expired = Expired(logs, self.client_plan.store_at) if local else None
        self._commands = Commands(
            package=self.package if local else self.package.elsewhere(),
            here=self.here,
            engines=self._engines,
            python=target.python,
            scratch=self._directory,
            token=self._token,
        )
        self._as_started: dict[str, tuple[int, int]] = {}
        self._over = EnginesOver(
            self._engines,
            self.engines,
            self.client_plan,
            asker=self._cleaner,
            process=self.process,
            remote=not local,
        )

    # -- shape -------------------------------------------------------------------

    @property
    def hosts(self) -> Hosts | None:
        return self._target.hosts

    @property
    def masters(self) -> tuple[str, ...]:
        return self.here.masters

    @property
    def stores(self) -> tuple[str, ...]:
        return self.here.stores

    @property
    def engines(self) -> tuple[str, ...]:
        return self.here.engines

    @property
    def roles(self) -> tuple[str, ...]:
        return self.here.roles

    @property
    def links(self) -> tuple[Link, ...]:
        return self._links

    def host_of(self, role: str) -> str:
        return self.here.host_of(role)

    def address_of(self, role: str, plane: str = "control", rail: int = 0) -> str:
        return self._target.address(role, plane, rail)

    @property
    def version(self) -> str:
        """Version and build of what is tested, as its master says them."""
        return f"{self.package.version} ({self.package.build})"

    def admin(self, master: str = MASTER) -> Admin:
        """The admin door of a master."""
        return self._masters.doors[master]

    def leader(self) -> str:
        """The master that serves now, "" when none says that it does."""
        return self._masters.leader()

    def mounted(self) -> set[str]:
        """The stores whose segments are mounted; none while no master answers."""
        return self._masters.mounted()

    def mounts(self) -> dict[str, int]:
        """How often each store was taken for dead: one that was mounts again, empty.

        {} on hosts: there the masters' logs are fetched when all is over.
        """
        if self._expired is None:
            return {}
        counts = self._expired.counts()
        return {store: counts[store] for store in self.stores}

    def argv(self, role: str) -> list[str]:
        """The command line of a role, with what ends it when we end."""
        return self._commands.argv(role)

    # -- life --------------------------------------------------------------------

    def start(self) -> None:
        """Starts all roles; back when segments are mounted and engines reach the pool.

        Raises:
            HarnessError: They are not in time.
            ProcessFailed: A role ended, or an engine does not reach the pool in time.
        """
        if self.shape.elected:
            self._start_etcd()
        self._everywhere(self._spawn, self.masters)
        for link in self._proxied:
            self._made.append(link.proxy)
            self._proxy.create(link.proxy, link.listen, link.upstream)
        self._wait_leader()
        others = (*self.stores, *self.engines, *self._probe_role)
        self._everywhere(self._spawn, others)
        self._wait_mounted(self.stores)
        self._everywhere(self._wait_ready, (*self.engines, *self._probe_role))
        self._everywhere(self._wait_connected, self.engines)

    def stop(self) -> None:
        """Ends clients, roles and proxies. Safe to call twice."""
        made, self._made = self._made, []
        scratch, self._scratch = self._scratch, None
        with ExitStack() as stack:
            if scratch is not None:
                stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            if made:
                stack.callback(self._everywhere, self._proxy.delete, made)
            stack.callback(self._target.close)
            stack.callback(self._engines.close)
            stack.callback(self._close_probes)
            stack.callback(self._scraper.close)

    def process(self, role: str) -> Process | None:
        return self._target.process(role)

    def start_role(self, role: str) -> Process:
        """Starts a stopped role again and waits until it serves, or is mounted.

        An engine serves without the pool; where a master serves, it is given the time
        to reach it, which a fault between them may not let it.
        """
        process = self._spawn(role)
        self._wait_ready(role)
        if role in self.engines and self.leader():
            wait_until(
                lambda: self._over.connected(role),
                timeout_s=_CONNECT_TIMEOUT_S,
                poll_s=_POLL_S,
            )
        return process

    def stop_role(self, role: str, *, timeout_s: float = 10.0) -> int:
        return self._target.stop(role, timeout_s=timeout_s)

    def remove_store(self, store: str) -> float:
        reason = "a segment is unmounted by its own process only; stop the role instead"
        raise self._not_here("remove_store", reason)

    def reset(self) -> None:
        """Back to an empty, healthy cluster.

        A new one starts in seconds, so nothing is repaired here: a role that is not as
        it was started, or an object that stays, asks for a new one.

        Raises:
            NeedsNewCluster: That is the case.
        """
        self._close_probes()
        self._heal()
        changed = [role for role in self.roles if not self._as_it_was(role)]
        if changed:
            raise NeedsNewCluster(f"{', '.join(changed)} was touched")
        self._everywhere(self._over.clear_failpoints, self.engines)
        self._everywhere(self._engines.reset, self.engines)
        self._empty()

    # -- what the masters say ------------------------------------------------------

    def role_state(self, role: str) -> dict[str, Any]:
        """What a master says of itself: role, segments, numbers; or an engine."""
        if role in self.masters:
            return self._masters.state(role, self.version)
        if role in self.engines:
            return self._over.role_state(role)
        raise self._not_here("role_state", f"{role} has no admin door")

    def owned_bytes(self) -> dict[str, int]:
        return self._masters.owned_bytes()

    def conservation(self) -> list[str]:
        """Broken laws of engines, and of the leader as far as its numbers tell."""
        return self._over.broken_laws() + self._masters.broken_laws()

    def observe_into(self, sink: Sink) -> None:
        """What masters say of themselves goes there once a second, when it changed.

        So does every call of a client that was given up.
        """
        self._sink = sink
        self._scraper.start(sink)

    # -- clients -------------------------------------------------------------------

    def kv(self, host: str = "") -> KvProbe:
        """A client of the harness in a worker, on a link of its own."""
        if self.hosts is None:
            return self.probe(host)
        probe = RemoteProbe(self.here.probe(), self._token, host)
        self._probes.append(probe)
        return probe

    def probe(self, host: str = "") -> MooncakeProbe:
        """The same with all that it offers; on the local target only."""
        if self.hosts is not None:
            raise self._not_here("probe", "the harness is not on the hosts' networks")
        log = self._target.run_dir / "workers.err"
        plan = self.client_plan
        probe = MooncakeProbe(plan, host, log=log, on_hang=self._note_hang)
        self._probes.append(probe)
        return probe

    @property
    def client_plan(self) -> ClientPlan:
        """How a client of the harness joins."""
        return self.here.client(PROBE)

    # -- engines, see `engines_over.py` ----------------------------------------------

    def prefill(self, engine: str, request: Request, *, timeout_s: float) -> Answer:
        return self._over.prefill(engine, request, timeout_s=timeout_s)

    def abort(self, engine: str, request_id: str) -> None:
        self._over.abort(engine, request_id)

    def expected_output(self, request: Request) -> str:
        return self._over.expected_output(request)

    def engine_state(self, engine: str) -> dict[str, Any]:
        return self._over.engine_state(engine)

    def local_only(self, engine: str, on: bool) -> None:
        self._over.local_only(engine, on)

    def flush_local(self, engine: str) -> None:
        self._over.flush_local(engine)

    def owners_of(self, request: Request) -> list[tuple[str, ...]]:
        return self._over.owners_of(request)

    def drop_pages(
        self, request: Request, pages: Sequence[int], *, component: str | None = None
    ) -> int:
        return self._over.drop_pages(request, pages, component=component)

    def refuse_failpoint(self, role: str, name: str) -> None:
        self._over.refuse_failpoint(role, name)

    def set_failpoint(self, role: str, name: str, spec: str) -> None:
        self._over.set_failpoint(role, name, spec)

    def clear_failpoints(self, role: str) -> None:
        self._over.clear_failpoints(role)

    def failpoint_hits(self, role: str, name: str) -> int:
        return self._over.failpoint_hits(role, name)

    # -- inside --------------------------------------------------------------------

    @property
    def _proxied(self) -> tuple[Link, ...]:
        return tuple(link for link in self._links if link.proxy)

    def _spawn(self, role: str) -> Process:
        process = self._target.spawn(role, self.argv(role), self._commands.env(role))
        self._as_started.setdefault(role, (process.pid, process.start_ticks))
        return process

    def _start_etcd(self) -> None:
        self._spawn(layout.ETCD)
        door = Admin(address=self.here.etcd_door())
        self._wait_for(layout.ETCD, lambda: answers(door, "/health"), _ETCD_TIMEOUT_S)

    def _wait_ready(self, role: str) -> None:
        if role in self.masters:
            self._wait_for(role, lambda: self._masters.answers(role), _READY_TIMEOUT_S)
        elif role in self.stores:
            self._wait_mounted([role])
        elif role in self.engines or role == PROBE:
            marker = READY if role == PROBE else f"refimpl engine {role} ready "
            self._target.wait_ready(role, marker, timeout_s=_READY_TIMEOUT_S)

    def _wait_leader(self) -> None:
        for master in self.masters:
            self._wait_ready(master)
        if not wait_until(
            lambda: bool(self.leader()), timeout_s=_READY_TIMEOUT_S, poll_s=_POLL_S
        ):
            raise HarnessError("no master became the leader")

    def _wait_connected(self, engine: str) -> None:
        """An engine serves without the pool: what it would miss opens its breaker."""
        self._wait_for(engine, lambda: self._over.connected(engine), _READY_TIMEOUT_S)

    def _wait_mounted(self, stores: Iterable[str]) -> None:
        wanted = set(stores)

        def settled() -> bool:
            dead = any(self.process(store) is None for store in wanted)
            return dead or wanted <= self.mounted()

        wait_until(settled, timeout_s=_MOUNT_TIMEOUT_S, poll_s=_POLL_S)
        missing = sorted(wanted - self.mounted())
        for store in missing:
            if self.process(store) is None:  # raises with its last words
                self._target.wait_ready(store, _NEVER_SAID, timeout_s=0.1)
        if missing:
            raise HarnessError(f"not mounted: {', '.join(missing)}")

    def _wait_for(self, role: str, ready: Callable[[], bool], timeout_s: float) -> None:
        """Waits for a role that has no ready line of ours.

        Raises:
            ProcessFailed: It ended, or is not ready in time.
        """

        def settled() -> bool:
            return ready() or self.process(role) is None

        wait_until(settled, timeout_s=timeout_s, poll_s=_POLL_S)
        if self.process(role) is None or not ready():
            self._target.wait_ready(role, _NEVER_SAID, timeout_s=0.1)

    def _as_it_was(self, role: str) -> bool:
        process = self.process(role)
        if process is None:
            return False
        if (process.pid, process.start_ticks) != self._as_started.get(role):
            return False
        if self.hosts is None and state_of(process.pid) == "T":
            send_signal(process.pid, process.start_ticks, signal.SIGCONT)
            return False
        return True

    def _empty(self) -> None:
        """Removes every object, leased or not.

        Raises:
            NeedsNewCluster: Some stay, or the master does not do it.
        """
        door = self.admin(self.leader() or MASTER)

        def empty() -> bool:
            keys = door.keys()
            for at in range(0, len(keys), _REMOVED_AT_ONCE):
                chosen = keys[at : at + _REMOVED_AT_ONCE]
                self._cleaner().remove(chosen, timeout_s=CALL_TIMEOUT_S)
            return self._masters.empty()

        try:
            done = wait_until(empty, timeout_s=_EMPTY_TIMEOUT_S, poll_s=_POLL_S)
        except HarnessError as error:
            raise NeedsNewCluster(str(error)) from error
        if not done:
            raise NeedsNewCluster("objects stay")

    def _cleaner(self) -> KvProbe:
        """A client of ours for our own questions; it ends when the cluster is reset."""
        with self._lock:
            if self._own is None and self.hosts is None:
                self._own = MooncakeProbe(self.client_plan, on_hang=self._note_hang)
            elif self._own is None:
                self._own = RemoteProbe(self.here.probe(), self._token)
            return self._own

    @property
    def _probe_role(self) -> tuple[str, ...]:
        """Our own client is a role where it cannot run here."""
        return () if self.hosts is None else (PROBE,)

    def _note_hang(self, hang: Hang) -> None:
        if self._sink is not None:
            self._sink("worker", {"hung": dataclasses.asdict(hang)})

    def _heal(self) -> None:
        if self._proxied:
            self._proxy.heal([link.proxy for link in self._proxied])
        for host in self.hosts.all if self.hosts is not None else ():
            for fault in host.agent.faults():
                if fault.state != _REVERTED:
                    host.agent.disarm(fault.fault_id)

    def _close_probes(self) -> None:
        for probe in self._probes:
            probe.close()
        self._probes.clear()
        if self._own is not None:
            self._own.close()
            self._own = None

    def _directory(self) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="moonquake-etcd-"))
        return self._scratch

    def _everywhere(self, act: Callable[[str], Any], what: Iterable[str]) -> None:
        with ThreadPoolExecutor(_HELPERS, thread_name_prefix="mooncake") as helpers:
            for _ in helpers.map(act, what):
                pass

    def _not_here(self, capability: str, reason: str) -> NotHere:
        return NotHere(capability=capability, target="mooncake", reason=reason)
