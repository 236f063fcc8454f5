"""kube-proxy: ready, and in the mode of the other nodes."""

from __future__ import annotations

import json

import pytest

CHECK = "k8s-kube-proxy"
PROXY = "GET http://127.0.0.1:10249/proxyMode"
PODS = "kubectl get pod -A -o json"
REFUSED = (1, "", "ECONNREFUSED")


def pod(name="kube-proxy-b6xmw", ready="True"):
    return {
        "kind": "Pod",
        "metadata": {"namespace": "kube-system", "name": name},
        "spec": {"containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


RUNNING = (pod(),)


def doc(bench, name, mode="ipvs", pods=RUNNING):
    cmds = {PROXY: mode}
    if pods is not None:
        cmds[PODS] = json.dumps({"items": list(pods)})
    kept = {line: entry for line, entry in cmds.items() if entry is not None}
    return bench.doc(name, cmds=kept)


def judged(bench, *odd, **more):
    nodes = [doc(bench, f"node-{at}", *odd) for at in range(3)]
    seen = bench.judge(*nodes, doc(bench, "node-9", **more), only=CHECK)
    return seen.one(CHECK, node="node-9")


def test_the_mode_of_the_others_passes_and_another_warns(bench):
    assert judged(bench, mode="ipvs").status == "PASS"
    other = judged(bench, mode="nftables")

    assert (other.status, other.observed) == ("WARN", "nftables")


def test_a_pod_that_is_not_ready_warns(bench):
    found = judged(bench, pods=(pod(ready="False"),))

    assert found.status == "WARN"
    assert found.observed == "kube-system/kube-proxy-b6xmw is not ready"


def test_a_cni_that_does_its_work_needs_none(bench):
    assert judged(bench, REFUSED, (), mode=REFUSED, pods=()).status == "PASS"
    lost = judged(bench, mode=REFUSED, pods=())

    assert (lost.status, lost.observed) == ("WARN", "no kube-proxy")


def test_kube_proxy_as_a_process_of_k3s_passes(bench):
    assert judged(bench, "ipvs", (), pods=()).status == "PASS"


@pytest.mark.parametrize(
    "more",
    [
        {"mode": None},
        {"mode": REFUSED},
        {"mode": (1, "", "ETIMEDOUT")},
        {"mode": (1, "no", "404")},
        {"mode": "ipv"},
        {"mode": ""},
        {"pods": None},
    ],
)
def test_what_was_not_told_is_unknown(bench, more):
    assert judged(bench, **more).status == "UNKNOWN"


def test_a_node_without_kubernetes_is_skipped(bench):
    node = bench.doc(files={"/etc/cni/net.d": {"errno": "ENOENT"}})

    assert bench.judge(node, only=CHECK).status(CHECK) == "SKIP"
