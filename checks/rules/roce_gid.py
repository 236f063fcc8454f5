"""RoCE GIDs: is there one, is it routable, is it the one that will be used."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok, unknown
from checks.gids import Era, asked_index, choose, era, is_overlay, version_of
from checks.parse.gid_table import V2, show_gids
from checks.parse.ip_addr import links
from checks.parse.services import services
from checks.parse.wheel_version import mooncake_version
from checks.rules.declare import Subject, check, compared
from checks.rules.optional import optional
from checks.rules.roce_subjects import not_roce, table_of, variables
from checks.rules.subjects import each_port, rail_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checks.gids import Choice
    from checks.node import Node
    from checks.parse.gid_table import Gid, GidTable
    from checks.parse.ip_addr import Link
    from checks.ports import Port
    from checks.rails import Rail

TABLE = (
    "/sys/class/infiniband/*/ports/*/gids/*",
    "/sys/class/infiniband/*/ports/*/gid_attrs/types/*",
    "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*",
    "ibv_devinfo -v",
)
PINS = (
    "MC_GID_INDEX",
    "NCCL_IB_GID_INDEX",
    "UCX_IB_GID_INDEX",
    "NVSHMEM_IB_GID_INDEX",
)
MANY = 8
_UNUSABLE = frozenset({"deprecated", "tentative", "dadfailed"})
_AUTO = frozenset({"auto", "-1"})


def _each_port_or_none(node: Node) -> list[Any]:
    """Ports; the node where nothing tells of ports but `show_gids`, which has none."""
    try:
        return list(each_port(node))
    except Unread:
        if not _lists_nothing(node.facts):
            raise
        return [Subject(item=None)]


def _lists_nothing(facts: Facts) -> bool:
    try:
        return not show_gids(facts)
    except Unread:
        return False


@check(
    "roce-gid-table",
    group="roce",
    severity="C",
    why="without a GID a RoCE port cannot address anybody: every connection fails",
    fix=(
        "ip addr show dev NETDEV: does the NIC have an address here?",
        "attach the rail to the pod (Multus, SR-IOV), or run with hostNetwork",
    ),
    source=("R05 network-operator#222", "R03 smg#1691", "R57 akash provider PR#424"),
    needs=TABLE,
    requires=("nic-link-type", "nic-port-state", "nic-netdev-oper"),
    follows=("route-nic-has-ip",),
    over=_each_port_or_none,
)
def gids(node: Node, port: Port | None) -> Outcome:
    if port is None:
        return bad("show_gids lists no GID of any port", "at least one GID")
    told = not_roce(port)
    if told is not None:
        return told
    table = table_of(port)
    expected = "at least one GID"
    if not table.gids:
        return bad("all GIDs are zero", expected)
    return ok(f"{len(table.gids)} GIDs", expected)


@check(
    "roce-gid-v2",
    group="roce",
    severity="C",
    why="RoCE v1 is not routed, and engines choose RoCE v2 entries only",
    fix=("switch RoCE v2 on in the NIC", "give the NIC an IP address"),
    source=("R13 libfabric#12673", "CVS preflight"),
    needs=TABLE,
    requires=("roce-gid-table",),
    over=each_port,
)
def version_2(node: Node, port: Port) -> Outcome:
    told = not_roce(port)
    if told is not None:
        return told
    table = table_of(port)
    found = [gid for gid in table.gids if gid.kind == V2]
    if found:
        return ok(f"{len(found)} RoCE v2 entries", "a RoCE v2 entry")
    kinds = sorted({gid.kind for gid in table.typed()})
    return bad(f"only {', '.join(kinds) or 'empty slots'}", "a RoCE v2 entry")


@check(
    "roce-gid-routable",
    group="roce",
    severity="E",
    why="link-local and overlay GIDs reach nobody beyond their own link",
    fix=("give the NIC an IPv4 address, or a global or unique local IPv6 address",),
    source=("R10 nccl#769, nccl#426", "R13 libfabric#12673"),
    needs=(*TABLE, "ip -j -d addr"),
    requires=("roce-gid-v2", "route-nic-has-ip"),
    over=each_port,
)
def routable(node: Node, port: Port) -> Outcome:
    told = not_roce(port)
    if told is not None:
        return told
    table = table_of(port)
    unusable = _unusable_addresses(node)
    entries = [gid for gid in table.gids if gid.kind == V2]
    good = [gid for gid in entries if _routes(gid, unusable)]
    expected = "a RoCE v2 GID of a global address"
    if good:
        return ok(", ".join(str(gid) for gid in good), expected)
    table.typed()
    shown = ", ".join(str(gid) for gid in entries) or "no RoCE v2 entry"
    return bad(shown, expected, severity="C" if node.profile.routes.cross_rail else "")


def _routes(gid: Gid, unusable: frozenset[str]) -> bool:
    return not (gid.is_link_local or is_overlay(gid) or gid.ip in unusable)


def _unusable_addresses(node: Node) -> frozenset[str]:
    """Addresses that are deprecated or not confirmed; none where nobody told."""
    return frozenset(
        address.ip
        for link in _links(node).values()
        for address in link.addresses
        if address.flags & _UNUSABLE
    )


def _links(node: Node) -> Mapping[str, Link]:
    try:
        return links(node.facts)
    except Unread:
        return {}


@check(
    "roce-gid-ip-match",
    group="roce",
    severity="E",
    why="a GID without its address, or without a NIC, is left over from before a flap",
    fix=(
        "ip addr show dev NETDEV; show_gids DEVICE",
        "take the link down and up again, then restart what uses it",
    ),
    source=("R08 nccl#2157", "R15 Mooncake#1384"),
    needs=(*TABLE, "ip -j -d addr"),
    requires=("roce-gid-table", "route-nic-has-ip"),
    follows=("roce-gid-v2", "roce-gid-routable"),
    over=each_port,
)
def ip_match(node: Node, port: Port) -> Outcome:
    told = not_roce(port)
    if told is not None:
        return told
    table = table_of(port)
    faults = [*_lonely_gids(node, table), *_lonely_addresses(node, port, table)]
    expected = "every GID has its address, every address its GID"
    if faults:
        return bad("; ".join(faults), expected)
    return ok(f"{len(table.gids)} GIDs", expected)


def _lonely_gids(node: Node, table: GidTable) -> Iterable[str]:
    by_link = links(node.facts)
    for gid in table.typed():
        if gid.netdev is None:
            raise Unread("missing", table.source, f"GID {gid.index}: its NIC is unread")
        if not gid.netdev:
            yield f"GID {gid} has no network device"
        elif gid.netdev not in by_link:
            yield f"GID {gid} belongs to {gid.netdev}, which is not here"
        elif gid.kind == V2 and not _has(by_link[gid.netdev], gid):
            yield f"GID {gid}: {gid.netdev} has no such address"


def _has(link: Link, gid: Gid) -> bool:
    """Its address is there; the link-local GID is made of the MAC, not of addresses."""
    return gid.is_link_local or gid.ip in {each.ip for each in link.addresses}


def _lonely_addresses(node: Node, port: Port, table: GidTable) -> Iterable[str]:
    link = links(node.facts).get(port.netdev())
    if link is None:
        return
    known = {gid.ip for gid in table.v2()}
    for address in (*link.global_addresses(4), *link.global_addresses(6)):
        if address.ip not in known and not address.flags & _UNUSABLE:
            yield f"{address.ip} on {link.name} has no RoCE v2 GID"


@check(
    "roce-gid-pinned",
    group="roce",
    severity="C",
    why="a pinned index that holds no routable RoCE v2 GID fails every connection",
    fix=(
        "unset MC_GID_INDEX, so that Mooncake chooses",
        "or pin the index of the RoCE v2 GID of the rail's address, for each node",
    ),
    source=("R06 nccl#718", "R09 DGX-Spark PR#40", "R11 GLM launcher PR#172"),
    needs=(*TABLE, "/proc/PID/environ"),
    requires=("roce-gid-routable",),
    over=each_port,
)
def pinned(node: Node, port: Port) -> Outcome:
    told = not_roce(port)
    if told is not None:
        return told
    table = table_of(port)
    if not table.gids:
        return bad("all GIDs are zero", "a routable RoCE v2 GID")
    pins = _pins(node)
    faults = [text for name, value in pins if (text := _fault(table, name, value))]
    expected = "a routable RoCE v2 GID at every pinned index"
    if faults:
        return bad("; ".join(faults), expected)
    if not pins:
        return ok("nothing is pinned", expected)
    shown = [f"{name}={value}: GID {table.at(int(value))}" for name, value in pins]
    return ok("; ".join(shown), expected)


def _pins(node: Node) -> list[tuple[str, str]]:
    """(variable, value) of every index that some process asks for."""
    every = [(name, value.strip()) for _, name, value in variables(node, PINS)]
    return [pin for pin in dict.fromkeys(every) if pin[1].lower() not in _AUTO]


def _fault(table: GidTable, name: str, value: str) -> str:
    """What is wrong with a pinned index on this port; "" if nothing is."""
    if not value:
        return f"{name} is empty, which is read as 0"
    if not re.fullmatch(r"\d+", value):
        return f"{name}={value} is no index, which is read as 0"
    gid = table.at(int(value))
    if gid is None:
        return f"{name}={value}: that slot is empty"
    if not gid.kind:
        raise Unread("missing", table.source, f"GID {gid.index} has no type")
    if gid.kind != V2:
        return f"{name}={value}: GID {gid} is RoCE v1"
    if gid.is_link_local:
        return f"{name}={value}: GID {gid} is link-local"
    return ""


def _each_index(node: Node) -> Iterable[Subject[Port]]:
    """Ports, alike by rail where an index is pinned; else each only like itself.

    Without a pinned index nodes may differ, but a saved baseline still shows drift.
    """
    alike = bool(_pins(node))
    for each in each_port(node):
        key = each.key if alike else f"{node.name} {each.key}"
        yield Subject(item=each.item, label=each.label, key=key, touches=each.touches)


@compared(
    "roce-gid-index-uniform",
    group="roce",
    severity="E",
    why="one pinned index for all names another GID where tables are filled otherwise",
    fix=("unset the pinned index, or pin it per node", "remove stray sub-interfaces"),
    source=("R06 nccl#718", "R07, R08 nccl#2157"),
    needs=(*TABLE, "ip -j -d addr", "/proc/PID/environ"),
    requires=("roce-gid-routable",),
    follows=("roce-gid-pinned", "roce-gid-mooncake-choice"),
    over=_each_index,
)
def index_uniform(node: Node, port: Port) -> Outcome | str:
    told = not_roce(port)
    if told is not None:
        return told
    own = _best_index(node, port)
    if _pins(node):
        others = [_best_index(node, each) for each in node.ports if not not_roce(each)]
        usual = max(sorted(set(others)), key=others.count)
        if own != usual and others.count(usual) * 2 > len(others):
            return bad(f"index {own}", f"index {usual}, as on the other NICs")
    return str(own)


def _best_index(node: Node, port: Port) -> int:
    """The lowest index with the rail's address, as RoCE v2."""
    return node.once(f"best gid {port.label}", lambda: _lowest(node, port))


