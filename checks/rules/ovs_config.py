"""Open vSwitch's configuration: bridges, uplinks, controllers, VLANs, offload."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.commands import pci_address
from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok
from checks.ovs_layout import layout
from checks.parse.garbled import Garbled
from checks.parse.ip_addr import Link, links
from checks.parse.modules import loaded
from checks.parse.ovs_appctl import asked
from checks.parse.ovs_db import Row, root, rows
from checks.parse.ovs_flows import parse_flows
from checks.parse.ovs_log import LOG, events
from checks.rules.declare import NotHere, Subject, check, compared
from checks.rules.ovs import LIST, demand, each_bridge, each_row, on_ovs
from checks.rules.pci_subjects import Function, each_nic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checks.node import Node

MODULE = "/sys/module/openvswitch"
_FROM_DATABASE = ("ovs-db-reachable", "ovs-vswitchd-alive")
_ACTIVE = ("tcp:", "ssl:", "unix:")
"""Targets that OVS connects to by itself; to passive ones others connect, or nobody."""
_HASHING = frozenset({"balance-slb", "balance-tcp"})
_OFFLOADED = re.compile(r"^\s*offloaded flows\s*:\s*(\d+)$", re.MULTILINE)
_TC = re.compile(r"^\s*hw-tc-offload: (on|off)\b", re.MULTILINE)


def offloads(node: Node) -> bool:
    """The database asks for flows in hardware."""
    return root(node.facts).map("other_config").get("hw-offload") == "true"


def _members(node: Node) -> Mapping[str, str]:
    """The bridge of each interface; Unread where the tables do not tell it."""
    for row in rows(node.facts, "Bridge"):
        row.items("ports")
    for row in rows(node.facts, "Port"):
        row.items("interfaces")
    return layout(node).bridge_of


@compared(
    "ovs-bridge-exists",
    group="ovs",
    severity="C",
    why="the wrong image, or a network profile that did not run: traffic has no bridge",
    fix=("ovs-vsctl add-br NAME, or run the site's network configuration again",),
    source=("catalogue B.1",),
    needs=(f"{LIST} Bridge",),
    requires=("ovs-db-reachable",),
    over=on_ovs,
)
def bridge_exists(node: Node, _: None) -> Outcome | str:
    found = {row.name for row in rows(node.facts, "Bridge")}
    value = ", ".join(sorted(found)) or "none"
    wanted = set(node.profile.ovs.bridges)
    if not wanted:
        return value
    expected = f"{', '.join(sorted(wanted))} (profile)"
    if wanted - found:
        return bad(f"{value}: {', '.join(sorted(wanted - found))} missing", expected)
    if found - wanted:
        return bad(value, expected, severity="W")
    return ok(value, expected, value=value)


def _each_uplink_name(node: Node) -> list[Subject[str]]:
    """Network devices of the rails, and those that the profile wants in a bridge."""
    demand(node)
    named = {n for names in node.profile.ovs.uplinks.values() for n in names}
    keys = {rail.netdev: rail.name for rail in node.rails if rail.netdev}
    return [
        Subject(item=n, label=n, key=keys.get(n, n), touches=frozenset({n}))
        for n in sorted(named | set(keys))
    ]


@compared(
    "ovs-uplink-in-bridge",
    group="ovs",
    severity="C",
    why="a NIC inside a bridge loses its address and its GIDs to the internal port",
    fix=("ovs-vsctl del-port NAME, or move the address to the bridge's internal port",),
    source=("catalogue B.1",),
    needs=(f"{LIST} Bridge", f"{LIST} Port", f"{LIST} Interface"),
    requires=("ovs-db-reachable",),
    over=_each_uplink_name,
)
def uplink_in_bridge(node: Node, name: str) -> Outcome | str:
    bridge = _members(node).get(name, "")
    value = f"in {bridge}" if bridge else "in no bridge"
    uplinks = node.profile.ovs.uplinks
    if not uplinks:
        return value
    wanted = next((b for b, names in sorted(uplinks.items()) if name in names), "")
    expected = f"in {wanted} (profile)" if wanted else "in no bridge (profile)"
    return (
        ok(value, expected, value=value) if bridge == wanted else bad(value, expected)
    )


def _each_enslaved(node: Node) -> list[Subject[Link | None]]:
    """Links that are ports of the kernel's datapath; the node where there is none."""
    try:
        every = links(node.facts)
    except Unread:
        demand(node)
        raise
    found = [
        link
        for link in every.values()
        if link.master == "ovs-system" or link.slave_kind == "openvswitch"
    ]
    if not found:
        return [Subject(item=None) for _ in on_ovs(node)]
    return [
        Subject(item=link, label=link.name, touches=frozenset({link.name}))
        for link in sorted(found, key=lambda link: link.name)
    ]


