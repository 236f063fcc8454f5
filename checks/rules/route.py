"""Routes of one node: addresses of rails, routing rules, their tables, ARP, routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.errors import OwnFault
from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, info, ok, skip, unknown
from checks.parse.ip_route import Route, routes
from checks.parse.ip_rule import PolicyRule, rules
from checks.parse.ipv4_conf import at_least
from checks.parse.route_get import Sample, samples_of
from checks.routing.query import ask
from checks.rules.declare import NotHere, Subject, check
from checks.rules.rail_policy import (
    active,
    address_of,
    all_routes,
    astray,
    decisions,
    emptiness,
    engine,
    holds,
    names_table,
    networks_of,
    other_networks,
    rail_rule,
    restricts,
    rows_of,
    shown,
    version_of,
    within,
)
from checks.rules.subjects import each_rail

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checks.node import Node
    from checks.rails import Rail
    from checks.routing.decision import Decision

_RULE = "ip -j -4 rule"
_ROUTE = "ip -j -4 route show table all"


@check(
    "route-nic-has-ip",
    group="route",
    severity="C",
    why="RoCEv2 packets carry IP addresses: without one the NIC has no usable GID",
    fix=("assign the address in netplan, NetworkManager or the IPAM of the fabric",),
    source=("R14 nccl#1538", "R57 secondary networks"),
    needs=("ip -j -d addr",),
    requires=("nic-link-type",),
    follows=("nic-port-state", "nic-netdev-oper"),
    over=each_rail,
)
def nic_has_ip(node: Node, rail: Rail) -> Outcome:
    if not rail.netdev:
        return _without_netdev(rail)
    if rail.link is None and not rail.ips:
        raise Unread("missing", "ip -j -d addr", f"nothing is known of {rail.netdev}")
    wanted = "a global IPv6 address" if _wants_v6(node) else "a global IPv4 address"
    version = 6 if _wants_v6(node) else 4
    found = [ip for ip in rail.ips if version_of(ip) == version]
    if found:
        return ok(", ".join(found), wanted)
    return bad(", ".join(rail.ips) or "no global address", wanted)


def _without_netdev(rail: Rail) -> Outcome:
    if rail.port is not None and not rail.port.netdev():
        return bad("no network device in this network namespace", "a device with an IP")
    raise Unread("missing", rail.name, "its network device is not known")


def _wants_v6(node: Node) -> bool:
    """The profile says so; else no rail has IPv4 and some rail has IPv6."""
    said = node.profile.routes.ipv6
    if said is not None:
        return said
    every = [ip for rail in node.rails for ip in rail.ips]
    return bool(every) and all(version_of(ip) == 6 for ip in every)


@check(
    "route-ip-state",
    group="route",
    severity="E",
    why="an address that failed duplicate detection is not used, and its GID vanishes",
    fix=("find the other owner: ip -6 neigh; ndisc6 ADDRESS NETDEV",),
    source=("kernel: IPv6 duplicate address detection",),
    needs=("ip -j -d addr",),
    requires=("route-nic-has-ip",),
    over=each_rail,
)
def ip_state(node: Node, rail: Rail) -> Outcome:
    if rail.link is None:
        raise Unread("missing", "ip -j -d addr", f"nothing is known of {rail.netdev}")
    failed, open_ = [], []
    for each in rail.link.addresses:
        if "dadfailed" in each.flags:
            failed.append(f"{each.ip} dadfailed")
        elif "tentative" in each.flags:
            open_.append(f"{each.ip} tentative")
    if failed:
        return bad(", ".join(failed), "addresses without a duplicate")
    if open_:
        return unknown(f"{', '.join(open_)}: collected too soon to tell")
    fading = [a.ip for a in rail.link.addresses if "deprecated" in a.flags]
    if fading:
        return info(f"deprecated: {', '.join(fading)}", "no address that expires")
    return ok(f"{len(rail.link.addresses)} addresses in use")


# Rails in one subnet


def _rails_by_subnet(node: Node) -> list[Subject[tuple[Rail, ...]]]:
    """Rails whose networks overlap, together; a rail alone in its own is one too."""
    groups: list[list[Rail]] = []
    for rail in node.rails:
        near = [group for group in groups if any(_overlap(rail, r) for r in group)]
        merged = [*[r for group in near for r in group], rail]
        groups = [group for group in groups if group not in near] + [merged]
    return [
        Subject(
            item=tuple(group),
            label=", ".join(rail.label for rail in group),
            key=", ".join(rail.name for rail in group),
            touches=frozenset(name for rail in group for name in rail.touches),
        )
        for group in groups
    ]


def _overlap(one: Rail, other: Rail) -> bool:
    return any(
        mine.version == theirs.version and mine.overlaps(theirs)
        for mine in networks_of(one)
        for theirs in networks_of(other)
    )


@check(
    "route-same-subnet-multi-nic",
    group="route",
    severity="C",
    why="two NICs in one subnet: the first answers ARP for both, all traffic leaves it",
    fix=(
        "give every rail its own subnet",
        "or a rule and table per rail, arp_ignore=1 (or 2) and arp_announce=2",
    ),
    source=("R19 Mooncake#166, #204", "R20 nccl#1269, #601", "R21 nccl#1109"),
    needs=(
        "ip -j -d addr",
        _RULE,
        "/proc/sys/net/ipv4/conf/*/arp_ignore",
        "/proc/sys/net/ipv4/conf/*/arp_announce",
    ),
    over=_rails_by_subnet,
)
def same_subnet(node: Node, group: tuple[Rail, ...]) -> Outcome:
    if not any(networks_of(rail) for rail in group):
        raise Unread("missing", "ip -j -d addr", "no network of this rail is known")
    up = [rail for rail in group if rail.active is not False]
    down = [rail.netdev for rail in group if rail.active is False]
    networks = ", ".join(dict.fromkeys(str(n) for r in group for n in networks_of(r)))
    if len(group) > 1 and len(up) < 2:
        return skip(f"{networks}: {', '.join(down)} is not an active rail")
    if len(up) < 2:
        return ok(f"alone in {networks}", "one NIC in a subnet")
    return _guarded(node, up, f"{networks}: {', '.join(r.label for r in up)}")


def _guarded(node: Node, group: list[Rail], seen: str) -> Outcome:
    """Whether rules, tables and ARP settings keep the rails of a subnet apart."""
    wanted = "rule and table per rail, arp_ignore >= 1, arp_announce = 2"
    faults: list[str] = []
    refused: list[Unread] = []
    for rail in group:
        for ask_ in (_own_table, _arp):
            try:
                faults += ask_(node, rail)
            except Unread as error:
                refused.append(error)
    if faults:
        return bad(f"{seen}; {'; '.join(dict.fromkeys(faults))}", wanted)
    if refused:
        raise refused[0]
    return ok(f"{seen}; kept apart by rules, tables and ARP settings", wanted)


def _own_table(node: Node, rail: Rail) -> list[str]:
    rule = rail_rule(node.facts, rail.ip)
    if rule is None:
        return [f"no rule from {rail.ip}"]
    told = emptiness(node.facts, rule.table, version_of(rail.ip))
    if told:
        return [f"table {rule.table} {told}"]
    fib = engine(node, rail)
    for network in networks_of(rail):
        for _, decision in decisions(fib, rail.ip, network):
            wrong = astray(decision, rail)
            if wrong:
                return [f"from {rail.ip} {wrong}"]
    return []


def _arp(node: Node, rail: Rail) -> list[str]:
    if version_of(rail.ip) == 6:
        return []
    return [
        f"{leaf} < {least} on {rail.netdev}"
        for leaf, least in (("arp_ignore", 1), ("arp_announce", 2))
        if not at_least(node.facts, rail.netdev, leaf, least)
    ]


# Rules that send a rail's packets to its own table


@check(
    "route-rule-order",
    group="route",
    severity="E",
    why="a rule before the rail's own (of a CNI, say) sends its packets elsewhere",
    fix=("give the rail's rule a smaller priority than the rule that shadows it",),
    source=("Cilium rules 9 and 100", "WireGuard suppress_prefixlength"),
    needs=(_RULE, _ROUTE),
    requires=("route-nic-has-ip", "route-table-empty"),
    over=each_rail,
)
def rule_order(node: Node, rail: Rail) -> Outcome:
    ip = address_of(active(rail))
    own = rail_rule(node.facts, ip)
    if own is None:
        raise NotHere(f"no rule sends packets from {ip} to a table of their own")
    notes: list[str] = []
    for rule in rules(node.facts, version_of(ip)):
        if rule == own:
            break
        told = _shadow(node, rail, rule, own)
        if told.startswith("!"):
            return bad(f"{shown(rule)} {told[1:]}, before {shown(own)}", shown(own))
        if told:
            notes.append(f"{shown(rule)} {told}")
    if notes:
        return info("; ".join(notes), f"{shown(own)} first")
    return ok(shown(own), "no other rule matches earlier")


def _shadow(node: Node, rail: Rail, rule: PolicyRule, own: PolicyRule) -> str:
    """What an earlier rule does to a rail's packets: "!" takes them, else a note."""
    if rule.table in {"local", own.table} or rule.action == "nop":
        return ""
    if not _may_match(rule, rail.ip):
        return ""
    if rule.goto is not None:
        return _skipped_to(rule, own)
    if rule.action:
        return f"!refuses them ({rule.action})"
    if rule.suppress_prefixlen is not None:
        return "matches first, only for routes longer than its suppressed length"
    if emptiness(node.facts, rule.table, version_of(rail.ip)):
        return "matches first, but its table is empty"
    return _taken(node, rail, rule)