def _lowest(node: Node, port: Port) -> int:
    table = table_of(port)
    own = _own_addresses(node, port, table)
    entries = table.v2()
    best = [gid for gid in entries if gid.ip in own] or [
        gid for gid in entries if _routes(gid, frozenset())
    ]
    if not best:
        raise Unread("empty", table.source, "no routable RoCE v2 GID")
    return best[0].index


@check(
    "roce-gid-mooncake-choice",
    group="roce",
    severity="E",
    why="Mooncake would speak from an address that is not the rail's, or from none",
    fix=(
        "set MC_GID_INDEX to the index of the rail's own address",
        "or switch off SLAAC on the rail: global IPv6 outranks 10/8",
        "all RoCE v2 GIDs are IPv6: Mooncake 0.3.10 or later",
    ),
    source=("R01 Mooncake#1593, PR#1597", "R02 sglang#30737", "rankAutoGidCandidates"),
    needs=(*TABLE, "ip -j -d addr", "/proc/PID/environ", "mooncake_master --version"),
    requires=("roce-gid-routable", "roce-gid-pinned"),
    follows=("roce-gid-ip-match",),
    over=each_port,
)
def mooncake_choice(node: Node, port: Port) -> Outcome:
    told = not_roce(port)
    if told is not None:
        return told
    table = table_of(port)
    _demand_netdevs(table)
    own = _own_addresses(node, port, table)
    expected = f"the address of the rail: {', '.join(sorted(own)) or 'none is known'}"
    version = _version(node)
    choices = _choices(node, table, era(version))
    for choice in choices:
        if not _is_own(choice, own):
            return bad(str(choice), expected)
    if version is None:
        for older in Era:
            for other in _choices(node, table, older):
                if not _is_own(other, own):
                    told_of = f"{choices[0]}, but older versions: {other}"
                    reason = f"the version of Mooncake is not known: {told_of}"
                    return unknown(reason, expected)
    return ok(str(choices[0]), expected)


