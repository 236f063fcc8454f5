"""Kubernetes as a whole: operators, policies of networks, managers of the kubelet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from checks.facts import Unread
from checks.finding import Outcome, bad, ok
from checks.parse.http_get import body
from checks.parse.kubectl import (
    Object,
    items,
    key_of,
    label_of,
    objects,
    own_pods,
    part,
)
from checks.parse.sysctl import covered
from checks.rules.declare import NotHere, check, compared
from checks.rules.k8s_node import is_ready
from checks.rules.k8s_pod import service_pods
from checks.rules.kubernetes import needs_kubernetes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checks.node import Node

_KUBELET = "/var/lib/kubelet/config.yaml"
_POLICIES = "kubectl get networkpolicies -A -o json"
_PODS = "kubectl get pod -A -o json"
_PROXY = "http://127.0.0.1:10249/proxyMode"
_MODES = frozenset({"iptables", "ipvs", "nftables", "userspace"})
_MASTER = (range(50051, 50052), range(9003, 9004))
_ENGINE = (range(12001, 12002), range(15000, 17001))
_ALL = range(1, 65536)


@check(
    "k8s-mlx-operator",
    group="k8s",
    severity="E",
    why="an operator half-way through leaves another driver or none on the node",
    fix=("kubectl describe nicclusterpolicy; kubectl get pods -n OPERATOR",),
    source=("R37 network-operator#3104",),
    needs=("kubectl get nicclusterpolicies -o json",),
)
def operator(node: Node, _: None) -> Outcome:
    needs_kubernetes(node)
    every = objects(node.facts, "nicclusterpolicy")
    if not every:
        raise NotHere("no NicClusterPolicy: the operator does not run")
    states = {label_of(e): str(part(e, "status").get("state", "?")) for e in every}
    wrong = [f"{n} is {s}" for n, s in sorted(states.items()) if s != "ready"]
    return bad(", ".join(wrong), "ready") if wrong else ok("ready", "ready")


@compared(
    "k8s-topology-manager",
    group="k8s",
    severity="W",
    why="pods whose cores and NIC are on other sockets transfer at half the speed",
    fix=("topologyManagerPolicy: single-numa-node in the kubelet's configuration",),
    source=("Azure/AKS PR#5697",),
    needs=(_KUBELET,),
)
def topology_manager(node: Node, _: None) -> Outcome | str:
    needs_kubernetes(node)
    text = node.facts.text(_KUBELET)
    if not re.search(r"^kind:\s*KubeletConfiguration\s*$", text, re.MULTILINE):
        raise Unread("garbled", _KUBELET, "no KubeletConfiguration")
    profile = node.profile.kubernetes
    found = {
        "topologyManagerPolicy": _setting(text, "topologyManagerPolicy"),
        "cpuManagerPolicy": _setting(text, "cpuManagerPolicy"),
    }
    wanted = {
        "topologyManagerPolicy": profile.topology_manager,
        "cpuManagerPolicy": profile.cpu_manager,
    }
    told = ", ".join(f"{name} {value}" for name, value in found.items())
    wrong = [n for n, value in wanted.items() if value and found[n] != value]
    if wrong:
        return bad(told, ", ".join(f"{n} {wanted[n]} (profile)" for n in wrong))
    return told


def _setting(text: str, name: str) -> str:
    found = re.search(rf"^{name}:\s*\"?([\w-]+)\"?\s*$", text, re.MULTILINE)
    return found[1] if found else "none"


@compared(
    "k8s-kube-proxy",
    group="k8s",
    severity="W",
    why="services reach nobody on a node whose kube-proxy is not ready, and behave"
    " otherwise where it works in another mode",
    fix=(
        "kubectl -n kube-system logs POD",
        "the same `mode` in its ConfigMap for all nodes, then restart its DaemonSet",
    ),
    source=("Kubernetes: virtual IPs and service proxies",),
    needs=(f"GET {_PROXY}", _PODS),
)
def kube_proxy(node: Node, _: None) -> Outcome | str:
    needs_kubernetes(node)
    pods = [p for p in own_pods(node.facts) if key_of(p)[1].startswith("kube-proxy-")]
    failing = sorted(label_of(pod) for pod in pods if not is_ready(pod))
    if failing:
        return bad(f"{', '.join(failing)} is not ready", "a ready kube-proxy")
    mode = body(node.facts, _PROXY)
    if mode is None and not pods:
        return "no kube-proxy"
    if mode is None:
        raise Unread("missing", _PROXY, "its pod runs, and nobody tells its mode")
    if mode.strip() not in _MODES:
        raise Unread("garbled", _PROXY, f"no mode: {mode.strip()[:40]!r}")
    return mode.strip()


@check(
    "k8s-networkpolicy",
    group="k8s",
    severity="E",
    why="a policy that forgets a port lets pods start and every transfer time out",
    fix=("allow 12001 and 15000-17000; of the master 50051 and 9003",),
    source=("catalogue: policies selecting the pods",),
    needs=(_POLICIES, "kubectl get pod -A -o json"),
    over=service_pods,
)
def network_policy(node: Node, pod: Object) -> Outcome:
    if part(pod, "spec").get("hostNetwork") is True:
        raise NotHere("policies do not hold for hostNetwork")
    every = objects(node.facts, "networkpolicy")
    chosen = [policy for policy in every if _selects(policy, pod)]
    if not chosen:
        return ok("no policy selects it")
    allowed = [span for policy in chosen for span in _allowed(policy)]
    wanted = _MASTER if "master" in key_of(pod)[1] else _ENGINE
    closed = [f"{s.start}-{s.stop - 1}" for s in wanted if not covered(s, allowed)]
    names = ", ".join(label_of(policy) for policy in chosen)
    if closed:
        return bad(f"{names}: {', '.join(closed)} not allowed", "its ports allowed")
    return ok(f"{names} allow its ports", "its ports allowed")


def _selects(policy: Object, pod: Object) -> bool:
    """Whether it limits what reaches the pod; Unread for selectors we do not read."""
    if key_of(policy)[0] != key_of(pod)[0]:
        return False
    spec = part(policy, "spec")
    kinds = spec.get("policyTypes")
    if isinstance(kinds, list) and "Ingress" not in kinds:
        return False
    selector = part(spec, "podSelector")
    labels = part(pod, "metadata", "labels")
    wanted = part(selector, "matchLabels")
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    if selector.get("matchExpressions"):
        raise Unread("garbled", _POLICIES, f"{label_of(policy)}: matchExpressions")
    return True


def _allowed(policy: Object) -> list[range]:
    spans = []
    for rule in items(part(policy, "spec"), "ingress"):
        ports = items(rule, "ports")
        spans += [_span(port) for port in ports] if ports else [_ALL]
    return spans


def _span(port: Mapping[str, Any]) -> range:
    first, last = port.get("port"), port.get("endPort")
    if port.get("protocol", "TCP") != "TCP":
        return range(0)
    if first is None:
        return _ALL
    if not isinstance(first, int):
        raise Unread("garbled", _POLICIES, f"a port by name: {first!r}")
    return range(first, (last if isinstance(last, int) else first) + 1)
