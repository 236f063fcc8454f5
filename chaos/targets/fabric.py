"""A fabric: hosts in network namespaces, joined by one bridge for each plane.

The bridges stand in a namespace of their own. Every host has a device on each plane
(`mgmt0`, `ctl0`, `rail0` ...), a veth whose other end is a port of the bridge; the
planes share nothing, so what happens on one rail leaves the others alone. The harness
sees the management plane only, by one veth in the namespace it runs in. That veth, and
the connected route of its address, are all that is ever changed there, and they vanish
with the fabric.

A fabric has a number B of its own, leased and checked against the machine's routes:
management 198.19.B.0/24, control 198.18.(8B).0/24, rail r 198.18.(8B+1+r).0/24, from
the range set aside for benchmarks of networks (RFC 2544).
"""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaos.errors import HarnessError, UsageError
from chaos.safety.locks import DomainBusy, DomainLock, lock_domain
from chaos.targets.namespaces import Keeper, Namespaces, run_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

BLOCKS: Final = 32
MAX_RAILS: Final = 7
HARNESS: Final = 1
"""The number of the harness on the management plane."""
_SWITCH = "fabric"
_HELPERS = 8
_COMMAND_TIMEOUT_S = 10.0
_DEFAULT_LENGTH = 1  # 0.0.0.0/0, or its two halves as VPNs write it
#: Hosts with several rails answer ARP on the right one only and say when they are back
#: on it, as well-kept hosts do; IPv6 keeps quiet.
_SYSCTL = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
    "net/ipv4/conf/all/arp_ignore": "1",
    "net/ipv4/conf/all/arp_announce": "2",
    "net/ipv4/conf/all/arp_notify": "1",
    "net/ipv4/conf/all/rp_filter": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """One network of a fabric: a bridge, and a device of the same name on each host."""

    name: str
    device: str
    prefix: str

    @property
    def bridge(self) -> str:
        return f"br-{self.device}"

    def address(self, number: int) -> str:
        """The address of that number, 1..254."""
        if not 1 <= number <= 254:
            message = f"a plane has addresses 1..254, not {number}"
            raise ValueError(message)
        return f"{self.prefix}.{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A host of a fabric: the numbers of its addresses, the first one its own."""

    name: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the hosts of a fabric have beyond a network.

    With `init` a host has a PID namespace and a process 1 (see `Fabric.boot`). Of the
    `private` directories each host has its own, empty but for `directories`, and its
    own `scratch`, a file system of 64 MiB for faults of disks.
    """

    init: bool = False
    private: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    scratch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A leased fabric number."""

    index: int
    lock: DomainLock

    @property
    def device(self) -> str:
        """The harness's end of the veth; nobody else's device has this name."""
        return f"mq-fabric{self.index}"