@check(
    "ovs-ip-on-enslaved-nic",
    group="ovs",
    severity="E",
    why="the address of a port of Open vSwitch is not used: routes and GIDs are dead",
    fix=("move the address to the internal port of the bridge",),
    source=("ovs FAQ: issues with the IP address of a port",),
    needs=("ip -j -d addr",),
    over=_each_enslaved,
)
def ip_on_enslaved(node: Node, link: Link | None) -> Outcome:
    expected = "no address on a port of Open vSwitch"
    if link is None:
        return ok("no link is a port of the kernel's datapath", expected)
    every = (*link.global_addresses(4), *link.global_addresses(6))
    if every:
        return bad(", ".join(each.ip for each in every), expected)
    return ok("no address", expected)


@compared(
    "ovs-datapath-type",
    group="ovs",
    severity="E",
    why="the userspace datapath goes around tc, the offload and the representors",
    fix=("ovs-vsctl set Bridge NAME datapath_type=system",),
    source=("ovs-vswitchd.conf.db(5): datapath_type",),
    needs=(f"{LIST} Bridge", f"{LIST} Open_vSwitch"),
    requires=("ovs-db-reachable",),
    over=each_bridge,
)
def datapath_type(node: Node, row: Row) -> Outcome | str:
    value = row.word("datapath_type") or "system"
    wanted = node.profile.ovs.datapath_type
    if wanted:
        expected = f"{wanted} (profile)"
        agrees = value == wanted
        return ok(value, expected, value=value) if agrees else bad(value, expected)
    if value == "netdev" and _may_offload(node):
        return bad("netdev, and hw-offload=true", "system, where flows are offloaded")
    return value


def _may_offload(node: Node) -> bool:
    try:
        return offloads(node)
    except Unread as error:
        if error.kind == "missing":
            return False
        raise


@check(
    "ovs-hw-offload-effective",
    group="ovs",
    severity="W",
    why="hw-offload was set after vswitchd started: it reads the value then only",
    fix=("restart vswitchd on a drained node", "read ovs-vswitchd.log"),
    source=("R66", "R67", "lib/netdev-offload.c: netdev: Flow API Enabled"),
    needs=(
        f"{LIST} Open_vSwitch",
        LOG,
        "ovs-appctl -T 3 upcall/show",
        "ovs-appctl dpctl/dump-flows -m type=offloaded",
    ),
    requires=_FROM_DATABASE,
    over=on_ovs,
)
def offload_effective(node: Node, _: None) -> Outcome:
    expected = "the flow API enabled since the start"
    if not offloads(node):
        return ok("hw-offload is not asked", expected)
    if _offloaded_flows(node.facts):
        return ok("flows are offloaded", expected)
    texts = [event.text for event in events(node.facts)]
    starts = [at for at, text in enumerate(texts) if "(Open vSwitch)" in text]
    enabled = [at for at, text in enumerate(texts) if "Flow API Enabled" in text]
    if enabled:
        return ok("Flow API Enabled", expected)
    if not starts:
        raise Unread("missing", LOG, "the start of vswitchd is no longer in it")
    return bad("hw-offload=true, and the log of the start does not say it", expected)


def _offloaded_flows(facts: Facts) -> int:
    """Offloaded flows, as far as one of the sources tells any; 0 proves nothing."""
    for run in asked(facts, "upcall/show"):
        match = _OFFLOADED.search(run.stdout)
        if match and int(match[1]):
            return int(match[1])
    for run in asked(facts, "dpctl/dump-flows"):
        if "type=offloaded" in run.line:
            return sum("actions:" in line for line in run.stdout.splitlines())
    return 0


def _each_nic_beside(node: Node) -> list[Subject[Function]]:
    demand(node)
    return each_nic(node)


