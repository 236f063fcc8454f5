"""What `--active` tried: pings that may not be split, exchanges between rails.

These rules send nothing. They judge what was recorded, and are SKIP without `--active`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok, unknown
from checks.parse.ping import Ping, pings
from checks.parse.verbs_probe import Probe, probes
from checks.rules.declare import NotHere, Subject, check
from checks.rules.subjects import each_port, each_rail

if TYPE_CHECKING:
    from checks.node import Node
    from checks.ports import Port
    from checks.rails import Rail

_PING = "ping -c 1 -W 1 -M do -s BYTES -I RAIL_IP PEER"
_VERBS = "verbs.probes"
_NO_ACTIVE = "--active was not asked for"
_ERRNO = {
    110: "timeout: no route between the rails, or the peer's GID is another",
    22: "refused: GID type or MTU do not fit",
    61: "the GID slot is empty",
    19: "no such device",
}


def _rails(node: Node) -> list[Subject[Rail]]:
    """The rails; SKIP where no ping was asked for."""
    every, unread = pings(node.facts)
    if not every and not unread and not node.facts.collector.get("active"):
        raise NotHere(_NO_ACTIVE)
    return each_rail(node)


def _ports(node: Node) -> list[Subject[Port]]:
    """The ports; SKIP where no exchange was asked for."""
    _tried(node)
    return each_port(node)


def _of_rail(node: Node, rail: Rail) -> tuple[list[Ping], list[Unread]]:
    """(pings bound to a rail's address, those that cannot be read)."""
    every, unread = pings(node.facts)
    mine = [each for each in every if each.source in rail.ips]
    lost = [e for e in unread if any(f"-I {ip} " in e.what for ip in rail.ips)]
    if not mine and not lost:
        raise Unread("missing", _PING, f"no ping from {rail.ip or rail.netdev}")
    return mine, lost


@check(
    "act-ping-rail",
    group="active",
    severity="E",
    why="a peer does not answer a ping that carries the rail's own address",
    fix=("ip route get PEER from RAIL_IP on both ends; then ARP and the switch",),
    source=("R25 k8s-launch-kit PR#254: bound to the address, never to the device",),
    needs=(_PING,),
    requires=("route-nic-has-ip",),
    follows=(
        "nic-port-state",
        "nic-netdev-oper",
        "route-table-empty",
        "route-get-consistent",
        "route-peer-same-rail",
        "route-gateway-neigh",
        "route-path-mtu",
        "route-mtu-iface",
    ),
    over=_rails,
)
def ping_rail(node: Node, rail: Rail) -> Outcome:
    mine, lost = _of_rail(node, rail)
    answered = {each.target for each in mine if each.received}
    silent = [
        each for each in mine if each.target not in answered and not each.too_long
    ]
    wanted = f"every peer answers {rail.ip}"
    if silent:
        targets = ", ".join(dict.fromkeys(each.target for each in silent))
        return bad(f"no reply from {targets}", wanted)
    if lost:
        raise lost[0]
    if not answered:
        return unknown("no packet was small enough to be sent")
    return ok(f"{len(answered)} peers answer", wanted)


@check(
    "route-path-mtu",
    group="route",
    severity="E",
    why="a switch or router on the path carries less than the rail's MTU: large packets"
    " vanish, small ones pass",
    fix=("set the MTU of every switch port and router on the path",),
    source=("R50 nccl#709: fixed by setting the correct MTU",),
    needs=(_PING, "ip -j -d addr"),
    requires=("route-nic-has-ip",),
    follows=(
        "nic-port-state",
        "nic-netdev-oper",
        "route-table-empty",
        "route-get-consistent",
        "route-peer-same-rail",
        "route-gateway-neigh",
        "route-mtu-iface",
    ),
    over=_rails,
)
def path_mtu(node: Node, rail: Rail) -> Outcome:
    mine, lost = _of_rail(node, rail)
    largest = _largest(mine)
    for each in largest:
        if not each.received and (each.too_long or not _silent_at_all(each, mine)):
            told = f"{each.size} bytes to {each.target}: {each.too_long or 'no reply'}"
            return bad(told, "they pass unsplit")
    if lost:
        raise lost[0]
    if not largest:
        raise Unread("missing", _PING, "no ping forbade to split it")
    silent = [each.target for each in largest if not each.received]
    if silent:
        return unknown(f"{silent[0]} answers packets of no size: not for their size")
    size, mtu = min(each.size or 0 for each in largest), _mtu(node, rail)
    if size < mtu:
        return unknown(f"only {size} of {mtu} bytes were tried", f"{mtu} bytes pass")
    return ok(f"{size} bytes pass unsplit to {len(largest)} peers", f"{mtu} bytes pass")


def _largest(mine: list[Ping]) -> list[Ping]:
    """The largest packet to every target that was not to be split."""
    found: dict[str, Ping] = {}
    for each in mine:
        if each.size is not None:
            known = found.get(each.target)
            if known is None or (known.size or 0) < each.size:
                found[each.target] = each
    return list(found.values())


def _silent_at_all(each: Ping, mine: list[Ping]) -> bool:
    """A smaller packet to the same target was not answered either."""
    return any(
        other.target == each.target and other != each and not other.received
        for other in mine
    )


def _mtu(node: Node, rail: Rail) -> int:
    if rail.link is not None:
        return rail.link.mtu
    return node.facts.number(f"/sys/class/net/{rail.netdev}/mtu")


def _tried(node: Node) -> tuple[Probe, ...]:
    try:
        return probes(node.facts)
    except Unread as error:
        if error.kind == "missing" and not node.facts.collector.get("active"):
            raise NotHere(_NO_ACTIVE) from None
        raise


def _verdict(every: list[Probe], wanted: str) -> Outcome:
    for each in every:
        if each.errno:
            return bad(f"{_pair(each)}: errno {each.errno}, {_told(each)}", wanted)
    for each in every:
        if each.errno is None:
            reason = each.error or "not tried"
            raise Unread("missing", _VERBS, f"{_pair(each)}: {reason}")
    return ok(f"{len(every)} exchanges", wanted)


def _pair(each: Probe) -> str:
    ends = (each.source, "→", each.peer, each.target)
    return " ".join((*(end for end in ends if end), *_kind(each)))


def _kind(each: Probe) -> tuple[str, ...]:
    return ("(read)",) if each.kind == "read" else ()


def _told(each: Probe) -> str:
    """What an errno means; the step in which it came, where that is told."""
    meaning = _ERRNO.get(each.errno or 0, "")
    return ": ".join(part for part in (meaning, each.error) if part) or "failed"


@check(
    "act-hairpin",
    group="active",
    severity="E",
    why="two rails of one host cannot talk to each other: the engine picks such pairs"
    " for local segments",
    fix=("a route between the rails through the switch",),
    source=("R16 Mooncake#35, #82", "Mooncake#3828"),
    needs=(_VERBS,),
    follows=("nic-port-state", "route-cross-rail"),
    over=_ports,
)
def hairpin(node: Node, port: Port) -> Outcome:
    mine = [p for p in _tried(node) if p.is_inside and p.source == port.device]
    if not mine:
        raise Unread(
            "missing", _VERBS, f"no exchange inside of the host from {port.label}"
        )
    return _verdict(mine, f"{port.label} reaches every other rail of this host")


@check(
    "act-rc-pingpong",
    group="active",
    severity="E",
    why="a reliable connection to a peer cannot be made, or messages and one-sided"
    " reads do not come through",
    fix=("the errno tells: 110 route or GID, 22 GID type or MTU, 61 empty GID slot",),
    source=("R16 Mooncake#35", "R23 rccl#1303", "CVS preflight"),
    needs=(_VERBS,),
    follows=("nic-port-state", "roce-gid-table", "route-peer-same-rail"),
    over=_ports,
)
def rc_pingpong(node: Node, port: Port) -> Outcome:
    mine = [p for p in _tried(node) if not p.is_inside and p.source == port.device]
    if not mine:
        raise Unread("missing", _VERBS, f"no exchange with a peer from {port.label}")
    return _verdict(mine, f"{port.label} exchanges messages with its peers")
