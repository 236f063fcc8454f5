"""Configuration of Open vSwitch: what is bad, what is well, what cannot be told."""

from __future__ import annotations

import json

import pytest

LIST = "ovs-vsctl --timeout=5 --format=json list"
LOG = "/var/log/openvswitch/ovs-vswitchd.log"
NONE = ["set", []]


def table(*records):
    headings = list(records[0]) if records else ["_uuid"]
    data = [[record[name] for name in headings] for record in records]
    return json.dumps({"data": data, "headings": headings})


def other(**pairs):
    cells = [[key.replace("_", "-"), value] for key, value in pairs.items()]
    return {"other_config": ["map", cells]}


def tables(**records):
    return {
        f"{LIST} {name}": table(*rows if isinstance(rows, list) else [rows])
        for name, rows in records.items()
    }


def bridge(name="br0", **cells):
    return {"_uuid": ["uuid", f"b-{name}"], "name": name, **cells}


def members(port, *names, **cells):
    """Tables of one bridge br0 with one port that holds these interfaces."""
    uuids = [["uuid", f"i-{name}"] for name in names]
    inside = uuids[0] if len(uuids) == 1 else ["set", uuids]
    return tables(
        Bridge=bridge(ports=["uuid", f"p-{port}"]),
        Port={
            "_uuid": ["uuid", f"p-{port}"],
            "name": port,
            "interfaces": inside,
            "qos": NONE,
            **cells,
        },
        Interface=[
            {
                "_uuid": ["uuid", f"i-{name}"],
                "name": name,
                "type": "",
                "ingress_policing_rate": 0,
            }
            for name in names
        ],
    )


def test_bridges_are_those_of_the_profile(bench):
    doc = bench.doc(cmds=tables(Bridge=[bridge("br0"), bridge("br1")]))

    def told(*names):
        seen = bench.judge(doc, profile={"ovs": {"bridges": names}})
        found = seen.one("ovs-bridge-exists")
        return found.status.value, found.severity.value

    assert told("br0", "br1") == ("PASS", "critical")
    assert told("br0", "br1", "br2") == ("FAIL", "critical")
    assert told("br0") == ("WARN", "warning")


def test_an_uplink_belongs_where_the_profile_says(bench):
    doc = bench.doc(
        cmds=members("nic0", "nic0") | {"ip -j -d addr": json.dumps([address("nic0")])}
    )

    def status(uplinks):
        seen = bench.judge(doc, profile={"ovs": {"uplinks": uplinks}})
        return seen.status("ovs-uplink-in-bridge", "nic0")

    assert status({"br0": ["nic0"]}) == "PASS"
    assert status({"br9": ["nic0"]}) == "FAIL"
    assert status({"br9": ["nic7"]}) == "FAIL"


def address(name, **more):
    return {
        "ifindex": 4,
        "ifname": name,
        "flags": ["UP", "LOWER_UP"],
        "mtu": 4200,
        "operstate": "UP",
        "link_type": "ether",
        "address": "02:00:5e:10:00:01",
        "addr_info": [
            {
                "family": "inet",
                "local": "198.51.100.7",
                "prefixlen": 24,
                "scope": "global",
            }
        ],
        **more,
    }


def test_an_address_on_a_port_of_the_datapath_fails(bench):
    def status(**more):
        rows = json.dumps([address("nic0", **more)])
        doc = bench.doc(
            cmds={"ip -j -d addr": rows}, files={"/run/openvswitch": ("db.sock",)}
        )
        return bench.judge(doc).status("ovs-ip-on-enslaved-nic")

    assert status(master="ovs-system") == "FAIL"
    assert status(linkinfo={"info_slave_kind": "openvswitch"}) == "FAIL"
    assert status(master="ovs-system", addr_info=[]) == "PASS"
    assert status() == "PASS"


def test_the_userspace_datapath_and_offload_exclude_each_other(bench):
    def doc(name, kind, offload="true"):
        records = tables(
            Bridge=bridge(datapath_type=kind), Open_vSwitch=other(hw_offload=offload)
        )
        return bench.doc(name, cmds=records)

    assert bench.judge(doc("a", "netdev")).status("ovs-datapath-type") == "FAIL"
    assert bench.judge(doc("a", "netdev", "false")).status("ovs-datapath-type") == (
        "SKIP"
    )
    seen = bench.judge(*[doc(n, "") for n in "abc"], doc("d", "system"))
    assert set(seen.by_node("ovs-datapath-type").values()) == {"PASS"}


