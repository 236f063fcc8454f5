"""Settings of rails that peers share: MTU, prefix and gateway, reverse-path filter."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address
from typing import TYPE_CHECKING

from checks.cohort import Baseline, baseline
from checks.facts import Facts, Unread, first
from checks.finding import Outcome, bad, info, ok, unknown
from checks.parse.ip_addr import Link, links
from checks.parse.ip_rule import rules
from checks.parse.ipv4_conf import configured, effective
from checks.rules.declare import Judged, Subject, fleetwide
from checks.rules.likeness import Vote, ask, by_cohort, of_peers, of_profile
from checks.rules.rail_policy import (
    active,
    address_of,
    all_routes,
    astray,
    decisions,
    engine,
    networks_of,
    other_networks,
    version_of,
)
from checks.rules.subjects import each_rail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from checks.node import Node
    from checks.parse.ip_route import Network
    from checks.rails import Rail

_ROCE_HEADERS = 96
"""Bytes that the kernel takes off a network device's MTU (`iboe_get_mtu`)."""
_IB_MTUS = (4096, 2048, 1024, 512, 256)
_VIRTUAL = ("lo", "docker", "cni", "flannel", "cali", "veth", "virbr", "tun", "wg")
MTU, PREFIX, FILTER = "route-mtu-iface", "route-prefix-consistent", "route-rp-filter"


def roce_mtu(mtu: int) -> int:
    """The RoCE MTU that a network device of this MTU allows: 1500 gives 1024."""
    return next((size for size in _IB_MTUS if mtu - _ROCE_HEADERS >= size), 0)


# MTU


@fleetwide(
    MTU,
    group="route",
    severity="E",
    why="RoCE derives its MTU from the device's: 1500 gives 1024, 4200 gives 4096; a"
    " smaller one than the peers' drops or slows every transfer",
    fix=("ip link set NETDEV mtu 9000; persist it in netplan or NetworkManager",),
    source=("R48", "R49", "R50 nccl#709", "R51", "R52"),
    needs=("ip -j -d addr", "/sys/class/net/*/mtu"),
)
def mtu_iface(nodes: Sequence[Node]) -> Iterable[Judged]:
    votes = list(ask(nodes, _mtu, _rails_or_netdevs))
    for vote in votes:
        if not vote.is_open:
            yield vote.judged()
    for base, same in by_cohort(nodes, votes):
        classes = baseline([(v.node.name, _class(v)) for v in same])
        for vote in same:
            outcome = of_profile(MTU, vote) or _mtu_beside(vote, base, classes)
            yield vote.judged(outcome)


def _class(vote: Vote) -> str:
    return str(roce_mtu(int(str(vote.held))))


def _mtu_beside(vote: Vote, base: Baseline, classes: Baseline) -> Outcome:
    """Beside the peers' MTU; where all differ, beside the RoCE MTU of most."""
    value, held = str(vote.held), _class(vote)
    if base.majority is not None or classes.unanimous or classes.majority is None:
        return of_peers(value, base)
    told = f"RoCE MTU {classes.majority} as most ({base.histogram})"
    if held == classes.majority:
        return ok(f"{value}: RoCE MTU {held}", told, value=value)
    return bad(f"{value}: RoCE MTU {held}", told)


def _netdevs(facts: Facts) -> list[str]:
    """Devices whose MTU sysfs tells, but for those that no wire has."""
    names = [path.split("/")[-2] for path in facts.matching("/sys/class/net/*/mtu")]
    return [name for name in names if not name.startswith(_VIRTUAL)]


def _rails_or_netdevs(node: Node) -> list[Subject[object]]:
    """Rails; where none is known, the devices whose MTU was read."""
    try:
        return [
            Subject(item=r.item, label=r.label, key=r.key, touches=r.touches)
            for r in each_rail(node)
        ]
    except Unread:
        found = _netdevs(node.facts)
        if not found:
            raise
        return [
            Subject(item=name, label=name, key=name, touches=frozenset({name}))
            for name in found
        ]


def _mtu(node: Node, rail: Rail | str) -> Outcome | str:
    if isinstance(rail, str):
        return _above_profile(node, node.facts.number(f"/sys/class/net/{rail}/mtu"))
    mtu = _mtu_of(node, rail)
    for parent in _parents(node, rail):
        if mtu > parent.mtu:
            told = f"{rail.netdev} {mtu} above {parent.name} {parent.mtu}"
            return bad(told, "no child with a greater MTU than what is below it")
    return _above_profile(node, mtu)