def _choices(node: Node, table: GidTable, of: Era) -> list[Choice]:
    """What Mooncake does in every process that runs; without one, by default."""
    variables(node, PINS)
    environments = [service.env or {} for service in services(node.facts)] or [{}]
    asked = dict.fromkeys(asked_index(env, of) for env in environments)
    return [choose(table, of, index) for index in asked]


def _is_own(choice: Choice, own: frozenset[str]) -> bool:
    return choice.gid is not None and choice.gid.kind == V2 and choice.gid.ip in own


def _demand_netdevs(table: GidTable) -> None:
    """In sysfs a GID's NIC can be told, so there it must have been read."""
    for gid in table.gids:
        if gid.netdev is None and table.source.startswith("/"):
            raise Unread("missing", table.source, f"GID {gid.index}: its NIC is unread")


def _version(node: Node) -> tuple[int, ...] | None:
    try:
        return version_of(mooncake_version(node.facts)) or None
    except Unread:
        return None


def _own_addresses(node: Node, port: Port, table: GidTable) -> frozenset[str]:
    """The rail's addresses: by profile, by `ip addr`, else by the table itself.

    IPv6 counts only where the rail has no IPv4: peers are told its IPv4 address.
    """
    rail = _rail(node, port)
    named = [r.address for r in node.profile.rails if rail and r.name == rail.name]
    if any(named):
        return frozenset(named)
    if rail is not None and rail.link is not None:
        return _of_link(rail.link)
    by_link = optional(lambda: links(node.facts))
    if by_link is None:
        return _of_table(port, table)
    there = {gid.netdev for gid in table.v2() if not is_overlay(gid)} & by_link.keys()
    if len(there) != 1:
        raise Unread("absent", "ip -j -d addr", "the NIC of the port is not in it")
    return _of_link(by_link[there.pop() or ""])