def _skipped_to(rule: PolicyRule, own: PolicyRule) -> str:
    assert rule.goto is not None
    return "!jumps over it" if rule.goto > own.priority else "jumps towards it"


def _may_match(rule: PolicyRule, ip: str) -> bool:
    """Whether it matches a plain packet from this address to some destination."""
    if rule.mask and rule.mark & rule.mask:
        return rule.inverted
    if rule.l3mdev or rule.detached or rule.oif or rule.iif not in {"", "lo"}:
        return rule.inverted
    here = rule.src is None or rule.src.prefixlen == 0 or holds(rule.src, ip)
    if rule.inverted:
        everywhere = rule.dst is None or rule.dst.prefixlen == 0
        return not (here and everywhere)
    return here and not rule.tos and rule.uids in {"", "0-0"}


def _taken(node: Node, rail: Rail, rule: PolicyRule) -> str:
    """Whether the rule's table sends packets of the rail by another device."""
    rows = routes(node.facts, version_of(rail.ip))[rule.table]
    wrong = [
        row
        for row in rows
        if row.type == "unicast" and any(hop.dev != rail.netdev for hop in row.hops)
    ]
    covered = [row for row in wrong if rule.dst is None or row.dst.overlaps(rule.dst)]
    if not covered:
        return f"matches first; table {rule.table} leaves by the rail as well"
    devices = sorted({hop.dev for row in covered for hop in row.hops})
    return f"!takes them to table {rule.table} ({', '.join(devices)})"


