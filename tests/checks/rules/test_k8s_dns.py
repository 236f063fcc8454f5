"""Names of the cluster: resolved, and soon."""

from __future__ import annotations

import json

import pytest

CHECK = "k8s-coredns"
NAME = "kubernetes.default.svc.cluster.local"
DNS = f"dns 10.96.0.10 {NAME}"
PODS = "kubectl get pod -A -o json"
CNI = {"/etc/cni/net.d": ("10-calico.conflist",)}


def pod(ready):
    return {
        "kind": "Pod",
        "metadata": {"namespace": "kube-system", "name": "coredns-7c65d6cfc9-4xhkz"},
        "spec": {"containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def judged(bench, told, ms=3, **cmds):
    node = bench.doc(cmds={DNS: told, **cmds}, files=CNI)
    node["cmds"][DNS]["ms"] = ms
    return bench.judge(node, only=CHECK)


def test_an_address_that_comes_soon_passes(bench):
    found = judged(bench, "10.96.0.1\n").one(CHECK, NAME)

    assert (found.status, found.observed) == ("PASS", "10.96.0.1 after 3 ms")


@pytest.mark.parametrize(
    ("told", "ms", "observed"),
    [
        ((1, "", "no answer"), 3000, "no answer from 10.96.0.10"),
        ((1, "", "NXDOMAIN"), 2, "NXDOMAIN from 10.96.0.10"),
        ((1, "", "ECONNREFUSED"), 2, "ECONNREFUSED from 10.96.0.10"),
        ("10.96.0.1\n", 1001, "10.96.0.1 after 1001 ms"),
    ],
)
def test_no_answer_no_address_and_a_late_one_fail(bench, told, ms, observed):
    found = judged(bench, told, ms).one(CHECK, NAME)

    assert (found.status, found.severity) == ("FAIL", "error")
    assert found.observed == observed


@pytest.mark.parametrize(("ready", "status"), [("True", "PASS"), ("False", "FAIL")])
def test_the_pods_of_this_node_are_ready(bench, ready, status):
    pods = json.dumps({"items": [pod(ready)]})

    seen = judged(bench, "10.96.0.1\n", **{PODS: pods})

    assert seen.status(CHECK, "kube-system/coredns-7c65d6cfc9-4xhkz") == status
    assert seen.status(CHECK, NAME) == "PASS"


@pytest.mark.parametrize(
    "told",
    ["10.96.0.1", "10.96.0.\n", "", "10.96.0.1\nx\n", (2, "", "another answer")],
)
def test_an_answer_that_is_not_whole_is_unknown(bench, told):
    assert judged(bench, told).status(CHECK, NAME) == "UNKNOWN"


@pytest.mark.parametrize("ms", [None, "soon", 0])
def test_an_answer_that_nobody_timed_is_unknown(bench, ms):
    assert judged(bench, "10.96.0.1\n", ms).status(CHECK, NAME) == "UNKNOWN"


def test_where_nobody_asked_it_is_unknown_and_without_kubernetes_skipped(bench):
    assert bench.judge(bench.doc(files=CNI), only=CHECK).status(CHECK) == "UNKNOWN"
    without = bench.doc(files={"/etc/cni/net.d": {"errno": "ENOENT"}})
    assert bench.judge(without, only=CHECK).status(CHECK) == "SKIP"


@pytest.mark.parametrize("pods", ['{"items": [', (1, "", "connection refused")])
@pytest.mark.parametrize(
    ("told", "status"), [("10.96.0.1\n", "PASS"), ((1, "", "no answer"), "FAIL")]
)
def test_pods_that_cannot_be_read_are_unknown_and_hide_no_name(
    bench, pods, told, status
):
    seen = judged(bench, told, **{PODS: pods})

    assert seen.status(CHECK, "pods of CoreDNS") == "UNKNOWN"
    assert seen.status(CHECK, NAME) == status
