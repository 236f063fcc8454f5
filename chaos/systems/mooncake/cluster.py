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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import chaos
from chaos.errors import HarnessError, NeedsNewCluster, NotHere
from chaos.report.redaction import know
from chaos.safety.identity import send_signal, state_of, wait_until
from chaos.systems.clocks import Clocks, in_our_time
from chaos.systems.engines import (
    CALL_TIMEOUT_S,
    Engines,
    engine_settings,
    flags_of,
)
from chaos.systems.layout import MASTER, PROBE
from chaos.systems.mooncake import layout, ports
from chaos.systems.mooncake.admin import Admin
from chaos.systems.mooncake.limits import limits_of
from chaos.systems.mooncake.package import installed
from chaos.systems.mooncake.plan import VARIABLE as PLAN
from chaos.systems.mooncake.probe import MooncakeProbe
from chaos.systems.mooncake.scraper import Scraper
from chaos.systems.mooncake.shape import shape_of
from chaos.systems.probe import READY, TOKEN, RemoteProbe, command

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
_POLL_S: Final = 0.05
_REMOVED_AT_ONCE: Final = 512
_HELPERS: Final = 8
ROLE_TOKEN: Final = "REFIMPL_TOKEN"  # noqa: S105 - the name of a variable
_QUIET: Final = {
    "GLOG_logtostderr": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
_LAUNCH: Final = Path(__file__).with_name("launch.py")


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
        self._sink: Sink | None = None
        self._scratch: Path | None = None
        self._scraper = Scraper({one: self.admin(one) for one in self.masters})
        self._as_started: dict[str, tuple[int, int]] = {}
        self._clocks = Clocks()

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
        return Admin(address=self.here.admin(master))

    def leader(self) -> str:
        """The master that serves now, "" when none says that it does."""
        if not self.shape.elected:
            return MASTER
        for master in self.masters:
            try:
                if self.process(master) and "leader" in self.admin(master).role():
                    return master
            except HarnessError:
                continue
        return ""

    def argv(self, role: str) -> list[str]:
        """The command line of a role, with what ends it when we end."""
        return [*self._launched(role), *self._program(role)]

    # -- life --------------------------------------------------------------------

    def start(self) -> None:
        """Starts masters, then stores; back when every segment is mounted."""
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
        """Starts a stopped role again and waits until it serves, or is mounted."""
        process = self._spawn(role)
        self._wait_ready(role)
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
        for engine in self.engines:
            self._engines.ask(engine, "DELETE", "/failpoints")
        self._everywhere(self._engines.reset, self.engines)
        self._empty()

    # -- what the masters say ------------------------------------------------------

    def role_state(self, role: str) -> dict[str, Any]:
        """What a master says of itself: role, segments, numbers; or an engine."""
        if role in self.masters:
            return _Told(self.admin(role).state(), version=self.version)
        if role in self.engines:
            points = self._engines.ask(role, "GET", "/failpoints")
            state = self._named(self._engines.ask(role, "GET", "/state"))
            return {**state, "failpoints": points}
        raise self._not_here("role_state", f"{role} has no admin door")

    def owned_bytes(self) -> dict[str, int]:
        """Bytes allocated on every mounted store."""
        leader = self.leader()
        if not leader:
            raise HarnessError("no master is the leader")
        door, names = self.admin(leader), self._names()
        return {
            names[segment]: door.used_bytes(segment)
            for segment in door.segments()
            if segment in names
        }

    def mounted(self) -> set[str]:
        """The stores whose segments are mounted; none while no master answers."""
        leader, names = self.leader(), self._names()
        if not leader:
            return set()
        try:
            return {names[one] for one in self.admin(leader).segments() if one in names}
        except HarnessError:
            return set()

    def conservation(self) -> list[str]:
        """Broken laws of engines, and bytes without an object, by the leader's numbers.

        Mooncake's master tells no more of its own books.
        """
        broken = [
            f"{engine}: {law}"
            for engine in self.engines
            if self.process(engine) is not None
            for law in self._engines.broken_laws(engine)
        ]
        leader = self.leader()
        if not leader:
            return [*broken, "no master is the leader"]
        found = self.admin(leader).metrics()
        held = found.get("master_allocated_bytes", 0.0)
        if held > 0 and not found.get("master_key_count"):
            broken.append(f"{leader}: {held:.0f} bytes are allocated for no object")
        return broken

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

    # -- engines -------------------------------------------------------------------

    def prefill(self, engine: str, request: Request, *, timeout_s: float) -> Answer:
        answer = self._engines.prefill(engine, request, timeout_s=timeout_s)
        stores = tuple(map(self.client_plan.store_at, answer.stores))
        return dataclasses.replace(answer, stores=stores)

    def abort(self, engine: str, request_id: str) -> None:
        self._engines.abort(engine, request_id)

    def expected_output(self, request: Request) -> str:
        return self._engines.expected_output(request)

    def engine_state(self, engine: str) -> dict[str, Any]:
        """As the engine says it, with stores by their names."""
        state: dict[str, Any] = self._named(self._engines.control(engine, op="state"))
        if self.hosts is not None:
            process = self.process(engine)
            ahead_s = self._clocks.ahead_s(
                engine,
                process.pid if process else 0,
                lambda: float(
                    self._engines.control(engine, op="state")["hicache"]["now"]
                ),
            )
            in_our_time(state["hicache"], ahead_s)
        return state

    def local_only(self, engine: str, on: bool) -> None:
        self._engines.local_only(engine, on)

    def flush_local(self, engine: str) -> None:
        self._engines.flush_local(engine)

    def owners_of(self, request: Request) -> list[tuple[str, ...]]:
        """The stores of each whole page; a page in several objects needs them all."""
        pages = self._objects(self._engines.page_keys(request))
        names = [name for page in pages for name in page]
        owners = iter(self._cleaner().owners(names, timeout_s=CALL_TIMEOUT_S))
        found = [[next(owners) for _ in page] for page in pages]
        return [
            tuple(sorted({store for one in page for store in one})) if all(page) else ()
            for page in found
        ]

    def drop_pages(
        self, request: Request, pages: Sequence[int], *, component: str | None = None
    ) -> int:
        keys = self._engines.page_keys(request)
        objects, gone = self._objects(keys, component), 0
        for at in pages:
            codes = self._cleaner().remove(objects[at], timeout_s=CALL_TIMEOUT_S)
            gone += not any(codes)
        return gone

    # -- failpoints: engines have some -----------------------------------------------

    def set_failpoint(self, role: str, name: str, spec: str) -> None:
        self._refuse_failpoint(role, name)
        self._engines.ask(role, "PUT", f"/failpoints/{name}", spec)

    def clear_failpoints(self, role: str) -> None:
        if role in self.engines:
            self._engines.ask(role, "DELETE", "/failpoints")

    def failpoint_hits(self, role: str, name: str) -> int:
        self._refuse_failpoint(role, name)
        found = self._engines.ask(role, "GET", "/failpoints").get(name, {})
        return int(found.get("hits", 0))

    # -- inside --------------------------------------------------------------------

    @property
    def _proxied(self) -> tuple[Link, ...]:
        return tuple(link for link in self._links if link.proxy)

    def _program(self, role: str) -> list[str]:
        kind = role.partition("-")[0]
        if role == layout.ETCD:
            program = shutil.which("etcd") or "/usr/bin/etcd"
            return layout.etcd_argv(program, self.here, str(self._directory()))
        if kind == MASTER:
            return layout.master_argv(self.package, self.here, role)
        if kind == "store":
            return layout.store_argv(self.package, self.here, role)
        if role == PROBE:
            return self._probe_argv()
        return self._engine_argv(role)

    def _probe_argv(self) -> list[str]:
        door, master = self.here.probe(), self.here.master_of(PROBE)
        return command(self._target.python(PROBE), "mooncake", door, master, self.spec)

    def _engine_argv(self, role: str) -> list[str]:
        here = self.here
        settings = dataclasses.replace(
            self._engines.settings,
            name=role,
            host_id=here.host_of(role),
            listen=here.service(role),
            admin_listen=here.door(role),
            storage="mooncake",
            mooncake_master=here.master_of(role),
            mooncake_admin=here.admin_of(role),
            mooncake_metadata=here.metadata,
            mooncake_host=here.near(role),
        )
        return [
            self._target.python(role),
            "-m",
            "refimpl",
            "engine",
            *flags_of(settings),
        ]

    def _launched(self, role: str) -> list[str]:
        """On hosts the agent answers for the end of its roles; here the kernel does."""
        options = []
        if self.hosts is None:
            options += ["--die-with-parent", str(os.getpid())]
        if role.startswith("store") and not self.shape.aslr:
            options += ["--no-aslr"]
        python = self._target.python(role)
        return [python, "-I", "-S", str(_LAUNCH), *options, "--"]

    def _environment(self, role: str) -> dict[str, str]:
        """Of what is started: Mooncake's variables, by the kind of role."""
        kind, here, shape = role.partition("-")[0], self.here, self.shape
        env = {"PYTHONPATH": str(Path(chaos.__file__).parent.parent), **_QUIET}
        if kind == "store":
            env |= {**shape.profile.env, **shape.store_env}
            env["MC_TCP_BIND_ADDRESS"] = self._target.address(role, "data", 0)
        elif kind == "engine":
            env |= {**shape.profile.env, **shape.client_env}
            env["MC_TCP_BIND_ADDRESS"] = here.near(role)
        elif kind == PROBE:
            env[PLAN] = self.client_plan.to_json()
        if self._token and kind in ("engine", PROBE):
            env |= {ROLE_TOKEN: self._token, TOKEN: self._token}
        return env

    def _spawn(self, role: str) -> Process:
        process = self._target.spawn(role, self.argv(role), self._environment(role))
        self._as_started.setdefault(role, (process.pid, process.start_ticks))
        return process

    def _start_etcd(self) -> None:
        self._spawn(layout.ETCD)
        door = Admin(address=self.here.etcd())
        self._wait_for(layout.ETCD, lambda: _answers(door, "/health"), _ETCD_TIMEOUT_S)

    def _wait_ready(self, role: str) -> None:
        if role in self.masters:
            door = self.admin(role)
            self._wait_for(role, lambda: _answers(door, "/health"), _READY_TIMEOUT_S)
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

    def _wait_mounted(self, stores: Iterable[str]) -> None:
        wanted = set(stores)

        def settled() -> bool:
            dead = any(self.process(store) is None for store in wanted)
            return dead or wanted <= self.mounted()

        wait_until(settled, timeout_s=_MOUNT_TIMEOUT_S, poll_s=_POLL_S)
        missing = sorted(wanted - self.mounted())
        for store in missing:
            if self.process(store) is None:  # raises with its last words
                self._target.wait_ready(store, "\0", timeout_s=0.1)
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
            self._target.wait_ready(role, "\0", timeout_s=0.1)

    def _names(self) -> dict[str, str]:
        """Stores by the names of their segments."""
        return {self.here.segment(store): store for store in self.stores}

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
            found = door.metrics()
            return not found.get("master_key_count") and not found.get(
                "master_allocated_bytes"
            )

        try:
            done = wait_until(empty, timeout_s=_EMPTY_TIMEOUT_S, poll_s=_POLL_S)
        except HarnessError as error:
            raise NeedsNewCluster(str(error)) from error
        if not done:
            raise NeedsNewCluster("objects stay")

    def _cleaner(self) -> KvProbe:
        """A client of ours for our own questions; it ends when the cluster is reset."""
        if self._own is None:
            if self.hosts is None:
                self._own = MooncakeProbe(self.client_plan, on_hang=self._note_hang)
            else:
                self._own = RemoteProbe(self.here.probe(), self._token)
        return self._own

    @property
    def _probe_role(self) -> tuple[str, ...]:
        """Our own client is a role where it cannot run here."""
        return () if self.hosts is None else (PROBE,)

    def _objects(self, keys: bytes, component: str | None = None) -> list[list[str]]:
        """The names in Mooncake of what each page is made of."""
        return [
            [name for key in page for name in self._engines.mooncake_names(key)]
            for page in self._engines.objects(keys, component)
        ]

    def _named(self, document: Any) -> Any:
        """A document of an engine with stores by their names, wherever they stand."""
        if isinstance(document, dict):
            return {self._store(key): self._named(one) for key, one in document.items()}
        if isinstance(document, list):
            return [self._named(one) for one in document]
        return self._store(document) if isinstance(document, str) else document

    def _store(self, word: str) -> str:
        return self.client_plan.store_at(word) if word.count(":") == 1 else word

    def _note_hang(self, hang: Hang) -> None:
        if self._sink is not None:
            self._sink("worker", {"hung": dataclasses.asdict(hang)})

    def _heal(self) -> None:
        if self._proxied:
            self._proxy.heal([link.proxy for link in self._proxied])
        for host in self.hosts.all if self.hosts is not None else ():
            for fault in host.agent.faults():
                if fault.state != "reverted":
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

    def _refuse_failpoint(self, role: str, name: str) -> None:
        """Mooncake has none, and its client runs nothing of ours."""
        if role not in self.engines:
            reason = f"{role} is Mooncake's own, whose release has no failpoints"
            raise self._not_here("failpoints", reason)
        if name.startswith("client."):
            reason = f"{name} is in the client of the reference pool"
            raise self._not_here("failpoints", reason)

    def _not_here(self, capability: str, reason: str) -> NotHere:
        return NotHere(capability=capability, target="mooncake", reason=reason)


class _Told(dict[str, Any]):
    """What a master says of itself; what it does not say, nobody can judge."""

    def __missing__(self, key: str) -> Any:
        reason = f"Mooncake's master does not tell its {key}"
        raise NotHere(capability="role_state", target="mooncake", reason=reason)


def _answers(door: Admin, path: str) -> bool:
    try:
        door.text(path)
    except HarnessError:
        return False
    return True