# Tables


def _rails_and_stray_rules(
    node: Node,
) -> Iterable[Subject[Rail | PolicyRule]]:
    """Rails, and rules about single sources that are no rail's."""
    refused: Unread | None = None
    subjects: list[Subject[Rail | PolicyRule]] = []
    rails: tuple[Rail, ...] = ()
    try:
        rails = node.rails
    except Unread as error:
        refused = error
    subjects += [
        Subject(item=each.item, label=each.label, key=each.key, touches=each.touches)
        for each in (each_rail(node) if rails else ())
    ]
    known = {ip for rail in rails for ip in rail.ips}
    subjects += [
        Subject(item=rule, label=shown(rule), touches=frozenset({shown(rule)}))
        for rule in _source_rules(node.facts)
        if not any(restricts(rule, ip) for ip in known)
    ]
    if refused is not None and not subjects:
        raise refused
    return subjects


def _source_rules(facts: Facts) -> list[PolicyRule]:
    try:
        every = rules(facts, 4)
    except Unread:
        return []
    return [
        rule
        for rule in every
        if names_table(rule)
        and rule.src is not None
        and rule.src.prefixlen
        and not (rule.inverted or rule.mask)
    ]


@check(
    "route-table-empty",
    group="route",
    severity="C",
    why="the lookup falls through to main; packets leave by another NIC",
    fix=(
        "ip route add NETWORK dev NETDEV src RAIL_IP table TABLE",
        "ip route add default via GATEWAY dev NETDEV table TABLE",
        "persist in netplan routing-policy",
    ),
    source=("iproute2: FIB table does not exist", "R18 Mooncake#1026"),
    needs=(_RULE, _ROUTE, "ip -j route show table T"),
    requires=("route-nic-has-ip",),
    over=_rails_and_stray_rules,
)
def table_empty(node: Node, item: Rail | PolicyRule) -> Outcome:
    if isinstance(item, PolicyRule):
        every, version = [item], 4
    else:
        ip = address_of(item)
        version = version_of(ip)
        every = [
            rule
            for rule in rules(node.facts, version)
            if restricts(rule, ip) and names_table(rule)
        ]
        if not every:
            raise NotHere(f"no rule sends packets from {ip} to a table of their own")
    for rule in every:
        told = emptiness(node.facts, rule.table, version)
        if told:
            return bad(
                f"{shown(rule)} but table {rule.table} {told}",
                f"routes in table {rule.table}",
            )
    tables = ", ".join(dict.fromkeys(rule.table for rule in every))
    return ok(f"table {tables} has routes", "routes in every table that a rule names")


