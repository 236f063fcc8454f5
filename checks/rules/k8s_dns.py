"""Names of the cluster, as the node resolves them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Result, Unread
from checks.finding import Outcome, bad, ok
from checks.parse.dns_answer import answer, questions
from checks.parse.kubectl import Object, key_of, label_of, own_pods
from checks.rules.declare import Subject, check
from checks.rules.k8s_node import is_ready
from checks.rules.kubernetes import needs_kubernetes

if TYPE_CHECKING:
    from checks.node import Node

_Asked = Result | Object | Unread
"""A question to the name server, a pod that answers such, or why nobody asked."""
_SLOW_MS = 1000
_POD = re.compile(r"^(?:coredns|kube-dns|rke2-coredns-rke2-coredns)-")


def _asked(node: Node) -> list[Subject[_Asked]]:
    """Names that were asked for, and the pods of CoreDNS that this node runs."""
    needs_kubernetes(node)
    return [*_names(node), *_pods(node)]


def _names(node: Node) -> list[Subject[_Asked]]:
    try:
        return [
            Subject(item=result, label=" ".join(result.reading.words[1:]))
            for result in questions(node.facts)
        ]
    except Unread as error:
        return [Subject(item=error, label="names of the cluster")]


def _pods(node: Node) -> list[Subject[_Asked]]:
    try:
        every = own_pods(node.facts)
    except Unread as error:
        if error.kind == "missing":
            return []
        # A name that is not resolved stays a finding when kubectl fails with it.
        return [Subject(item=error, label="pods of CoreDNS")]
    return [
        Subject(item=pod, label=label_of(pod))
        for pod in every
        if _POD.match(key_of(pod)[1])
    ]


@check(
    "k8s-coredns",
    group="k8s",
    severity="E",
    why="an engine finds its master by a name of the cluster: without CoreDNS none"
    " starts, and slow answers end as timeouts",
    fix=(
        "kubectl -n kube-system get pods -l k8s-app=kube-dns; kubectl logs POD",
        "kubectl -n kube-system get endpoints kube-dns: is anybody behind the service",
    ),
    source=("Kubernetes: debugging DNS resolution",),
    needs=("dns SERVER NAME", "kubectl get pod -A -o json"),
    follows=("k8s-kube-proxy", "k8s-cni-agent", "k8s-node-ready"),
    over=_asked,
)
def coredns(node: Node, asked: _Asked) -> Outcome:
    if isinstance(asked, Unread):
        raise Unread(asked.kind, asked.what, asked.reason)
    if not isinstance(asked, Result):
        expected = "a ready CoreDNS"
        return ok("ready") if is_ready(asked) else bad("not ready", expected)
    found = answer(asked)
    expected = f"an answer within {_SLOW_MS / 1000:g} s"
    if found.refusal:
        return bad(f"{found.refusal} from {found.server}", expected)
    told = f"{', '.join(found.addresses)} after {found.ms:.0f} ms"
    return bad(told, expected) if found.ms > _SLOW_MS else ok(told, expected)
