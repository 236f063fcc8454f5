"""A healthy node of Kubernetes with two pods of eight rails, and its single faults."""

import json

GIB = 1 << 30
CNI = "/etc/cni/net.d"
KUBELET = "/var/lib/kubelet/config.yaml"
OPERATOR = "kubectl get nicclusterpolicies -o json"
POLICIES = "kubectl get networkpolicies -A -o json"
PROXY = "GET http://127.0.0.1:10249/proxyMode"
DNS = "dns 10.96.0.10 kubernetes.default.svc.cluster.local"
CONFIG = "kind: KubeletConfiguration\ntopologyManagerPolicy: {}\n"


def _status(plan):
    rails = [
        {
            "name": f"kv/{rail.name}",
            "interface": f"net{rail.index + 1}",
            "ips": [f"198.18.{rail.index}.{100 + plan.index % 100}"],
            "mtu": 4200,
            "device-info": {"type": "pci", "pci": {"rdma-device": rail.device}},
        }
        for rail in plan.rails
    ]
    own = {"name": "cilium", "interface": "eth0", "ips": ["10.0.3.7"], "default": True}
    return [own, *rails]


def _ready():
    return [{"type": "Ready", "status": "True"}]


def _store_pod(plan):
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "kv",
            "name": "mooncake-store",
            "annotations": {
                "k8s.v1.cni.cncf.io/networks": ",".join(
                    f"kv/{rail.name}" for rail in plan.rails
                ),
                "k8s.v1.cni.cncf.io/network-status": json.dumps(_status(plan)),
            },
        },
        "spec": {
            "nodeName": plan.hostname,
            "dnsPolicy": "ClusterFirst",
            "containers": [
                {
                    "name": "store",
                    "image": "registry.example/mooncake:0.3.8",
                    "resources": {"limits": {"rdma/hca": "8"}},
                    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                }
            ],
        },
        "status": {"phase": "Running", "conditions": _ready()},
    }


def _system_pod(plan, name):
    return {
        "kind": "Pod",
        "metadata": {"namespace": "kube-system", "name": name},
        "spec": {"nodeName": plan.hostname, "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "conditions": _ready(),
            "containerStatuses": [{"name": "main", "restartCount": 0}],
        },
    }


def _node(plan):
    resources = {
        "cpu": "192",
        "memory": "2113411308Ki",
        "pods": "110",
        "rdma/hca": "8",
    }
    return {
        "kind": "Node",
        "metadata": {"name": plan.hostname},
        "spec": {"podCIDR": f"10.{64 + plan.index // 250}.{plan.index % 250}.0/24"},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [{"type": "InternalIP", "address": plan.ip}],
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "NetworkUnavailable", "status": "False"},
                *_ready(),
            ],
            "nodeInfo": {
                "kubeletVersion": "v1.31.4",
                "containerRuntimeVersion": "containerd://1.7.24",
                "kernelVersion": plan.kernel,
                "osImage": "Ubuntu 24.04.1 LTS",
            },
        },
    }


def _nads(plan):
    def config(rail):
        return {
            "cniVersion": "0.3.1",
            "plugins": [
                {
                    "type": "macvlan",
                    "master": rail.netdev,
                    "mtu": 4200,
                    "ipam": {
                        "type": "whereabouts",
                        "range": rail.network,
                        "range_start": f"198.18.{rail.index}.100",
                        "range_end": f"198.18.{rail.index}.199",
                    },
                },
                {"type": "rdma"},
            ],
        }

    return [
        {
            "kind": "NetworkAttachmentDefinition",
            "metadata": {"namespace": "kv", "name": rail.name},
            "spec": {"config": json.dumps(config(rail))},
        }
        for rail in plan.rails
    ]


def _sriov(plan):
    return {
        "kind": "SriovNetworkNodeState",
        "metadata": {"namespace": "sriov", "name": plan.hostname},
        "status": {"syncStatus": "Succeeded"},
    }