@check(
    "route-table-onlink",
    group="route",
    severity="W",
    why="traffic inside of the rail's own subnet makes a detour over the gateway",
    fix=("ip route add NETWORK dev NETDEV scope link src RAIL_IP table TABLE",),
    source=("inference from the kernel's lookup",),
    needs=(_RULE, _ROUTE),
    requires=("route-nic-has-ip", "route-table-empty"),
    follows=("route-table-default", "route-prefix-consistent"),
    over=each_rail,
)
def table_onlink(node: Node, rail: Rail) -> Outcome:
    rows = rows_of(node.facts, active(rail))
    networks = networks_of(rail)
    if not networks:
        raise NotHere("the rail has no subnet: its peers are behind a gateway")
    direct = [
        row.dst
        for row in rows
        if any(hop.dev == rail.netdev and not hop.gateway for hop in row.hops)
    ]
    missing = [str(net) for net in networks if not any(within(net, d) for d in direct)]
    table = rows[0].table
    if missing:
        return bad(f"table {table} lacks {', '.join(missing)}", "its connected route")
    return ok(f"table {table} has {', '.join(str(n) for n in networks)} on the link")


# What the kernel says of single pairs


@check(
    "route-get-consistent",
    group="route",
    severity="C",
    why="packets that carry a rail's address leave by another NIC, or not at all",
    fix=("ip route get PEER from RAIL_IP; then the rule and table of the rail",),
    source=("R25 k8s-launch-kit PR#106, #173, #254",),
    needs=("ip -j route get PEER from RAIL_IP", _RULE, _ROUTE),
    requires=("route-nic-has-ip", "route-table-empty"),
    follows=(
        "route-blackhole",
        "route-source-rule",
        "route-rule-order",
        "route-table-default",
    ),
    over=each_rail,
)
def get_consistent(node: Node, rail: Rail) -> Outcome:
    address_of(active(rail))
    every, unread = samples_of(node.facts)
    mine = [s for s in every if s.src in rail.ips and not s.is_bound]
    wrong = [told for s in mine if (told := _wrong_sample(node, rail, s))]
    predicted, refused = _predicted(node, rail)
    wanted = f"every packet from {rail.ip} leaves {rail.netdev}"
    wrong += predicted
    if wrong:
        return bad("; ".join(wrong[:3]), wanted)
    for sample in mine:
        _cross_check(node, rail, sample)
    ours = [e for e in unread if f"from {rail.ip}" in f"{e.what} "]
    if ours:
        raise ours[0]
    if refused is not None and not mine:
        raise refused
    how = f"{len(mine)} live answers" if mine else "predicted from rules and tables"
    return ok(f"leaves {rail.netdev} ({how})", wanted)


