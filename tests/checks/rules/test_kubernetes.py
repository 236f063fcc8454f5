"""Rules about Kubernetes, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

CNI = "/etc/cni/net.d"
NETWORKS = "k8s.v1.cni.cncf.io/networks"
STATUS = "k8s.v1.cni.cncf.io/network-status"
CILIUM = {"name": "cilium", "interface": "eth0", "ips": ["10.0.3.7"], "default": True}
HEADER = (
    "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n"
    "---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n"
)
ROW = (
    "mlx5_0\t1\t3\t0000:0000:0000:0000:0000:ffff:c633:6406\t198.51.100.6  \tv2\tnet1\n"
)
NONE = f"{HEADER}n_gids_found=0\n"
SOME = f"{HEADER}{ROW}n_gids_found=1\n"


def active(count=18):
    found = {}
    for at in range(count):
        base = f"/sys/class/infiniband/mlx5_{at}"
        found[f"{base}/device"] = {"link": f"../../../0000:{at:02x}:00.0"}
        found[f"{base}/ports/1/state"] = "4: ACTIVE\n"
        found[f"{base}/ports/1/phys_state"] = "5: LinkUp\n"
    return found


IN_POD = "kubectl exec -n kv decode-0 -- show_gids"


@pytest.mark.parametrize(
    "line", [IN_POD, "nsenter -t 4711 -n show_gids", "ip netns exec cni-1 show_gids"]
)
def test_f44_r03_smg_1691_a_pod_without_gids_fails(bench, line):
    document = bench.doc(cmds={line: NONE}, files=active())

    finding = bench.judge(document).one("k8s-pod-gids")

    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert finding.blocked_by == ()


def test_f44_a_document_of_the_pod_itself_fails_too(bench):
    document = bench.doc(cmds={"show_gids": NONE}, files=active())

    assert bench.judge(document).status("k8s-pod-gids") == "FAIL"
    document["files"][CNI] = {"errno": "ENOENT"}
    assert bench.judge(document).status("k8s-pod-gids") == "SKIP"


def test_r04_calico_8482_ethernet_pods_without_gids_fail_and_others_pass(bench):
    cmds = {IN_POD: NONE, "kubectl exec -n kv prefill-0 -- show_gids": SOME}

    seen = bench.judge(bench.doc(cmds=cmds))

    assert seen.statuses("k8s-pod-gids") == {
        "kv/decode-0": "FAIL",
        "kv/prefill-0": "PASS",
    }


def test_gids_of_a_pod_that_are_cut_off_never_pass(bench):
    for at in range(len(SOME.rstrip())):
        document = bench.doc(cmds={IN_POD: SOME[:at]})
        assert bench.judge(document, only="k8s-pod-gids").status("k8s-pod-gids") == (
            "UNKNOWN"
        ), at


def test_a_node_without_kubernetes_is_skipped_and_one_nobody_asked_is_unknown(bench):
    absent = bench.doc(files={CNI: {"errno": "ENOENT"}})

    assert bench.judge(absent).status("k8s-pod-gids") == "SKIP"
    assert bench.judge(bench.doc()).status("k8s-pod-gids") == "UNKNOWN"


def node(name="node-a", **resources):
    capacity = {"cpu": "96", **{k: v for k, (_, v) in resources.items()}}
    free = {"cpu": "96", **{k: v for k, (v, _) in resources.items()}}
    return json.dumps(
        {
            "kind": "Node",
            "metadata": {"name": name},
            "status": {"capacity": capacity, "allocatable": free},
        }
    )


def allocatable(bench, *texts, **more):
    documents = [
        bench.doc(f"node-{at}", cmds={f"kubectl get node node-{at} -o json": text})
        for at, text in enumerate(texts)
    ]
    return bench.judge(*documents, **more).by_node("k8s-allocatable-rdma")


def test_r58_rdma_shared_dp_84_a_resource_that_nothing_hands_out_fails(bench):
    text = node("node-0", **{"rdma/hca_shared": ("0", "63")})

    seen = bench.judge(bench.doc("node-0", cmds={"kubectl get nodes -o json": text}))

    finding = seen.one("k8s-allocatable-rdma")
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert finding.subject == "rdma/hca_shared"


def test_less_than_the_capacity_fails_and_all_of_it_passes(bench):
    few = node("node-0", **{"nvidia.com/rail0nics": ("3", "8")})
    whole = node("node-0", **{"nvidia.com/rail0nics": ("8", "8")})

    assert allocatable(bench, few) == {"node-0": "FAIL"}
    assert allocatable(bench, whole) == {"node-0": "PASS"}


def test_a_resource_that_only_one_node_lacks_fails_there(bench):
    texts = [node(f"node-{at}", **{"rdma/hca": ("8", "8")}) for at in range(3)]

    found = allocatable(bench, *texts, node("node-3"))

    assert found == {
        "node-0": "PASS",
        "node-1": "PASS",
        "node-2": "PASS",
        "node-3": "FAIL",
    }


def test_the_profile_says_how_many_there_must_be(bench):
    profile = {"kubernetes": {"rdma_resources": {"rdma/hca": 16}}}

    assert allocatable(
        bench, node("node-0", **{"rdma/hca": ("8", "8")}), profile=profile
    ) == {"node-0": "FAIL"}


def pod(status, networks, name="decode-0", **spec):
    notes = {NETWORKS: networks}
    if status is not None:
        notes[STATUS] = json.dumps(status)
    return {
        "kind": "Pod",
        "metadata": {"namespace": "kv", "name": name, "annotations": notes},
        "spec": spec,
        "status": {"phase": "Running"},
    }


def rails(count=8):
    return [
        {"name": f"kv/rail{at}", "interface": f"net{at + 1}", "ips": [f"10.9.{at}.7"]}
        for at in range(count)
    ]


EIGHT = ", ".join(f"rail{at}" for at in range(8))
GET = "kubectl get pod decode-0 -n kv -o json"


def networks(bench, each):
    document = bench.doc(cmds={GET: json.dumps(each)})
    return bench.judge(document, only="k8s-pod-networks-status").one(
        "k8s-pod-networks-status"
    )


def test_f59_r57_akash_424_a_pod_with_the_default_network_only_fails(bench):
    finding = networks(bench, pod([CILIUM], EIGHT))

    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert "8 networks" in finding.expected


def test_f59_the_request_may_be_json_and_all_eight_attached_pass(bench):
    request = json.dumps([{"name": f"rail{at}"} for at in range(8)])

    assert networks(bench, pod([CILIUM, *rails()], request)).status == "PASS"
    assert networks(bench, pod([CILIUM, *rails(7)], request)).status == "FAIL"
    assert networks(bench, pod(None, request)).status == "FAIL"


def test_an_attached_network_without_an_address_fails(bench):
    bare = [{**each, "ips": []} for each in rails()]

    assert networks(bench, pod([CILIUM, *bare], EIGHT)).status == "FAIL"


def test_a_pod_that_asks_for_nothing_is_not_judged(bench):
    assert networks(bench, pod([CILIUM], "")).status == "SKIP"


def test_pods_that_are_cut_off_are_unknown(bench):
    text = json.dumps(pod([CILIUM, *rails()], EIGHT))

    seen = bench.judge(bench.doc(cmds={GET: text[:-3]}))

    assert seen.status("k8s-pod-networks-status") == "UNKNOWN"


def order(bench, *names, **more):
    document = bench.doc(files={CNI: names})
    return bench.judge(document, **more).one("k8s-cni-conf-order")


def test_r82_multus_1132_a_multus_that_cilium_renamed_fails(bench):
    finding = order(bench, "00-multus.conf.cilium_bak", "05-cilium.conflist")

    assert (finding.status, finding.severity) == ("FAIL", "error")


def test_r82_rke2_7464_multus_must_be_first(bench):
    assert order(bench, "00-multus.conf", "10-calico.conflist").status == "PASS"
    assert order(bench, "00-calico.conflist", "00-multus.conf").status == "FAIL"
    assert order(bench, "05-cilium.conflist").status == "SKIP"
    assert order(bench, "05-cilium.conflist", "multus.d").status == "SKIP"


def test_the_one_node_without_multus_among_its_peers_fails(bench):
    good = {CNI: ("00-multus.conf", "05-cilium.conflist")}
    nodes = [bench.doc(f"node-{n}", files=good) for n in "abc"]
    bare = bench.doc("node-d", files={CNI: ("05-cilium.conflist",)})

    found = bench.judge(*nodes, bare).by_node("k8s-cni-conf-order")

    assert found == {
        "node-a": "PASS",
        "node-b": "PASS",
        "node-c": "PASS",
        "node-d": "FAIL",
    }


def test_a_cni_directory_that_may_not_be_read_is_unknown(bench):
    document = bench.doc(files={CNI: {"errno": "EACCES"}})

    assert bench.judge(document).status("k8s-cni-conf-order") == "UNKNOWN"


COUNT = "/proc/sys/net/netfilter/nf_conntrack_count"
MAX = "/proc/sys/net/netfilter/nf_conntrack_max"
FULL = "[ 4711.1] nf_conntrack: nf_conntrack: table full, dropping packet\n"


def conntrack(bench, count=None, size="786432\n", dmesg=None):
    files = {} if count is None else {COUNT: count, MAX: size}
    cmds = {} if dmesg is None else {"dmesg": dmesg}
    finding = bench.judge(bench.doc(cmds=cmds, files=files)).one("k8s-conntrack")
    return finding.status.value, finding.severity.value


def test_f55_a_table_almost_full_warns(bench):
    assert conntrack(bench, "765000\n") == ("WARN", "warning")


def test_f55_r76_kubernetes_71261_a_table_that_was_full_fails(bench):
    assert conntrack(bench, dmesg=FULL) == ("FAIL", "error")
    assert conntrack(bench, "100\n", dmesg=FULL) == ("FAIL", "error")


def test_conntrack_passes_only_where_count_and_log_were_read(bench):
    assert conntrack(bench, "100\n", dmesg="[ 1.0] Linux\n")[0] == "PASS"
    assert conntrack(bench, "100\n")[0] == "UNKNOWN"
    assert conntrack(bench, dmesg="[ 1.0] Linux\n")[0] == "UNKNOWN"


def dns(bench, entry=None, hosts=None):
    cmds = {} if entry is None else {"getent hosts node-a": entry}
    files = {} if hosts is None else {"/etc/hosts": hosts}
    finding = bench.judge(bench.doc(cmds=cmds, files=files)).one("k8s-dns-hosts")
    return finding.status.value


def test_r75_mooncake_2798_an_own_name_that_is_loopback_fails(bench):
    assert dns(bench, "127.0.1.1       node-a\n") == "FAIL"
    assert dns(bench, "::1             node-a.example.com node-a\n") == "FAIL"
    assert dns(bench, hosts="127.0.0.1 localhost\n127.0.1.1 node-a\n") == "FAIL"
    assert dns(bench, (2, "", "")) == "FAIL"


def test_an_own_name_that_is_an_address_of_the_network_passes(bench):
    assert dns(bench, "192.0.2.7       node-a.example.com node-a\n") == "PASS"
    assert dns(bench, hosts="127.0.0.1 localhost\n192.0.2.7 node-a\n") == "PASS"


def test_names_that_nobody_could_look_up_are_unknown(bench):
    assert dns(bench) == "UNKNOWN"
    assert dns(bench, hosts="127.0.0.1 localhost\n") == "UNKNOWN"
    assert dns(bench, "192.0.2.7       node") == "UNKNOWN"


def addr(mtu):
    return json.dumps(
        [
            {
                "ifname": "net1",
                "flags": ["UP", "LOWER_UP"],
                "mtu": mtu,
                "operstate": "UP",
                "addr_info": [
                    {
                        "family": "inet",
                        "local": "198.51.100.77",
                        "prefixlen": 24,
                        "scope": "global",
                    }
                ],
            }
        ]
    )


def pod_mtu(bench, mtu, host):
    rail = json.loads(addr(host))
    rail[0].update(ifname="ens1f0", link_type="ether", address="02:00:5e:10:00:01")
    rail[0]["addr_info"][0]["local"] = "198.51.100.7"
    cmds = {
        "ip -j -d addr": json.dumps(rail),
        "kubectl exec -n kv decode-0 -- ip -j addr": addr(mtu),
    }
    return bench.judge(bench.doc(cmds=cmds)).one("k8s-pod-mtu")


def test_r51_cilium_37824_a_pod_with_a_lower_mtu_than_its_rail_fails(bench):
    finding = pod_mtu(bench, 1500, 9000)

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert pod_mtu(bench, 9000, 9000).status == "PASS"


def test_r51_a_pod_that_differs_from_those_of_its_peers_fails(bench):
    nodes = [
        bench.doc(f"node-{at}", cmds={"kubectl exec -n kv p -- ip -j addr": addr(mtu)})
        for at, mtu in enumerate((9000, 9000, 9000, 1500))
    ]

    found = bench.judge(*nodes).by_node("k8s-pod-mtu")

    assert found["node-3"] == "FAIL"
    assert found["node-0"] == "PASS"


NADS = "kubectl get network-attachment-definitions -A -o json"


def nad(name, master, subnet, **more):
    config = {
        "type": more.get("kind", "macvlan"),
        "master": master,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]},
    }
    if "mtu" in more:
        config["mtu"] = more["mtu"]
    return {
        "metadata": {"namespace": "kv", "name": name},
        "spec": {"config": json.dumps(config)},
    }


def nads(bench, *each, **cmds):
    files = {
        "/sys/class/net": ("lo", "ens1f0", "ens2f0"),
        "/sys/class/net/ens1f0/mtu": "9000\n",
        "/sys/class/net/ens2f0/mtu": "9000\n",
    }
    system = {"rdma -j system": cmds["system"]} if "system" in cmds else {}
    text = json.dumps({"items": list(each)})
    document = bench.doc(cmds={NADS: text, **system}, files=files)
    return bench.judge(document).statuses("k8s-nad-exists")


def test_r81_a_network_of_a_device_that_is_not_there_fails(bench):
    good = nad("rail0", "ens1f0", "10.9.0.0/24", mtu=9000)
    bad = nad("rail1", "ens9f0", "10.9.1.0/24")

    assert nads(bench, good, bad) == {"kv/rail0": "PASS", "kv/rail1": "FAIL"}


def test_r57_networks_of_two_rails_with_the_same_addresses_fail(bench):
    one = nad("rail0", "ens1f0", "10.9.0.0/16")
    two = nad("rail1", "ens2f0", "10.9.1.0/24")

    assert nads(bench, one, two) == {"kv/rail0": "FAIL", "kv/rail1": "FAIL"}


def test_a_network_with_another_mtu_than_its_rail_fails(bench):
    assert nads(bench, nad("rail0", "ens1f0", "10.9.0.0/24", mtu=1500)) == {
        "kv/rail0": "FAIL"
    }


def test_r59_spiderpool_3716_exclusive_rdma_wants_the_plugin(bench):
    each = nad("rail0", "", "10.9.0.0/24", kind="sriov")

    assert nads(bench, each, system='{"netns":"exclusive"}\n') == {"kv/rail0": "FAIL"}
    assert nads(bench, each, system='{"netns":"shared"}\n') == {"kv/rail0": "PASS"}


def test_a_network_that_pods_ask_for_and_nobody_defined_fails(bench):
    cmds = {
        NADS: json.dumps({"items": []}),
        GET: json.dumps(pod([CILIUM], "rail0")),
    }

    assert bench.judge(bench.doc(cmds=cmds)).statuses("k8s-nad-exists") == {
        "kv/rail0": "FAIL"
    }


def test_r74_nccl_tests_248_a_proxy_between_the_ranks_fails(bench):
    each = pod(
        None, "", name="vllm-0", containers=[{"name": "a"}, {"name": "istio-proxy"}]
    )

    seen = bench.judge(bench.doc(cmds={GET: json.dumps(each)}))

    assert seen.status("k8s-sidecar") == "FAIL"


def test_r74_nccl_tests_248_a_namespace_that_injects_fails(bench):
    labels = {"istio-injection": "enabled"}
    each = {"kind": "Namespace", "metadata": {"name": "kv", "labels": labels}}

    seen = bench.judge(bench.doc(cmds={"kubectl get ns kv -o json": json.dumps(each)}))

    finding = seen.one("k8s-sidecar")
    assert (finding.status, finding.severity) == ("FAIL", "error")


def plugin(ready="True", restarts=0):
    each = pod(None, "", name="rdma-shared-dp-ds-9hq4c", containers=[])
    each["metadata"]["namespace"] = "kube-system"
    each["status"] |= {
        "conditions": [{"type": "Ready", "status": ready}],
        "containerStatuses": [{"restartCount": restarts}],
    }
    return json.dumps(each)


def test_r58_rdma_shared_dp_87_what_the_plugin_logged_fails(bench):
    text = "can not change : incorrect RDMA subsystem network namespace\n"
    cmds = {
        "kubectl get pod -A -o json": plugin(),
        "kubectl logs -n kube-system rdma-shared-dp-ds-9hq4c": text,
    }

    assert bench.judge(bench.doc(cmds=cmds)).status("k8s-deviceplugin-pods") == "FAIL"


def test_a_plugin_that_is_not_ready_fails(bench):
    def verdict(**more):
        cmds = {"kubectl get pod -A -o json": plugin(**more)}
        return bench.judge(bench.doc(cmds=cmds)).status("k8s-deviceplugin-pods")

    assert verdict() == "PASS"
    assert verdict(ready="False") == "FAIL"
    assert verdict(restarts=40) == "WARN"


def policy(bench, *ports, selector=None):
    each = {
        "metadata": {"namespace": "kv", "name": "p"},
        "spec": {"podSelector": selector or {}, "ingress": [{"ports": list(ports)}]},
    }
    cmds = {
        GET: json.dumps(pod(None, "", name="mooncake-0", containers=[])),
        "kubectl get netpol -A -o json": json.dumps({"items": [each]}),
    }
    return bench.judge(bench.doc(cmds=cmds)).status("k8s-networkpolicy")


def test_a_policy_that_forgets_the_ports_of_the_engine_fails(bench):
    both = {"port": 12001}, {"port": 15000, "endPort": 17000}

    assert policy(bench, *both) == "PASS"
    assert policy(bench, both[0]) == "FAIL"
    assert policy(bench) == "PASS"
    assert policy(bench, both[0], selector={"matchLabels": {"app": "x"}}) == "PASS"
    odd = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    assert policy(bench, *both, selector=odd) == "UNKNOWN"


def test_an_operator_that_is_not_ready_fails(bench):
    line = "kubectl get nicclusterpolicy -o json"
    each = {"metadata": {"name": "n"}, "status": {"state": "notReady"}}

    seen = bench.judge(bench.doc(cmds={line: json.dumps(each)}))

    assert seen.status("k8s-mlx-operator") == "FAIL"