START = "2026-09-01T03:14:40.000Z|00001|bridge|INFO|ovs-vswitchd (Open vSwitch) 3.1.0\n"
ENABLED = (
    "2026-09-01T03:14:41.000Z|00002|netdev_offload|INFO|netdev: Flow API Enabled\n"
)
ELSE = "2026-09-01T03:14:42.000Z|00003|memory|INFO|1000 kB peak\n"


@pytest.mark.parametrize(
    ("log", "upcall", "verdict"),
    [
        (START + ENABLED, "", "PASS"),
        (START + ELSE, "", "WARN"),
        (ELSE, "", "UNKNOWN"),
        (ELSE, "  offloaded flows : 7\n", "PASS"),
        (START + ELSE, "  offloaded flows : 0\n", "WARN"),
    ],
)
def test_r66_r67_offload_that_was_set_without_a_restart_warns(
    bench, log, upcall, verdict
):
    cmds = tables(Open_vSwitch=other(hw_offload="true"))
    if upcall:
        cmds["ovs-appctl -T 3 upcall/show"] = upcall

    seen = bench.judge(bench.doc(cmds=cmds, files={LOG: log}))

    assert seen.status("ovs-hw-offload-effective") == verdict


def eswitch(mode):
    inside = {"pci/0000:1a:00.0": {"mode": mode, "inline-mode": "none"}}
    return {"devlink -j dev eswitch show pci/0000:1a:00.0": json.dumps({"dev": inside})}


def test_an_uplink_that_offloads_must_be_in_switchdev(bench):
    files = {
        "/sys/class/infiniband/mlx5_0/device": {"link": "../../../0000:1a:00.0"},
        "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": "nic0\n",
    }

    def status(mode, port):
        cmds = members(port, port) | tables(Open_vSwitch=other(hw_offload="true"))
        doc = bench.doc(cmds=cmds | eswitch(mode), files=files)
        return bench.judge(doc).status("ovs-esw-mode")

    assert status("legacy", "nic0") == "FAIL"
    assert status("switchdev", "nic0") == "SKIP"
    assert status("legacy", "nic9") == "SKIP"


def controllers(connected):
    return tables(
        Controller={
            "_uuid": ["uuid", "c1"],
            "target": "tcp:192.0.2.9:6653",
            "is_connected": connected,
        },
        Manager=[],
    )


def test_a_secure_bridge_needs_a_controller_or_flows(bench):
    header = "NXST_FLOW reply (xid=0x4):\n"
    flow = " cookie=0x0, duration=1s, table=0, n_packets=1, priority=0 actions=NORMAL\n"

    def status(mode, controller=NONE, more=None):
        row = bridge(fail_mode=mode, controller=controller)
        cmds = tables(Bridge=row) | (more or {})
        return bench.judge(bench.doc(cmds=cmds)).status("ovs-fail-mode")

    flows = "ovs-ofctl dump-flows br0"
    assert status(NONE) == "PASS"
    assert status("standalone") == "PASS"
    assert status("secure", ["uuid", "c1"], controllers(True)) == "PASS"
    assert status("secure", ["uuid", "c1"], controllers(False)) == "FAIL"
    assert status("secure", more={flows: header + flow}) == "PASS"
    assert status("secure", more={flows: header}) == "FAIL"
    assert status("secure") == "UNKNOWN"


def test_a_lost_controller_warns_and_a_passive_target_does_not(bench):
    def status(more):
        cmds = tables(Bridge=bridge(controller=["uuid", "c1"])) | more
        return bench.judge(bench.doc(cmds=cmds)).status("ovs-controller-connected")

    passive = tables(
        Controller=[],
        Manager={"_uuid": ["uuid", "m"], "target": "ptcp:6640", "is_connected": False},
    )
    assert status(controllers(True)) == "PASS"
    assert status(controllers(False)) == "WARN"
    assert status(passive) == "SKIP"