def _operator():
    return {
        "kind": "NicClusterPolicy",
        "metadata": {"name": "nic-cluster-policy"},
        "status": {"state": "ready"},
    }


def _policy():
    ports = [
        {"protocol": "TCP", "port": 12001},
        {"protocol": "TCP", "port": 15000, "endPort": 17000},
    ]
    return {
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "kv", "name": "transfers"},
        "spec": {"podSelector": {}, "ingress": [{"ports": ports}]},
    }


def _list(rows):
    return json.dumps({"kind": "List", "items": rows})


def _show_gids(plan):
    lines = ["DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV"]
    for rail in plan.rails:
        for index, gid, kind in rail.gids:
            version = "v2" if kind.endswith("v2") else "v1"
            ipv4 = rail.ip if "ffff" in gid else ""
            lines.append(
                f"{rail.device}\t1\t{index}\t{gid}\t{ipv4}\t{version}\tnet{rail.index}"
            )
    return "\n".join([*lines, f"n_gids_found={4 * len(plan.rails)}", ""])


def pods_line(plan):
    return f"kubectl get pod -A --field-selector spec.nodeName={plan.hostname} -o json"


def cmds(plan):
    nads = "kubectl get network-attachment-definitions -A -o json"
    pods = [
        _store_pod(plan),
        _system_pod(plan, "cilium-x7k2p"),
        _system_pod(plan, "rdma-shared-dp-ds-9hq4c"),
        _system_pod(plan, "kube-proxy-b6xmw"),
        _system_pod(plan, "coredns-7c65d6cfc9-4xhkz"),
    ]
    return {
        f"kubectl get node {plan.hostname} -o json": json.dumps(_node(plan)),
        pods_line(plan): _list(pods),
        nads: _list(_nads(plan)),
        "kubectl get sriovnetworknodestates -A -o json": _list([_sriov(plan)]),
        OPERATOR: _list([_operator()]),
        PROXY: "ipvs",
        DNS: "10.96.0.1\n",
        POLICIES: _list([_policy()]),
        "kubectl exec -n kv mooncake-store -- show_gids": _show_gids(plan),
    }


def files(plan):
    return {
        CNI: ("00-multus.conf", "05-cilium.conflist", "multus.d"),
        KUBELET: CONFIG.format("single-numa-node"),
        "/proc/sys/net/ipv4/ip_forward": "1\n",
        "/proc/sys/net/bridge/bridge-nf-call-iptables": "1\n",
        "/proc/sys/net/netfilter/nf_conntrack_count": "41280\n",
        "/proc/sys/net/netfilter/nf_conntrack_max": "786432\n",
    }


def _edited(line, change):
    """A mutation of what a command printed as JSON."""

    def mutate(document, plan):
        name = line(plan) if callable(line) else line
        entry = document["cmds"][name]
        loaded = json.loads(entry["stdout"])
        change(loaded, plan)
        entry["stdout"] = json.dumps(loaded)

    return mutate


def _of_node(change):
    return _edited(lambda plan: f"kubectl get node {plan.hostname} -o json", change)


def _of_pod(name, change):
    def edit(loaded, plan):
        for pod in loaded["items"]:
            if pod["metadata"]["name"].startswith(name):
                change(pod)

    return _edited(pods_line, edit)


def _of_nads(change):
    return _edited("kubectl get network-attachment-definitions -A -o json", change)


def _file(path, text):
    def change(document, plan):
        document["files"][path] = {"text": text}

    return change


def _no_gids(document, plan):
    entry = document["cmds"]["kubectl exec -n kv mooncake-store -- show_gids"]
    entry["stdout"] = entry["stdout"].splitlines()[0] + "\nn_gids_found=0\n"


def _none_free(loaded, plan):
    loaded["status"]["allocatable"] = {**loaded["status"]["capacity"], "rdma/hca": "0"}


def _resource_is_gone(loaded, plan):
    for key in ("capacity", "allocatable"):
        loaded["status"][key] = {"cpu": "192", "pods": "110"}


def _not_ready(loaded, plan):
    loaded["status"]["conditions"][-1]["status"] = "Unknown"


