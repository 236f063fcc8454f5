"""Kubernetes and the pods: GIDs, networks, MTU, capabilities, sidecars."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from checks.facts import Facts, Unread, first
from checks.finding import Outcome, bad, ok
from checks.parse.garbled import Garbled
from checks.parse.gid_table import parse_show_gids
from checks.parse.ip_addr import links_in
from checks.parse.kubectl import (
    Attachment,
    Object,
    attachments,
    items,
    key_of,
    label_of,
    objects,
    own_pods,
    part,
    requested,
)
from checks.rules.declare import NotHere, Subject, check, compared
from checks.rules.k8s_node import is_rdma_resource, is_ready
from checks.rules.kubernetes import known_rails, needs_kubernetes, rail_mtu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from checks.node import Node
    from checks.rails import Rail

_POD = "kubectl get pod -A -o json"
_NET = re.compile(r"net(\d+)$")
_CONTAINERS = frozenset(
    {"docker", "podman", "lxc", "container-other", "systemd-nspawn", "rkt", "pod"}
)
_SERVICE = re.compile(r"mooncake|sglang|vllm|dynamo")
_PLUGIN = re.compile(
    r"rdma-shared-d|sriov-(network-)?device-plugin|nvidia-device-plugin"
)
_WRONG_NETNS = "incorrect RDMA subsystem network namespace"
_SIDECARS = frozenset({"istio-proxy", "istio-init", "linkerd-proxy", "linkerd-init"})
_MASKS_OF_GIDS = re.compile(r"^\s*GID\[\s*\d+\]:\s*(\S+)", re.MULTILINE)


def _gid_places(node: Node) -> list[Subject[str]]:
    """Places whose GIDs somebody listed: pods, their namespaces, or we are in one."""
    facts = node.facts
    found = [where for where in facts.places() if _lists_gids(facts, where)]
    if not found:
        may_be_a_pod = _lists_gids(facts, "") and _may_be_a_pod(node)
        _needs_kubernetes_unless(node, may_be_a_pod)
        found = [""] if may_be_a_pod else []
    if not found:
        raise Unread("missing", "show_gids inside a pod", "not collected")
    return [
        Subject(item=where, label=_place(where), key="pod", touches=_touches(node))
        for where in found
    ]


def _needs_kubernetes_unless(node: Node, may_be_a_pod: bool) -> None:
    """In a pod nothing tells of Kubernetes; that a host has none does."""
    try:
        needs_kubernetes(node)
    except Unread:
        if not may_be_a_pod:
            raise


def _lists_gids(facts: Facts, where: str) -> bool:
    if facts.find("show_gids", where=where):
        return True
    found = facts.find("ibv_devinfo", where=where)
    return bool(where) and any("-v" in result.reading.options for result in found)


def _may_be_a_pod(node: Node) -> bool:
    """The document may itself be of a pod: a container, or without any GID."""
    if node.facts.said("virt") in _CONTAINERS:
        return True
    try:
        return not parse_show_gids(node.facts.result("show_gids").text())
    except Unread:
        return False


def _place(where: str) -> str:
    return where.removeprefix("pod:")


def _touches(node: Node) -> frozenset[str]:
    try:
        return frozenset().union(*(port.touches for port in node.ports))
    except Unread:
        return frozenset()


@check(
    "k8s-pod-gids",
    group="k8s",
    severity="C",
    why="GIDs belong to a network namespace: in a pod without its rail there is none",
    fix=(
        "attach the rails (Multus), or hostNetwork: true",
        "RDMA devices in exclusive mode need the CNI plugin `rdma`",
    ),
    source=("R03 smg#1691", "R04 calico#8482", "R57 akash provider PR#424"),
    needs=("kubectl exec POD -- show_gids", "nsenter -t PID -n show_gids"),
    follows=("roce-gid-table",),
    over=_gid_places,
)
def pod_gids(node: Node, where: str) -> Outcome:
    facts = node.facts
    count = first(
        lambda: _count_of_show_gids(facts, where),
        lambda: _count_of_devinfo(facts, where),
    )
    expected = "GIDs of the rails inside the pod"
    return ok(f"{count} GIDs", expected) if count else bad("no GID at all", expected)


def _count_of_show_gids(facts: Facts, where: str) -> int:
    rows = parse_show_gids(facts.result("show_gids", where=where).text())
    return sum(len(gids) for gids in rows.values())


def _count_of_devinfo(facts: Facts, where: str) -> int:
    """GIDs that are printed; the last line of a whole port is its last GID or less."""
    result = facts.result("ibv_devinfo", where=where)
    if result.ended().rc != 0 and "No IB devices found" in result.stderr:
        return 0
    text = result.text()
    found = _MASKS_OF_GIDS.findall(text)
    whole = text.endswith("\n") and "link_layer:" in text
    if not whole:
        raise Garbled(result.line, "its last port is not whole")
    return len([gid for gid in found if gid.strip("0:") != ""])


def _pods(node: Node) -> list[Subject[Object]]:
    needs_kubernetes(node)
    return [
        Subject(item=pod, label=label_of(pod), key=label_of(pod))
        for pod in own_pods(node.facts)
    ]


def _pods_with_networks(node: Node) -> list[Subject[Object]]:
    every = _pods(node)
    found = [subject for subject in every if requested(subject.item)]
    if every and not found:
        raise NotHere("no pod of this node asks for secondary networks")
    return found


@check(
    "k8s-pod-networks-status",
    group="k8s",
    severity="C",
    why="a pod without its rails has RDMA devices and no GID: every transfer fails",
    fix=(
        "kubectl describe pod: events of Multus",
        "see k8s-cni-conf-order: the runtime may not call Multus at all",
    ),
    source=("R57 akash provider PR#424",),
    needs=(_POD,),
    follows=("k8s-cni-conf-order", "k8s-nad-exists"),
    over=_pods_with_networks,
)
def networks_status(node: Node, pod: Object) -> Outcome:
    wanted = requested(pod)
    found = attachments(pod)
    expected = f"{len(wanted)} networks: {', '.join(wanted)}"
    if found is None:
        return bad("no network status at all", expected)
    extra = [each for each in found if not each.is_default]
    wrong = _wrong_attachments(extra)
    seen = f"{len(extra)} networks attached"
    if len(extra) < len(wanted):
        return bad("; ".join([seen, *wrong]), expected)
    return bad("; ".join(wrong), expected) if wrong else ok(seen, expected)


def _wrong_attachments(extra: Sequence[Attachment]) -> list[str]:
    """Those without an address, or without an RDMA device where the others have one."""
    bare = [
        f"{each.interface or each.name} has no address"
        for each in extra
        if not each.ips
    ]
    if not any(each.rdma_device for each in extra):
        return bare
    return bare + [
        f"{each.interface or each.name} has no RDMA device"
        for each in extra
        if not each.rdma_device
    ]


def _pod_interfaces(node: Node) -> list[Subject[tuple[str, str, int, tuple[str, ...]]]]:
    """`netN` of every pod: by its own `ip addr`, else by its network status."""
    needs_kubernetes(node)
    found = list(_of_places(node.facts))
    refused: Unread | None = None
    if not found:
        try:
            found = list(_of_status(node.facts))
        except Unread as error:
            refused = error
    if not found:
        raise refused or Unread("missing", "ip -j addr inside a pod", "not collected")
    return [
        Subject(item=each, label=f"{_place(each[0])} {each[1]}", key=each[1])
        for each in found
    ]


def _of_places(facts: Facts) -> Iterator[tuple[str, str, int, tuple[str, ...]]]:
    for where in facts.places():
        if not facts.find("ip", "addr", where=where):
            continue
        for name, link in sorted(links_in(facts, where).items()):
            if _NET.match(name):
                ips = tuple(address.ip for address in link.addresses)
                yield where, name, link.mtu, ips


def _of_status(facts: Facts) -> Iterator[tuple[str, str, int, tuple[str, ...]]]:
    for pod in own_pods(facts):
        for each in attachments(pod) or ():
            if each.mtu and _NET.match(each.interface):
                yield label_of(pod), each.interface, each.mtu, each.ips


@compared(
    "k8s-pod-mtu",
    group="k8s",
    severity="E",
    why="a pod with a lower MTU than its rail drops or fragments what its peers send",
    fix=(
        "mtu in the NetworkAttachmentDefinition; recreate the pod",
        "after an upgrade of the CNI: compare the MTU of *all* pod interfaces",
    ),
    source=("R51 cilium#37824",),
    needs=("kubectl exec POD -- ip -j addr", _POD, "ip -j -d addr"),
    over=_pod_interfaces,
)
def pod_mtu(node: Node, item: tuple[str, str, int, tuple[str, ...]]) -> Outcome | str:
    _, name, mtu, ips = item
    rail = _rail_behind(node, name, ips)
    if rail is None:
        return str(mtu)
    host = rail_mtu(node, rail.netdev)
    told = f"{host} of {rail.netdev}"
    return bad(mtu, told) if mtu < host else ok(mtu, told, value=mtu)


def _rail_behind(node: Node, name: str, ips: tuple[str, ...]) -> Rail | None:
    """The rail of a pod's interface: by network, else by place (net1: the first)."""
    rails = known_rails(node)
    for text in ips:
        address = ip_address(text.partition("/")[0])
        for rail in rails:
            if any(address in network for network in rail.networks):
                return rail
    number = int(_NET.match(name)[1]) - 1  # type: ignore[index]
    return rails[number] if 0 <= number < len(rails) else None


