"""Fixtures in the barest form: the keys of B.0, as written there, and nothing else."""

from __future__ import annotations

import json

import pytest

OFFLOAD = (
    "2026-09-01T03:14:48.824Z|00035|dpif_netlink(handler2)|ERR|"
    "failed to offload flow: Operation not supported: pf0vf2\n"
)
TOO_BIG = (
    "2026-02-08T16:24:36Z|271237|netdev_linux|WARN|"
    "tap1a2b3c4d-30: Dropped packet: Too big. GRO/TSO enabled?\n"
)
NO_GIDS = (
    "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n"
    "---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n"
    "n_gids_found=0\n"
)
DEVICE = "/sys/class/infiniband/mlx5_0/device"


@pytest.mark.parametrize(
    ("check", "line"),
    [("ovs-offload-failures", OFFLOAD), ("ovs-mtu-slowpath-drop", TOO_BIG)],
)
def test_f06_f08_a_tail_of_the_log_alone_tells_that_open_vswitch_runs(
    bench, check, line
):
    log = {"tail -n 2000 /var/log/openvswitch/ovs-vswitchd.log": line}
    assert bench.judge(bench.doc(cmds=log)).status(check) == "FAIL"


def test_f01_f05_every_bad_subject_names_what_was_read(bench):
    """Subjects that were found and judged from one source share it."""
    show = (
        "---- bond0 ----\nbond_mode: balance-tcp\nlacp_status: negotiated\n\n"
        "member p0: enabled\n  may_enable: true\n\n"
        "member p1: disabled\n  may_enable: false\n"
    )
    verdicts = bench.judge(bench.doc(cmds={"ovs-appctl bond/show": show}))
    finding = verdicts.one("ovs-bond-members", "bond0/p1")
    assert finding.status.value == "FAIL"
    assert finding.source == ("ovs-appctl bond/show",)


def test_f38_a_port_that_only_netlink_tells_of_names_it(bench):
    link = (
        '[{"ifindex":1,"ifname":"mlx5_1","port":1,"state":"DOWN",'
        '"physical_state":"POLLING","netdev":"ens2f0np0","netdev_index":5}]'
    )
    verdicts = bench.judge(bench.doc(cmds={"rdma -j link": link}))
    finding = verdicts.one("nic-port-state", "mlx5_1")
    assert (finding.status.value, finding.source) == ("FAIL", ("rdma -j link",))


@pytest.mark.parametrize(
    "line",
    [
        "nsenter -t 4711 -n show_gids",
        "ip netns exec pod0 show_gids",
        "kubectl exec -n default sglang-0 -- show_gids",
    ],
)
def test_f44_r03_smg_1691_a_pod_without_gids_needs_no_other_word_of_kubernetes(
    bench, line
):
    verdicts = bench.judge(bench.doc(cmds={line: NO_GIDS}))
    finding = verdicts.one("k8s-pod-gids")
    assert (finding.status.value, finding.severity.value) == ("FAIL", "critical")


def test_f44_r05_show_gids_alone_fails_the_table_and_the_pod(bench):
    verdicts = bench.judge(bench.doc(cmds={"show_gids": NO_GIDS}))
    assert verdicts.status("roce-gid-table") == "FAIL"
    assert verdicts.one("k8s-pod-gids").blocked_by == ("roce-gid-table",)


def test_f44_a_host_that_is_seen_to_have_no_kubernetes_is_no_pod(bench):
    nothing = {"/etc/cni/net.d": {"errno": "ENOENT"}}
    document = bench.doc(cmds={"show_gids": NO_GIDS}, files=nothing)
    assert bench.judge(document).status("k8s-pod-gids") == "SKIP"


@pytest.mark.parametrize(("kind", "status"), [("DMA-FQ", "FAIL"), ("identity", "PASS")])
def test_r31_nccl_1737_the_domain_is_read_below_the_rdma_device(bench, kind, status):
    document = bench.doc(files={f"{DEVICE}/iommu_group/type": f"{kind}\n"})
    assert bench.judge(document).status("iommu-domain-type", "mlx5_0") == status


def test_f29_the_link_is_read_below_the_rdma_device(bench):
    document = bench.doc(
        files={
            f"{DEVICE}/current_link_speed": "32.0 GT/s PCIe\n",
            f"{DEVICE}/max_link_speed": "32.0 GT/s PCIe\n",
            f"{DEVICE}/current_link_width": "8\n",
            f"{DEVICE}/max_link_width": "16\n",
        }
    )
    assert bench.judge(document).status("pcie-link-nic", "mlx5_0") == "FAIL"


def test_f37_r84_a_named_port_that_is_down_is_one_root_cause(bench):
    base = "/sys/class/infiniband/mlx5_1"
    files = {
        "/sys/class/infiniband": ("mlx5_1",),
        f"{base}/ports": ("1",),
        f"{base}/ports/1/state": "1: DOWN\n",
        f"{base}/ports/1/phys_state": "3: Disabled\n",
        "/proc/4242/cmdline": "mooncake_client\0",
        **bench.env(MC_MS_FILTERS="mlx5_1"),
    }
    verdicts = bench.judge(bench.doc(files=files))
    assert verdicts.status("nic-port-state", "mlx5_1") == "FAIL"
    assert verdicts.one("mc-device-names").blocked_by == ("nic-port-state",)


@pytest.mark.parametrize(
    ("every", "own", "status"), [(1, 0, "FAIL"), (0, 2, "PASS"), (2, 1, "PASS")]
)
def test_f15_r27_rules_without_a_source_are_one_table_for_all_rails(
    bench, every, own, status
):
    links = [
        {
            "ifname": name,
            "flags": ["UP", "LOWER_UP"],
            "mtu": 9000,
            "operstate": "UP",
            "addr_info": [{"family": "inet", "local": ip, "prefixlen": 24}],
        }
        for name, ip in (("eth2", "12.12.12.43"), ("eth3", "13.13.2.13"))
    ]
    rules = [
        {"priority": 0, "src": "all", "table": "local"},
        {"priority": 32766, "src": "all", "table": "main"},
        {"priority": 32767, "src": "all", "table": "default"},
    ]
    document = bench.doc(
        cmds={"ip -j addr": json.dumps(links), "ip -j rule": json.dumps(rules)},
        files={
            "/proc/sys/net/ipv4/conf/all/rp_filter": f"{every}\n",
            "/proc/sys/net/ipv4/conf/eth3/rp_filter": f"{own}\n",
        },
    )
    subject = "rail1 (eth3, 13.13.2.13)"
    assert bench.judge(document).status("route-rp-filter", subject) == status


def _topology(nearest):
    return (
        "\tGPU0\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        f"GPU0\t X \t{nearest}\t0-47\t0\tN/A\n"
        f"NIC0\t{nearest}\t X \t\t\t\n"
        "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    )


@pytest.mark.parametrize(("nearest", "status"), [("SYS", "WARN"), ("PIX", "UNKNOWN")])
def test_r47_aks_5697_a_gpu_far_from_every_nic_is_told_without_sysfs(
    bench, nearest, status
):
    document = bench.doc(cmds={"nvidia-smi topo -m": _topology(nearest)})
    assert bench.judge(document).status("pcie-gpu-nic-distance") == status
