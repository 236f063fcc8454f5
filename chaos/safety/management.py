"""The guard of the management plane: a pure judge of what is about to be run on a host.

Given the facts of a host and the steps of a fault it accepts, or refuses with a reason.
It reads the steps as they will be executed, not what a fault meant by them, and knows
only the few shapes that our faults have: every other command is refused, so that no
alias, pattern or spelling gets around it. Never touched are

- the controller: its address, and the sessions of everybody who is logged in by SSH,
- SSH, DNS, NTP and the ports of metrics, whoever asks,
- the devices that carry them (those that the routes to the controller, the resolvers
  and the time servers take, and what these are made of: the parent of a VLAN, the ports
  of a bridge, the members of a bond, and the bridge itself),
- the agent and the SSH daemon as processes, the cgroups they live in, and the file
  systems that the machine needs.

(Jepsen PR #550, ChaosBlade#903 and Chaos Mesh#3158 are what happens without one.)
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from ipaddress import ip_network
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from chaos.errors import UsageError
from chaos.faults.programs import EMPTY_CGROUP, FLAP
from chaos.safety.packets import Flow, Ruleset, Unknown, plain_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SSH_PORT, DNS_PORT, NTP_PORT = 22, 53, 123
_CGROUPS = "/sys/fs/cgroup/"
_LIMITS = re.compile(
    r"memory\.(max|high|limit_in_bytes|memsw\.limit_in_bytes)|io\.max|cgroup\.procs"
    r"|blkio\.throttle\.(read|write)_(bps|iops)_device"
)
_SYSTEM_MOUNTS = re.compile(
    r"/|/(boot|dev|etc|home|proc|run|sys|tmp|usr|var)|/dev/shm|/var/(lib|log|tmp)"
)
_LEAST_FREE_BYTES = 256 << 20
#: What packets that nobody has a rule for are routed by. Where a rule sends those for
#: the controller to another table, its devices are carriers, and closed as such.
_TABLES = frozenset({"main", "default", "local", "0", "all", "253", "254", "255"})
_MOST_WORKERS = 256


class Refused(UsageError):
    """The guard does not let a fault happen; the reason names what it would cut."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A network device: its other names, what it is part of, what it stands on."""

    name: str
    other_names: tuple[str, ...] = ()
    master: str = ""
    parent: str = ""
    root_qdisc: str = ""
    """Kind of a root qdisc that somebody put there, "" for the kernel's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What the guard must know of a host; what is empty is not known, or not there."""

    host: str
    devices: tuple[Device, ...] = ()
    carriers: frozenset[str] = frozenset()
    """Devices that routes to the controller, the resolvers and time servers take."""
    management: str = ""
    """The device declared for management: nothing on it is touched at all."""
    controllers: tuple[str, ...] = ()
    ssh_ports: tuple[int, ...] = (SSH_PORT,)
    metrics_ports: tuple[int, ...] = ()
    protected_pids: frozenset[int] = frozenset({1})
    protected_cgroups: frozenset[str] = frozenset()
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Source by mount point."""
    available_bytes: int = 0

    @property
    def names(self) -> dict[str, str]:
        """The real name of a device by each of its names."""
        real = {device.name: device.name for device in self.devices}
        return real | {n: d.name for d in self.devices for n in d.other_names}

    @property
    def untouchable(self) -> frozenset[str]:
        """The carriers and everything they are made of or belong to."""
        found = set(self.carriers) | ({self.management} - {""})
        while True:
            more = {d.parent for d in self.devices if d.name in found and d.parent}
            more |= {d.master for d in self.devices if d.name in found and d.master}
            more |= {d.name for d in self.devices if d.master in found}
            if more <= found:
                return frozenset(found)
            found |= more


def judge(facts: HostFacts, steps: Sequence[Mapping[str, Any]]) -> str:
    """Why these steps must not be run on this host, "" when they may.

    Args:
        facts: of the host as it is now.
        steps: JSON objects of the agent's protocol, of one whole fault.
    """
    if not steps:
        return "a fault without steps does nothing"
    try:
        return (
            _rules(facts, steps)
            or _first(
                _action(facts, step[part])
                for step in steps
                for part in ("do", "undo", "renew")
                if step.get(part) is not None
            )
            or _first(_check(step["verify"]) for step in steps if step.get("verify"))
        )
    except (Unknown, KeyError, TypeError, ValueError) as error:
        return f"the guard does not know {error}"


def check(facts: HostFacts, steps: Sequence[Mapping[str, Any]], *, fault: str) -> None:
    """Lets a fault pass, or not.

    Raises:
        Refused: With the reason.
    """
    reason = judge(facts, steps)
    if reason:
        raise Refused(f"{fault} is refused on {facts.host}: {reason}")


def _first(reasons: Any) -> str:
    return next((str(reason) for reason in reasons if reason), "")


# -- packets ---------------------------------------------------------------------------


def _rules(facts: HostFacts, steps: Sequence[Mapping[str, Any]]) -> str:
    """Follows every protected flow through the tables that the steps would make."""
    rules = Ruleset(names=facts.names)
    for step in steps:
        for part in ("do", "renew"):
            action = step.get(part) or {}
            if action.get("run", [])[:1] == ["nft"]:
                rules.read(action["stdin"])
    if rules.chains and not (facts.controllers or facts.management):
        return "where the controller is cannot be told, so it cannot be spared"
    for flow in protected_flows(facts):
        chain = rules.hits(flow)
        if chain:
            return f"{flow.label} would be hit by a rule in chain {chain}"
    return ""


def protected_flows(facts: HostFacts) -> tuple[Flow, ...]:
    """The packets that must get through, both ways."""
    flows: list[Flow] = []
    for direction in ("in", "out"):
        for address in facts.controllers:
            label = f"the controller {address}"
            flows.append(Flow(label=label, direction=direction, remote=address))
            if plain_address(address).version == 6:
                label = "neighbour discovery, which the controller needs"
                flows.append(Flow(label=label, direction=direction, protocol="icmpv6"))
        if facts.management:
            label = f"the management device {facts.management}"
            flows.append(
                Flow(label=label, direction=direction, device=facts.management)
            )
        flows += _services(facts, direction)
    return tuple(flows)


def _services(facts: HostFacts, direction: str) -> list[Flow]:
    served = [("SSH", port) for port in facts.ssh_ports]
    served += [("the metrics port", port) for port in facts.metrics_ports]
    flows = [
        Flow(
            label=f"{what} ({port}/tcp)",
            direction=direction,
            protocol="tcp",
            local_port=port,
        )
        for what, port in served
    ]
    used = [("DNS", "udp", DNS_PORT), ("DNS", "tcp", DNS_PORT)]
    used += [("NTP", "udp", NTP_PORT)]
    return flows + [
        Flow(
            label=f"{what} ({port}/{protocol})",
            direction=direction,
            protocol=protocol,
            remote_port=port,
        )
        for what, protocol, port in used
    ]


# -- commands --------------------------------------------------------------------------


def _check(verify: Mapping[str, Any]) -> str:
    """A check is run as well, and may only read."""
    if "run" not in verify:
        return "" if verify.get("op") in ("gone", "same") else f"the check {verify}"
    match [str(word) for word in verify["run"]]:
        case ["nft", "list", *_] | ["tc", "qdisc", "show", *_]:
            return ""
        case ["ip", "-o", "link", "show", "dev", _] | ["test", "-d" | "-e", _]:
            return ""
    return f"a check by {verify['run']}, which may do more than read"


def _action(facts: HostFacts, action: Mapping[str, Any]) -> str:
    if "run" in action:
        argv = [str(word) for word in action["run"]]
        handler = _COMMANDS.get(argv[0]) if argv else None
        if handler is None:
            return f"the guard does not know the command {argv[:1]}"
        return handler(facts, argv)
    handler_of = _OPERATIONS.get(str(action.get("op")))
    if handler_of is None:
        return f"the guard does not know the operation {action.get('op')!r}"
    return handler_of(facts, action)


def _device(facts: HostFacts, name: str, what: str) -> str:
    real = facts.names.get(name)
    if real is None:
        return f"{what}: the host has no device {name!r}"
    if real in facts.untouchable:
        called = real if real == name else f"{name} ({real})"
        return f"{what}: {called} carries the management plane"
    return ""


def _nft(facts: HostFacts, argv: Sequence[str]) -> str:
    """Scripts only, and those were read before."""
    return "" if list(argv) == ["nft", "-f", "-"] else f"nft with {list(argv[1:])}"


def _ip(facts: HostFacts, argv: Sequence[str]) -> str:
    words = [word for word in argv[1:] if word not in ("-4", "-6")]
    match words:
        case ["link", "set", "dev", name, "up"]:
            return "" if name in facts.names else f"no device {name!r}"
        case ["link", "set", "dev", name, "down"]:
            return _device(facts, name, "link down")
        case ["addr", "replace", _, "dev", name] | [
            "addr",
            "replace",
            _,
            "dev",
            name,
            "nodad",
        ]:
            return _device(facts, name, "an address")
        case ["neigh", "replace", _, "lladdr", _, "nud", "permanent", "dev", name]:
            return _device(facts, name, "a neighbour")
        case ["route", "replace", target, *rest] if "dev" in rest[:-1]:
            name = rest[rest.index("dev") + 1]
            refusal = _device(facts, name, "a route")
            return refusal or ("" if _aside(rest) else _captured(facts, target))
    return f"the guard does not know ip {' '.join(words)}"


def _aside(words: Sequence[str]) -> bool:
    """Whether a route is in a table that only packets with a rule for it see."""
    tables = {value for word, value in pairwise(words) if word == "table"}
    plain = all(re.fullmatch(r"[1-9]\d*|[A-Za-z_][\w.-]*", name) for name in tables)
    return bool(tables) and plain and not tables & _TABLES


def _captured(facts: HostFacts, target: str) -> str:
    """A route that would lead packets for the controller somewhere else."""
    for address in facts.controllers:
        plain = plain_address(address)
        everything = "0.0.0.0/0" if plain.version == 4 else "::/0"
        network = ip_network(
            everything if target == "default" else target, strict=False
        )
        if plain in network:
            return (
                f"a route to {target} would take packets for the controller {address}"
            )
    return ""


def _tc(facts: HostFacts, argv: Sequence[str]) -> str:
    match list(argv[1:]):
        case ["qdisc", "del", "dev", name, "root", "handle", _]:
            return _device(facts, name, "tc")
        case ["qdisc", "add", "dev", name, "root", "handle", _, kind, *rest]:
            refusal = _device(facts, name, "tc") or _shaper(kind, rest)
            return refusal or _somebody_elses(facts, name)
    return f"the guard does not know tc {' '.join(argv[1:])}"


def _shaper(kind: str, words: Sequence[str]) -> str:
    if kind not in ("tbf", "netem"):
        return f"the guard does not know the qdisc {kind}"
    if kind == "tbf" and "rate" not in words:
        return "a tbf without a rate"
    for word, value in pairwise(words):
        if word == "rate" and not int(re.sub(r"[a-zA-Z]+$", "", value) or 0):
            return "a rate of 0 is a cut, not a limit: ask for a partition"
    return ""


def _somebody_elses(facts: HostFacts, name: str) -> str:
    real = facts.names[name]
    kinds = [d.root_qdisc for d in facts.devices if d.name == real and d.root_qdisc]
    if not kinds:
        return ""
    return f"{real} has a root qdisc {kinds[0]} of somebody else, which would be lost"


def _directory(facts: HostFacts, argv: Sequence[str]) -> str:
    match list(argv[1:]):
        case [path] if re.fullmatch(r"/sys/fs/cgroup/(\w+/)?moonquake_\w+", path):
            return ""
    return f"{argv[0]} of {argv[1:]}, which is no cgroup of ours"


def _python(facts: HostFacts, argv: Sequence[str]) -> str:
    program = argv[4] if len(argv) > 4 and list(argv[1:4]) == ["-I", "-S", "-c"] else ""
    if program == FLAP:
        return _device(facts, argv[5], "flapping")
    if program == EMPTY_CGROUP:
        return _directory(facts, ["emptying", argv[5]])
    return "a program that is none of ours"


_COMMANDS: dict[str, Callable[[HostFacts, Sequence[str]], str]] = {
    "nft": _nft,
    "ip": _ip,
    "tc": _tc,
    "mkdir": _directory,
    "rmdir": _directory,
    "python3": _python,
}


# -- operations of the agent -----------------------------------------------------------


def _signal(facts: HostFacts, action: Mapping[str, Any]) -> str:
    pid = int(action["pid"])
    if pid <= 1 or pid in facts.protected_pids:
        return f"pid {pid} is the agent, the SSH daemon or the init of the host"
    return "" if int(action["start_ticks"]) > 0 else "a pid without its start time"


def _start(facts: HostFacts, action: Mapping[str, Any]) -> str:
    argv = [str(word) for word in action["argv"]]
    if argv[:1] != ["python3"]:
        return f"the guard does not know the background command {argv[:1]}"
    return _python(facts, argv)


def _write(facts: HostFacts, action: Mapping[str, Any]) -> str:
    path = str(action["path"])
    folder, _, name = path.rpartition("/")
    clean = path.startswith(_CGROUPS) and posixpath.normpath(path) == path
    if not clean or not _LIMITS.fullmatch(name):
        return f"a write to {path}"
    if folder.removeprefix(_CGROUPS).count("/") < 1 and "moonquake_" not in folder:
        return f"{folder} is the root of all cgroups"
    if folder in facts.protected_cgroups and name != "cgroup.procs":
        return f"{folder} is the cgroup of the agent or of the SSH daemon"
    return ""


def _on_scratch(facts: HostFacts, path: str) -> str:
    """A file may grow only where nothing else lives: on a mount of its own."""
    if posixpath.normpath(path) != path or not path.startswith("/"):
        return f"{path} is no plain absolute path"
    inside = [m for m in facts.mounts if path.startswith(m.rstrip("/") + "/")]
    mount = max(inside, key=len, default="/")
    source = facts.mounts.get(mount, "")
    shared = source.startswith("/dev/") and source == facts.mounts.get("/")
    if _SYSTEM_MOUNTS.fullmatch(mount) or shared or not source:
        return (
            f"{path} is on {mount}, which the host itself needs; name a scratch mount"
        )
    return ""


def _fill(facts: HostFacts, action: Mapping[str, Any]) -> str:
    return _on_scratch(facts, str(action["path"]))


def _memory(facts: HostFacts, action: Mapping[str, Any]) -> str:
    if "cgroup" in action:
        return "a child in a cgroup of somebody else"
    left = facts.available_bytes - int(action["bytes"])
    if left >= _LEAST_FREE_BYTES:
        return ""
    return (
        f"{action['bytes']} of {facts.available_bytes} available bytes would leave"
        f" less than {_LEAST_FREE_BYTES} for the agent and SSH"
    )


def _cpu(facts: HostFacts, action: Mapping[str, Any]) -> str:
    workers = int(action["workers"])
    return "" if 1 <= workers <= _MOST_WORKERS else f"{workers} workers"


def _listen(facts: HostFacts, action: Mapping[str, Any]) -> str:
    port = int(action["port"])
    taken = {*facts.ssh_ports, *facts.metrics_ports, DNS_PORT, NTP_PORT}
    return f"port {port} belongs to the management plane" if port in taken else ""


def _nothing(facts: HostFacts, action: Mapping[str, Any]) -> str:
    """Ends what was begun before."""
    return ""


_OPERATIONS: dict[str, Callable[[HostFacts, Mapping[str, Any]], str]] = {
    "signal": _signal,
    "start": _start,
    "write": _write,
    "fill": _fill,
    "unlink": _fill,
    "memory": _memory,
    "cpu": _cpu,
    "listen": _listen,
    "end": _nothing,
    "restore": _nothing,
}