@compared(
    "ovs-esw-mode",
    group="ovs",
    severity="E",
    why="without switchdev there are no representors, and nothing can be offloaded",
    fix=("devlink dev eswitch set pci/BDF mode switchdev, before VFs are made",),
    source=("devlink-dev(8)", "ovs-vswitchd.conf.db(5): hw-offload"),
    needs=("devlink -j dev eswitch show pci/BDF", f"{LIST} Open_vSwitch"),
    requires=("ovs-db-reachable",),
    follows=("ovs-uplink-in-bridge",),
    over=_each_nic_beside,
)
def esw_mode(node: Node, function: Function) -> Outcome | str:
    mode = _mode(node.facts, function.bdf)
    inside = set(function.touches) & set(_members(node))
    if inside and offloads(node) and mode != "switchdev":
        return bad(mode, "switchdev, for an uplink with hw-offload=true")
    return mode


def _mode(facts: Facts, bdf: str) -> str:
    result = facts.result("devlink", "dev", "eswitch", f"pci/{pci_address(bdf)}")
    if result.rc and "not supported" in result.ended().stderr.lower():
        raise NotHere("the device has no e-switch")
    document = result.json()
    inside = document.get("dev") if isinstance(document, dict) else None
    if not isinstance(inside, dict):
        raise Garbled(result.line, "no object called dev")
    for name, told in inside.items():
        if pci_address(str(name)) == bdf and isinstance(told, dict) and "mode" in told:
            return str(told["mode"])
    raise Garbled(result.line, f"no mode of {bdf}")


@check(
    "ovs-fail-mode",
    group="ovs",
    severity="E",
    why="a secure bridge without controller and without flows drops everything",
    fix=("start the controller", "ovs-vsctl set-fail-mode NAME standalone"),
    source=("ovs-vswitchd.conf.db(5): fail_mode",),
    needs=(f"{LIST} Bridge", f"{LIST} Controller", "ovs-ofctl dump-flows BRIDGE"),
    requires=_FROM_DATABASE,
    over=each_bridge,
)
def fail_mode(node: Node, row: Row) -> Outcome:
    expected = "standalone, or a connected controller, or flows"
    mode = row.word("fail_mode") or "standalone"
    if mode != "secure":
        return ok(mode, expected)
    uuids = set(row.items("controller"))
    if uuids:
        told = [
            controller.one("is_connected") is True
            for controller in rows(node.facts, "Controller")
            if controller.cells.get("_uuid") in uuids
        ]
        if not told:
            raise Unread("missing", f"{LIST} Controller", f"none of {row.name}")
        shown = f"secure, {sum(told)} of {len(told)} controllers connected"
        return ok(shown, expected) if any(told) else bad(shown, expected)
    text = node.facts.result("ovs-ofctl", "dump-flows", row.name).text()
    count = len(parse_flows(text))
    shown = f"secure, no controller, {count} flows"
    return ok(shown, expected) if count else bad(shown, expected)


def _each_connection(node: Node) -> list[Subject[Row]]:
    """Controllers and managers that OVS connects to."""
    demand(node)
    bridges = rows(node.facts, "Bridge")
    found = []
    for table in ("Controller", "Manager"):
        for row in rows(node.facts, table):
            target = row.word("target")
            if not target.startswith(_ACTIVE):
                continue
            uuid = row.cells.get("_uuid")
            users = {b.name for b in bridges if _uses(b, uuid)}
            label = f"{table} {target}"
            found.append(Subject(item=row, label=label, touches=frozenset(users)))
    if not found:
        raise NotHere("no controller and no manager to connect to")
    return sorted(found, key=lambda subject: subject.label)


def _uses(bridge: Row, uuid: object) -> bool:
    return bridge.knows("controller") and uuid in bridge.items("controller")


@check(
    "ovs-controller-connected",
    group="ovs",
    severity="W",
    why="only flows that are there already serve, until they are flushed",
    fix=("is the controller up, and reachable from the management network",),
    source=("ovs-vswitchd.conf.db(5): is_connected",),
    needs=(f"{LIST} Controller", f"{LIST} Manager"),
    requires=_FROM_DATABASE,
    follows=("ovs-fail-mode",),
    over=_each_connection,
)
def controller_connected(node: Node, row: Row) -> Outcome:
    if row.one("is_connected") is True:
        return ok("connected", "connected")
    error = row.map("status").get("last_error", "") if row.knows("status") else ""
    return bad(f"not connected {error}".strip(), "connected")


