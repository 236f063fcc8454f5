"""Routes and rules, with the traps of iproute2's JSON."""

from __future__ import annotations

import json

import pytest

from checks.facts import Facts, Unread
from checks.parse.garbled import Garbled
from checks.parse.ip_route import parse_routes, routes, tables_unread
from checks.parse.ip_rule import parse_rules, rules
from checks.parse.rt_tables import canonical_table, parse_rt_tables

DEFAULT = {
    "dst": "default",
    "gateway": "192.0.2.254",
    "dev": "eth10",
    "protocol": "static",
    "metric": 100,
    "flags": [],
}
RAIL = {
    "dst": "13.13.2.0/24",
    "dev": "eth3",
    "protocol": "kernel",
    "scope": "link",
    "prefsrc": "13.13.2.13",
    "flags": [],
}
MISSING = (2, "[", "Error: ipv4: FIB table does not exist.\nDump terminated\n")


def parsed(*rows, version=4):
    return parse_routes(list(rows), "test", version=version, table="main", names={})


def facts(bench, cmds, files=None):
    return Facts(bench.doc(cmds=cmds, files=files))


def test_a_default_route_and_a_connected_one():
    default, rail = parsed(DEFAULT, RAIL)

    assert (default.is_default, default.hops[0].gateway) == (True, "192.0.2.254")
    assert (default.metric, default.table) == (100, "main")
    assert (str(rail.dst), rail.dev, rail.prefsrc) == (
        "13.13.2.0/24",
        "eth3",
        "13.13.2.13",
    )


def test_a_multipath_route_has_no_device_of_its_own():
    hops = [
        {"gateway": "10.0.0.1", "dev": "eth0", "weight": 1, "flags": []},
        {
            "gateway": "10.0.1.1",
            "dev": "eth1",
            "weight": 2,
            "flags": ["dead", "linkdown"],
        },
    ]
    (route,) = parsed({"dst": "default", "nexthops": hops})

    assert [(h.dev, h.weight) for h in route.hops] == [("eth0", 1), ("eth1", 2)]
    assert route.hops[1].flags == {"dead", "linkdown"}


def test_a_gateway_of_the_other_family_is_via():
    row = {
        "dst": "default",
        "via": {"family": "inet6", "host": "fe80::1"},
        "dev": "eth0",
    }

    assert parsed(row)[0].hops[0].gateway == "fe80::1"


def test_a_blackhole_has_no_hop_and_metrics_are_a_list_of_one_object():
    blackhole, pinned = parsed(
        {"type": "blackhole", "dst": "10.0.0.0/8"}, {**RAIL, "metrics": [{"mtu": 1500}]}
    )

    assert (blackhole.type, blackhole.hops) == ("blackhole", ())
    assert pinned.mtu == 1500


def test_a_host_route_without_a_length_is_a_host():
    assert str(parsed({"dst": "10.0.0.7", "dev": "eth0"})[0].dst) == "10.0.0.7/32"


@pytest.mark.parametrize("row", [{}, {"dev": "eth0"}, {"dst": "x"}, "text"])
def test_what_is_no_route_is_garbled(row):
    if row == {}:
        assert parsed(row) == ()
        return
    with pytest.raises(Garbled):
        parsed(row)


def test_rows_of_main_name_no_table_and_others_do(bench):
    rows = [DEFAULT, {**RAIL, "table": "102"}, {**RAIL, "table": "local"}]
    found = routes(facts(bench, {"ip -j -4 route show table all": json.dumps(rows)}))

    assert sorted(found) == ["102", "local", "main"]


def test_f12_a_table_that_does_not_exist_is_empty_and_known(bench):
    cmds = {"ip -j route": json.dumps([DEFAULT]), "ip -j route show table 103": MISSING}
    node = facts(bench, cmds)

    assert routes(node)["103"] == ()
    assert tables_unread(node) == frozenset()


def test_f12b_an_emptied_table_is_empty_as_well(bench):
    cmds = {"ip -j route": "[]", "ip -j route show table 103": "[]"}

    assert routes(facts(bench, cmds))["103"] == ()


def test_a_lone_bracket_without_the_complaint_is_not_an_empty_table(bench):
    cmds = {"ip -j route": json.dumps([DEFAULT]), "ip -j route show table 103": "["}
    node = facts(bench, cmds)

    assert "103" not in routes(node)
    assert tables_unread(node) == {"103"}


