"""Kubernetes and the node: resources, CNI, conntrack, names, overlaps."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING

from checks.cohort import cohorts
from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok, unknown
from checks.parse.cni_conf import CniDirectory, cni_directory
from checks.parse.garbled import Garbled
from checks.parse.hosts import in_hosts, resolved
from checks.parse.ip_addr import links
from checks.parse.kernel_log import kernel_log
from checks.parse.kubectl import (
    Object,
    items,
    key_of,
    label_of,
    objects,
    own_node,
    own_pods,
    part,
    quantity,
    requested,
)
from checks.parse.listeners import is_loopback
from checks.parse.rdma_system import netns_mode
from checks.parse.sysctl import number
from checks.rules.declare import (
    NotHere,
    Subject,
    check,
    compared,
    fleetwide,
    whole_node,
)
from checks.rules.kubernetes import (
    NAD,
    Definition,
    definition,
    needs_kubernetes,
    rail_mtu,
)
from checks.rules.likeness import ask, by_cohort, of_peers, of_profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checks.node import Node
    from checks.rules.declare import Judged, Over

_NODE = "kubectl get node NAME -o json"
_NADS = "kubectl get network-attachment-definitions -A -o json"
_CNI = "/etc/cni/net.d"
_COUNT = "/proc/sys/net/netfilter/nf_conntrack_count"
_MAX = "/proc/sys/net/netfilter/nf_conntrack_max"
_FULL = re.compile(r"nf_conntrack: (?:nf_conntrack: )?table full, dropping packet")
_FULL_FROM = 0.8
_RDMA = re.compile(
    r"^rdma/|rdma|roce|mellanox|mlnx|sriov|(?:^|[^a-z])(?:nics?|vfs?|hcas?)(?:$|[^a-z])"
    r"|nics$"
)
_STANDARD = ("cpu", "memory", "pods", "ephemeral-storage", "hugepages-", "attachable-")
_MULTUS = "Multus"


def is_rdma_resource(name: str) -> bool:
    """A resource that a device plugin for NICs hands out."""
    return not name.startswith(_STANDARD) and bool(_RDMA.search(name.lower()))


def _resources(node: Node) -> dict[str, tuple[int, int]]:
    """RDMA resources of the Node object: (allocatable, capacity) by name."""
    needs_kubernetes(node)
    status = part(own_node(node.facts), "status")
    capacity, allocatable = part(status, "capacity"), part(status, "allocatable")
    if not capacity and not allocatable:
        raise Unread("garbled", _NODE, "no capacity and nothing allocatable")
    names = {name for name in (*capacity, *allocatable) if is_rdma_resource(name)}
    names |= set(node.profile.kubernetes.rdma_resources)
    return {
        name: (quantity(allocatable.get(name, 0)), quantity(capacity.get(name, 0)))
        for name in sorted(names)
    }


@fleetwide(
    "k8s-allocatable-rdma",
    group="k8s",
    severity="C",
    why="a pod that asks for the resource is not scheduled, or comes without its NIC",
    fix=(
        "kubectl -n NS logs ds/rdma-shared-dp-ds or the SR-IOV device plugin",
        "ls /dev/infiniband; look for VFs that were not created",
    ),
    source=("R58 k8s-rdma-shared-dev-plugin#84", "R61"),
    needs=(_NODE,),
    follows=("k8s-deviceplugin-pods",),
)
def allocatable(nodes: Sequence[Node]) -> Iterator[Judged]:
    for cohort in cohorts(nodes):
        names = {name for node in cohort.nodes for name in _safe_names(node)}
        votes = list(ask(cohort.nodes, _allocatable_of, _each_resource(names)))
        yield from (vote.judged() for vote in votes if not vote.is_open)
        for base, same in by_cohort(cohort.nodes, votes):
            for vote in same:
                said = of_profile("k8s-allocatable-rdma", vote)
                yield vote.judged(said or _or_fine(of_peers(str(vote.held), base)))


def _safe_names(node: Node) -> list[str]:
    try:
        return list(_resources(node))
    except (Unread, NotHere):
        return []


def _each_resource(names: set[str]) -> Over:
    """Every resource that any like node has: one that is missing here stands out."""

    def over(node: Node) -> list[Subject[str]]:
        _resources(node)
        return [Subject(item=name, label=name, key=name) for name in sorted(names)]

    return over


def _allocatable_of(node: Node, name: str) -> str | Outcome:
    free, capacity = _resources(node).get(name, (0, 0))
    wanted = node.profile.kubernetes.rdma_resources.get(name)
    expected = f"{wanted} (profile)" if wanted is not None else "all of its capacity"
    seen = f"{free} of {capacity} allocatable"
    if free < capacity or free == 0 or (wanted is not None and free < wanted):
        return bad(seen, expected)
    if wanted is not None:
        return ok(seen, expected, value=free)
    return str(free)


def _or_fine(outcome: Outcome) -> Outcome:
    """Alone, a resource that is wholly allocatable is as it should be."""
    if outcome.status is not None and outcome.status.value == "SKIP":
        return ok(outcome.observed.partition(":")[0], "all of its capacity")
    return outcome


@check(
    "k8s-node-ready",
    group="k8s",
    severity="C",
    why="nothing is scheduled on a node that is not ready, or stays there",
    fix=("kubectl describe node NAME", "kubectl uncordon NAME"),
    source=("Kubernetes: node conditions",),
    needs=(_NODE,),
)
def ready(node: Node, _: None) -> Outcome:
    needs_kubernetes(node)
    each = own_node(node.facts)
    conditions = items(part(each, "status"), "conditions")
    states = {str(c.get("type", "")): str(c.get("status", "")) for c in conditions}
    if "Ready" not in states:
        raise Unread("garbled", _NODE, "no condition Ready")
    wrong = [] if states["Ready"] == "True" else [f"Ready is {states['Ready']}"]
    wrong += [n for n, s in sorted(states.items()) if n != "Ready" and s == "True"]
    if part(each, "spec").get("unschedulable") is True:
        wrong.append("cordoned")
    taints = items(part(each, "spec"), "taints")
    hard = [t for t in taints if str(t.get("key", "")).startswith("node.kubernetes.io")]
    wrong += [str(t.get("key")) for t in hard if t.get("effect") != "PreferNoSchedule"]
    return (
        bad(", ".join(wrong), "Ready, without pressure or cordon")
        if wrong
        else ok("Ready")
    )


@compared(
    "k8s-versions",
    group="k8s",
    severity="W",
    why="another kubelet or runtime on one node is another behaviour on one node",
    fix=("upgrade it as the others were",),
    source=("Primus node_smoke: stack drift",),
    needs=(_NODE,),
)
def versions(node: Node, _: None) -> str:
    needs_kubernetes(node)
    told = part(own_node(node.facts), "status", "nodeInfo")
    names = ("kubeletVersion", "containerRuntimeVersion", "kernelVersion", "osImage")
    if not told:
        raise Unread("garbled", _NODE, "no nodeInfo")
    return ", ".join(str(told.get(name, "?")) for name in names)


@fleetwide(
    "k8s-cni-conf-order",
    group="k8s",
    severity="E",
    why="the runtime takes the first file: without Multus pods lack their rails",
    fix=(
        "cni.exclusive=false in Cilium's Helm values, then rename 00-multus.conf back",
        "restart the Multus DaemonSet",
    ),
    source=("R82 multus-cni#1132, rke2#7464",),
    needs=(_CNI,),
)
def cni_order(nodes: Sequence[Node]) -> Iterator[Judged]:
    votes = list(ask(nodes, _first_conf, whole_node))
    yield from (vote.judged() for vote in votes if not vote.is_open)
    for base, same in by_cohort(nodes, votes):
        for vote in same:
            said = of_profile("k8s-cni-conf-order", vote)
            outcome = said or of_peers(str(vote.held), base)
            alone = base.nodes < 2 and str(vote.held).startswith(_MULTUS)
            yield vote.judged(
                ok(vote.held, f"{_MULTUS} first") if alone and not said else outcome
            )


def _first_conf(node: Node, _: None) -> Outcome | str:
    if node.profile.kubernetes.expected is False:
        raise NotHere("no Kubernetes on this node (profile)")
    found = cni_directory(node.facts)
    if found is None:
        raise NotHere(f"{_CNI} is absent: no Kubernetes on this node")
    renamed = [name for name in found.renamed if name in found.multus]
    taken = [name for name in found.taken if name in found.multus]
    expected = f"{_MULTUS} first"
    if found.first in found.multus:
        return f"{_MULTUS} ({_stem(found.first)})"
    if renamed:
        return bad(f"renamed: {', '.join(renamed)}; first is {found.first}", expected)
    if taken:
        return bad(f"first is {found.first}, before {taken[0]}", expected)
    return _without_multus(node, found)


def _without_multus(node: Node, found: CniDirectory) -> Outcome | str:
    """No trace of Multus: bad where pods ask for it, else as on like nodes."""
    if not found.first:
        return bad(f"{found.path} holds no configuration", "a CNI configuration")
    if node.profile.kubernetes.multus or _is_asked_for(node.facts):
        return bad(f"first is {found.first}, {_MULTUS} is not there", "Multus first")
    return _stem(found.first)


def _is_asked_for(facts: Facts) -> bool:
    try:
        return any(requested(pod) for pod in own_pods(facts))
    except Unread:
        return False


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _nads(node: Node) -> list[Subject[str]]:
    """Definitions that pods of the node ask for; all of them where none is known."""
    needs_kubernetes(node)
    known = {label_of(each): each for each in objects(node.facts, NAD)}
    labels = _asked_nads(node.facts) or set(known)
    if not labels:
        raise NotHere("no NetworkAttachmentDefinition, and no pod asks for one")
    return [
        Subject(item=label, label=label, touches=_device_of(known.get(label)))
        for label in sorted(labels)
    ]


def _device_of(found: Object | None) -> frozenset[str]:
    """The device that a definition is made on."""
    try:
        master = definition(found).master if found is not None else ""
    except Unread:
        master = ""
    return frozenset({master} - {""})


def _asked_nads(facts: Facts) -> set[str]:
    try:
        pods = own_pods(facts)
    except Unread as error:
        if error.kind != "missing":
            raise
        return set()
    return {
        name if "/" in name else f"{key_of(pod)[0]}/{name}".lstrip("/")
        for pod in pods
        for name in requested(pod)
    }


@check(
    "k8s-nad-exists",
    group="k8s",
    severity="E",
    why="a network of the wrong device, range or MTU attaches and does not carry",
    fix=("kubectl edit network-attachment-definition NAME: master, mtu, ipam, rdma",),
    source=("R57 akash provider PR#424", "R59 spiderpool PR#3716", "R81"),
    needs=(_NADS, "ip -j -d addr", "rdma -j system"),
    follows=("route-mtu-iface",),
    over=_nads,
)
def nad(node: Node, label: str) -> Outcome:
    every = {label_of(each): each for each in objects(node.facts, NAD)}
    if label not in every:
        return bad("pods ask for it and it does not exist", "a definition")
    mine = definition(every[label])
    if not mine.types:
        raise NotHere("its configuration is in a file of the node")
    wrong = [
        *_wrong_master(node, mine),
        *_overlaps(mine, every),
        *_lacks_rdma(node.facts, mine),
    ]
    seen = f"{'+'.join(mine.types)}{f' on {mine.master}' if mine.master else ''}"
    return (
        bad("; ".join(wrong), "its device, MTU and a range of its own")
        if (wrong)
        else ok(seen)
    )


def _wrong_master(node: Node, mine: Definition) -> list[str]:
    if not mine.master:
        return []
    name = mine.master.partition(".")[0]
    if name not in _netdevs(node.facts) and mine.master not in _netdevs(node.facts):
        return [f"master {mine.master} is not on this node"]
    if mine.mtu is None:
        return []
    mtu = rail_mtu(node, mine.master)
    return [f"mtu {mine.mtu}, but {mine.master} has {mtu}"] if mine.mtu != mtu else []


def _netdevs(facts: Facts) -> set[str]:
    try:
        return set(links(facts))
    except Unread as error:
        try:
            names = set(facts.names("/sys/class/net"))
        except Unread:
            raise error from None
        return names


def _overlaps(mine: Definition, every: dict[str, Object]) -> list[str]:
    """Other definitions, of another device, that hand out the same addresses."""
    found = []
    for label, each in sorted(every.items()):
        if label == mine.label:
            continue
        other = definition(each)
        if other.master == mine.master:
            continue
        both = [
            f"range {one} overlaps that of {label}"
            for one in mine.ranges
            for two in other.ranges
            if one.overlaps(two)
        ]
        found += both[:1]
    return found


def _lacks_rdma(facts: Facts, mine: Definition) -> list[str]:
    """With exclusive RDMA namespaces the `rdma` plugin moves the device."""
    if "rdma" in mine.types or mine.types[0] not in {
        "sriov",
        "host-device",
        "ib-sriov",
    }:
        return []
    try:
        mode = netns_mode(facts)
    except Unread as error:
        if error.kind in {"missing", "no tool", "absent"}:
            return []
        raise
    return ["RDMA namespaces are exclusive, no `rdma` plugin"] * (mode == "exclusive")


@check(
    "k8s-conntrack",
    group="k8s",
    severity="E",
    why="a full table drops packets of new connections: RPC to the master times out",
    fix=(
        "sysctl -w net.netfilter.nf_conntrack_max=...; kube-proxy conntrack.maxPerCore",
        "find what opens so many connections: conntrack -S",
    ),
    source=("R76 kubernetes#71261, #18604",),
    needs=(_COUNT, _MAX, "dmesg -J"),
)
def conntrack(node: Node, _: None) -> Outcome:
    facts = node.facts
    refused: Unread | None = None
    try:
        dropped = [line for line in kernel_log(facts) if _FULL.search(line.text)]
    except Unread as error:
        refused, dropped = error, []
    expected = f"below {_FULL_FROM:.0%} of its size, and never full"
    if dropped:
        return bad(f"table full, dropping packet (x{len(dropped)})", expected)
    used = _used(facts)
    if used is None and refused is None:
        raise NotHere("connection tracking is not loaded")
    if used is not None and used[0] > _FULL_FROM * used[1]:
        share = f"{used[0] / used[1]:.0%}"
        return bad(f"{used[0]} of {used[1]} ({share})", expected, severity="W")
    if refused is not None:
        raise refused
    assert used is not None
    return ok(f"{used[0]} of {used[1]}", expected)


def _used(facts: Facts) -> tuple[int, int] | None:
    """Connections and the size of the table; None where nothing is tracked."""
    prefix = "net.netfilter.nf_conntrack_"
    try:
        count, size = number(facts, f"{prefix}count"), number(facts, f"{prefix}max")
    except Unread as error:
        if error.kind == "absent":
            return None
        raise
    if size <= 0:
        raise Garbled(_MAX, "no size")
    return count, size


@check(
    "k8s-dns-hosts",
    group="k8s",
    severity="E",
    why="Mooncake tells its peers this name: they would connect to themselves",
    fix=(
        "take the line `127.0.1.1 HOSTNAME` out of /etc/hosts",
        "or set MOONCAKE_LOCAL_HOSTNAME to the management address",
    ),
    source=("R75 Mooncake#2798", "Mooncake: troubleshooting"),
    needs=("getent hosts HOSTNAME", "/etc/hosts"),
)
def dns_hosts(node: Node, _: None) -> Outcome:
    name = node.facts.said("hostname")
    if not name:
        raise Unread("missing", "node.hostname", "not told")
    expected = "an address that peers can connect to"
    found, refused = _looked_up(node.facts, name)
    loopback = [address for address in found if is_loopback(address)]
    if loopback:
        return bad(f"{name} is {', '.join(loopback)}", expected)
    if refused is not None:
        raise refused
    if not found:
        return bad(f"{name} does not resolve", expected)
    return ok(f"{name} is {', '.join(found)}", expected)


def _looked_up(facts: Facts, name: str) -> tuple[list[str], Unread | None]:
    """Addresses by the resolver and by /etc/hosts, and why one of them is unknown."""
    try:
        by_file: tuple[str, ...] = in_hosts(facts, name)
    except Unread:
        by_file = ()
    try:
        return list(dict.fromkeys((*resolved(facts, name), *by_file))), None
    except Unread as error:
        usable = error.kind in {"missing", "no tool"} and by_file
        return list(by_file), None if usable else error


@check(
    "k8s-podcidr-overlap",
    group="k8s",
    severity="C",
    why="pods inside a rail's network take its addresses: traffic vanishes",
    fix=("another podCIDR, or other networks for the rails",),
    source=("catalogue: podCIDR against rail subnets",),
    needs=(_NODE, "ip -j -d addr"),
)
def podcidr(node: Node, _: None) -> Outcome:
    needs_kubernetes(node)
    spec = part(own_node(node.facts), "spec")
    told = spec.get("podCIDRs")
    texts = [str(t) for t in told] if isinstance(told, list) else []
    texts = texts or ([str(spec["podCIDR"])] if spec.get("podCIDR") else [])
    if not texts:
        raise NotHere("the node has no podCIDR: its CNI has its own pools")
    pods = [_network(text) for text in texts]
    rails = [net for rail in node.rails for net in rail.networks]
    if not rails:
        raise Unread("missing", "ip -j -d addr", "no network of a rail is known")
    both = [
        f"{pod} and rail network {rail}"
        for pod in pods
        for rail in rails
        if pod.version == rail.version and pod.overlaps(rail)
    ]
    expected = "pods outside of the rails' networks"
    return bad("; ".join(both), expected) if both else ok(", ".join(texts), expected)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise Garbled(_NODE, f"no network: {text[:40]!r}") from None


@compared(
    "k8s-ip-forward",
    group="k8s",
    severity="W",
    why="without forwarding no packet of a pod leaves the node",
    fix=("sysctl -w net.ipv4.ip_forward=1, and a file in /etc/sysctl.d",),
    source=("Kubernetes: container runtimes",),
    needs=("/proc/sys/net/ipv4/ip_forward",),
)
def ip_forward(node: Node, _: None) -> Outcome | str:
    needs_kubernetes(node)
    found = number(node.facts, "net.ipv4.ip_forward")
    return str(found) if found else bad(found, "1 on a node of Kubernetes")


@compared(
    "k8s-bridge-nf",
    group="k8s",
    severity="W",
    why="bridged traffic that skips iptables skips the services of kube-proxy",
    fix=("modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1",),
    source=("Kubernetes: container runtimes",),
    needs=("/proc/sys/net/bridge/bridge-nf-call-iptables",),
)
def bridge_nf(node: Node, _: None) -> str:
    needs_kubernetes(node)
    path = "/proc/sys/net/bridge/bridge-nf-call-iptables"
    if not node.facts.exists(path):
        return "br_netfilter is not loaded"
    return node.facts.line(path)


@check(
    "k8s-cni-agent",
    group="k8s",
    severity="E",
    why="pod traffic over an RDMA NIC competes with the transfers and has no PFC",
    fix=(
        "IP_AUTODETECTION_METHOD=interface=MGMT of calico-node; Cilium: devices=MGMT",
    ),
    source=("R05 network-operator#222",),
    needs=(_NODE, "kubectl get pod -A -o json", "ip -j -d addr"),
)
def cni_agent(node: Node, _: None) -> Outcome:
    needs_kubernetes(node)
    own = items(part(own_node(node.facts), "status"), "addresses")
    internal = [str(a.get("address")) for a in own if a.get("type") == "InternalIP"]
    if not internal:
        raise Unread("garbled", _NODE, "no InternalIP")
    if not any(rail.ips for rail in node.rails):
        raise Unread("missing", "ip -j -d addr", "no address of a rail is known")
    on_rail = [
        f"{ip} is on {rail.netdev or rail.name}"
        for rail in node.rails
        for ip in rail.ips
        if ip in internal
    ]
    agents = _agents(own_pods(node.facts))
    wrong = [*on_rail, *(text for text in agents if not text.endswith("ready"))]
    expected = "a ready agent, and the node's address on no rail"
    if wrong:
        return bad("; ".join(wrong), expected)
    if not agents:
        return unknown("no agent of a known CNI runs on this node", expected)
    return ok(f"{', '.join(internal)}; {', '.join(agents)}", expected)


def _agents(pods: tuple[Object, ...]) -> list[str]:
    """`NAME ready`, or `NAME is not ready`, for every pod of a CNI on this node."""
    found = []
    for pod in pods:
        name = key_of(pod)[1]
        if re.match(
            r"(cilium-[a-z0-9]{5}$|calico-node|kube-flannel|ovnkube-node)", name
        ):
            state = "ready" if is_ready(pod) else "is not"
            found.append(f"{name} {state}")
    return found


def is_ready(pod: Object) -> bool:
    """The condition Ready of a pod."""
    conditions = items(part(pod, "status"), "conditions")
    return any(
        c.get("type") == "Ready" and c.get("status") == "True" for c in conditions
    )