def _above_profile(node: Node, mtu: int) -> Outcome | str:
    least = node.profile.routes.rail_mtu
    if least is not None and mtu < least:
        return bad(mtu, f"at least {least} (profile)")
    return ok(mtu, f"at least {least} (profile)", value=mtu) if least else str(mtu)


def _mtu_of(node: Node, rail: Rail) -> int:
    if rail.link is not None:
        return rail.link.mtu
    if not rail.netdev:
        known = _netdevs(node.facts)
        if len(known) == 1 == len(node.rails):  # the one port has the one device
            return node.facts.number(f"/sys/class/net/{known[0]}/mtu")
        raise Unread("missing", rail.name, "its network device is not known")
    return first(
        lambda: (
            links(node.facts)[rail.netdev].mtu
            if rail.netdev in links(node.facts)
            else _missing(rail)
        ),
        lambda: node.facts.number(f"/sys/class/net/{rail.netdev}/mtu"),
    )


def _missing(rail: Rail) -> int:
    raise Unread("missing", "ip -j -d addr", f"nothing is known of {rail.netdev}")


def _parents(node: Node, rail: Rail) -> list[Link]:
    """What a VLAN, macvlan or bond runs on: its lower device, its slaves."""
    if rail.link is None:
        return []
    every = links(node.facts)
    below = [each for each in every.values() if each.master == rail.netdev]
    lower = every.get(rail.link.lower)
    return [*([lower] if lower else []), *(below if _is_bond(rail.link) else [])]


def _is_bond(link: Link) -> bool:
    return link.kind in {"bond", "team", "bridge"} or link.name.startswith("bond")


# Prefix and gateway


@fleetwide(
    PREFIX,
    group="route",
    severity="E",
    why="a rail with another prefix or gateway than its peers is reached one way only",
    fix=("give the rail the prefix and the gateway of its peers",),
    source=("R18 Mooncake#1026: /16 among /24",),
    needs=("ip -j -d addr", "ip -j -4 route show table all"),
    requires=("route-nic-has-ip",),
    follows=("route-table-empty", "route-table-default"),
)
def prefix_consistent(nodes: Sequence[Node]) -> Iterable[Judged]:
    votes = list(ask(nodes, _prefix))
    for vote in votes:
        if not vote.is_open:
            yield vote.judged()
    for base, same in by_cohort(nodes, votes):
        for vote in same:
            outcome = of_profile(PREFIX, vote) or of_peers(str(vote.held), base)
            yield vote.judged(_among_siblings(vote, outcome))


def _prefix(node: Node, rail: Rail) -> Outcome | str:
    """`/24, gateway +254`: the gateway as its place inside of the network."""
    ip = address_of(rail)
    network = _network_of(rail)
    gateways = [
        hop.gateway
        for rows in all_routes(node.facts, version_of(ip)).values()
        for route in rows
        if route.is_default
        for hop in route.hops
        if hop.dev == rail.netdev and hop.gateway
    ]
    places = [_place(gateway, network) for gateway in dict.fromkeys(gateways)]
    return f"/{network.prefixlen}, gateway {' '.join(sorted(places)) or 'none'}"


def _network_of(rail: Rail) -> Network:
    version = version_of(rail.ip)
    for network in rail.networks:
        if network.version == version:
            return network
    raise Unread("missing", rail.netdev or rail.name, "its network is not known")


def _place(gateway: str, network: Network) -> str:
    address = ip_address(gateway)
    if address not in network:
        return gateway
    return f"+{int(address) - int(network.network_address)}"


def _among_siblings(vote: Vote, outcome: Outcome) -> Outcome:
    """Rails of one node that differ: a warning, where the peers told nothing worse."""
    if outcome.status is None:
        return outcome
    rail = vote.subject.item
    lengths = [_length(each) for each in vote.node.rails]
    counts = Counter(length for length in lengths if length)
    mine = _length(rail)
    if len(counts) < 2 or not mine:
        return outcome if outcome.status != "SKIP" or not counts else _alike(counts)
    most, number = counts.most_common(1)[0]
    if number * 2 > sum(counts.values()) and mine == most:
        return outcome if outcome.status != "SKIP" else ok(mine, "as most rails here")
    told = ", ".join(f"{each} x{n}" for each, n in sorted(counts.items()))
    return bad(mine, f"one prefix length for all rails (here {told})", severity="W")