class Fabric:
    """A running fabric; `close` leaves nothing of it. Build one with `Fabric.build`."""

    def __init__(self, block: Block, keeper: Keeper, planes: Sequence[Plane]) -> None:
        self.block = block
        self.planes = {plane.name: plane for plane in planes}
        self._keeper = keeper
        self._members: dict[str, Member] = {}
        self._order: dict[str, int] = {}
        self._namespaces: dict[str, Namespaces] = {}
        self._machine = Machine()
        self._veth_is_ours = False

    @classmethod
    def build(
        cls,
        members: Sequence[Member],
        *,
        rails: int,
        machine: Machine | None = None,
        block: int | None = None,
        directory: Path | None = None,
    ) -> Fabric:
        """A fabric with these hosts, every device up.

        Args:
            members: its hosts; no two may share a number.
            rails: networks of the data plane, 1..7.
            machine: what its hosts have beyond a network.
            block: exactly this number, or the first free one.
            directory: of the leases; the state directory of this user by default.

        Raises:
            UsageError: Privileges or tools are missing, or the shape does not fit.
        """
        _check(members, rails)
        with ExitStack() as stack:
            keeper = Keeper()
            stack.callback(keeper.close)
            leased = lease_block(pinned=block, directory=directory)
            stack.callback(leased.lock.release)
            fabric = cls(leased, keeper, _planes(leased.index, rails))
            fabric._machine = machine or fabric._machine
            stack.callback(fabric._remove_veth)
            fabric._start(members)
            stack.pop_all()
        return fabric

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self._members)

    @property
    def rails(self) -> int:
        return len(self.planes) - 2

    @property
    def harness_address(self) -> str:
        """The harness's own address, on the management plane."""
        return self.planes["management"].address(HARNESS)

    @property
    def keeper_pid(self) -> int:
        return self._keeper.pid

    def namespaces(self, host: str) -> Namespaces:
        return self._namespaces[host]

    def enter(self, host: str) -> list[str]:
        """The command in front of another that runs it on a host."""
        return self._namespaces[host].enter()

    def address(self, host: str, plane: str = "management", which: int = 0) -> str:
        """An address of a host: its own, or that of its further numbers."""
        return self.planes[plane].address(self._members[host].numbers[which])

    def addresses(self, host: str) -> dict[str, str]:
        """The own address of a host on each plane, by the names of the planes."""
        return {name: self.address(host, name) for name in self.planes}

    def devices(self) -> dict[str, str]:
        """The device of each plane, the same on every host."""
        return {name: plane.device for name, plane in self.planes.items()}

    def boot(self, host: str, argv: Sequence[str], log: Path) -> None:
        """Starts the one service of a host with an init; the host ends with it."""
        self._keeper.boot(host, argv, log)

    def is_up(self, host: str) -> bool:
        """False between `kill` and `revive`."""
        return host in self._namespaces

    def alive(self, host: str) -> bool:
        """Whether the init of a host still lives."""
        return self._keeper.alive(host)

    def kill(self, host: str) -> None:
        """Ends a host as a power cut does: its processes and its devices are gone."""
        self._keeper.drop([host])
        self._namespaces.pop(host, None)
        for device in self._ports(host):
            _remove_device(device, inside=self.enter_switch())

    def revive(self, host: str) -> None:
        """Makes a killed host anew: same name and addresses, and nothing else."""
        self._make([host])
        self._plug([host])
        self._configure(host)

    def cut(self, host: str, plane: str = "management") -> None:
        """A link of a host goes silent, as behind a dead switch: its carrier stays."""
        self._set_port(host, plane, "nomaster")

    def mend(self, host: str, plane: str = "management") -> None:
        """A link that was cut carries again."""
        self._set_port(host, plane, f"master {self.planes[plane].bridge}")

    def enter_switch(self) -> list[str]:
        """As `enter`, for the namespace of the bridges."""
        return self._namespaces[_SWITCH].enter()

    def close(self) -> None:
        """Ends what is left on the hosts, and the fabric. Safe to call twice."""
        with ExitStack() as stack:
            stack.callback(self.block.lock.release)
            stack.callback(self._keeper.close)
            stack.callback(self._remove_veth)

    # -- building ----------------------------------------------------------------

    def _start(self, members: Sequence[Member]) -> None:
        self._members = {member.name: member for member in members}
        self._order = {name: index for index, name in enumerate(self._members)}
        names = list(self._members)
        made = self._keeper.make([_SWITCH], sysctl=_SYSCTL)
        self._namespaces.update(made)
        self._make(names)
        self._build_bridges()
        self._plug(names)
        with ThreadPoolExecutor(_HELPERS, thread_name_prefix="fabric") as pool:
            list(pool.map(self._configure, names))

    def _make(self, names: Sequence[str]) -> None:
        machine = self._machine
        made = self._keeper.make(
            names,
            sysctl=_SYSCTL,
            init=machine.init,
            private=machine.private,
            directories=machine.directories,
            scratch=machine.scratch,
        )
        self._namespaces.update(made)

    def _build_bridges(self) -> None:
        """The bridges, and the harness's veth into the management plane."""
        switch = self._namespaces[_SWITCH].path("net")
        device = self.block.device
        run_batch([f"link add {device} type veth peer name harness netns {switch}"])
        self._veth_is_ours = True
        run_batch(
            [
                f"link set {device} addrgenmode none",
                f"address add {self.harness_address}/24 dev {device}",
                f"link set {device} up",
            ]
        )
        lines = ["link set lo up"]
        for plane in self.planes.values():
            lines.append(f"link add {plane.bridge} type bridge mcast_snooping 0")
            lines.append(f"link set {plane.bridge} up")
        management = self.planes["management"].bridge
        lines.append(f"link set harness master {management} up")
        run_batch(lines, inside=self.enter_switch())

    def _remove_veth(self) -> None:
        """Removes the harness's veth, once, and only if we made it."""
        if self._veth_is_ours:
            self._veth_is_ours = False
            _remove_device(self.block.device)

    def _plug(self, names: Sequence[str]) -> None:
        """A veth for each host and plane, one end a port of the plane's bridge."""
        lines = []
        for name in names:
            there = self._namespaces[name].path("net")
            ports = zip(self._ports(name), self.planes.values(), strict=True)
            for place, (port, plane) in enumerate(ports):
                mac = self._mac(place, name)
                peer = f"peer name {plane.device} address {mac} netns {there}"
                lines.append(f"link add {port} type veth {peer}")
                lines.append(f"link set {port} master {plane.bridge} up")
        run_batch(lines, inside=self.enter_switch())

    def _ports(self, host: str) -> list[str]:
        number = self._order[host]
        return [f"{plane.device}-{number}" for plane in self.planes.values()]

    def _set_port(self, host: str, plane: str, words: str) -> None:
        port = f"{self.planes[plane].device}-{self._order[host]}"
        run_batch([f"link set {port} {words}"], inside=self.enter_switch())

    def _mac(self, place: int, host: str) -> str:
        """The same after a reboot, else neighbours would ask for the old one."""
        return f"02:4d:51:{self.block.index:02x}:{place:02x}:{self._order[host]:02x}"

    def _configure(self, host: str) -> None:
        lines = ["link set lo up"]
        for plane in self.planes.values():
            addresses = map(plane.address, self._members[host].numbers)
            lines += [f"address add {ip}/24 dev {plane.device}" for ip in addresses]
            lines.append(f"link set {plane.device} up")
        run_batch(lines, inside=self.enter(host))