def _wrong_sample(node: Node, rail: Rail, sample: Sample) -> str:
    pair = f"{sample.src} → {sample.dst}"
    if sample.error:
        return f"{pair}: {sample.error}"
    if sample.type in {"local", "broadcast", "multicast"}:
        return ""
    if not rail.netdev:
        raise Unread("missing", rail.name, "its network device is not known")
    if sample.dev == rail.netdev or not _must_leave(node, rail, sample.dst):
        return ""
    return f"{pair} leaves {sample.dev}, not {rail.netdev}"


def _must_leave(node: Node, rail: Rail, dst: str) -> bool:
    """Whether a packet to this peer belongs on the rail, by profile, rule or subnet."""
    if any(holds(network, dst) for network in networks_of(rail)):
        return True
    said = node.profile.routes.source_based
    if said is not None:
        return said
    try:
        if rail_rule(node.facts, rail.ip) is not None:
            return True
    except Unread:
        pass
    return not any(holds(net, dst) for _, net in other_networks(node, rail))


def _predicted(node: Node, rail: Rail) -> tuple[list[str], Unread | None]:
    """Wrong ways inside of the rail's own networks, from rules and tables alone."""
    wrong = []
    try:
        fib = engine(node, rail)
        for network in networks_of(rail):
            for dst, decision in decisions(fib, rail.ip, network):
                told = astray(decision, rail)
                if told:
                    wrong.append(f"{rail.ip} → {dst} {told}")
    except Unread as error:
        return wrong, error
    return wrong, None


def _cross_check(node: Node, rail: Rail, sample: Sample) -> None:
    """Our prediction beside the kernel's answer; a difference is a bug of ours."""
    try:
        rule = rail_rule(node.facts, sample.src)
        if rule is not None and emptiness(node.facts, rule.table, version_of(rail.ip)):
            return  # the dumps contradict the answer: see route-table-empty
        decision = engine(node, rail).lookup(ask(sample.src, sample.dst))
    except Unread:
        return
    if not _agrees(decision, sample):
        raise OwnFault(
            f"`{sample.line}` says {sample.error or sample.dev}, "
            f"and we predict that it {decision.leaves()}"
        )


def _agrees(decision: Decision, sample: Sample) -> bool:
    if sample.error or decision.error:
        return bool(sample.error) and bool(decision.error)
    return sample.dev in decision.devices or decision.is_local


# Single routes


@check(
    "route-linkdown-flag",
    group="route",
    severity="E",
    why="the carrier is lost: packets for this route go nowhere",
    fix=("cable and switch port; ip link set NETDEV up",),
    source=("kernel: RTNH_F_LINKDOWN, RTNH_F_DEAD",),
    needs=(_ROUTE,),
    follows=("nic-port-state", "nic-netdev-oper"),
    over=each_rail,
)
def linkdown(node: Node, rail: Rail) -> Outcome:
    every = _routes_over(node, active(rail))
    dead = [
        f"{route.dst} ({', '.join(sorted(flags))})"
        for route, flags in every
        if flags & {"linkdown", "dead"}
    ]
    if dead:
        return bad("; ".join(dead), "routes without linkdown and dead")
    return ok(f"{len(every)} routes over {rail.netdev}")


def _routes_over(node: Node, rail: Rail) -> list[tuple[Route, frozenset[str]]]:
    """(route, flags of its hop) for every route over a rail's device."""
    if not rail.netdev:
        raise Unread("missing", rail.name, "its network device is not known")
    by_table = all_routes(node.facts, version_of(rail.ip) if rail.ip else 4)
    return [
        (route, hop.flags)
        for rows in by_table.values()
        for route in rows
        for hop in route.hops
        if hop.dev == rail.netdev
    ]


@check(
    "route-mtu-locked",
    group="route",
    severity="W",
    why="a route pins a smaller MTU than its device has",
    fix=("ip route change DESTINATION ... without mtu",),
    source=("kernel: RTAX_MTU",),
    needs=(_ROUTE, "ip -j -d addr"),
    over=each_rail,
)
def mtu_locked(node: Node, rail: Rail) -> Outcome:
    if rail.link is None:
        raise Unread("missing", "ip -j -d addr", f"nothing is known of {rail.netdev}")
    by_table = all_routes(node.facts, version_of(rail.ip) if rail.ip else 4)
    small = [
        f"{route.dst} in table {route.table}: mtu {route.mtu}"
        for rows in by_table.values()
        for route in rows
        if route.mtu is not None
        and route.mtu < rail.link.mtu
        and any(hop.dev == rail.netdev for hop in route.hops)
    ]
    if small:
        return bad("; ".join(small), f"{rail.link.mtu} of {rail.netdev}")
    return ok("no route pins a smaller MTU")