def _plugin_pods(node: Node) -> list[Subject[Object]]:
    every = _pods(node)
    found = [s for s in every if _PLUGIN.search(key_of(s.item)[1])]
    if every and not found:
        raise NotHere("no device plugin runs on this node")
    return found


@check(
    "k8s-deviceplugin-pods",
    group="k8s",
    severity="E",
    why="without its device plugin the node has no RDMA resource to hand out",
    fix=(
        "kubectl -n NS logs POD --previous",
        "`incorrect RDMA subsystem network namespace`: rdma system set netns shared",
    ),
    source=("R58 k8s-rdma-shared-dev-plugin#84, #87",),
    needs=(_POD, "kubectl logs POD"),
    over=_plugin_pods,
)
def plugin_pods(node: Node, pod: Object) -> Outcome:
    state = str(part(pod, "status").get("phase", "?"))
    containers = items(part(pod, "status"), "containerStatuses")
    waiting = [_waiting(each) for each in containers]
    restarts = sum(_whole(each.get("restartCount")) for each in containers)
    expected = "Running and Ready"
    logged = _logged(node.facts, pod)
    if logged:
        return bad(logged, expected)
    if state != "Running" or not is_ready(pod) or any(waiting):
        told = ", ".join(word for word in (state, *waiting) if word)
        return bad(f"{told}, {restarts} restarts", expected)
    if restarts > 5:
        return bad(f"{restarts} restarts", expected, severity="W")
    return ok(state, expected)