@check(
    "ovs-stp",
    group="ovs",
    severity="W",
    why="a port that comes up is deaf for 30 s while spanning tree listens and learns",
    fix=("ovs-vsctl set Bridge NAME stp_enable=false rstp_enable=false",),
    source=("ovs-vswitchd.conf.db(5): stp_enable, rstp_enable",),
    needs=(f"{LIST} Bridge", f"{LIST} Port"),
    requires=_FROM_DATABASE,
    over=each_bridge,
)
def spanning_tree(node: Node, row: Row) -> Outcome:
    kinds = [k for k in ("stp", "rstp") if row.one(f"{k}_enable") is True]
    wanted = node.profile.ovs.stp is True
    expected = "spanning tree (profile), forwarding" if wanted else "no spanning tree"
    shown = " and ".join(kinds) or "no spanning tree"
    if bool(kinds) != wanted:
        return bad(shown, expected)
    deaf = _deaf_ports(node, row, kinds[0]) if kinds else []
    if deaf:
        return bad(f"{shown}: {', '.join(deaf)}", expected, severity="E")
    return ok(shown, expected)


def _deaf_ports(node: Node, bridge: Row, kind: str) -> list[str]:
    column, key = ("status", "stp_state")
    if kind == "rstp":
        column, key = ("rstp_status", "rstp_port_state")
    inside = set(bridge.items("ports"))
    found = []
    for port in rows(node.facts, "Port"):
        if port.cells.get("_uuid") in inside:
            state = str(port.map(column).get(key, "forwarding"))
            if state.lower() not in {"forwarding", "disabled"}:
                found.append(f"{port.name} {state.lower()}")
    return sorted(found)


def _each_bond(node: Node) -> list[Subject[Row]]:
    every = each_row(node, "Port")
    found = [s for s in every if len(s.item.items("interfaces")) > 1]
    if not found:
        raise NotHere("no bond in Open vSwitch")
    return found


@compared(
    "ovs-bond-mode",
    group="ovs",
    severity="W",
    why="legs that hash without LACP lose flows when the switch disagrees",
    fix=("ovs-vsctl set Port NAME bond_mode=balance-tcp lacp=active",),
    source=("R73", "ovs-vswitchd.conf.db(5): bond_mode"),
    needs=(f"{LIST} Port",),
    requires=("ovs-db-reachable",),
    over=_each_bond,
)
def bond_mode(node: Node, row: Row) -> Outcome | str:
    mode = row.word("bond_mode") or "active-backup"
    lacp = row.word("lacp") or "off"
    value = f"{mode}, lacp {lacp}"
    if mode in _HASHING and lacp == "off":
        return bad(value, "LACP with a mode that hashes")
    return value


def _each_uplink_port(node: Node) -> list[Subject[Row]]:
    """Ports that hold an uplink."""
    every = each_row(node, "Port")
    names = {
        row.cells.get("_uuid"): row.name
        for uplinks in layout(node).uplinks.values()
        for row in uplinks
    }
    found = [s for s in every if set(s.item.items("interfaces")) & set(names)]
    if not found:
        raise NotHere("no uplink in Open vSwitch")
    return found


@compared(
    "ovs-vlan",
    group="ovs",
    severity="E",
    why="another VLAN reaches no peer; a tag also strips the priority of the frame",
    fix=("ovs-vsctl set Port NAME tag=... trunks=..., as on the peers",),
    source=("ovs-vswitchd.conf.db(5): tag, trunks, vlan_mode",),
    needs=(f"{LIST} Port", f"{LIST} Interface"),
    requires=("ovs-db-reachable",),
    over=_each_uplink_port,
)
def vlan(node: Node, row: Row) -> str:
    trunks = ",".join(map(str, sorted(map(str, row.items("trunks"))))) or "all"
    tag = row.word("tag") or "none"
    return f"tag {tag}, trunks {trunks}, mode {row.word('vlan_mode') or 'default'}"


def _each_uplink(node: Node) -> list[Subject[Row]]:
    demand(node)
    found = [row for uplinks in layout(node).uplinks.values() for row in uplinks]
    if not found:
        raise NotHere("no uplink in Open vSwitch")
    return [
        Subject(item=row, label=row.name, touches=frozenset({row.name}))
        for row in sorted(found, key=lambda row: row.name)
    ]


