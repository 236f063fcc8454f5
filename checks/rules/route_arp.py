"""Who answers for an address: ARP settings, neighbours, duplicate addresses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok, skip
from checks.parse.ip_addr import Link, links
from checks.parse.ip_neigh import Neighbour, neighbours
from checks.parse.ipv4_conf import effective
from checks.rails import Rail
from checks.rules.declare import Judged, NotHere, Subject, check, compared, fleetwide
from checks.rules.likeness import ask
from checks.rules.rail_policy import active, all_routes, networks_of, version_of
from checks.rules.subjects import each_rail
from checks.selector import default_devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from checks.node import Node
    from checks.parse.ip_route import Hop, Route

_GATEWAYS = frozenset({1, 254})
_CONF = "/proc/sys/net/ipv4/conf/*"


def _shares_subnet(node: Node, rail: Rail) -> bool:
    return any(
        mine.version == theirs.version and mine.overlaps(theirs)
        for other in node.rails
        if other is not rail and other.active is not False
        for mine in networks_of(rail)
        for theirs in networks_of(other)
    )


def _setting(node: Node, rail: Rail, leaf: str, least: int) -> Outcome | str:
    """The value in effect, to be alike; too small a one is bad in a shared subnet."""
    if not active(rail).netdev:
        raise Unread("missing", rail.name, "its network device is not known")
    value = effective(node.facts, rail.netdev, leaf)
    if value < least and _shares_subnet(node, rail):
        told = f"{leaf} {value} on {rail.netdev}, which shares a subnet"
        return bad(told, f"at least {least}", severity="E")
    return str(value)


@compared(
    "route-arp-ignore",
    group="route",
    severity="W",
    why="one NIC answers ARP for the addresses of all NICs in its subnet",
    fix=("sysctl net.ipv4.conf.all.arp_ignore=1 (or 2)", "persist in /etc/sysctl.d"),
    source=("R21 nccl#1109", "R20 nccl#1269"),
    needs=(f"{_CONF}/arp_ignore", "ip -j -d addr"),
    follows=("route-same-subnet-multi-nic",),
    over=each_rail,
)
def arp_ignore(node: Node, rail: Rail) -> Outcome | str:
    return _setting(node, rail, "arp_ignore", 1)


@compared(
    "route-arp-announce",
    group="route",
    severity="W",
    why="ARP requests carry the address of another NIC, and peers learn the wrong one",
    fix=("sysctl net.ipv4.conf.all.arp_announce=2", "persist in /etc/sysctl.d"),
    source=("R20 nccl#1269",),
    needs=(f"{_CONF}/arp_announce", "ip -j -d addr"),
    follows=("route-same-subnet-multi-nic",),
    over=each_rail,
)
def arp_announce(node: Node, rail: Rail) -> Outcome | str:
    return _setting(node, rail, "arp_announce", 2)


@compared(
    "route-arp-filter",
    group="route",
    severity="I",
    why="a node that filters ARP by its routes answers unlike its peers",
    fix=("sysctl net.ipv4.conf.all.arp_filter",),
    source=("kernel: ip-sysctl.rst",),
    needs=(f"{_CONF}/arp_filter",),
    over=each_rail,
)
def arp_filter(node: Node, rail: Rail) -> Outcome | str:
    return str(effective(node.facts, rail.netdev, "arp_filter"))


# Neighbours


def _ends(node: Node) -> list[Subject[Rail]]:
    """The rails, and the devices of the default route: both have neighbours."""
    own = each_rail(node)
    known = {subject.item.netdev for subject in own}
    more = default_devices(node.facts) - known
    return [*own, *[_management(node.facts, name) for name in sorted(more)]]


def _management(facts: Facts, netdev: str) -> Subject[Rail]:
    link = _link(facts, netdev)
    every = link.global_addresses(4) if link else ()
    rail = Rail(
        name=netdev,
        netdev=netdev,
        port=None,
        link=link,
        ips=tuple(each.ip for each in every),
        networks=tuple(each.interface.network for each in every),
    )
    return Subject(item=rail, label=netdev, touches=rail.touches)


def _link(facts: Facts, netdev: str) -> Link | None:
    try:
        return links(facts).get(netdev)
    except Unread:
        return None


@check(
    "route-gateway-neigh",
    group="route",
    severity="E",
    why="the gateway of the rail does not answer ARP: a problem of link layer or VLAN",
    fix=("switch port, VLAN and cabling of the rail; ping -I RAIL_IP GATEWAY",),
    source=("kernel: neighbour states",),
    needs=("ip -j neigh", "ip -j -4 route show table all"),
    requires=("route-nic-has-ip",),
    follows=("nic-port-state", "nic-netdev-oper", "route-linkdown-flag"),
    over=_ends,
)
def gateway_neigh(node: Node, rail: Rail) -> Outcome:
    netdev = active(rail).netdev
    every = [each for each in neighbours(node.facts) if each.dev == netdev]
    gateways, how = _gateways(node.facts, rail, every)
    if not gateways:
        raise NotHere(f"no gateway over {netdev}")
    known = {each.ip: each for each in every}
    dead = [ip for ip in gateways if ip in known and known[ip].is_dead]
    if dead:
        states = ", ".join(sorted(known[dead[0]].states)) or "no answer"
        return bad(f"{dead[0]}{how} {states} on {netdev}", "a gateway that answers")
    missing = [ip for ip in gateways if ip not in known]
    if missing and rail.name == netdev:
        raise NotHere(f"{missing[0]} was not spoken to lately")
    if missing:
        told = f"{missing[0]} is not among the neighbours of {netdev}"
        raise Unread("missing", "ip -j neigh", told)
    return ok(f"{', '.join(gateways)} answers on {netdev}")


def _gateways(
    facts: Facts, rail: Rail, every: Sequence[Neighbour]
) -> tuple[list[str], str]:
    """Gateways over a rail. Without routes: silent neighbours placed like one."""
    version = version_of(rail.ip) if rail.ip else 4
    try:
        by_table = all_routes(facts, version)
    except Unread as error:
        if error.kind != "missing" or facts.find("ip", "route"):
            raise
        silent = [n.ip for n in every if n.is_dead and _looks_like_one(n.ip)]
        if silent:
            return silent, " (taken for a gateway by its number)"
        raise
    found = [
        hop.gateway
        for rows in by_table.values()
        for route in rows
        for hop in _of(route, rail.netdev)
        if hop.gateway
    ]
    return list(dict.fromkeys(found)), ""


def _of(route: Route, netdev: str) -> list[Hop]:
    return [hop for hop in route.hops if hop.dev == netdev]


def _looks_like_one(ip: str) -> bool:
    return version_of(ip) == 4 and int(ip.rpartition(".")[2]) in _GATEWAYS


# Duplicates

Owners = dict[str, list[tuple["Node", str, str]]]
"""(node, device, MAC) of every owner of an address."""


def _owners(nodes: Sequence[Node]) -> Owners:
    found: Owners = {}
    for node in nodes:
        try:
            rails = [subject.item for subject in _ends(node)]
        except Unread:
            continue
        for rail in rails:
            mac = rail.link.mac if rail.link else ""
            for ip in rail.ips:
                found.setdefault(ip, []).append((node, rail.netdev, mac))
    return found


@fleetwide(
    "route-dup-ip",
    group="route",
    severity="C",
    why="an address has two owners, or a stranger answers for it: packets go astray",
    fix=("IPAM and cabling; arping -D -I NETDEV ADDRESS",),
    source=("R24 nccl#1405",),
    needs=("ip -j -d addr", "ip -j neigh"),
    requires=("route-nic-has-ip",),
)
def dup_ip(nodes: Sequence[Node]) -> Iterable[Judged]:
    owners = _owners(nodes)
    for vote in ask(nodes, partial(_dup_ip, owners, len(nodes)), _ends):
        yield vote.judged()


def _dup_ip(owners: Owners, count: int, node: Node, rail: Rail) -> Outcome:
    wanted = "one owner of every address, and it is the one that answers"
    if not rail.ips:
        raise Unread("missing", rail.netdev or rail.name, "no address is known of it")
    for ip in rail.ips:
        others = [
            f"{other.name} {netdev}"
            for other, netdev, _ in owners[ip]
            if (other.name, netdev) != (node.name, rail.netdev)
        ]
        if others:
            return bad(f"{ip} also on {', '.join(others)}", wanted)
    table = [each for each in neighbours(node.facts) if each.dev == rail.netdev]
    own = _own_macs(node.facts)
    for each in table:
        told = _stranger(node, each, owners, own)
        if told:
            return bad(told, wanted, severity="E")
    if count < 2:
        return skip("no peer to compare with")
    return ok(f"{', '.join(rail.ips)}; {len(table)} neighbours as they should be")


def _own_macs(facts: Facts) -> Mapping[str, str]:
    """Our own devices by MAC, but for loopback."""
    try:
        every = links(facts)
    except Unread:
        return {}
    return {
        link.mac: link.name
        for link in every.values()
        if link.mac.strip("0:") and link.link_type != "loopback"
    }


def _stranger(
    node: Node, each: Neighbour, owners: Owners, own: Mapping[str, str]
) -> str:
    """Who answers for an address that is not its owner; "" where all is well."""
    if not each.mac:
        return ""
    theirs = [
        one
        for one in owners.get(each.ip, ())
        if one[0] is not node and one[2].strip("0:")
    ]
    if theirs and each.mac in {mac for _, _, mac in theirs}:
        return ""
    told = f"{each.ip} on {each.dev} is answered by {each.mac}"
    if each.mac in own and each.ip not in _addresses(node):
        owner = f", {theirs[0][0].name} owns it with {theirs[0][2]}" if theirs else ""
        return f"{told}, our own {own[each.mac]}{owner}"
    if theirs:
        return f"{told}, but {theirs[0][0].name} owns it with {theirs[0][2]}"
    return ""


def _addresses(node: Node) -> set[str]:
    return {ip for subject in _ends(node) for ip in subject.item.ips}


def _by_mac(node: Node) -> list[Subject[tuple[Rail, ...]]]:
    """Rails by their MAC: those that share one are judged together."""
    groups: dict[str, list[Rail]] = {}
    for rail in node.rails:
        groups.setdefault(_mac(node, rail), []).append(rail)
    return [
        Subject(
            item=tuple(group),
            label=", ".join(rail.label for rail in group),
            key=", ".join(rail.name for rail in group),
            touches=frozenset(name for rail in group for name in rail.touches),
        )
        for group in groups.values()
    ]


def _mac(node: Node, rail: Rail) -> str:
    if rail.link is not None:
        return rail.link.mac
    return node.facts.line(f"/sys/class/net/{rail.netdev}/address").lower()


@fleetwide(
    "route-dup-mac",
    group="route",
    severity="C",
    why="a switch sends the frames of one of them to the other (cloned VFs)",
    fix=("ip link set NETDEV address MAC; or regenerate the VFs' MACs",),
    source=("R61 sriov-network-operator",),
    needs=("ip -j -d addr", "/sys/class/net/*/address"),
)
def dup_mac(nodes: Sequence[Node]) -> Iterable[Judged]:
    held: dict[str, list[tuple[Node, str]]] = {}
    votes = list(ask(nodes, _macs, _by_mac))
    for vote in votes:
        if vote.is_open:
            at = (vote.node, ", ".join(r.netdev for r in vote.subject.item))
            held.setdefault(str(vote.held), []).append(at)
    for vote in votes:
        if not vote.is_open:
            yield vote.judged()
            continue
        mac = str(vote.held)
        yield vote.judged(_repeated(mac, vote.node, vote.subject.item, held[mac]))


def _macs(node: Node, group: tuple[Rail, ...]) -> str:
    mac = _mac(node, group[0])
    if not mac:
        raise Unread("missing", group[0].netdev, "its MAC is not known")
    return mac


def _repeated(
    mac: str, node: Node, group: tuple[Rail, ...], holders: list[tuple[Node, str]]
) -> Outcome:
    others = [f"{n.name} {netdevs}" for n, netdevs in holders if n is not node]
    here = [rail.netdev for rail in group]
    if not mac.strip("0:"):
        return bad(mac, "a MAC of its own")
    if len(here) > 1:
        return bad(f"{mac} on {' and '.join(here)}", "a MAC of its own for every rail")
    if others:
        return bad(f"{mac} also on {', '.join(others)}", "a MAC of its own")
    return ok(mac)


@fleetwide(
    "route-dup-guid",
    group="route",
    severity="C",
    why="a GUID that is zero or cloned confuses the subnet and connection managers",
    fix=("ip link set PF vf N node_guid GUID; rebind the VF",),
    source=("R61 sriov-network-operator",),
    needs=("/sys/class/infiniband/*/node_guid",),
    follows=("nic-vf-config",),
)
def dup_guid(nodes: Sequence[Node]) -> Iterable[Judged]:
    votes = list(ask(nodes, _guid, _by_guid))
    held: dict[str, list[tuple[Node, str]]] = {}
    for vote in votes:
        if vote.is_open:
            at = (vote.node, vote.subject.label)
            held.setdefault(str(vote.held), []).append(at)
    for vote in votes:
        if not vote.is_open:
            yield vote.judged()
            continue
        guid = str(vote.held)
        others = [f"{n.name} {at}" for n, at in held[guid] if n is not vote.node]
        yield vote.judged(_guid_of(guid, vote.subject.item, others))


def _guid_of(guid: str, here: tuple[str, ...], others: list[str]) -> Outcome:
    if not guid.strip("0:"):
        return bad(guid, "a GUID that is not zero")
    if len(here) > 1:
        return bad(f"{guid} on {' and '.join(here)}", "a GUID of its own")
    if others:
        return bad(f"{guid} also on {', '.join(others)}", "a GUID of its own")
    return ok(guid)


def _by_guid(node: Node) -> list[Subject[tuple[str, ...]]]:
    """RDMA devices of the selected ports; those with one GUID together."""
    groups: dict[str, dict[str, frozenset[str]]] = {}
    for port in node.ports:
        try:
            guid = _guid(node, (port.device,))
        except Unread:
            guid = port.device
        groups.setdefault(guid, {})[port.device] = port.touches
    return [
        Subject(
            item=tuple(group),
            label=", ".join(group),
            key=", ".join(group),
            touches=frozenset().union(*group.values()),
        )
        for group in groups.values()
    ]


def _guid(node: Node, devices: tuple[str, ...]) -> str:
    path = f"/sys/class/infiniband/{devices[0]}/node_guid"
    guid = node.facts.line(path)
    if not guid:
        raise Unread("empty", path, "no GUID")
    return guid