def _waiting(container: Mapping[str, Any]) -> str:
    return str(part(container, "state", "waiting").get("reason", ""))


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _logged(facts: Facts, pod: Object) -> str:
    """What the plugin itself complained of, where its log was collected."""
    name = key_of(pod)[1]
    for result in facts.find("kubectl", "logs"):
        if name in result.reading.words or f"pod/{name}" in result.reading.words:
            for line in result.stdout.splitlines():
                if _WRONG_NETNS in line:
                    return line.strip()[:200]
    return ""


def service_pods(node: Node) -> list[Subject[Object]]:
    """Pods of Mooncake or of an engine, and those that ask for RDMA devices."""
    every = _pods(node)
    found = [s for s in every if _is_service(s.item)]
    if every and not found:
        raise NotHere("no pod of Mooncake or of an engine on this node")
    return found


def _is_service(pod: Object) -> bool:
    """A pod of Mooncake or an engine, or one that asks for RDMA devices."""
    if _SERVICE.search(key_of(pod)[1]):
        return True
    containers = items(part(pod, "spec"), "containers")
    words = " ".join(str(each.get("image", "")) for each in containers)
    return bool(_SERVICE.search(words)) or any(_asks_rdma(each) for each in containers)


def _asks_rdma(container: Mapping[str, Any]) -> bool:
    resources = part(container, "resources")
    names = (*part(resources, "limits"), *part(resources, "requests"))
    return any(is_rdma_resource(name) for name in names)


def _proxied(node: Node) -> list[Subject[Object]]:
    """Pods of services, and namespaces whose pods get a proxy."""
    namespaces = [
        Subject(item=each, label=f"namespace {label_of(each)}")
        for each in _namespaces(node.facts)
    ]
    try:
        return [*service_pods(node), *namespaces]
    except (Unread, NotHere):
        if not namespaces:
            raise
        return namespaces


def _namespaces(facts: Facts) -> tuple[Object, ...]:
    try:
        return objects(facts, "namespace")
    except Unread as error:
        if error.kind == "missing":
            return ()
        raise


@check(
    "k8s-sidecar",
    group="k8s",
    severity="E",
    why="a proxy between the ranks breaks their handshakes and adds its own failures",
    fix=(
        "annotate the pods sidecar.istio.io/inject: 'false'",
        "or take the label istio-injection off the namespace",
    ),
    source=("R74 nccl-tests#248",),
    needs=(_POD, "kubectl get namespace NAME -o json"),
    over=_proxied,
)
def sidecar(node: Node, each: Object) -> Outcome:
    if part(each, "spec").get("containers") is None:
        return _injection(each)
    every = [
        *items(part(each, "spec"), "containers"),
        *items(part(each, "spec"), "initContainers"),
    ]
    injected = sorted({str(c.get("name", "")) for c in every} & _SIDECARS)
    if injected:
        return bad(", ".join(injected), "no injected proxy")
    return ok("no injected proxy")


