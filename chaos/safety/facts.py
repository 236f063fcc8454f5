"""What the management guard must know of a host, and the commands that tell it.

Pure: `COMMANDS` are run by whoever can reach the host, `read_facts` understands what
they printed. A command that is missing there (chronyc, ss) tells nothing; one that must
tell (ip) makes the facts unusable, and no fault of the network is let pass then.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaos.errors import HarnessError
from chaos.safety.management import SSH_PORT, Device, HostFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Reading only; none of them changes anything.
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "links": ("ip", "-j", "-d", "link", "show"),
    "qdiscs": ("tc", "-j", "qdisc", "show"),
    "resolvers": ("cat", "/etc/resolv.conf"),
    "clocks": ("chronyc", "-n", "-c", "sources"),
    "session": ("printenv", "SSH_CONNECTION"),
    "logins": ("ss", "-Htn", "state", "established"),
    "daemons": ("pgrep", "-x", "sshd"),
    "mounts": ("cat", "/proc/self/mounts"),
    "memory": ("cat", "/proc/meminfo"),
    "cgroup": ("cat", "/proc/self/cgroup"),
}
_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one command said."""

    rc: int
    stdout: str


def peers_of(told: Mapping[str, Told], controller: str = "") -> tuple[str, ...]:
    """The controller's addresses as the host sees them, first those that are sure.

    Whoever has an SSH session open is taken for a controller as well: sudo drops the
    environment that names ours.
    """
    found = [controller] if controller else []
    session = told["session"].stdout.split()
    if session and session[0] not in found:
        found.append(session[0])
    ports = ssh_ports_of(told)
    for line in told["logins"].stdout.splitlines():
        fields = line.split()
        local, remote = (_socket(field) for field in fields[-2:])
        if local and remote and local[1] in ports and remote[0] not in found:
            found.append(remote[0])
    return tuple(address for address in found if _is_address(address))


def ssh_ports_of(told: Mapping[str, Told]) -> tuple[int, ...]:
    """22, and the port by which the agent's own session came."""
    session = told["session"].stdout.split()
    ports = {SSH_PORT} | ({int(session[3])} if len(session) == 4 else set())
    return tuple(sorted(ports))


def destinations(told: Mapping[str, Told], peers: tuple[str, ...]) -> tuple[str, ...]:
    """Whom the management plane talks to: the ways there carry it."""
    rows = [line.split() for line in told["resolvers"].stdout.splitlines()]
    found = [row[1] for row in rows if row[:1] == ["nameserver"] and len(row) > 1]
    sources = [line.split(",") for line in told["clocks"].stdout.splitlines()]
    found += [row[2] for row in sources if len(row) > 2]
    named = [*peers, *found]
    return tuple(dict.fromkeys(address for address in named if _is_address(address)))


def route_to(address: str) -> tuple[str, ...]:
    """The command that tells which device packets to an address take."""
    return ("ip", "-j", "route", "get", address)


def read_facts(
    host: str,
    told: Mapping[str, Told],
    routes: Mapping[str, Told],
    *,
    controllers: tuple[str, ...],
    management: str = "",
    metrics_ports: tuple[int, ...] = (),
    pids: frozenset[int] = frozenset(),
) -> HostFacts:
    """The facts, from what the commands said.

    Raises:
        HarnessError: The host does not say which devices it has.
    """
    qdiscs = _qdiscs(told["qdiscs"])
    return HostFacts(
        host=host,
        devices=tuple(_device(row, qdiscs) for row in _rows(host, told["links"])),
        carriers=frozenset(filter(None, map(_carrier, routes.values()))) - {"lo"},
        management=management,
        controllers=controllers,
        ssh_ports=ssh_ports_of(told),
        metrics_ports=metrics_ports,
        protected_pids=frozenset({1}) | pids | _pids(told["daemons"]),
        protected_cgroups=frozenset(cgroup_folders(told["cgroup"].stdout, told)),
        mounts=_mounts(told["mounts"]),
        available_bytes=_available(told["memory"]),
    )


def cgroup_folders(text: str, told: Mapping[str, Told]) -> list[str]:
    """Where the cgroups of `/proc/<pid>/cgroup` are mounted."""
    found: list[str] = []
    for line in text.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        root = cgroup_root(told["mounts"].stdout, controllers)
        if root and path:
            found.append(f"{root}{path}".rstrip("/"))
    return found


def cgroup_root(mounts: str, controllers: str) -> str:
    """Where the hierarchy of these controllers is mounted; "" asks for version 2."""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        if not controllers and fields[2] == "cgroup2":
            return fields[1]
        wanted = set(controllers.split(","))
        if controllers and fields[2] == "cgroup" and wanted <= set(_options(fields)):
            return fields[1]
    return ""


def _options(fields: list[str]) -> list[str]:
    return fields[3].split(",")


def _rows(host: str, links: Told) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads(links.stdout or "null")
    except ValueError:
        rows = []
    if links.rc != 0 or not rows:
        message = f"{host} does not tell its network devices: ip -j -d link show"
        raise HarnessError(f"{message} ended with {links.rc}")
    return rows


def _device(row: Mapping[str, Any], qdiscs: Mapping[str, str]) -> Device:
    """`link` is what a VLAN stands on; of a veth it is its other end, no part of it."""
    kind = row.get("linkinfo", {}).get("info_kind", "")
    return Device(
        name=str(row["ifname"]),
        other_names=tuple(row.get("altnames", ())),
        master=str(row.get("master", "")),
        parent="" if kind == "veth" else str(row.get("link", "")),
        root_qdisc=qdiscs.get(str(row["ifname"]), ""),
    )


def _qdiscs(told: Told) -> dict[str, str]:
    """Root qdiscs that somebody put there; the kernel's own have no handle."""
    rows = json.loads(told.stdout) if told.rc == 0 and told.stdout.strip() else []
    return {
        str(row["dev"]): str(row["kind"])
        for row in rows
        if row.get("root") and row.get("handle", "0:") != "0:"
    }


def _carrier(told: Told) -> str:
    """The device of a route; a destination that cannot be reached has none."""
    rows = json.loads(told.stdout) if told.rc == 0 and told.stdout.strip() else []
    return str(rows[0].get("dev", "")) if rows else ""


def _pids(told: Told) -> frozenset[int]:
    return frozenset(int(word) for word in told.stdout.split() if word.isdigit())


def _mounts(told: Told) -> dict[str, str]:
    rows = [line.split() for line in told.stdout.splitlines()]
    return {_unescaped(row[1]): row[0] for row in rows if len(row) > 1}


def _unescaped(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t")


def _available(told: Told) -> int:
    for line in told.stdout.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * _KIB
    return 0


def _socket(text: str) -> tuple[str, int] | None:
    host, _, port = text.rpartition(":")
    return (host.strip("[]").partition("%")[0], int(port)) if port.isdigit() else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
