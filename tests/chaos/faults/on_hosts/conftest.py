"""Two hosts in network namespaces, with real agents and a role that talks.

`pair` has hosts a and b, four links between them (mgmt0, ctl0, two rails), and a store
on a that answers `<n>` with n bytes. Nothing of the machine's own network is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.errors import AgentError, ProcessFailed
from chaos.hosts.connectors import NamespaceConnector
from chaos.hosts.host import Host
from chaos.hosts.lease import Lease
from chaos.hosts.link import Agent
from chaos.safety.identity import wait_until
from chaos.systems.base import Link, Process

PLANES = {"management": "mgmt0", "control": "ctl0", "rail0": "rail0", "rail1": "rail1"}
PORT = 7100
_SERVER = """\
import os, socket, sys, threading
taken = []
def do(line):
    count = int(line[1:] if line[:1] in b"wm" else line)
    if line[:1] == b"w":
        descriptor = os.open("/mnt/written", os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(descriptor, bytes(count), 0)
        os.fsync(descriptor)
        os.close(descriptor)
        return b"."
    if line[:1] == b"m":
        taken.append(b"x" * count)
        return b"."
    return bytes(count)
def answer(peer):
    with peer:
        file = peer.makefile("rb")
        for line in file:
            try:
                peer.sendall(do(line))
            except OSError:
                return
server = socket.create_server((sys.argv[1], int(sys.argv[2])), reuse_port=False)
print("ready", flush=True)
while True:
    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"""
_CLIENT = """\
import json, socket, sys, time
address, port, size, timeout = sys.argv[1], *map(float, sys.argv[2:5])
said = sys.argv[5]
began, got, end = time.monotonic(), 0, "ok"
try:
    with socket.create_connection((address, int(port)), timeout) as peer:
        peer.sendall(said.encode() + b"\\n")
        while got < size:
            data = peer.recv(1 << 16)
            if not data:
                end = "closed"
                break
            got += len(data)
except TimeoutError:
    end = "silent"
except OSError as error:
    end = type(error).__name__
print(json.dumps({"end": end, "got": got, "took_s": time.monotonic() - began}))
"""


_CHATTER = """\
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as peer:
    for _ in range(int(sys.argv[3])):
        peer.sendall(b"1000\\n")
        left = 1000
        while left:
            left -= len(peer.recv(left))
print("done")
"""


@dataclass
class Pair:
    """A cluster of one store, as far as faults need one."""

    all: tuple[Host, ...]
    holders: dict[str, int]
    running: dict[str, Process] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    links: tuple[Link, ...] = ()

    @property
    def hosts(self):
        return self

    def of(self, role: str) -> Host:
        return next(host for host in self.all if role in host.roles)

    def process(self, role: str) -> Process | None:
        state = self.of(role).agent.role(role)
        if not state.alive:
            return None
        return Process(role=role, pid=state.pid, start_ticks=state.start_ticks)

    def start_role(self, role: str) -> Process:
        agent = self.of(role).agent
        argv = [sys.executable, "-I", "-S", "-c", _SERVER, "0.0.0.0", str(PORT)]
        agent.spawn(role, argv)
        try:
            agent.wait_line(role, "ready", timeout_s=5)
        except AgentError as error:
            tail = str(error.detail.get("tail"))
            raise ProcessFailed(process=role, reason="ended", detail=tail) from error
        found = self.process(role)
        assert found is not None
        return found

    def stop_role(self, role: str, *, timeout_s: float = 10.0) -> int:
        return self.of(role).agent.stop(role, timeout_s=timeout_s)

    def read(self, size=1000, timeout_s=0.5, plane="rail0", say=""):
        """Reads from the store, from host b; or says what has an answer of one byte."""
        size = 1 if say else size
        address = self.of("store-0").addresses[plane]
        words = [address, str(PORT), str(size), str(timeout_s), say or str(size)]
        argv = [sys.executable, "-I", "-S", "-c", _CLIENT, *words]
        done = self.of("engine-0").agent.run(argv, timeout_s=timeout_s + 5)
        return SimpleNamespace(**json.loads(done.stdout))

    def chatter(self, count: int, plane: str):
        """Small answers one after the other, from host b; a future of its last word."""
        address = self.of("store-0").addresses[plane]
        words = [address, str(PORT), str(count)]
        argv = [sys.executable, "-I", "-S", "-c", _CHATTER, *words]
        agent = self.of("engine-0").agent
        pool = ThreadPoolExecutor(1)
        said = pool.submit(lambda: agent.run(argv, timeout_s=60).stdout.strip())
        pool.shutdown(wait=False)
        return said

    def sent_again(self) -> int:
        """TCP segments that had to be sent again, by either host, since it was made."""
        total = 0
        for pid in self.holders.values():
            rows = _output([*_enter(pid), "cat", "/proc/net/snmp"]).splitlines()
            names, values = (row.split() for row in rows if row.startswith("Tcp:"))
            total += int(values[names.index("RetransSegs")])
        return total

    def state(self, name: str) -> dict[str, str]:
        """Everything a fault may leave on a host, as text, without its agent."""
        enter = _enter(self.holders[name])
        commands = {
            "nft": ["nft", "list", "ruleset"],
            "tc": ["tc", "qdisc", "show"],
            "links": ["ip", "-o", "link", "show"],
            "addresses": ["ip", "-o", "addr", "show"],
            "routes": ["ip", "route", "show", "table", "all"],
            "routes6": ["ip", "-6", "route", "show", "table", "all"],
        }
        found = {k: _sorted(_output([*enter, *argv])) for k, argv in commands.items()}
        found["cgroups"] = "\n".join(_our_cgroups())
        return found

    def settled(self) -> bool:
        """The kernel says of new links that they are up only after a while."""
        links = [state["links"] for state in self.states().values()]
        return not any("state DOWN" in text for text in links)

    def states(self) -> dict[str, dict[str, str]]:
        return {name: self.state(name) for name in self.holders}

    def settle(self, before, *, timeout_s=10.0):
        """Waits until both hosts are as before; what differs when they never are."""
        wait_until(lambda: self.states() == before, timeout_s=timeout_s, poll_s=0.05)
        return differences(before, self.states())

    def children(self) -> list[str]:
        """Programs that run in the namespaces, but agents, roles and the holders."""
        inodes = {_namespace(f"/proc/{pid}") for pid in self.holders.values()}
        found = []
        for entry in Path("/proc").iterdir():
            words = _words_of(entry, inodes) if entry.name.isdigit() else ""
            if words and not any(
                own in words for own in ("cat", "serve", _SERVER[:20])
            ):
                found.append(words)
        return found

    def lose(self) -> None:
        """Nobody renews the leases any more."""
        for lease in self.leases:
            lease.close()
        self.leases.clear()


def differences(before, after):
    found = []
    for host, texts in before.items():
        for key, text in texts.items():
            then, now = set(text.splitlines()), set(after[host][key].splitlines())
            found += [f"{host} {key} -{line}" for line in sorted(then - now)]
            found += [f"{host} {key} +{line}" for line in sorted(now - then)]
    return found


def _namespace(process) -> int:
    return Path(process, "ns/net").stat().st_ino


def _words_of(entry: Path, inodes) -> str:
    try:
        if _namespace(entry) not in inodes:
            return ""
        return (entry / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _our_cgroups() -> list[str]:
    roots = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")]
    return sorted(str(p) for root in roots for p in root.glob("moonquake_*"))


def _output(argv) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout


def _enter(pid: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]


def _sorted(text: str) -> str:
    """Lines in an order of ours: routes that came back stand elsewhere."""
    return "\n".join(sorted(text.splitlines()))


def _why_not() -> str:
    if os.geteuid() != 0:
        return "needs root: run pytest as root"
    missing = [
        t for t in ("nft", "ip", "tc", "nsenter", "unshare") if not shutil.which(t)
    ]
    return f"install nftables, iproute2, util-linux: no {missing}" if missing else ""


def _hold(stack: ExitStack) -> int:
    """A process that holds a network namespace until its input ends."""
    holder = subprocess.Popen(
        ["unshare", "--net", "--mount", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )

    def end() -> None:
        assert holder.stdin is not None
        holder.stdin.close()
        holder.wait(5)

    stack.callback(end)
    mine, path = _namespace("/proc/self"), f"/proc/{holder.pid}"
    assert wait_until(lambda: _namespace(path) != mine, timeout_s=5)
    return holder.pid


def _wire(pids) -> None:
    """A link a plane, an address at each end, a route that the kernel did not make."""
    a, b = ([*_enter(pid), "ip"] for pid in pids)
    for number, device in enumerate(PLANES.values()):
        ends = ["type", "veth", "peer", "name", device, "netns", str(pids[1])]
        _output([*a, "link", "add", device, *ends])
        for side, enter in ((1, a), (2, b)):
            _output([*enter, "addr", "add", f"10.77.{number}.{side}/24", "dev", device])
            address = f"fd77:{number}::{side}/64"
            _output([*enter, "-6", "addr", "add", address, "dev", device, "nodad"])
            # No link-local addresses: they are tentative for a while, and differ.
            _output([*enter, "link", "set", device, "addrgenmode", "none"])
            _output([*enter, "link", "set", device, "up"])
    for enter, via in ((a, 2), (b, 1)):
        _output([*enter, "link", "set", "lo", "up"])
        words = ["route", "add", "10.99.0.0/16", "via", f"10.77.2.{via}"]
        _output([*enter, *words, "dev", "rail0", "metric", "7"])
        words = ["route", "add", "default", "via", f"10.77.2.{via}", "dev", "rail0"]
        _output([*enter, *words, "table", "101"])  # as hosts of several rails have it


def _host(name, roles, side, pid, state: Path) -> Host:
    enter = ("nsenter", "--net", "--mount", "--target", str(pid), "--")
    connector = NamespaceConnector(
        name, state_dir=str(state / name), enter=enter, python=sys.executable
    )
    return Host(
        name=name,
        roles=roles,
        agent=Agent(connector),
        scratch="/mnt",
        devices=PLANES,
        addresses={p: f"10.77.{n}.{side}" for n, p in enumerate(PLANES)},
    )


def _links(host: Host) -> tuple[Link, ...]:
    return tuple(
        Link(
            name=f"store-0.{rail}",
            owner="store-0",
            user="",
            plane="data",
            rail=rail,
            proxy="",
            listen=f"{host.addresses[rail]}:{PORT}",
            upstream=f"{host.addresses[rail]}:{PORT}",
        )
        for rail in host.rails
    )


@pytest.fixture(scope="module")
def make_pair():
    """Makes a pair whose agents have a lease of so many seconds."""
    reason = _why_not()
    if reason:
        pytest.skip(reason)
    with ExitStack() as stack:

        def make(ttl_s=20.0, renew=True) -> Pair:
            state = Path(tempfile.mkdtemp(prefix="mq-"))
            stack.callback(shutil.rmtree, state, ignore_errors=True)
            pids = [_hold(stack), _hold(stack)]
            _wire(pids)
            size = ["-t", "tmpfs", "-o", "size=4m", "scratch", "/mnt"]
            for pid in pids:
                _output(["nsenter", "--mount", "--target", str(pid), "mount", *size])
            hosts = (
                _host("a", ("store-0",), 1, pids[0], state),
                _host("b", ("engine-0",), 2, pids[1], state),
            )
            pair = Pair(
                all=hosts,
                holders={"a": pids[0], "b": pids[1]},
                links=_links(hosts[0]),
            )
            for host in hosts:
                stack.callback(host.agent.close)
                host.agent.start(run="test", ttl_s=ttl_s)
                stack.callback(host.agent.shutdown)
                if renew:
                    pair.leases.append(Lease(host.agent, ttl_s=ttl_s).start())
            stack.callback(pair.lose)
            pair.start_role("store-0")
            assert wait_until(pair.settled, timeout_s=10)
            return pair

        yield make


@pytest.fixture(scope="module")
def shared(make_pair):
    return make_pair()


@pytest.fixture
def pair(shared):
    """The pair of the module, whole again after each test, whatever became of it."""
    hosts = shared.all
    yield shared
    shared.all = hosts
    for host in hosts:
        for fault in host.agent.faults():
            host.agent.disarm(fault.fault_id)
    if shared.process("store-0") is None:
        shared.start_role("store-0")