@check(
    "route-ecmp",
    group="route",
    severity="W",
    why="a hash bucket of a multipath route is a black hole",
    fix=("repair the path, or ip route replace without the dead next hop",),
    source=("kernel: fib_select_multipath",),
    needs=(_ROUTE,),
    follows=("nic-port-state", "nic-netdev-oper", "route-linkdown-flag"),
    over=each_rail,
)
def ecmp(node: Node, rail: Rail) -> Outcome:
    by_table = all_routes(node.facts, version_of(rail.ip) if rail.ip else 4)
    several = [
        route
        for rows in by_table.values()
        for route in rows
        if len(route.hops) > 1 and any(hop.dev == rail.netdev for hop in route.hops)
    ]
    dead = [
        f"{route.dst} via {hop.gateway or hop.dev} ({', '.join(sorted(hop.flags))})"
        for route in several
        for hop in route.hops
        if hop.flags & {"linkdown", "dead"}
    ]
    if dead:
        return bad("; ".join(dead), "every next hop alive")
    return ok(f"{len(several)} multipath routes, every next hop alive")


@check(
    "route-default-dev",
    group="route",
    severity="W",
    why="control traffic competes with transfers, and tools take it for management",
    fix=("put the default route of main on the management NIC",),
    source=("NVSentinel: the NIC of the default route is management",),
    needs=(_ROUTE,),
    over=each_rail,
)
def default_dev(node: Node, rail: Rail) -> Outcome:
    version = version_of(rail.ip) if rail.ip else 4
    found = routes(node.facts, version)
    if "main" not in found:
        raise Unread("missing", _ROUTE, "table main was not collected")
    over = sorted(
        {hop.dev for row in found["main"] if row.is_default for hop in row.hops}
    )
    told = f"default over {', '.join(over) or 'no device'}"
    if rail.netdev and rail.netdev in over:
        return bad(told, f"a management NIC, not {rail.netdev}")
    return ok(told)


@check(
    "route-metric-dup",
    group="route",
    severity="W",
    why="of two default routes with one metric, which one is used is chance",
    fix=("give one of them a greater metric",),
    source=("kernel: fib_select_default",),
    needs=(_ROUTE,),
)
def metric_dup(node: Node, item: None) -> Outcome:
    found = routes(node.facts, 4)
    if "main" not in found:
        raise Unread("missing", _ROUTE, "table main was not collected")
    defaults = [row for row in found["main"] if row.is_default]
    by_metric: dict[tuple[int, int], set[str]] = {}
    for row in defaults:
        by_metric.setdefault((row.tos, row.metric), set()).add(row.dev)
    several = {key: devs for key, devs in by_metric.items() if len(devs) > 1}
    for (_, metric), devices in sorted(several.items()):
        told = f"metric {metric}: default over {' and '.join(sorted(devices))}"
        return bad(told, "one default route a metric")
    return ok(f"{len(defaults)} default routes", "one a metric")


@check(
    "route-ipv6-ra",
    group="route",
    severity="W",
    why="addresses that come and go move the GID table: a pinned index means another",
    fix=("sysctl net.ipv6.conf.NETDEV.accept_ra=0 and autoconf=0",),
    source=("R07", "R08 nccl#2157"),
    needs=("ip -j -d addr",),
    over=each_rail,
)
def ipv6_ra(node: Node, rail: Rail) -> Outcome:
    if rail.link is None:
        raise Unread("missing", "ip -j -d addr", f"nothing is known of {rail.netdev}")
    own = [a.ip for a in rail.link.global_addresses(6) if "dynamic" in a.flags]
    if own:
        return bad(f"autoconfigured: {', '.join(own)}", "static addresses only")
    return ok("no autoconfigured address")