def _old_kubelet(loaded, plan):
    loaded["status"]["nodeInfo"]["kubeletVersion"] = "v1.29.1"


def _pod_cidr_on_a_rail(loaded, plan):
    loaded["spec"]["podCIDR"] = "198.18.0.0/20"


def _on_a_rail(loaded, plan):
    loaded["status"]["addresses"][0]["address"] = plan.rails[3].ip


def _detached(pod):
    notes = pod["metadata"]["annotations"]
    status = json.loads(notes["k8s.v1.cni.cncf.io/network-status"])
    notes["k8s.v1.cni.cncf.io/network-status"] = json.dumps(status[:1])


def _no_address(pod):
    notes = pod["metadata"]["annotations"]
    status = json.loads(notes["k8s.v1.cni.cncf.io/network-status"])
    del status[4]["ips"]
    notes["k8s.v1.cni.cncf.io/network-status"] = json.dumps(status)


def _small_mtu(pod):
    notes = pod["metadata"]["annotations"]
    status = json.loads(notes["k8s.v1.cni.cncf.io/network-status"])
    status[3]["mtu"] = 1500
    notes["k8s.v1.cni.cncf.io/network-status"] = json.dumps(status)


def _crashing(pod):
    pod["status"]["conditions"][0]["status"] = "False"
    pod["status"]["containerStatuses"] = [
        {
            "name": "main",
            "restartCount": 41,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        }
    ]


def _with_proxy(pod):
    pod["spec"]["containers"].append({"name": "istio-proxy"})


def _host_network(pod):
    pod["spec"]["hostNetwork"] = True


def _no_lock(pod):
    del pod["spec"]["containers"][0]["securityContext"]


def _other_master(loaded, plan):
    config = json.loads(loaded["items"][2]["spec"]["config"])
    config["plugins"][0]["master"] = "ens99f0np0"
    loaded["items"][2]["spec"]["config"] = json.dumps(config)


def _same_range(loaded, plan):
    """Two rails of one node hand out the same addresses: one is a copy of the other."""
    for at in (4, 5):
        config = json.loads(loaded["items"][at]["spec"]["config"])
        config["plugins"][0]["mtu"] = 1500 if at == 5 else 4200
        loaded["items"][at]["spec"]["config"] = json.dumps(config)


def _renamed(document, plan):
    names = ["00-multus.conf.cilium_bak", "05-cilium.conflist", "multus.d"]
    document["files"][CNI] = {"entries": names}


def _not_first(document, plan):
    names = ["00-multus.conf", "00-calico.conflist"]
    document["files"][CNI] = {"entries": names}


def _other_mode(document, plan):
    document["cmds"][PROXY]["stdout"] = "iptables"


def _dns(**change):
    def mutate(document, plan):
        document["cmds"][DNS].update(change)

    return mutate


def _table_full(document, plan):
    entry = document["cmds"]["dmesg -J"]
    loaded = json.loads(entry["stdout"])
    text = "nf_conntrack: nf_conntrack: table full, dropping packet"
    loaded["dmesg"].insert(3, {"pri": 4, "time": 900.0, "msg": text})
    entry["stdout"] = json.dumps(loaded)


def _not_synced(loaded, plan):
    loaded["items"][0]["status"] = {
        "syncStatus": "Failed",
        "lastSyncError": "cannot create VFs",
    }


def _operator_fails(loaded, plan):
    loaded["items"][0]["status"]["state"] = "notReady"


def _forgets_a_port(loaded, plan):
    del loaded["items"][0]["spec"]["ingress"][0]["ports"][1]["endPort"]


