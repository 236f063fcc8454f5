"""Open vSwitch at work: bonds, flows, offload, and what its log tells."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok
from checks.parse.ovs_appctl import (
    LacpMember,
    Lookups,
    Member,
    asked,
    bonds,
    lacp,
    parse_flow_limits,
    parse_lookups,
    samples,
)
from checks.parse.ovs_db import root, rows
from checks.parse.ovs_flows import Flow, bridges_with_flows, flows
from checks.parse.ovs_log import LOG, Event, events, last_day
from checks.rules.declare import NotHere, Subject, check
from checks.rules.ovs import LIST, demand, on_ovs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checks.node import Node

ROCE_PORT = 4791
"""UDP destination port of RoCE v2."""
_CONTROL_PORTS = frozenset({50051})
"""TCP ports of Mooncake's control plane: its master."""
_NO_PARTNER = "00:00:00:00:00:00"
_FLOW_LIMIT_FLOOR = 10_000
_FLOW_LIMIT_SHARE = 0.9
_L4 = frozenset({"tcp", "tcp6", "sctp", "sctp6", "icmp", "icmp6", "arp", "rarp"})
_COUNTERS = (
    "drop_action_of_pipeline",
    "drop_action_congestion",
    "upcall_flow_limit_hit",
    "netlink_overflow",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One member of one bond, as far as each source tells it."""

    bond: str
    name: str
    told: Member | None
    lacp: LacpMember | None


def _each_leg(node: Node) -> list[Subject[Leg]]:
    """Members of bonds: those vswitchd shows, and those that the database names."""
    demand(node)
    wanted = _bonds_of_database(node.facts)
    if wanted == {}:
        raise NotHere("no bond in Open vSwitch")
    found = _legs(node.facts)
    for bond, names in (wanted or {}).items():
        for name in names:
            gone = Leg(bond=bond, name=name, told=None, lacp=None)
            found.setdefault((bond, name), gone)
    return [
        Subject(
            item=leg,
            label=f"{leg.bond}/{leg.name}",
            touches=frozenset({leg.bond, leg.name}),
        )
        for _, leg in sorted(found.items())
    ]


def _bonds_of_database(facts: Facts) -> dict[str, tuple[str, ...]] | None:
    """Members by bond; None where the tables Port and Interface do not tell."""
    try:
        ports = rows(facts, "Port")
        several = [p for p in ports if len(p.items("interfaces")) > 1]
    except Unread:
        return None
    try:
        names = {row.cells.get("_uuid"): row.name for row in rows(facts, "Interface")}
    except Unread:
        names = {}
    return {
        port.name: tuple(
            names[uuid] for uuid in port.items("interfaces") if uuid in names
        )
        for port in several
    }


def _legs(facts: Facts) -> dict[tuple[str, str], Leg]:
    speaking = _lacp_if_known(facts)
    try:
        shown = {(each.bond, each.name): each for each in bonds(facts)}
    except Unread as error:
        if error.kind != "missing" or not speaking:
            raise
        shown = {}
    return {
        key: Leg(bond=key[0], name=key[1], told=shown.get(key), lacp=speaking.get(key))
        for key in {*shown, *speaking}
    }


def _lacp_if_known(facts: Facts) -> dict[tuple[str, str], LacpMember]:
    try:
        return dict(lacp(facts))
    except Unread as error:
        if error.kind == "missing":
            return {}
        raise


@check(
    "ovs-bond-members",
    group="ovs",
    severity="E",
    why="half the bandwidth is gone, and flows hashed to the dead leg are lost",
    fix=(
        "check cable and optic of the member",
        "make the switch ports one port-channel that speaks LACP",
    ),
    source=("R73", "experiment: lacp_status negotiated with a member disabled"),
    needs=("ovs-appctl -T 3 bond/show", "ovs-appctl -T 3 lacp/show", f"{LIST} Port"),
    requires=("ovs-vswitchd-alive", "ovs-iface-error"),
    over=_each_leg,
)
def bond_members(node: Node, leg: Leg) -> Outcome:
    wanted = "enabled, with an LACP partner where it speaks LACP"
    wrong = _wrong(leg)
    if wrong:
        return bad(", ".join(wrong), wanted)
    if leg.told is None and (leg.lacp is None or asked(node.facts, "bond/show")):
        raise Unread("missing", "ovs-appctl bond/show", f"it tells no {leg.name}")
    speaks = leg.told is not None and leg.told.speaks_lacp
    if speaks and leg.lacp is None and asked(node.facts, "lacp/show"):
        raise Unread("missing", "ovs-appctl lacp/show", f"it tells no {leg.name}")
    beside = [key for key in _legs(node.facts) if key[0] == leg.bond]
    if len(beside) < 2:
        told = f"only {leg.name} of {leg.bond} is shown"
        raise Unread("truncated", "ovs-appctl bond/show", told)
    return ok("enabled", wanted)


def _wrong(leg: Leg) -> list[str]:
    found = []
    if leg.told is not None and leg.told.state != "enabled":
        found.append(leg.told.state)
    if leg.told is not None and not leg.told.may_enable:
        found.append("may_enable: false")
    if leg.lacp is not None and leg.lacp.state != "current attached":
        found.append(f"LACP {leg.lacp.state}")
    if leg.lacp is not None and leg.lacp.partner == _NO_PARTNER:
        found.append("no LACP partner")
    return found


@check(
    "ovs-offload-failures",
    group="ovs",
    severity="E",
    why="flows that the NIC does not take run on the CPU (dp:ovs)",
    fix=(
        "tc qdisc show dev NAME: is there an ingress qdisc",
        "Open vSwitch 3.0 or later: older ones do not offload what OVN asks",
        "look for NAT and connection tracking in the flows",
    ),
    source=("R66 ovn-kubernetes#839", "R67 ovn#160"),
    needs=(LOG,),
    over=on_ovs,
)
def offload_failures(node: Node, _: None) -> Outcome:
    wanted = "no failure in the last day of the log"
    failed = [event for event in last_day(events(node.facts)) if _is_refused(event)]
    if not failed:
        return ok("none", wanted)
    shown = "; ".join(dict.fromkeys(event.text for event in failed))
    return bad(f"{len(failed)} times: {shown[:300]}", wanted)


def _is_refused(event: Event) -> bool:
    text = event.text
    return "failed to offload flow" in text or "recirc_id sharing not" in text


@check(
    "ovs-mtu-slowpath-drop",
    group="ovs",
    severity="E",
    why="a port has a smaller MTU than its network: large packets to it are dropped",
    fix=("ovs-vsctl set Interface NAME mtu_request=MTU of the network",),
    source=("R69 atmosphere#949",),
    needs=(LOG,),
    over=on_ovs,
)
def slowpath_drop(node: Node, _: None) -> Outcome:
    wanted = "no packet too big in the log"
    found = [e.text for e in events(node.facts) if "Dropped packet: Too big" in e.text]
    if not found:
        return ok("none", wanted)
    names = sorted({text.partition(":")[0] for text in found})
    return bad(f"{len(found)} times: too big for {', '.join(names)[:200]}", wanted)


@check(
    "ovs-upcall-lost",
    group="ovs",
    severity="E",
    why="the queue to the handlers overflows: packets of new flows are lost",
    fix=("raise other_config:n-handler-threads", "offload the flows to the NIC"),
    source=("ovs-dpctl(8): lookups", "experiment: shape of dpctl/show"),
    needs=("ovs-appctl -T 3 dpctl/show",),
    requires=("ovs-vswitchd-alive",),
    over=on_ovs,
)
def upcall_lost(node: Node, _: None) -> Outcome:
    first, last = _two_lookups(node.facts)
    lost = last.lost - first.lost
    if lost < 0 or first.datapaths != last.datapaths:
        raise Unread("garbled", "ovs-appctl dpctl/show", "counters began anew between")
    told = f"lost {first.lost} then {last.lost}: {lost} more"
    return bad(told, "no more") if lost else ok(told, "no more")


def _two_lookups(facts: Facts) -> tuple[Lookups, Lookups]:
    found = [parse_lookups(run.text()) for run in samples(facts, "dpctl/show")]
    if len(found) < 2:
        raise Unread("missing", "ovs-appctl dpctl/show", "two samples are needed")
    return found[0], found[-1]


@check(
    "ovs-flow-limit",
    group="ovs",
    severity="W",
    why="revalidators cannot keep up: the limit shrinks and new flows are not cached",
    fix=("raise other_config:n-revalidator-threads", "look for short-lived flows"),
    source=("ovs-vswitchd(8): upcall/show",),
    needs=("ovs-appctl -T 3 upcall/show",),
    requires=("ovs-vswitchd-alive",),
    over=on_ovs,
)
def flow_limit(node: Node, _: None) -> Outcome:
    text = samples(node.facts, "upcall/show")[-1].text()
    wanted = f"a limit of {_FLOW_LIMIT_FLOOR} or more, used to 90 % at most"
    limits = parse_flow_limits(text)
    told = ", ".join(f"{now} of {limit}" for now, limit in limits)
    full = any(
        limit < _FLOW_LIMIT_FLOOR or now > _FLOW_LIMIT_SHARE * limit
        for now, limit in limits
    )
    return bad(told, wanted) if full else ok(told, wanted)


def _each_counter(node: Node) -> list[Subject[str]]:
    demand(node)
    return [Subject(item=name, label=name) for name in _COUNTERS]


@check(
    "ovs-drop-coverage",
    group="ovs",
    severity="W",
    why="the datapath drops on an idle node: a drop flow, or an overload",
    fix=("ovs-appctl coverage/show", "ovs-ofctl dump-flows BRIDGE: look for drops"),
    source=("ovs-appctl(8): coverage/read-counter",),
    needs=tuple(f"ovs-appctl -T 3 coverage/read-counter {name}" for name in _COUNTERS),
    requires=("ovs-vswitchd-alive",),
    over=_each_counter,
)
def drop_coverage(node: Node, name: str) -> Outcome:
    runs = samples(node.facts, "coverage/read-counter", name)
    for run in runs:
        if "no such counter" in run.ended().stderr.lower():
            raise NotHere(f"this version has no counter {name}")
    values = [_count(name, run.text()) for run in runs]
    if len(values) < 2:
        raise Unread("missing", f"coverage {name}", "two samples are needed")
    more = values[-1] - values[0]
    if more < 0:
        raise Unread("garbled", f"coverage {name}", "the counter began anew between")
    told = f"{values[0]} then {values[-1]}"
    return bad(told, "no more") if more else ok(told, "no more")


def _count(name: str, text: str) -> int:
    if not text.strip().isdigit() or not text.endswith("\n"):
        raise Unread("garbled", f"coverage {name}", f"no number: {text.strip()[:40]}")
    return int(text)


def _each_flow_table(node: Node) -> list[Subject[str]]:
    """Bridges whose flows were collected, and those that the database names."""
    demand(node)
    names = set(bridges_with_flows(node.facts))
    try:
        names |= {row.name for row in rows(node.facts, "Bridge")}
    except Unread:
        if not names:
            raise
    return [
        Subject(item=name, label=name, touches=frozenset({name}))
        for name in sorted(names)
    ]


@check(
    "ovs-flow-drop-roce",
    group="ovs",
    severity="E",
    why="ping works and every RDMA transfer ends in retry errors",
    fix=("ovs-ofctl del-flows BRIDGE MATCH", "correct the ACL that wrote the flow"),
    source=("lab: rc_pingpong over a drop flow, completer_retry_err=296",),
    needs=("ovs-ofctl dump-flows BRIDGE", f"{LIST} Bridge"),
    requires=("ovs-vswitchd-alive",),
    over=_each_flow_table,
)
def flow_drop_roce(node: Node, bridge: str) -> Outcome:
    wanted = f"no flow drops UDP {ROCE_PORT}, rails or the control plane"
    found = flows(node.facts, bridge)
    networks = _rail_networks(node)
    harmful = [flow for flow in found if flow.drops and _hits(flow, networks)]
    if not harmful:
        return ok(f"none of {len(found)} flows", wanted)
    shown = "; ".join(f"{f.shown} ({f.packets} packets)" for f in harmful[:4])
    return bad(shown, wanted)


def _rail_networks(node: Node) -> frozenset[str]:
    try:
        return frozenset(str(net) for rail in node.rails for net in rail.networks)
    except Unread:
        return frozenset()


def _hits(flow: Flow, networks: Iterable[str]) -> bool:
    """Whether a drop flow takes RoCE, a rail's addresses or the control plane."""
    port = _port(flow.match.get("tp_dst") or flow.match.get("udp_dst"))
    if {"udp", "udp6"} & flow.match.keys():
        return port == ROCE_PORT or (port is None and _on_rails(flow, networks))
    if {"tcp", "tcp6"} & flow.match.keys():
        port = _port(flow.match.get("tp_dst") or flow.match.get("tcp_dst"))
        return port in _CONTROL_PORTS or (port is None and _on_rails(flow, networks))
    return not (_L4 & flow.match.keys()) and _on_rails(flow, networks)


def _port(text: str | None) -> int | None:
    """A port; -1 for what is none, or has a mask."""
    if text is None:
        return None
    try:
        return int(text, 0)
    except ValueError:
        return -1


def _on_rails(flow: Flow, networks: Iterable[str]) -> bool:
    for field in ("nw_dst", "nw_src", "ipv6_dst", "ipv6_src"):
        if field not in flow.match:
            continue
        try:
            taken = ip_network(flow.match[field], strict=False)
        except ValueError:
            continue
        rails = [ip_network(network) for network in networks]
        if any(r.version == taken.version and r.overlaps(taken) for r in rails):
            return True
    return False


@check(
    "ovs-check-pkt-len",
    group="ovs",
    severity="W",
    why="check_pkt_larger is not offloaded: every large packet goes through the CPU",
    fix=("disable the gateway MTU check of OVN (ovn-kubernetes PR#3227)",),
    source=("R72 ovn-kubernetes PR#3227, OCPBUGS-3468",),
    needs=(f"{LIST} Open_vSwitch", "ovs-ofctl dump-flows BRIDGE"),
    requires=("ovs-db-reachable",),
    over=on_ovs,
)
def check_pkt_len(node: Node, _: None) -> Outcome:
    wanted = "no check_pkt_larger where flows are offloaded"
    offload = root(node.facts).map("other_config").get("hw-offload") == "true"
    if not offload:
        return ok("flows are not offloaded", wanted)
    found = [b for b, flow in _every_flow(node.facts) if _checks_length(flow)]
    if found:
        return bad(f"flows of {', '.join(sorted(set(found)))} check the length", wanted)
    return ok("no flow checks the length", wanted)


def _checks_length(flow: Flow) -> bool:
    return "check_pkt_larger" in flow.actions or "check_pkt_len" in flow.actions


def _every_flow(facts: Facts) -> list[tuple[str, Flow]]:
    """Flows of all bridges; Unread where those of one bridge are."""
    every = [
        (name, flow)
        for name in bridges_with_flows(facts)
        for flow in flows(facts, name)
    ]
    if not every:
        raise Unread("missing", "ovs-ofctl dump-flows", "not collected")
    return every