@check(
    "ovs-policing",
    group="ovs",
    severity="W",
    why="a policer or a queue on the uplink drops what is above its rate",
    fix=("ovs-vsctl set Interface NAME ingress_policing_rate=0", "clear Port NAME qos"),
    source=("ovs-vswitchd.conf.db(5): ingress_policing_rate, qos",),
    needs=(f"{LIST} Interface", f"{LIST} Port"),
    requires=("ovs-db-reachable",),
    over=_each_uplink,
)
def policing(node: Node, row: Row) -> Outcome:
    rate = row.number("ingress_policing_rate") or 0
    uuid = row.cells.get("_uuid")
    ports = [p for p in rows(node.facts, "Port") if uuid in p.items("interfaces")]
    shaped = [port.name for port in ports if port.items("qos")]
    if rate or shaped:
        told = [f"ingress_policing_rate {rate}"] if rate else []
        told += [f"qos on {name}" for name in shaped]
        return bad(", ".join(told), "no policer and no queue")
    return ok("none", "no policer and no queue")


@check(
    "ovs-module-params",
    group="ovs",
    severity="C",
    why="the kernel's datapath is a module: without it no bridge of it works",
    fix=("modprobe openvswitch", "load it at boot: /etc/modules-load.d"),
    source=("experiment: unknown datapath type system",),
    needs=(MODULE, "/proc/modules", f"{LIST} Bridge"),
    requires=("ovs-db-reachable",),
    over=on_ovs,
)
def module(node: Node, _: None) -> Outcome:
    expected = "openvswitch is loaded"
    kernel = [
        row.name
        for row in rows(node.facts, "Bridge")
        if row.word("datapath_type") in {"", "system"}
    ]
    if not kernel:
        return ok("no bridge of the kernel's datapath", expected)
    if _module_is_loaded(node.facts):
        return ok("loaded", expected)
    return bad(f"not loaded, for {', '.join(sorted(kernel))}", expected)


def _module_is_loaded(facts: Facts) -> bool:
    try:
        if facts.exists(MODULE):
            return True
    except Unread as error:
        if error.kind != "missing":
            raise
        return "openvswitch" in loaded(facts)
    try:
        return "openvswitch" in loaded(facts)
    except Unread:
        return False


@check(
    "ovs-netdev-offloads",
    group="ovs",
    severity="E",
    why="rules of tc do not reach the hardware while hw-tc-offload is off",
    fix=("ethtool -K NAME hw-tc-offload on",),
    source=("ethtool(8)", "Documentation/networking/switchdev.rst"),
    needs=("ethtool -k NAME", f"{LIST} Open_vSwitch", f"{LIST} Interface"),
    requires=("ovs-db-reachable", "ovs-iface-error"),
    over=_each_uplink,
)
def netdev_offloads(node: Node, row: Row) -> Outcome:
    expected = "hw-tc-offload: on"
    if not offloads(node):
        return ok("hw-offload is not asked", expected)
    if row.knows("status") and row.map("status").get("driver_name") == "veth":
        raise NotHere("a veth has no hardware")
    result = node.facts.result("ethtool", "features", row.name)
    match = _TC.search(result.text())
    if match is None:
        raise Garbled(result.line, "it does not tell hw-tc-offload")
    shown = f"hw-tc-offload: {match[1]}"
    return ok(shown, expected) if match[1] == "on" else bad(shown, expected)


@check(
    "ovs-dpdk",
    group="ovs",
    severity="C",
    why="DPDK was asked and did not start: its bridges have no datapath",
    fix=("read ovs-vswitchd.log: hugepages, the PMD mask, vfio",),
    source=("ovs-vswitchd.conf.db(5): dpdk_initialized",),
    needs=(f"{LIST} Open_vSwitch",),
    requires=_FROM_DATABASE,
    over=on_ovs,
)
def dpdk(node: Node, _: None) -> Outcome:
    row = root(node.facts)
    asked_for = str(row.map("other_config").get("dpdk-init", "false"))
    if asked_for not in {"true", "try"}:
        return ok("DPDK is not asked", "DPDK initialized where it is asked")
    started = row.one("dpdk_initialized") is True
    shown = f"dpdk-init={asked_for}, dpdk_initialized={str(started).lower()}"
    expected = "dpdk_initialized=true"
    return ok(shown, expected) if started else bad(shown, expected)