def test_f12c_a_table_is_the_same_by_name_and_by_number(bench):
    files = {"/etc/iproute2/rt_tables": "255 local\n# x\n103 rail3 # third\n"}
    cmds = {
        "ip -j route show table rail3": json.dumps([RAIL]),
        "ip -j rule": json.dumps(
            [{"priority": 103, "src": "13.13.2.13", "table": "rail3"}]
        ),
    }
    node = facts(bench, cmds, files)

    assert list(routes(node)) == ["103"]
    assert rules(node)[0].table == "103"


def test_a_dump_of_all_tables_that_is_cut_is_refused(bench):
    text = json.dumps([DEFAULT, RAIL])[:-4]

    with pytest.raises(Unread):
        routes(facts(bench, {"ip -j -4 route show table all": text}))


def test_a_live_sample_is_no_dump(bench):
    sample = json.dumps([{"dst": "10.0.0.1", "dev": "eth9", "flags": []}])
    cmds = {"ip -j route": "[]", "ip -j route get 10.0.0.1 from 10.0.0.2": sample}

    assert routes(facts(bench, cmds)) == {"main": ()}


def test_families_are_kept_apart(bench):
    cmds = {
        "ip -j -4 route show table all": json.dumps([DEFAULT]),
        "ip -j -6 route show table all": json.dumps(
            [{"dst": "default", "dev": "eth1"}]
        ),
    }
    node = facts(bench, cmds)

    assert routes(node, 4)["main"][0].dev == "eth10"
    assert str(routes(node, 6)["main"][0].dst) == "::/0"


def test_reserved_tables_are_their_names(bench):
    names = canonical_table(facts(bench, {}))

    assert (names["254"], names["255"], names["253"]) == ("main", "local", "default")


def test_rt_tables_with_comments_and_rubbish():
    text = "#\n# reserved\n255\tlocal\n\n100 isp1 # a\nnot a pair\n0x1 hex\n"

    assert parse_rt_tables(text) == {"local": "255", "isp1": "100"}


F19 = [
    {"priority": 0, "src": "all", "table": "local"},
    {
        "priority": 100,
        "src": "all",
        "fwmark": "0x200",
        "fwmask": "0xf00",
        "table": "2004",
    },
    {
        "priority": 101,
        "not": None,
        "src": "203.0.113.0",
        "srclen": 24,
        "table": "main",
        "suppress_prefixlen": 0,
    },
    {"priority": 102, "src": "12.12.12.43", "table": "102"},
    {"priority": 32766, "src": "all", "table": "main"},
]


def test_f19_marks_inversion_and_suppression_are_read():
    local, marked, inverted, rail, _ = parse_rules(F19, version=4, names={})

    assert local.src is None
    assert (marked.mark, marked.mask) == (0x200, 0xF00)
    assert (inverted.inverted, inverted.suppress_prefixlen) == (True, 0)
    assert str(inverted.src) == "203.0.113.0/24"
    assert (str(rail.src), rail.table) == ("12.12.12.43/32", "102")


def test_rules_are_in_the_order_of_their_priority_and_stable():
    rows = [
        {"priority": 9, "table": "3"},
        {"priority": 1, "table": "1"},
        {"priority": 1, "table": "2"},
    ]

    assert [r.table for r in parse_rules(rows, version=4, names={})] == ["1", "2", "3"]


def test_goto_l3mdev_interfaces_and_ports_are_read():
    row = {
        "priority": 1,
        "iif": "eth0",
        "oif": "eth1",
        "oif_detached": None,
        "l3mdev": None,
        "goto": 200,
        "ipproto": "tcp",
        "dport_start": 80,
        "dport_end": 90,
        "tos": "0x10",
        "action": "unreachable",
    }
    (found,) = parse_rules([row], version=4, names={})

    assert (found.iif, found.oif, found.detached) == ("eth0", "eth1", True)
    assert (found.l3mdev, found.goto, found.ipproto) == (True, 200, "tcp")
    assert found.ports == ("dport_start=80", "dport_end=90")
    assert (found.tos, found.action) == (16, "unreachable")


@pytest.mark.parametrize("rows", [{}, [{"src": "all"}], [{"priority": 1, "src": "x"}]])
def test_what_is_no_list_of_rules_is_garbled(rows):
    with pytest.raises(Garbled):
        parse_rules(rows, version=4, names={})
