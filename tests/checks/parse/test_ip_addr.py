"""Links and addresses, in every shape that `ip -j addr` has had."""

from __future__ import annotations

import json

import pytest

from checks.facts import Facts, Unread
from checks.parse.garbled import Garbled
from checks.parse.ip_addr import links, links_in, parse_addr

LINK = {
    "ifindex": 4,
    "ifname": "ens1f0",
    "flags": ["BROADCAST", "UP", "LOWER_UP"],
    "mtu": 4200,
    "operstate": "UP",
    "link_type": "ether",
    "address": "02:00:5E:10:00:01",
    "addr_info": [
        {"family": "inet", "local": "192.168.1.1", "prefixlen": 24, "scope": "global"},
        {
            "family": "inet6",
            "local": "fe80::1",
            "prefixlen": 64,
            "scope": "link",
            "tentative": True,
        },
    ],
}


def test_a_link_has_its_addresses_and_flags():
    link = parse_addr([LINK])["ens1f0"]

    assert (link.index, link.mtu, link.mac) == (4, 4200, "02:00:5e:10:00:01")
    assert [a.ip for a in link.global_addresses(4)] == ["192.168.1.1"]
    assert link.global_addresses(6) == ()
    assert link.addresses[1].flags == {"tentative"}
    assert link.up


@pytest.mark.parametrize(
    "change",
    [
        {"flags": ["BROADCAST", "UP"]},
        {"flags": ["BROADCAST", "LOWER_UP"]},
        {"operstate": "DOWN"},
    ],
)
def test_a_link_without_carrier_or_switched_off_is_not_up(change):
    assert not parse_addr([{**LINK, **change}])["ens1f0"].up


def test_an_empty_element_for_a_filtered_link_is_dropped():
    assert list(parse_addr([{}, LINK])) == ["ens1f0"]


def test_a_slave_of_open_vswitch_is_known_by_its_kind():
    details = {"info_slave_kind": "openvswitch"}
    link = parse_addr([{**LINK, "master": "ovs-system", "linkinfo": details}])["ens1f0"]

    assert (link.master, link.slave_kind) == ("ovs-system", "openvswitch")


@pytest.mark.parametrize(
    "rows",
    [
        {},
        [{"ifindex": 1}],
        [{**LINK, "addr_info": [{"family": "inet", "local": "x", "prefixlen": 24}]}],
        [{**LINK, "addr_info": [{"family": "inet", "local": "10.0.0.1"}]}],
    ],
)
def test_what_is_no_list_of_links_is_garbled(rows):
    with pytest.raises(Garbled):
        parse_addr(rows)


def test_both_families_asked_for_separately_are_one_link(bench):
    four = {**LINK, "addr_info": LINK["addr_info"][:1]}
    six = {**LINK, "addr_info": LINK["addr_info"][1:]}
    cmds = {"ip -j -4 addr": json.dumps([four]), "ip -j -6 addr": json.dumps([six])}

    found = links(Facts(bench.doc(cmds=cmds)))

    assert [a.ip for a in found["ens1f0"].addresses] == ["192.168.1.1", "fe80::1"]


def test_links_of_a_pod_are_not_those_of_the_host(bench):
    cmds = {"kubectl exec web -- ip -j addr": json.dumps([LINK])}
    facts = Facts(bench.doc(cmds=cmds))

    assert list(links_in(facts, "pod:web")) == ["ens1f0"]
    with pytest.raises(Unread):
        links(facts)


@pytest.mark.parametrize("cut", [0, 1, 30, 100, -1])
def test_output_that_is_cut_off_is_refused(bench, cut):
    text = json.dumps([LINK])[:cut]

    with pytest.raises(Unread):
        links(Facts(bench.doc(cmds={"ip -j -d addr": text})))


def test_an_address_without_a_scope_has_the_kernels():
    rows = [
        {"family": "inet", "local": "127.0.0.1", "prefixlen": 8},
        {"family": "inet", "local": "10.1.2.3", "prefixlen": 24},
        {"family": "inet6", "local": "fe80::1", "prefixlen": 64},
    ]
    found = parse_addr([{"ifname": "eth0", "flags": ["UP"], "addr_info": rows}])
    link = found["eth0"]
    assert [each.scope for each in link.addresses] == ["host", "global", "link"]
