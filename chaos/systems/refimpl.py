"""The reference system under test: this file and `engines.py` import `refimpl`.

A master, stores and engines, each a process of the target. On the local target a fault
proxy stands in front of every address that another role connects to; on hosts nothing
stands between the roles, and the harness's own client is a role as well, beside them.
The harness itself talks to engines, and to the master for its own questions, on a way
that no fault touches: faults must not blind it.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import refimpl
from chaos.errors import HarnessError, NeedsNewCluster, UsageError
from chaos.report.redaction import know
from chaos.safety.identity import send_signal, state_of, wait_until
from chaos.systems.clocks import Clocks, in_our_time
from chaos.systems.doors import ask
from chaos.systems.engines import (
    CALL_TIMEOUT_S,
    RECONNECT,
    Engines,
    built,
    engine_limits,
    engine_settings,
    flags_of,
)
from chaos.systems.layout import MASTER, PROBE, Layout
from chaos.systems.probe import READY, TOKEN, RemoteProbe, command
from chaos.systems.seen import look
from refimpl.client import ClientSettings, PoolClient
from refimpl.core.hashing import KEY_BYTES, object_key
from refimpl.engine.model import page_bytes
from refimpl.engine.settings import EngineSettings, hicache_settings
from refimpl.failpoints import Failpoints
from refimpl.hicache.layout import layout_of
from refimpl.master.heartbeat import MAGIC, REQUEST
from refimpl.master.settings import MasterSettings
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.role import GRPC_OPTIONS
from refimpl.security.options import ClientSecurity
from refimpl.security.tls import open_channel
from refimpl.store.settings import StoreSettings
from refimpl.transfer.frames import FrameOp, encode_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import grpc
    from numpy.typing import NDArray

    from chaos.hosts.host import Hosts
    from chaos.systems.base import (
        Answer,
        Cluster,
        ClusterSpec,
        KvProbe,
        Limits,
        Link,
        Process,
        Request,
    )
    from chaos.systems.seen import Seen
    from chaos.targets.base import Target

    Table = NDArray[np.uint8]

T = TypeVar("T")

_READY_TIMEOUT_S = 20.0
_MOUNT_TIMEOUT_S = 20.0
_EMPTY_TIMEOUT_S = 5.0
_POLL_S = 0.02
_HELPERS = 8
_PIECES = 4  # of a value, where ranges of it are read
_WRITER = 0x6D71  # client id of writes that are announced and ended by hand
#: What is answered at once: a read of a segment that nobody has, the beat of a client
#: that nobody knows, and the first words of HTTP/2 with empty settings.
_GREETINGS = {
    "data": encode_request(
        FrameOp.READ, 0, 0, np.zeros(1, np.uint64), np.ones(1, np.uint32)
    ),
    "heartbeat": REQUEST.pack(MAGIC, 0, 0),
    "rpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",
}
_REVERTED = "reverted"
_ROLE_TOKEN = "REFIMPL_TOKEN"  # noqa: S105 - the name of a variable
_ENV = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class RefimplSystem:
    """Starts reference clusters on a target."""

    name = "refimpl"

    def start(self, spec: ClusterSpec, target: Target, proxy: Any) -> Cluster:
        """A running cluster; when it does not come up, its proxies are gone again."""
        cluster = RefimplCluster(spec, target, proxy)
        try:
            cluster.start()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def plan(self, spec: ClusterSpec, target: Target) -> tuple[Cluster, list[str]]:
        """The cluster as it would be, and the commands that would start it."""
        cluster = RefimplCluster(spec, target, None)
        return cluster, [" ".join(cluster.argv(role)) for role in cluster.roles]

    def probe(self, master: str, host: str, spec: ClusterSpec) -> KvProbe:
        """A client of the pool in this process."""
        return RefimplProbe(master, host, spec)


def system() -> RefimplSystem:
    return RefimplSystem()


class RefimplCluster:
    """One cluster of the reference system; see `chaos.systems.base.Cluster`."""

    def __init__(self, spec: ClusterSpec, target: Target, proxy: Any) -> None:
        self.spec = spec
        self._target = target
        self._proxy = proxy
        layout = Layout(spec=spec, address=target.address)
        layout.check()
        target.prepare(spec)  # only now is it known where it has hosts
        on_hosts = target.hosts is not None
        self._layout = dataclasses.replace(layout, proxied=not on_hosts)
        # Roles here inherit our environment: a token in it is asked for by their doors.
        inherited = os.environ.get(_ROLE_TOKEN, "")
        # On hosts one of ours, where no owner of observed roles has told us theirs.
        self._token = inherited or (secrets.token_hex(16) if on_hosts else "")
        know(self._token)
        self._links = tuple(
            dataclasses.replace(link, greeting=_GREETINGS[link.plane])
            for link in self._layout.links()
        )
        self._settings = _Settings.of(self._layout)
        self.limits = self._settings.limits()
        self._engines = Engines(
            service=self._service,
            admin=self._layout.admin,
            settings=self._settings.engine,
            token=self._token,
        )
        self._made: list[str] = []
        self._channels: dict[str, grpc.Channel] = {}
        self._probes: list[KvProbe] = []
        self._clocks = Clocks()
        self._pids: dict[str, int] = {}

    # -- shape -------------------------------------------------------------------

    @property
    def hosts(self) -> Hosts | None:
        return self._target.hosts

    @property
    def masters(self) -> tuple[str, ...]:
        return (MASTER,)

    @property
    def stores(self) -> tuple[str, ...]:
        return self._layout.stores

    @property
    def engines(self) -> tuple[str, ...]:
        return self._layout.engines

    @property
    def roles(self) -> tuple[str, ...]:
        return self._layout.roles

    @property
    def links(self) -> tuple[Link, ...]:
        return self._links

    def host_of(self, role: str) -> str:
        return self._layout.host_of(role)

    def address_of(self, role: str, plane: str = "control", rail: int = 0) -> str:
        return self._target.address(role, plane, rail)

    def argv(self, role: str) -> list[str]:
        """The command line of a role.

        On hosts the agent answers for the end of its roles; here the kernel does.
        """
        python = self._target.python(role)
        if role == PROBE:
            door, master = self._layout.door(), self._link(f"master.rpc@{PROBE}").listen
            return command(python, RefimplSystem.name, door, master, self.spec)
        kind = role.partition("-")[0]
        bound = [] if self.hosts is not None else ["--die-with-parent"]
        flags = flags_of(self._settings.role(role))
        return [python, "-m", "refimpl", kind, *bound, *flags]

    # -- life --------------------------------------------------------------------

    def start(self) -> None:
        """Starts everything at once and waits until all stores are mounted."""
        self._spawn(MASTER)
        for link in self._proxied:
            self._made.append(link.proxy)
            self._proxy.create(link.proxy, link.listen, link.upstream)
        self._wait_ready(MASTER)
        others = self._started[1:]
        for role in others:
            self._spawn(role)
        for role in others:
            self._wait_ready(role)
        self._wait_mounted()

    def stop(self) -> None:
        """Ends roles and proxies. Safe to call twice, and after a failed start."""
        for probe in self._probes:
            probe.close()
        self._probes.clear()
        self._engines.close()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        made, self._made = self._made, []
        with ExitStack() as stack:
            # Together: a server that hangs may take its deadline for each of them.
            if made:
                stack.callback(self._everywhere, self._proxy.delete, made)
            stack.callback(self._target.close)

    def process(self, role: str) -> Process | None:
        return self._target.process(role)

    def start_role(self, role: str) -> Process:
        """Starts a stopped role again and waits for its ready line."""
        process = self._spawn(role)
        self._wait_ready(role)
        return process

    def stop_role(self, role: str, *, timeout_s: float = 10.0) -> int:
        return self._target.stop(role, timeout_s=timeout_s)

    def remove_store(self, store: str) -> float:
        """The call with which a store takes its leave, sent for it."""
        state = self._admin(store, "GET", "/state")
        message = pool_pb2.UnmountRequest(
            id=int(state["segment"], 16), client=int(state["client"], 16)
        )
        master = self._master()
        self._segments()  # the channel is open: only the call is timed
        begin_s = time.monotonic()
        answer = master.UnmountSegment(message, timeout=CALL_TIMEOUT_S)
        took_s = time.monotonic() - begin_s
        if answer.code:
            message_ = f"the master did not remove {store}: {answer.detail}"
            raise HarnessError(message_)
        return took_s

    def reset(self) -> None:
        """Back to an empty, healthy cluster, verified.

        Raises:
            HarnessError: It does not get there; a new cluster is needed.
        """
        self._close_probes()
        self._heal()
        self._revive_roles()
        self._everywhere(self.clear_failpoints, self.roles)
        self._everywhere(self._engines.reset, self.engines)
        self._wait_mounted()
        self._empty()
        broken = self.conservation()
        if broken:
            message = f"reset left broken laws behind: {'; '.join(broken)}"
            raise HarnessError(message)

    # -- engines -----------------------------------------------------------------

    def prefill(self, engine: str, request: Request, *, timeout_s: float) -> Answer:
        return self._engines.prefill(engine, request, timeout_s=timeout_s)

    def abort(self, engine: str, request_id: str) -> None:
        self._engines.abort(engine, request_id)

    def expected_output(self, request: Request) -> str:
        return self._engines.expected_output(request)

    def engine_state(self, engine: str) -> dict[str, Any]:
        state = self._engines.control(engine, op="state")
        if self.hosts is not None:
            in_our_time(state["hicache"], self._ahead_s(engine))
        return state

    def local_only(self, engine: str, on: bool) -> None:
        self._engines.local_only(engine, on)

    def flush_local(self, engine: str) -> None:
        self._engines.flush_local(engine)

    # -- admin doors -------------------------------------------------------------

    def role_state(self, role: str) -> dict[str, Any]:
        """The role's own state, with its failpoints beside it."""
        failpoints = self._admin(role, "GET", "/failpoints")
        return {**self._admin(role, "GET", "/state"), "failpoints": failpoints}

    def set_failpoint(self, role: str, name: str, spec: str) -> None:
        self._admin(role, "PUT", f"/failpoints/{name}", spec)

    def clear_failpoints(self, role: str) -> None:
        """Clears all but the defects that this cluster was asked to have."""
        self._admin(role, "DELETE", "/failpoints")
        for name in self.spec.defects:
            self.set_failpoint(role, _defect(name), "on")

    def failpoint_hits(self, role: str, name: str) -> int:
        found = self._admin(role, "GET", "/failpoints").get(name, {})
        return int(found.get("hits", 0))

    # -- the pool ----------------------------------------------------------------

    def owners_of(self, request: Request) -> list[tuple[str, ...]]:
        """The stores of each whole page; a page in several objects needs them all."""
        keys = self._engines.page_keys(request)
        owners: list[set[str]] = [set() for _ in range(len(keys) // KEY_BYTES)]
        missing = [False] * len(owners)
        with self._own_client() as client:
            for component in self._settings.components:
                found = _owners(client, component.keys(keys), CALL_TIMEOUT_S)
                for page, names in enumerate(found):
                    owners[page].update(names)
                    missing[page] |= not names
        return [
            () if gone else tuple(sorted(names))
            for names, gone in zip(owners, missing, strict=True)
        ]

    def owned_bytes(self) -> dict[str, int]:
        return {
            segment.name: segment.allocated
            for segment in self._segments()
            if segment.status in ("", "OK")
        }

    def mounts(self) -> dict[str, int]:
        return {segment.name: segment.id for segment in self._listed()}

    def drop_pages(
        self, request: Request, pages: Sequence[int], *, component: str | None = None
    ) -> int:
        keys = self._engines.page_keys(request)
        chosen = b"".join(keys[at * KEY_BYTES : (at + 1) * KEY_BYTES] for at in pages)
        gone = np.ones(len(pages), bool)
        parts = [
            part
            for part in self._settings.components
            if component is None or part.name == component
        ]
        if not parts:
            raise UsageError(f"a page has no component {component!r}")
        with self._own_client() as client:
            for part in parts:
                codes = client.remove(
                    part.keys(chosen), timeout_s=CALL_TIMEOUT_S, force=True
                )
                gone &= np.asarray(codes) == 0
        return int(gone.sum())

    def kv(self, host: str = "") -> KvProbe:
        """A client of the harness, on a link of its own that faults can act on."""
        probe: KvProbe
        if self.hosts is not None:
            probe = RemoteProbe(self._layout.door(), self._token, host)
        else:
            link = self._link(f"master.rpc@{PROBE}")
            probe = RefimplProbe(link.listen, host, self.spec)
        self._probes.append(probe)
        return probe

    def conservation(self) -> list[str]:
        """Broken laws of every role that runs, each with the role's name."""
        broken: list[str] = []
        for role in self.roles:
            if self.process(role) is not None:
                broken += [f"{role}: {law}" for law in self._broken_laws(role)]
        return broken

    # -- inside ------------------------------------------------------------------

    @property
    def _proxied(self) -> tuple[Link, ...]:
        """The links with a proxy in them: all of them, or none."""
        return tuple(link for link in self._links if link.proxy)

    @property
    def _started(self) -> tuple[str, ...]:
        """What the target starts: our own client too, where it cannot run here."""
        return self.roles if self.hosts is None else (*self.roles, PROBE)

    def _heal(self) -> None:
        """Takes every fault back, whoever ordered it."""
        if self._proxied:
            self._proxy.heal([link.proxy for link in self._proxied])
        for host in self.hosts.all if self.hosts is not None else ():
            for fault in host.agent.faults():
                if fault.state != _REVERTED:
                    host.agent.disarm(fault.fault_id)

    def _broken_laws(self, role: str) -> list[str]:
        """What a master says of its table, and an engine of its pages, in words.

        A master leaves the laws of a large table out of its state.
        """
        if role == MASTER:
            return list(self._admin(role, "GET", "/conservation"))
        state = self._admin(role, "GET", "/state")
        hicache = state.get("hicache", {})
        return [*state.get("conservation", []), *hicache.get("broken_laws", [])]

    def _spawn(self, role: str) -> Process:
        root = str(Path(refimpl.__file__).parent.parent)
        env = {**_ENV, "PYTHONPATH": root, "REFIMPL_FAILPOINTS": self._failpoints()}
        if self._token:
            env |= {_ROLE_TOKEN: self._token, TOKEN: self._token}
        process = self._target.spawn(role, self.argv(role), env)
        self._pids[role] = process.pid
        return process

    def _failpoints(self) -> str:
        return ";".join(f"{_defect(name)}=on" for name in self.spec.defects)

    def _wait_ready(self, role: str) -> None:
        kind = role.partition("-")[0]
        marker = READY if role == PROBE else f"refimpl {kind} {role} ready "
        self._target.wait_ready(role, marker, timeout_s=_READY_TIMEOUT_S)

    def _wait_mounted(self) -> None:
        wanted = set(self.stores)

        def mounted() -> bool:
            names = [segment.name for segment in self._listed() if _ok(segment)]
            return wanted == set(names) and len(names) == len(wanted)

        if not wait_until(mounted, timeout_s=_MOUNT_TIMEOUT_S, poll_s=_POLL_S):
            seen = ", ".join(f"{s.name} {s.status}" for s in self._listed())
            message = f"not every store is mounted: {seen or 'none is'}"
            raise HarnessError(message)

    def _empty(self) -> None:
        """Removes every object until no byte is allocated."""

        def empty() -> bool:
            message = pool_pb2.RemoveRequest(all=True, force=True)
            self._master().Remove(message, timeout=CALL_TIMEOUT_S)
            return not any(segment.allocated for segment in self._segments())

        if not wait_until(empty, timeout_s=_EMPTY_TIMEOUT_S, poll_s=_POLL_S):
            message = f"bytes stay allocated: {self.owned_bytes()}"
            raise NeedsNewCluster(message)

    def _revive_roles(self) -> None:
        """Continues what is stopped and starts what has ended, all at once."""
        started = []
        for role in self._started:
            process = self.process(role)
            if process is None:
                self._spawn(role)
                started.append(role)
            elif self.hosts is None and state_of(process.pid) == "T":
                send_signal(process.pid, process.start_ticks, signal.SIGCONT)
        for role in started:
            self._wait_ready(role)

    def _ahead_s(self, engine: str) -> float:
        """How far the clock of an engine's host is ahead of ours."""
        return self._clocks.ahead_s(
            engine,
            self._pids.get(engine, 0),
            lambda: self._engines.now_s(engine),
        )

    def _everywhere(self, act: Callable[[str], None], roles: Iterable[str]) -> None:
        with ThreadPoolExecutor(_HELPERS, thread_name_prefix="reset") as helpers:
            for _ in helpers.map(act, roles):
                pass

    def _close_probes(self) -> None:
        for probe in self._probes:
            probe.close()
        self._probes.clear()

    def _link(self, name: str) -> Link:
        return next(link for link in self._links if link.name == name)

    def _own_client(self) -> _OwnClient:
        return _OwnClient(self._layout.operator(MASTER))

    def _listed(self) -> Sequence[pool_pb2.Segment]:
        """What the master lists; nothing while a busy machine keeps it from answering.

        A new master that says it is ready may still be slow to take connections.
        """
        import grpc

        try:
            return self._segments()
        except grpc.RpcError:
            return []

    def _segments(self) -> Sequence[pool_pb2.Segment]:
        message = pool_pb2.ListSegmentsRequest()
        answer = self._master().ListSegments(message, timeout=CALL_TIMEOUT_S)
        return list(answer.segments)

    def _master(self) -> pool_pb2_grpc.MasterStub:
        return pool_pb2_grpc.MasterStub(  # type: ignore[no-untyped-call]
            self._channel(MASTER)
        )

    def _channel(self, role: str) -> grpc.Channel:
        channel = self._channels.get(role)
        if channel is None:
            options = [*GRPC_OPTIONS, *RECONNECT]
            address = self._layout.operator(role)
            channel = open_channel(address, options, ClientSecurity.from_env().tls)
            self._channels[role] = channel
        return channel

    def _service(self, engine: str) -> str:
        if engine not in self.engines:
            raise UsageError(f"the cluster has no {engine}")
        return self._layout.operator(engine)

    def _admin(self, role: str, method: str, path: str, body: str = "") -> Any:
        address = self._layout.admin(role)
        return ask(role, address, method, path, body=body, token=self._token)


class RefimplProbe:
    """put, get and exist through the pool's own client; see `KvProbe`.

    The bytes of a value are a function of its key, so a wrong byte needs no history.
    """

    def __init__(self, master: str, host: str, spec: ClusterSpec) -> None:
        self._master = master
        self._host = host
        self._settings = ClientSettings().scaled(spec.time_scale)
        self._failpoints = Failpoints()
        for name in spec.defects:
            self._failpoints.set(_defect(name), "on")
        self._clients: dict[str, PoolClient] = {}
        self._channel: grpc.Channel | None = None

    def write(
        self,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        replicas: int = 1,
        host: str = "",
        variant: int = 0,
    ) -> list[int]:
        """Puts values, as a writer on `host` would (default: the probe's own)."""
        keys = _keys(names)
        result = self._client(host).put(
            keys,
            _rows(page_bytes(keys, size_bytes) ^ np.uint8(variant)),
            timeout_s=timeout_s,
            replicas=replicas,
        )
        return _codes(result.codes)

    def write_part(
        self,
        names: Sequence[str],
        part: int,
        parts: int,
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
    ) -> list[int]:
        """Puts one part of every value at its place within the object."""
        keys, step = _keys(names), size_bytes // parts
        values = page_bytes(keys, size_bytes)
        result = self._client().put(
            keys,
            [row[part * step : (part + 1) * step] for row in _rows(values)],
            timeout_s=timeout_s,
            part=part,
            parts=parts,
        )
        return _codes(result.codes)

    def read(
        self,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        variant: int | None = 0,
    ) -> tuple[list[int], int]:
        """Gets values and compares every byte of those that are said to be good."""
        keys = _keys(names)
        out = np.zeros((len(names), size_bytes), np.uint8)
        result = self._client().get(keys, _rows(out), timeout_s=timeout_s)
        codes = np.asarray(result.codes)
        found = out ^ page_bytes(keys, size_bytes)
        wanted = found[:, :1] if variant is None else np.uint8(variant)
        same = (found == wanted).all(axis=1)
        return _codes(codes), int(((codes == 0) & ~same).sum())

    def read_paths(self) -> list[str]:
        """See `SeeingProbe`."""
        return ["plain", "batched", "ranges", "session"]

    def read_by(
        self,
        path: str,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        among: Sequence[str] = (),
    ) -> list[Seen]:
        """Gets values and says whose bytes came.

        Ranges and sessions look up once and read pieces of what was found: all of them
        in one call, or one piece of every value a call.
        """
        get = {"ranges": self._get_ranges, "session": self._get_session}.get(path)
        step = 1 if path == "plain" else max(1, len(names))
        found: list[Seen] = []
        for at in range(0, len(names), step):
            part = names[at : at + step]
            out = np.zeros((len(part), size_bytes), np.uint8)
            codes = (get or self._get)(_keys(part), out, timeout_s)
            found += _looked(part, codes, out, among)
        return found

    def exists(self, names: Sequence[str], *, timeout_s: float = 2.0) -> list[int]:
        return _codes(self._client().exists(_keys(names), timeout_s=timeout_s))

    def remove(self, names: Sequence[str], *, timeout_s: float = 2.0) -> list[int]:
        return _codes(self._client().remove(_keys(names), timeout_s=timeout_s))

    def owners(
        self, names: Sequence[str], *, timeout_s: float = 2.0
    ) -> list[tuple[str, ...]]:
        return _owners(self._client(), _keys(names), timeout_s)

    def start_write(
        self, name: str, *, size_bytes: int = 16 << 10, timeout_s: float = 2.0
    ) -> tuple[int, int]:
        """PutStart alone: (code, token)."""
        request = pool_pb2.PutStartRequest(
            keys=_keys([name]),
            sizes=np.array([size_bytes], "<u4").tobytes(),
            client=_WRITER,
            host_id=self._host,
        )
        answer = self._stub().PutStart(request, timeout=timeout_s)
        token = np.frombuffer(answer.token, "<u8")
        return int(np.frombuffer(answer.status, "<i2")[0]), int(token[0])

    def end_write(self, name: str, token: int, *, timeout_s: float = 2.0) -> int:
        """PutEnd alone, as a writer sends it whose call was held up."""
        request = pool_pb2.PutEndRequest(
            keys=_keys([name]),
            token=np.array([token], "<u8").tobytes(),
            checksum=np.zeros(1, "<u8").tobytes(),
            client=_WRITER,
        )
        answer = self._stub().PutEnd(request, timeout=timeout_s)
        return int(np.frombuffer(answer.status, "<i2")[0])

    def close(self) -> None:
        """Closes every client; safe to call twice."""
        while self._clients:
            self._clients.popitem()[1].close()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _get(self, keys: bytes, out: Table, timeout_s: float) -> list[int]:
        return _codes(self._client().get(keys, _rows(out), timeout_s=timeout_s).codes)

    def _get_ranges(self, keys: bytes, out: Table, timeout_s: float) -> list[int]:
        return self._get_pieces(keys, out, timeout_s, at_once=True)

    def _get_session(self, keys: bytes, out: Table, timeout_s: float) -> list[int]:
        return self._get_pieces(keys, out, timeout_s, at_once=False)

    def _get_pieces(
        self, keys: bytes, out: Table, timeout_s: float, *, at_once: bool
    ) -> list[int]:
        """One lookup, then pieces; a value has the worst code of its pieces."""
        client, step = self._client(), max(1, out.shape[1] // _PIECES)
        found = client.lookup(keys, timeout_s=timeout_s)
        if found.code:
            return [int(found.code)] * len(out)
        codes = _codes(found.status)
        cuts = range(0, out.shape[1], step)
        good = [row for row, code in enumerate(codes) if code == 0]
        calls = [[(row, at) for row in good] for at in cuts]
        everything = [piece for call in calls for piece in call]
        for call in [everything] if at_once else calls:
            rows, offsets = [row for row, _ in call], [at for _, at in call]
            views = [out[row, at : at + step].data for row, at in call]
            got = client.get_ranges(found, rows, offsets, views, timeout_s=timeout_s)
            for row, code in zip(rows, _codes(got), strict=True):
                codes[row] = min(codes[row], code)
        return codes

    def _stub(self) -> Any:
        if self._channel is None:
            options = [*GRPC_OPTIONS, *RECONNECT]
            tls = ClientSecurity.from_env().tls
            self._channel = open_channel(self._master, options, tls)
        return pool_pb2_grpc.MasterStub(self._channel)  # type: ignore[no-untyped-call]

    def _client(self, host: str = "") -> PoolClient:
        host = host or self._host
        if host not in self._clients:
            security = ClientSecurity.from_env()
            self._clients[host] = PoolClient(
                self._master,
                host_id=host,
                settings=self._settings,
                failpoints=self._failpoints,
                tls=security.tls,
                data_secret=security.data_secret,
            )
        return self._clients[host]


class _OwnClient:
    """A client for the harness's own questions, straight to the master."""

    def __init__(self, master: str) -> None:
        security = ClientSecurity.from_env()
        self._client = PoolClient(
            master, tls=security.tls, data_secret=security.data_secret
        )

    def __enter__(self) -> PoolClient:
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """The settings of every role as the roles themselves will read them (factor 1)."""

    layout: Layout
    master: MasterSettings
    engine: EngineSettings

    @classmethod
    def of(cls, layout: Layout) -> _Settings:
        """Builds them from the spec, so that a wrong override is told here.

        Raises:
            UsageError: An override names no setting, or a bad value.
        """
        spec = layout.spec
        master = built(
            MasterSettings,
            _overrides(spec, "master"),
            name=MASTER,
            listen=layout.rpc(MASTER),
            management_listen="" if layout.proxied else layout.operator(MASTER),
            heartbeat_listen=layout.heartbeat(),
            admin_listen=layout.admin(MASTER),
            allocation_strategy=spec.placement,
            time_scale=spec.time_scale,
            seed=spec.seed,
        )
        engine = engine_settings(spec)
        unknown = set(spec.overrides) - {"master", "store", "engine"}
        if unknown:
            raise UsageError(f"no role is called {', '.join(sorted(unknown))}")
        return cls(layout=layout, master=master, engine=engine)

    def role(self, role: str) -> MasterSettings | StoreSettings | EngineSettings:
        kind = role.partition("-")[0]
        if kind == MASTER:
            return self.master
        return self._store(role) if kind == "store" else self._engine(role)

    @property
    def components(self) -> tuple[Any, ...]:
        """The objects that one page is made of in the pool."""
        return layout_of(hicache_settings(self.engine)).components

    def limits(self) -> Limits:
        """The promises of the system in real seconds."""
        master, scale = self.master, self.layout.spec.time_scale
        return engine_limits(
            self.engine,
            client_ttl_s=master.client_ttl_s * scale,
            ping_interval_s=master.ping_interval_s * scale,
            lease_ttl_s=master.default_kv_lease_ttl_s * scale,
        )

    def _store(self, role: str) -> StoreSettings:
        layout, spec = self.layout, self.layout.spec
        listens = {link.name: link.listen for link in layout.links()}
        rails = tuple(
            f"{rail}={_advertised(layout.data(role, n), listens[f'{role}.{rail}'])}"
            for n, rail in enumerate(layout.rails)
        )
        return built(
            StoreSettings,
            _overrides(spec, "store"),
            name=role,
            host_id=layout.host_of(role),
            size=spec.store_bytes,
            rail=rails,
            master=listens[f"master.rpc@{role}"],
            heartbeat=listens[f"master.heartbeat@{role}"],
            admin_listen=layout.admin(role),
            time_scale=spec.time_scale,
        )

    def _engine(self, role: str) -> EngineSettings:
        layout = self.layout
        links = {link.name: link.listen for link in layout.links()}
        return dataclasses.replace(
            self.engine,
            name=role,
            host_id=layout.host_of(role),
            listen=layout.rpc(role),
            admin_listen=layout.admin(role),
            master=links[f"master.rpc@{role}"],
        )


def _overrides(spec: ClusterSpec, kind: str) -> dict[str, Any]:
    return dict(spec.overrides.get(kind, {}))


def _advertised(listen: str, seen: str) -> str:
    """Where a rail listens, and where clients reach it when that differs."""
    return listen if listen == seen else f"{listen},{seen}"


def _defect(name: str) -> str:
    return name if name.startswith("defect.") else f"defect.{name}"


def _ok(segment: pool_pb2.Segment) -> bool:
    return segment.status in ("", "OK")


def _looked(
    names: Sequence[str], codes: Sequence[int], out: Table, among: Sequence[str]
) -> Iterator[Seen]:
    """What each row is; values of other names are made only where they are needed."""
    values = page_bytes(_keys(names), out.shape[1])
    for name, code, got, own in zip(names, codes, out, values, strict=True):
        others = [(o, partial(_value, o, len(own))) for o in among if o != name]
        yield look(code, got, own, others)


def _value(name: str, size_bytes: int) -> NDArray[np.uint8]:
    """Variant 0 of the value of a name."""
    value: NDArray[np.uint8] = page_bytes(_keys([name]), size_bytes)[0]
    return value


def _keys(names: Sequence[str]) -> bytes:
    return b"".join(object_key(name) for name in names)


def _rows(array: NDArray[np.uint8]) -> list[memoryview]:
    return [row.data for row in array]


def _codes(codes: Any) -> list[int]:
    return [int(code) for code in codes]


def _owners(client: PoolClient, keys: bytes, timeout_s: float) -> list[tuple[str, ...]]:
    """The names of the stores that hold each key, without granting a lease."""
    found = client.lookup(keys, timeout_s=timeout_s, grant_lease=False)
    return [tuple(names) for names in found.owners()]
