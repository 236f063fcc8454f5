"""What stands beside the database of Open vSwitch, and is lost with the next boot."""

from __future__ import annotations

import json

import pytest

CHECK = "ovs-not-persistent"
LIST = "ovs-vsctl --timeout=5 --format=json list"
ADDRESS = {
    "family": "inet",
    "local": "198.51.100.7",
    "prefixlen": 24,
    "scope": "global",
}
BRIDGE = {"ifname": "br-ex", "linkinfo": {"info_kind": "openvswitch"}}
WITH_ADDRESS = {**BRIDGE, "addr_info": [ADDRESS]}
NONE = ["set", []]


def slave(name):
    link = {"linkinfo": {"info_kind": "veth", "info_slave_kind": "openvswitch"}}
    return {**link, "ifname": name, "master": "ovs-system"}


def judged(bench, *links, named="# 0 files\n", ids=None, interfaces=None, **cmds):
    names = ("name", "external_ids")
    row = ["br-ex", NONE if ids is None else ["map", [list(pair) for pair in ids]]]
    table = {"headings": names, "data": [row, ["veth0", NONE]]}
    told = {
        f"{LIST} Interface": json.dumps(table) if interfaces is None else interfaces,
        "ip -j -d addr": json.dumps(list(links)),
        "configured netdevs": named,
        **cmds,
    }
    kept = {line: text for line, text in told.items() if text is not None}
    node = bench.doc(cmds=kept, files={"/run/openvswitch": ("db.sock",)})
    return bench.judge(node, only=CHECK)


def test_an_address_that_no_file_names_warns(bench):
    found = judged(bench, WITH_ADDRESS, named="# 1 files\n/etc/netplan/a.yaml eno1\n")

    finding = found.one(CHECK)
    assert (finding.status, finding.subject) == ("WARN", "br-ex")
    assert finding.observed == "198.51.100.7/24, and no file names br-ex"


def test_an_address_of_the_datapath_in_userspace_counts(bench):
    tap = {**WITH_ADDRESS, "linkinfo": {"info_kind": "tun"}}

    assert judged(bench, tap).statuses(CHECK) == {"br-ex": "WARN"}


def test_an_address_that_a_file_names_passes(bench):
    told = "# 2 files\n/etc/netplan/a.yaml eno1\n/etc/network/interfaces br-ex\n"

    finding = judged(bench, WITH_ADDRESS, named=told).one(CHECK)

    assert finding.status == "PASS"
    assert finding.observed == "198.51.100.7/24, by /etc/network/interfaces"


def test_an_address_by_the_agent_that_made_the_port_passes(bench):
    ids = [("iface-id", "k8s-node-07")]

    assert judged(bench, WITH_ADDRESS, ids=ids).status(CHECK) == "PASS"


def test_a_port_of_the_datapath_that_the_database_lacks_warns(bench):
    seen = judged(bench, slave("veth0"), slave("veth7"))

    assert seen.statuses(CHECK) == {"veth7": "WARN"}


def test_an_internal_port_that_the_database_lacks_warns(bench):
    """`ovs-dpctl add-if ovs-system byhand,type=internal`: it has no master."""
    seen = judged(bench, {**BRIDGE, "ifname": "byhand"}, {**BRIDGE, "ifname": "br-ex"})

    assert seen.statuses(CHECK) == {"byhand": "WARN"}
    assert "not in the database" in seen.one(CHECK).observed


def test_the_device_of_the_datapath_itself_is_no_port(bench):
    assert judged(bench, {**BRIDGE, "ifname": "ovs-system"}).status(CHECK) == "PASS"


@pytest.mark.parametrize("name", ["genev_sys_6081", "vxlan_sys_4789", "gre_sys"])
def test_devices_of_tunnels_are_the_datapaths_own(bench, name):
    assert judged(bench, slave(name)).status(CHECK) == "PASS"


def test_ports_without_an_address_of_their_own_pass(bench):
    assert judged(bench, BRIDGE, slave("veth0")).status(CHECK) == "PASS"


@pytest.mark.parametrize(
    "more",
    [
        {"named": None},
        {"named": ""},
        {"named": "# 2 files\n/etc/netplan/a.yaml eno1\n"},
        {"named": "# 1 files\n/etc/netplan/a.yaml ?\n"},
        {"named": "# 1 files\n/etc/netplan/a.yaml eno1"},
        {"interfaces": '{"headings": ["name"], "data": [["br-'},
        {"ip -j -d addr": "["},
    ],
)
def test_what_was_not_read_is_unknown(bench, more):
    assert judged(bench, WITH_ADDRESS, **more).status(CHECK) == "UNKNOWN"


def test_a_file_that_names_it_is_enough_whatever_others_may_say(bench):
    told = "# 2 files\n/etc/netplan/a.yaml ?\n/etc/network/interfaces br-ex\n"

    assert judged(bench, WITH_ADDRESS, named=told).status(CHECK) == "PASS"


def test_a_node_without_ovs_is_skipped(bench):
    node = bench.doc(files={"/run/openvswitch": {"errno": "ENOENT"}})

    assert bench.judge(node, only=CHECK).status(CHECK) == "SKIP"
