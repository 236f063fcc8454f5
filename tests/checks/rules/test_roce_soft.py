"""Soft-RoCE (rdma_rxe) as kernel 6.1 shows it: other GIDs, counters, and no QoS."""

from __future__ import annotations

import json

import pytest

IB = "/sys/class/infiniband/rxe1"
PORT = f"{IB}/ports/1"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000\n"
UNSUPPORTED = (1, "\n", "Attribute read: Operation not supported\n")
DEVINFO = """\
hca_id:\trxe1
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t0.0.0
\tnode_guid:\t\t\t5054:00ff:fe01:0001
\tvendor_id:\t\t\t0xffffff
\tphys_port_cnt:\t\t\t1
\tmax_mr_size:\t\t\t0xffffffffffffffff
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tlink_layer:\t\tEthernet
\t\t\tgid_tbl_len:\t\t1024
\t\t\tGID[  0]:\t\tfe80::5054:ff:fe01:1, RoCE v2
\t\t\tGID[  1]:\t\t::ffff:192.168.101.1, RoCE v2

"""


def address(ip, length, scope):
    family = "inet6" if ":" in ip else "inet"
    return {"family": family, "local": ip, "prefixlen": length, "scope": scope}


LINK = {
    "ifname": "eth1",
    "mtu": 9000,
    "flags": ["UP", "LOWER_UP"],
    "operstate": "UP",
    "link_type": "ether",
    "address": "52:54:00:01:00:01",
    "addr_info": [
        address("192.168.101.1", 24, "global"),
        address("fe80::5054:ff:fe01:1", 64, "link"),
    ],
}


@pytest.fixture
def document(bench):
    cmds = {
        "ibv_devinfo -v": DEVINFO,
        "ip -j -d addr": json.dumps([LINK]),
        "rdma -j system": '{"netns":"shared","copy-on-fork":true}',
        "dcb -j pfc show dev eth1": UNSUPPORTED,
        "dcb -j app show dev eth1": UNSUPPORTED,
        "dcb -j ets show dev eth1": UNSUPPORTED,
        "mlnx_qos -i eth1": (127, "", "not found"),
    }
    counters = {
        f"{PORT}/hw_counters/{name}": [(1.0, f"{value}\n"), (3.0, f"{value}\n")]
        for name, value in (("rcvd_seq_err", 0), ("completer_retry_err", 296))
    }
    files = {
        "/sys/class/infiniband": ("rxe1",),
        f"{IB}/device": {"errno": "ENOENT"},
        f"{IB}/parent": "eth1\n",
        f"{IB}/node_type": "1: CA\n",
        f"{IB}/fw_ver": "\n",
        f"{IB}/tc/1/traffic_class": {"errno": "ENOENT"},
        f"{PORT}/state": "4: ACTIVE\n",
        f"{PORT}/phys_state": "5: LinkUp\n",
        f"{PORT}/rate": "2.5 Gb/sec (1X SDR)\n",
        f"{PORT}/link_layer": "Ethernet\n",
        f"{PORT}/gids": tuple(str(n) for n in range(1024)),
        f"{PORT}/gids/0": "fe80:0000:0000:0000:5054:00ff:fe01:0001\n",
        f"{PORT}/gids/1": "0000:0000:0000:0000:0000:ffff:c0a8:6501\n",
        f"{PORT}/gids/2": ZERO,
        f"{PORT}/gid_attrs/types/0": "RoCE v2\n",
        f"{PORT}/gid_attrs/types/1": "RoCE v2\n",
        f"{PORT}/gid_attrs/types/2": {"errno": "EINVAL"},
        f"{PORT}/gid_attrs/ndevs/0": "eth1\n",
        f"{PORT}/gid_attrs/ndevs/1": "eth1\n",
        f"{PORT}/gid_attrs/ndevs/2": {"errno": "EINVAL"},
        "/sys/class/net/eth1/mtu": "9000\n",
        "/proc/4242/environ": "MC_GID_INDEX=1\0MOONCAKE_GLOBAL_SEGMENT_SIZE=1gb\0",
    }
    return bench.doc(cmds=cmds, files=files | counters, virt="kvm")


def test_a_soft_device_is_judged_by_what_it_has(bench, document):
    seen = bench.judge(document)

    found = {
        finding.id: finding.status.value
        for finding in seen.report.findings
        if finding.id.startswith("roce-")
    }
    passed = {name for name, status in found.items() if status == "PASS"}
    assert passed >= {
        "roce-gid-table",
        "roce-gid-v2",
        "roce-gid-routable",
        "roce-gid-ip-match",
        "roce-gid-pinned",
        "roce-gid-mooncake-choice",
        "roce-active-mtu",
        "roce-transport",
        "roce-max-mr",
        "roce-counters-retrans",
    }
    assert [n for n, status in found.items() if status in {"FAIL", "WARN"}] == []


def test_a_soft_device_has_no_qos_of_its_own_also_without_a_vm(bench, document):
    document["node"]["virt"] = "none"

    seen = bench.judge(document)

    for check in ("pfc", "trust", "tclass", "dcbx-willing", "dscp2prio"):
        assert seen.status(f"roce-{check}") == "SKIP"


def test_index_3_of_a_connectx_is_empty_on_a_soft_device(bench, document):
    document["files"]["/proc/4242/environ"] = {"text": "MC_GID_INDEX=3\0"}
    document["files"][f"{PORT}/gid_attrs/types/3"] = {"errno": "EINVAL"}

    assert bench.judge(document).status("roce-gid-pinned") == "FAIL"


def test_siw_is_iwarp(bench, document):
    document["files"][f"{IB}/node_type"] = {"text": "4: RNIC\n"}

    assert bench.judge(document).status("roce-transport") == "FAIL"