STORE = "kv/mooncake-store"
KUBERNETES = "kubernetes.default.svc.cluster.local"
COUNT = "/proc/sys/net/netfilter/nf_conntrack_count"
MUTANTS = [
    {"check": "k8s-pod-gids", "subject": STORE, "change": _no_gids},
    {
        "check": "k8s-allocatable-rdma",
        "subject": "rdma/hca",
        "change": _of_node(_none_free),
    },
    {
        "check": "k8s-allocatable-rdma",
        "subject": "rdma/hca",
        "change": _of_node(_resource_is_gone),
        "note": "gone",
    },
    {"check": "k8s-node-ready", "change": _of_node(_not_ready)},
    {"check": "k8s-versions", "status": "WARN", "change": _of_node(_old_kubelet)},
    {"check": "k8s-podcidr-overlap", "change": _of_node(_pod_cidr_on_a_rail)},
    {"check": "k8s-cni-agent", "change": _of_node(_on_a_rail)},
    {
        "check": "k8s-pod-networks-status",
        "subject": STORE,
        "change": _of_pod("mooncake", _detached),
    },
    {
        "check": "k8s-pod-networks-status",
        "subject": STORE,
        "change": _of_pod("mooncake", _no_address),
        "note": "address",
    },
    {
        "check": "k8s-pod-mtu",
        "subject": f"{STORE} net3",
        "change": _of_pod("mooncake", _small_mtu),
    },
    {
        "check": "k8s-deviceplugin-pods",
        "subject": "kube-system/rdma-shared-dp-ds-9hq4c",
        "change": _of_pod("rdma-shared", _crashing),
    },
    {
        "check": "k8s-coredns",
        "subject": KUBERNETES,
        "change": _dns(rc=1, stdout="", stderr="no answer", ms=3000),
    },
    {
        "check": "k8s-coredns",
        "subject": KUBERNETES,
        "change": _dns(ms=1400),
        "note": "slow",
    },
    {
        "check": "k8s-coredns",
        "subject": "kube-system/coredns-7c65d6cfc9-4xhkz",
        "change": _of_pod("coredns", _crashing),
        "note": "pod",
    },
    {
        "check": "k8s-kube-proxy",
        "status": "WARN",
        "change": _of_pod("kube-proxy", _crashing),
    },
    {
        "check": "k8s-kube-proxy",
        "status": "WARN",
        "change": _other_mode,
        "note": "mode",
    },
    {
        "check": "k8s-sidecar",
        "subject": STORE,
        "change": _of_pod("mooncake", _with_proxy),
    },
    {
        "check": "k8s-hostnetwork",
        "subject": STORE,
        "status": "WARN",
        "change": _of_pod("mooncake", _host_network),
    },
    {
        "check": "k8s-pod-caps",
        "subject": STORE,
        "change": _of_pod("mooncake", _no_lock),
    },
    {
        "check": "k8s-nad-exists",
        "subject": "kv/rail2",
        "change": _of_nads(_other_master),
    },
    {
        "check": "k8s-nad-exists",
        "subject": "kv/rail5",
        "change": _of_nads(_same_range),
        "note": "mtu",
    },
    {"check": "k8s-mlx-operator", "change": _edited(OPERATOR, _operator_fails)},
    {
        "check": "k8s-networkpolicy",
        "subject": STORE,
        "change": _edited(POLICIES, _forgets_a_port),
    },
    {
        "check": "k8s-topology-manager",
        "status": "WARN",
        "change": _file(KUBELET, CONFIG.format("none")),
    },
    {"check": "k8s-cni-conf-order", "change": _renamed},
    {"check": "k8s-cni-conf-order", "change": _not_first, "note": "first"},
    {"check": "k8s-conntrack", "change": _table_full},
    {
        "check": "k8s-conntrack",
        "status": "WARN",
        "change": _file(COUNT, "765000\n"),
        "note": "count",
    },
    {
        "check": "k8s-sriov-syncstatus",
        "change": _edited("kubectl get sriovnetworknodestates -A -o json", _not_synced),
    },
    {
        "check": "k8s-ip-forward",
        "status": "WARN",
        "change": _file("/proc/sys/net/ipv4/ip_forward", "0\n"),
    },
    {
        "check": "k8s-bridge-nf",
        "status": "WARN",
        "change": _file("/proc/sys/net/bridge/bridge-nf-call-iptables", "0\n"),
    },
]
