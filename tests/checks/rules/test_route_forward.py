"""Rails behind a Linux bridge, and what Docker does to the chain FORWARD."""

from __future__ import annotations

import json

import pytest

CHECK = "route-forwarding-docker"
NFT = "nft -j list ruleset"
CALLS = "/proc/sys/net/bridge/bridge-nf-call-iptables"
RAIL = {
    "ifname": "eth0",
    "flags": ["UP", "LOWER_UP"],
    "mtu": 4200,
    "link_type": "ether",
    "parentdev": "0000:1a:00.0",
    "addr_info": [
        {"family": "inet", "local": "198.18.0.1", "prefixlen": 24, "scope": "global"}
    ],
}
BRIDGE = {"ifname": "br0", "link_type": "ether", "linkinfo": {"info_kind": "bridge"}}
PORT = {"master": "br0", "linkinfo": {"info_slave_kind": "bridge"}}
MACVLAN = {"ifname": "macvlan0", "link": "eth0", "link_type": "ether", **PORT}
VLAN_ON_IT = {"ifname": "vlan7", "link": "macvlan7", "link_type": "ether", **PORT}
MACVLAN_BELOW = {"ifname": "macvlan7", "link": "eth0", "link_type": "ether"}
VF = {"ifname": "eth0v0", "parentdev": "0000:1a:00.2", "link_type": "ether", **PORT}
DEVICE = "/sys/class/net/eth0v0/device"
OF_VF = {
    DEVICE: {"link": "../../../0000:1a:00.2"},
    f"{DEVICE}/physfn": {"link": "../0000:1a:00.0"},
}
ETH0 = {"/sys/class/net/eth0/device": {"link": "../../../0000:1a:00.0"}}
NAME = {"family": "ip", "table": "filter"}


def ruleset(policy="drop", *rules):
    chain = {
        **NAME,
        "name": "FORWARD",
        "type": "filter",
        "hook": "forward",
        "prio": 0,
        "policy": policy,
    }
    every = [{"rule": {**NAME, "chain": "FORWARD", "expr": list(r)}} for r in rules]
    return json.dumps({"nftables": [{"chain": chain}, *every]})


def meta(key, value):
    return {"match": {"op": "==", "left": {"meta": {"key": key}}, "right": value}}


def judged(
    bench, *links, told=None, calls="1\n", modules="nf_tables 1 0 - Live 0x0\n", **more
):
    told = ruleset() if told is None else told
    files = {"/proc/modules": modules, **ETH0, **more}
    if calls is not None:
        files[CALLS] = calls
    node = bench.doc(
        cmds={
            "ip -j -d addr": json.dumps([RAIL, *links]),
            **({NFT: told} if told else {}),
        },
        files=files,
    )
    return bench.judge(node, only=CHECK, nics=("eth0",)).one(CHECK)


@pytest.mark.parametrize(
    "links",
    [(BRIDGE, MACVLAN), (BRIDGE, VLAN_ON_IT, MACVLAN_BELOW), (BRIDGE, VF)],
    ids=["macvlan", "vlan of a macvlan", "vf"],
)
def test_a_policy_of_drop_warns_where_a_bridge_carries_the_rail(bench, links):
    found = judged(bench, *links, **OF_VF)

    assert (found.status, found.severity) == ("WARN", "warning")
    assert found.observed == "chain ip filter FORWARD drops TCP 12001 of br0"


def test_a_rail_that_is_no_port_of_a_bridge_passes_whatever_the_policy(bench):
    assert judged(bench).status == "PASS"
    assert judged(bench, BRIDGE, {**MACVLAN, "link": "eno1"}).status == "PASS"
    assert judged(bench, told="").status == "PASS"


def test_a_vf_of_another_nic_is_none_of_the_rail(bench):
    other = OF_VF | {f"{DEVICE}/physfn": {"link": "../0000:99:00.0"}}

    assert judged(bench, BRIDGE, VF, **other).status == "PASS"


def test_a_bridge_that_filters_by_itself_warns_whatever_the_sysctl(bench):
    own = {"info_kind": "bridge", "info_data": {"nf_call_iptables": 1}}

    assert judged(bench, BRIDGE | {"linkinfo": own}, MACVLAN, calls="0\n").status == (
        "WARN"
    )


@pytest.mark.parametrize("calls", ["0\n", {"errno": "ENOENT"}])
def test_frames_that_skip_the_filter_pass(bench, calls):
    assert judged(bench, BRIDGE, MACVLAN, calls=calls).status == "PASS"


@pytest.mark.parametrize(
    "told",
    [
        ruleset("accept"),
        ruleset("drop", [meta("oifname", "br0"), {"accept": None}]),
        ruleset("drop", [meta("iifname", "br*"), {"accept": None}]),
    ],
    ids=["policy", "by the device out", "by the device in"],
)
def test_a_chain_that_accepts_passes(bench, told):
    assert judged(bench, BRIDGE, MACVLAN, told=told).status == "PASS"


def test_a_rule_about_another_device_changes_nothing(bench):
    told = ruleset("drop", [meta("oifname", "docker0"), {"accept": None}])

    assert judged(bench, BRIDGE, MACVLAN, told=told).status == "WARN"


def test_a_policy_by_itself_of_the_input_hook_is_another_check(bench):
    told = ruleset().replace('"forward"', '"input"')

    assert judged(bench, BRIDGE, MACVLAN, told=told).status == "PASS"


@pytest.mark.parametrize(
    "more",
    [
        {"told": ""},
        {"told": ruleset()[:-1]},
        {"calls": None},
        {"told": ruleset("drop", [meta("mark", 7), {"accept": None}])},
        {"told": ruleset("accept"), "modules": "iptable_filter 1 0 - Live 0x0\n"},
    ],
    ids=["not asked", "cut", "no sysctl", "a mark", "legacy"],
)
def test_what_is_not_known_is_unknown(bench, more):
    assert judged(bench, BRIDGE, MACVLAN, **more).status == "UNKNOWN"


def test_hardware_in_a_bridge_of_which_nothing_was_read_is_unknown(bench):
    assert judged(bench, BRIDGE, VF).status == "UNKNOWN"