def _injection(namespace: Object) -> Outcome:
    meta = part(namespace, "metadata")
    labels, notes = part(meta, "labels"), part(meta, "annotations")
    told = [
        f"{name}={value}"
        for name, value in (
            ("istio-injection", labels.get("istio-injection")),
            ("istio.io/rev", labels.get("istio.io/rev")),
            ("linkerd.io/inject", notes.get("linkerd.io/inject")),
        )
        if value and value != "disabled"
    ]
    if told:
        return bad(", ".join(told), "no injection of proxies")
    return ok("no injection of proxies")


@check(
    "k8s-hostnetwork",
    group="k8s",
    severity="W",
    why="hostNetwork with dnsPolicy ClusterFirst resolves no name of the cluster",
    fix=("dnsPolicy: ClusterFirstWithHostNet",),
    source=("Mooncake: deployment guide",),
    needs=(_POD,),
    over=service_pods,
)
def host_network(node: Node, pod: Object) -> Outcome:
    spec = part(pod, "spec")
    policy = str(spec.get("dnsPolicy", "ClusterFirst"))
    if spec.get("hostNetwork") is not True:
        return ok(f"its own network, dnsPolicy {policy}")
    expected = "ClusterFirstWithHostNet"
    return (
        bad(f"hostNetwork, dnsPolicy {policy}", expected)
        if (policy == "ClusterFirst")
        else ok(f"hostNetwork, dnsPolicy {policy}", expected)
    )


@check(
    "k8s-pod-caps",
    group="k8s",
    severity="C",
    why="a container that may not lock memory, or not open its device, has no RDMA",
    fix=(
        "securityContext.capabilities.add: [IPC_LOCK]",
        "ask for the RDMA resource instead of mounting /dev/infiniband",
    ),
    source=("R83", "R62 llm-d PR#2442"),
    needs=(_POD,),
    over=service_pods,
)
def pod_caps(node: Node, pod: Object) -> Outcome:
    containers = items(part(pod, "spec"), "containers")
    users = [c for c in containers if _asks_rdma(c) or _mounts_devices(pod, c)]
    wrong = [text for c in users for text in _lacks(pod, c)]
    expected = "IPC_LOCK, and devices by a device plugin"
    if wrong:
        return bad("; ".join(wrong), expected)
    if not users:
        raise NotHere("it asks for no RDMA device")
    return ok(f"{len(users)} containers may lock memory", expected)


def _lacks(pod: Object, container: Mapping[str, Any]) -> Iterator[str]:
    context = part(container, "securityContext")
    if context.get("privileged") is True:
        return
    name = container.get("name", "?")
    added = part(context, "capabilities").get("add")
    capabilities = {str(c).removeprefix("CAP_") for c in added or () if c}
    if not capabilities & {"IPC_LOCK", "ALL"}:
        yield f"{name} lacks IPC_LOCK"
    if _mounts_devices(pod, container) and not _asks_rdma(container):
        yield f"{name} mounts /dev/infiniband and may not open what is in it"


def _mounts_devices(pod: Object, container: Mapping[str, Any]) -> bool:
    paths = {
        str(volume.get("name")): str(part(volume, "hostPath").get("path", ""))
        for volume in items(part(pod, "spec"), "volumes")
    }
    return any(
        paths.get(str(mount.get("name")), "").startswith("/dev/infiniband")
        for mount in items(container, "volumeMounts")
    )


@check(
    "k8s-sriov-syncstatus",
    group="k8s",
    severity="E",
    why="VFs that the operator could not make are missing from the node's resources",
    fix=("kubectl -n NS describe sriovnetworknodestate NODE: lastSyncError",),
    source=("sriov-network-operator: SriovNetworkNodeState",),
    needs=("kubectl get sriovnetworknodestates -A -o json",),
)
def sriov_sync(node: Node, _: None) -> Outcome:
    needs_kubernetes(node)
    every = objects(node.facts, "sriovnetworknodestate")
    own = [s for s in every if _is_own(node, s)]
    if not own:
        raise NotHere("the SR-IOV operator does not keep this node")
    status = part(own[0], "status")
    state = str(status.get("syncStatus", "")) or "not told"
    error = str(status.get("lastSyncError", ""))
    seen = f"{state}: {error}" if error else state
    if state == "Succeeded" and not error:
        return ok(state, "Succeeded")
    return bad(seen, "Succeeded")


def _is_own(node: Node, state: Object) -> bool:
    name = node.facts.said("hostname").partition(".")[0]
    return bool(name) and key_of(state)[1].partition(".")[0] == name
