"""RoCE path MTU, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

NIC = "ens1f0np0"
IB = "/sys/class/infiniband/mlx5_0"


def devinfo(mtu):
    return (
        "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\t\tport:\t1\n"
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tmax_mtu:\t\t4096 (5)\n"
        f"\t\t\tactive_mtu:\t\t{mtu}\n\t\t\tlink_layer:\t\tEthernet\n"
    )


def node(bench, name, mtu, link_mtu, **env):
    link = {
        "ifname": NIC,
        "mtu": link_mtu,
        "flags": ["UP", "LOWER_UP"],
        "operstate": "UP",
        "link_type": "ether",
        "addr_info": [
            {
                "family": "inet",
                "local": f"198.51.100.{ord(name[-1])}",
                "prefixlen": 24,
                "scope": "global",
            }
        ],
    }
    files = {
        f"{IB}/ports/1/state": "4: ACTIVE\n",
        f"{IB}/ports/1/phys_state": "5: LinkUp\n",
        f"{IB}/ports/1/gid_attrs/ndevs/0": f"{NIC}\n",
        f"/sys/class/net/{NIC}/mtu": f"{link_mtu}\n",
    }
    cmds = {"ibv_devinfo -v": devinfo(mtu), "ip -j -d addr": json.dumps([link])}
    return bench.doc(name, cmds=cmds, files=files | (bench.env(**env) if env else {}))


def f47(bench):
    peers = [node(bench, f"node-{n}", "4096 (5)", 4200) for n in "bcd"]
    return [node(bench, "node-a", "1024 (3)", 1500), *peers]


def test_f47_r48_mooncake_3868_1024_among_4096_fails_under_the_netdev_mtu(bench):
    seen = bench.judge(*f47(bench))

    finding = seen.one("roce-active-mtu", "mlx5_0", "node-a")
    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert finding.blocked_by == ("route-mtu-iface",)
    assert seen.status("roce-active-mtu", node="node-b") == "PASS"
    assert [f.id for f in seen.report.roots if f.node == "node-a"] == [
        "route-mtu-iface"
    ]


def test_r49_nccl_2135_the_port_alone_tells_it(bench):
    seen = bench.judge(bench.doc(cmds={"ibv_devinfo -v": devinfo("1024 (3)")}))

    assert seen.status("roce-active-mtu", "mlx5_0") == "FAIL"


def test_the_profile_decides_what_is_right(bench):
    doc = bench.doc(cmds={"ibv_devinfo -v": devinfo("1024 (3)")})
    full = bench.doc(cmds={"ibv_devinfo -v": devinfo("4096 (5)")})
    profile = {"roce": {"active_mtu": 1024}}

    assert bench.judge(doc, profile=profile).status("roce-active-mtu") == "PASS"
    assert bench.judge(full, profile=profile).status("roce-active-mtu") == "FAIL"


@pytest.mark.parametrize("text", ["4096", "4096 (", "", "40 (5)"])
def test_a_cut_off_mtu_is_unknown(bench, text):
    doc = bench.doc(cmds={"ibv_devinfo -v": devinfo(text)})

    assert bench.judge(doc).status("roce-active-mtu") == "UNKNOWN"


def test_pyverbs_tells_it_too(bench):
    doc = bench.doc(files={f"{IB}/ports/1/state": "4: ACTIVE\n"})
    doc["verbs"] = {"mlx5_0": {"active_mtu": 4096}}

    assert bench.judge(doc).status("roce-active-mtu") == "PASS"


def test_mc_mtu_above_the_port_fails(bench):
    seen = bench.judge(node(bench, "node-a", "1024 (3)", 1500, MC_MTU="4096"))

    finding = seen.one("roce-mc-mtu")
    assert (finding.status, finding.severity) == ("FAIL", "error")


def test_mc_mtu_must_be_a_size_and_alike_on_all_nodes(bench):
    nine = node(bench, "node-a", "4096 (5)", 9000, MC_MTU="9000")
    assert bench.judge(nine).status("roce-mc-mtu") == "FAIL"

    docs = [node(bench, f"node-{n}", "4096 (5)", 9000, MC_MTU="4096") for n in "abc"]
    odd = node(bench, "node-d", "4096 (5)", 9000, MC_MTU="1024")
    assert bench.judge(*docs, odd).by_node("roce-mc-mtu") == {
        "node-a": "PASS",
        "node-b": "PASS",
        "node-c": "PASS",
        "node-d": "FAIL",
    }
