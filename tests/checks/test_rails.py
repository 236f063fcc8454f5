"""Rails are found from whatever of a node was collected, and never named by device."""

from __future__ import annotations

import json

import pytest

from checks.facts import Facts, Unread
from checks.node import Node
from checks.profile import Profile

F11 = [
    {"dst": "default", "gateway": "192.0.2.254", "dev": "eth10", "flags": []},
    {
        "dst": "12.12.0.0/16",
        "dev": "eth2",
        "scope": "link",
        "prefsrc": "12.12.12.43",
        "flags": [],
    },
    {
        "dst": "13.13.2.0/24",
        "dev": "eth3",
        "scope": "link",
        "prefsrc": "13.13.2.13",
        "flags": [],
    },
]


def node(document, profile=None, nics=()):
    return Node(
        name="n",
        facts=Facts(document),
        profile=Profile.model_validate(profile or {}),
        nics=nics,
    )


def link(name, ip, **more):
    row = {
        "ifname": name,
        "flags": ["UP", "LOWER_UP"],
        "operstate": "UP",
        "link_type": "ether",
        "addr_info": [
            {"family": "inet", "local": ip, "prefixlen": 24, "scope": "global"}
        ],
    }
    return {**row, **more}


def labels(found):
    return [rail.label for rail in found.rails]


def test_rails_of_a_whole_node_are_its_ports_in_the_order_of_their_slots(healthy):
    found = node(healthy.document()).rails

    assert [rail.name for rail in found] == [f"rail{n}" for n in range(8)]
    assert found[3].label == "rail3 (ens4f0np0, 198.18.3.8)"
    assert {"mlx5_3", "0000:4a:00.0", "198.18.3.8"} <= found[3].touches
    assert all(rail.active for rail in found)


def test_renamed_devices_stay_the_same_rails(healthy):
    document = json.loads(json.dumps(healthy.document()).replace("mlx5_7", "mlx5_00"))
    found = node(document).rails

    assert found[7].port.device == "mlx5_00"


def test_the_profile_names_rails(healthy):
    profile = {"rails": [{"name": "blue", "bdf": "0000:4a:00.0"}]}

    assert "blue" in [rail.name for rail in node(healthy.document(), profile).rails]


def test_f11_routes_alone_tell_rails_without_the_default_device(bench):
    found = node(bench.doc(cmds={"ip -j route": json.dumps(F11)}))

    assert labels(found) == ["rail0 (eth2, 12.12.12.43)", "rail1 (eth3, 13.13.2.13)"]
    assert str(found.rails[0].networks[0]) == "12.12.0.0/16"
    assert found.rails[0].active is None


def test_f13_links_alone_tell_rails_also_one_that_is_down(bench):
    rows = [
        link("lo", "127.0.0.1", link_type="loopback"),
        link("ens1f0", "192.168.1.1"),
        link("ens1f1", "192.168.1.2", flags=["UP"], operstate="DOWN"),
        link("docker0", "172.17.0.1"),
        link("br0", "10.9.0.1", linkinfo={"info_kind": "bridge"}),
    ]
    found = node(bench.doc(cmds={"ip -j addr": json.dumps(rows)}))

    assert labels(found) == [
        "rail0 (ens1f0, 192.168.1.1)",
        "rail1 (ens1f1, 192.168.1.2)",
    ]
    assert [rail.active for rail in found.rails] == [True, False]


def test_f19_rules_alone_tell_the_address_of_a_rail(bench):
    rows = [
        {"priority": 0, "src": "all", "table": "local"},
        {"priority": 102, "src": "12.12.12.43", "table": "102"},
    ]

    assert labels(node(bench.doc(cmds={"ip -j rule": json.dumps(rows)}))) == [
        "rail0 (12.12.12.43)"
    ]


def test_named_devices_are_rails_even_with_the_default_route(bench):
    cmds = {
        "ip -j addr": json.dumps([link("eth0", "10.0.0.1"), link("eth1", "10.0.1.1")]),
        "ip -j route": json.dumps([{"dst": "default", "dev": "eth0"}]),
    }

    assert labels(node(bench.doc(cmds=cmds), nics=("eth0",))) == [
        "rail0 (eth0, 10.0.0.1)"
    ]


def test_a_node_of_which_nothing_is_known_has_unknown_rails(bench):
    with pytest.raises(Unread):
        _ = node(bench.doc()).rails


def test_r46_a_bonded_device_is_the_rail_of_its_bond(bench):
    base = "/sys/class/infiniband/mlx5_bond_0"
    files = {
        f"{base}/ports/1/gid_attrs/ndevs/0": "bond0\n",
        f"{base}/device/net/ens1f0np0": "",
        f"{base}/ports/1/phys_state": "5: LinkUp\n",
    }

    (rail,) = node(bench.doc(files=files)).rails

    assert rail.netdev == "bond0"