def lease_block(
    *, pinned: int | None = None, directory: Path | None = None, blocks: int = BLOCKS
) -> Block:
    """Leases the first number that no fabric has and no route of the machine meets.

    Raises:
        UsageError: None is free, or the pinned one is not; the message says why.
    """
    routes = routes_of_machine()
    reasons = []
    for index in range(blocks) if pinned is None else [pinned]:
        block, reason = _try_lease(index, routes, directory)
        if block is not None:
            return block
        reasons.append(reason)
    problem = f"no fabric number is free: {reasons[0]}"
    raise UsageError(problem, "end the other runs, or remove the route")


def _try_lease(
    index: int,
    routes: Sequence[ipaddress.IPv4Network],
    directory: Path | None,
) -> tuple[Block | None, str]:
    if not 0 <= index < BLOCKS:
        return None, f"there are fabrics 0..{BLOCKS - 1}, not {index}"
    try:
        lock = lock_domain(f"fabric-{index}", directory=directory)
    except DomainBusy as error:
        return None, str(error)
    block = Block(index=index, lock=lock)
    reason = _collision(block, routes)
    if reason:
        lock.release()
        return None, reason
    return block, ""


def _collision(block: Block, routes: Sequence[ipaddress.IPv4Network]) -> str:
    """What of the machine is in the way of a fabric's one address and device."""
    if block.device in [name for _, name in socket.if_nameindex()]:
        return f"there is a device {block.device} already"
    ours = ipaddress.IPv4Network(f"{_management(block.index)}.0/24")
    for route in routes:
        if route.overlaps(ours):
            return f"{ours} collides with the route to {route}"
    return ""


def routes_of_machine(
    read: Callable[[], str] | None = None,
) -> list[ipaddress.IPv4Network]:
    """Every IPv4 route of all tables but default ones.

    Args:
        read: the text of `ip -j -4 route show table all`.
    """
    text = (read or _read_routes)()
    networks = []
    for route in json.loads(text or "[]"):
        destination = route.get("dst", "default")
        if destination == "default":
            continue
        network = ipaddress.IPv4Network(destination, strict=False)
        if network.prefixlen > _DEFAULT_LENGTH:
            networks.append(network)
    return networks


def _read_routes() -> str:
    done = subprocess.run(
        ["ip", "-j", "-4", "route", "show", "table", "all"],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        message = f"the routes of the machine cannot be read: {done.stderr.strip()}"
        raise HarnessError(message)
    return done.stdout


def _planes(block: int, rails: int) -> list[Plane]:
    control = Plane(name="control", device="ctl0", prefix=f"198.18.{8 * block}")
    management = Plane(name="management", device="mgmt0", prefix=_management(block))
    data = [
        Plane(name=f"rail{n}", device=f"rail{n}", prefix=f"198.18.{8 * block + 1 + n}")
        for n in range(rails)
    ]
    return [management, control, *data]


def _management(block: int) -> str:
    return f"198.19.{block}"


def _check(members: Sequence[Member], rails: int) -> None:
    if not 1 <= rails <= MAX_RAILS:
        raise UsageError(f"a fabric has 1 to {MAX_RAILS} rails, not {rails}")
    numbers = [number for member in members for number in member.numbers]
    twice = {number for number in numbers if numbers.count(number) > 1}
    if twice or HARNESS in numbers or not all(member.numbers for member in members):
        message = f"every host needs numbers of its own: {sorted(twice) or numbers}"
        raise ValueError(message)
    names = [member.name for member in members]
    if len(set(names)) != len(names) or _SWITCH in names:
        message = f"every host needs a name of its own: {names}"
        raise ValueError(message)


def _remove_device(device: str, *, inside: Sequence[str] = ()) -> None:
    """Removes a veth; one that is gone already is what was wanted."""
    try:
        run_batch([f"link delete {device}"], inside=inside)
    except HarnessError as error:
        if "Cannot find device" not in str(error):
            raise
