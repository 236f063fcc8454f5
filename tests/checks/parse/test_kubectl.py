"""Kubernetes objects and the annotations of Multus."""

from __future__ import annotations

import json

import pytest

from checks.facts import Facts, Unread
from checks.parse.cni_conf import cni_directory
from checks.parse.garbled import Garbled
from checks.parse.kubectl import (
    attachments,
    key_of,
    objects,
    own_pods,
    quantity,
    requested,
)

NETWORKS = "k8s.v1.cni.cncf.io/networks"
STATUS = "k8s.v1.cni.cncf.io/network-status"


def pod(name, node="", phase="Running"):
    return {
        "kind": "Pod",
        "metadata": {"namespace": "kv", "name": name},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase},
    }


def facts(bench, **cmds):
    return Facts(
        bench.doc(cmds={line: json.dumps(each) for line, each in cmds.items()})
    )


def test_lists_and_single_objects_are_read_alike_and_none_twice(bench):
    cmds = {
        "kubectl get pods -A -o json": {"items": [pod("a"), pod("b")]},
        "kubectl get pod b -n kv -o json": pod("b"),
        "kubectl -n kv get po/c -o json": pod("c"),
    }

    found = objects(facts(bench, **cmds), "pod")

    assert [key_of(each) for each in found] == [("kv", "a"), ("kv", "b"), ("kv", "c")]


def test_pods_of_other_nodes_and_pods_that_ended_are_left_out(bench):
    every = [
        pod("a", "node-a.example.com"),
        pod("b", "node-b"),
        pod("c", "node-a", "Succeeded"),
    ]
    cmds = {"kubectl get pods -A -o json": {"items": every}}

    assert [key_of(p)[1] for p in own_pods(facts(bench, **cmds))] == ["a"]


def test_one_answer_that_is_cut_off_refuses_them_all(bench):
    cmds = {
        "kubectl get pod a -o json": json.dumps(pod("a")),
        "kubectl get pod b -o json": json.dumps(pod("b"))[:-2],
    }

    with pytest.raises(Unread):
        objects(Facts(bench.doc(cmds=cmds)), "pod")


def test_a_kind_that_the_server_does_not_have_is_none_of_it(bench):
    stderr = 'error: the server doesn\'t have a resource type "sriovnetworknodestates"'
    cmds = {"kubectl get sriovnetworknodestates -A -o json": (1, "", stderr)}

    assert objects(Facts(bench.doc(cmds=cmds)), "sriovnetworknodestate") == ()


def test_a_request_is_a_list_of_names_or_json():
    def asks(text):
        return requested({"metadata": {"annotations": {NETWORKS: text}}})

    assert asks("kv/rail0@net1, rail1") == ("kv/rail0", "rail1")
    assert asks('[{"name":"rail0","interface":"net1"}]') == ("rail0",)
    assert asks("") == ()
    with pytest.raises(Garbled):
        asks('[{"name":')


def test_no_status_is_not_an_empty_one():
    def found(**notes):
        return attachments({"metadata": {"annotations": notes}})

    assert found() is None
    assert found(**{STATUS: "[]"}) == ()
    (one,) = found(**{STATUS: '[{"name":"a","interface":"net1","ips":["10.0.0.1"]}]'})
    assert (one.interface, one.ips, one.is_default) == ("net1", ("10.0.0.1",), False)


@pytest.mark.parametrize("ips", ['"10.0.0.1"', '["10.0.0"]', "[7.5]", "[null]", "{}"])
def test_what_is_no_address_is_garbled(ips):
    text = f'[{{"name":"a","interface":"net1","ips":{ips}}}]'
    with pytest.raises(Garbled, match=r"address|no list"):
        attachments({"metadata": {"annotations": {STATUS: text}}})


@pytest.mark.parametrize(
    ("text", "number"), [("8", 8), ("1k", 1000), ("2Gi", 2 << 30), ("1500m", 1)]
)
def test_quantities(text, number):
    assert quantity(text) == number


def test_the_runtime_takes_the_first_name_of_a_kind_it_knows(bench):
    names = ("00-multus.conf.cilium_bak", "05-cilium.conflist", "README", "multus.d")
    found = cni_directory(Facts(bench.doc(files={"/etc/cni/net.d": names})))

    assert found.first == "05-cilium.conflist"
    assert found.renamed == ("00-multus.conf.cilium_bak",)
    assert found.multus == {"00-multus.conf.cilium_bak"}


def test_multus_is_known_by_its_type_too(bench):
    files = {
        "/etc/cni/net.d": ("01-net.conf",),
        "/etc/cni/net.d/01-net.conf": '{"plugins":[{"type":"multus-shim"}]}',
    }

    assert cni_directory(Facts(bench.doc(files=files))).multus == {"01-net.conf"}