def _alike(counts: Counter[str]) -> Outcome:
    ((length, number),) = counts.items()
    if number < 2:
        return ok(length, "the only rail, and no like node to compare with")
    return ok(length, f"as on all {number} rails of this node")


def _length(rail: Rail) -> str:
    try:
        return f"/{_network_of(rail).prefixlen}" if rail.ip else ""
    except Unread:
        return ""


# Reverse-path filter


def _rails_or_devices(node: Node) -> list[Subject[object]]:
    """Rails; where none is known, the devices whose setting was read."""
    try:
        return [
            Subject(item=r.item, label=r.label, key=r.key, touches=r.touches)
            for r in each_rail(node)
        ]
    except Unread:
        found = configured(node.facts, "rp_filter")
        if not found:
            raise
        return [
            Subject(item=name, label=name, key=name, touches=frozenset({name}))
            for name in found
        ]


@fleetwide(
    FILTER,
    group="route",
    severity="E",
    why="packets that arrive by another rail than their answer leaves by are dropped;"
    " the greater of all and the device's own value is in effect",
    fix=(
        "sysctl net.ipv4.conf.NETDEV.rp_filter=2 (or 0), and all not above",
        "persist in /etc/sysctl.d; systemd >= 240 sets default=2, Calico wants 1",
    ),
    source=("R27 felix#2082, ovn-kubernetes PR#3006, ucx PR#9839",),
    needs=("/proc/sys/net/ipv4/conf/*/rp_filter", "ip -j -4 rule"),
)
def rp_filter(nodes: Sequence[Node]) -> Iterable[Judged]:
    votes = list(ask(nodes, _rp_filter, _rails_or_devices))
    for vote in votes:
        if not vote.is_open:
            yield vote.judged()
    for base, same in by_cohort(nodes, votes):
        for vote in same:
            outcome = of_profile(FILTER, vote) or _filter_beside(str(vote.held), base)
            yield vote.judged(outcome)


def _filter_beside(value: str, base: Baseline) -> Outcome:
    """0 and 2 are good; 1 is good with symmetric tables, but not unlike the peers."""
    if value != "1":
        return ok(value, "0 or 2", value=value)
    if base.majority not in {None, "1"}:
        told = f"{base.majority} ({base.histogram})"
        return bad("1 (strict; tables are symmetric)", told, severity="W")
    return info("1 (strict; tables are symmetric)", "0 or 2")


def _rp_filter(node: Node, item: Rail | str) -> Outcome | str:
    netdev = item if isinstance(item, str) else active(item).netdev
    if not netdev:
        raise Unread("missing", "ip -j -d addr", "its network device is not known")
    value = effective(node.facts, netdev, "rp_filter")
    if value != 1:
        return str(value)
    if isinstance(item, str):
        return unknown("1 (strict), and no rule or route was collected", "0 or 2")
    try:
        told = _asymmetric(node, item)
    except Unread as error:
        told = _one_table(node, item) if error.kind == "missing" else ""
        if not told:
            raise
    return bad(f"1 (strict), and {told}", "0 or 2") if told else "1"


def _one_table(node: Node, rail: Rail) -> str:
    """Without routes: rails in several networks, and no rule tells them apart."""
    ip = address_of(rail)
    if node.profile.routes.cross_rail is False or not list(other_networks(node, rail)):
        return ""
    rules_ = rules(node.facts, version_of(ip))
    if not rules_ or any(r.src or r.oif or r.iif or r.l3mdev for r in rules_):
        return ""
    return f"no rule from {ip}: one table answers for all rails"


def _asymmetric(node: Node, rail: Rail) -> str:
    """An answer that leaves by another device than its question came in by."""
    ip = address_of(rail)
    fib = engine(node, rail)
    networks = list(networks_of(rail))
    if node.profile.routes.cross_rail is not False:
        networks += [network for _, network in other_networks(node, rail)]
    for network in networks:
        for dst, decision in decisions(fib, ip, network):
            wrong = astray(decision, rail)
            if wrong:
                return f"{ip} → {dst} {wrong}"
    return ""