def test_spanning_tree_warns_and_a_deaf_port_fails(bench):
    def told(stp, state=None, profile=None):
        pairs = [["stp_state", state]] if state else []
        cmds = tables(
            Bridge=bridge(ports=["uuid", "p1"], stp_enable=stp, rstp_enable=False),
            Port={"_uuid": ["uuid", "p1"], "name": "p1", "status": ["map", pairs]},
        )
        seen = bench.judge(bench.doc(cmds=cmds), profile={"ovs": {"stp": profile}})
        return seen.status("ovs-stp")

    assert told(False) == "PASS"
    assert told(True) == "WARN"
    assert told(True, "forwarding", True) == "PASS"
    assert told(True, "listening", True) == "FAIL"
    assert told(False, profile=True) == "WARN"


def test_r73_a_mode_that_hashes_needs_lacp(bench):
    def doc(name, mode, lacp):
        return bench.doc(
            name, cmds=members("bond0", "p0", "p1", bond_mode=mode, lacp=lacp)
        )

    bare = bench.judge(doc("a", "balance-slb", NONE))
    seen = bench.judge(
        *[doc(n, "balance-tcp", "active") for n in "abc"], doc("d", NONE, NONE)
    )

    assert bare.status("ovs-bond-mode", "bond0") == "WARN"
    assert seen.status("ovs-bond-mode", node="a") == "PASS"
    assert seen.status("ovs-bond-mode", node="d") == "WARN"


def test_another_vlan_on_one_node_fails(bench):
    def doc(name, tag):
        cells = {"tag": tag, "trunks": NONE, "vlan_mode": NONE}
        return bench.doc(name, cmds=members("nic0", "nic0", **cells))

    seen = bench.judge(*[doc(n, 100) for n in "abc"], doc("d", NONE))

    assert seen.by_node("ovs-vlan") == {
        "a": "PASS",
        "b": "PASS",
        "c": "PASS",
        "d": "FAIL",
    }


def test_a_queue_on_the_uplink_warns(bench):
    plain = bench.doc(cmds=members("nic0", "nic0"))
    shaped = bench.doc(cmds=members("nic0", "nic0", qos=["uuid", "q1"]))

    assert bench.judge(plain).status("ovs-policing", "nic0") == "PASS"
    assert bench.judge(shaped).status("ovs-policing", "nic0") == "WARN"


def test_a_missing_module_fails_where_a_bridge_needs_it(bench):
    gone = {"/sys/module/openvswitch": {"errno": "ENOENT"}, "/proc/modules": ""}
    there = {"/sys/module/openvswitch": ("srcversion",)}

    def status(kind, files):
        cmds = tables(Bridge=bridge(datapath_type=kind))
        doc = bench.doc(cmds=cmds, files=files)
        return bench.judge(doc).status("ovs-module-params")

    assert status("", there) == "PASS"
    assert status("system", gone) == "FAIL"
    assert status("netdev", gone) == "PASS"
    assert status("", {}) == "UNKNOWN"


def test_an_uplink_that_keeps_tc_from_the_hardware_fails(bench):
    def status(offload, features):
        cmds = members("nic0", "nic0") | tables(Open_vSwitch=other(hw_offload=offload))
        if features is not None:
            cmds["ethtool -k nic0"] = features
        return bench.judge(bench.doc(cmds=cmds)).status("ovs-netdev-offloads")

    assert status("true", "Features for nic0:\nhw-tc-offload: on\n") == "PASS"
    assert status("true", "Features for nic0:\nhw-tc-offload: off [fixed]\n") == "FAIL"
    assert status("true", "Features for nic0:\n") == "UNKNOWN"
    assert status("true", None) == "UNKNOWN"
    assert status("false", None) == "PASS"


def test_dpdk_that_did_not_start_fails(bench):
    def status(asked, started):
        row = other(dpdk_init=asked) | {"dpdk_initialized": started}
        doc = bench.doc(cmds=tables(Open_vSwitch=row))
        return bench.judge(doc).status("ovs-dpdk")

    assert status("true", False) == "FAIL"
    assert status("true", True) == "PASS"
    assert status("false", False) == "PASS"