def _of_link(link: Link) -> frozenset[str]:
    four = link.global_addresses(4)
    return frozenset(each.ip for each in four or link.global_addresses(6))


def _of_table(port: Port, table: GidTable) -> frozenset[str]:
    """Addresses of the GIDs of the port's own NIC."""
    fitting = [g for g in table.v2() if _routes(g, frozenset()) and g.netdev != ""]
    netdev = optional(port.netdev)
    fitting = [g for g in fitting if g.netdev in {None, netdev}] or fitting
    four = [gid for gid in fitting if gid.ipv4 is not None]
    return frozenset(gid.ip for gid in four or fitting)


def _rail(node: Node, port: Port) -> Rail | None:
    name = rail_of(node, port)
    return next((rail for rail in node.rails if rail.name == name), None)


@check(
    "roce-gid-churn",
    group="roce",
    severity="W",
    why="every sub-interface and address adds GIDs, and indexes move when they return",
    fix=("remove VLAN, macvlan and docker interfaces from the rail",),
    source=("R07", "R08 nccl#2157", "R12"),
    needs=TABLE,
    requires=("roce-gid-table",),
    over=each_port,
)
def churn(node: Node, port: Port) -> Outcome:
    told = not_roce(port)
    if told is not None:
        return told
    table = table_of(port)
    found = len(table.gids)
    expected = f"at most {MANY} GIDs"
    return ok(found, expected) if 0 < found <= MANY else bad(found, expected)
