"""Rules about routes, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

CONF = "/proc/sys/net/ipv4/conf"
DEFAULT = [
    {"priority": 0, "src": "all", "table": "local"},
    {"priority": 32766, "src": "all", "table": "main"},
    {"priority": 32767, "src": "all", "table": "default"},
]
F11_ROUTES = [
    {
        "dst": "default",
        "gateway": "192.0.2.254",
        "dev": "eth10",
        "protocol": "static",
        "metric": 100,
        "flags": [],
    },
    {
        "dst": "12.12.0.0/16",
        "dev": "eth2",
        "protocol": "kernel",
        "scope": "link",
        "prefsrc": "12.12.12.43",
        "metric": 101,
        "flags": [],
    },
    {
        "dst": "13.13.2.0/24",
        "dev": "eth3",
        "protocol": "kernel",
        "scope": "link",
        "prefsrc": "13.13.2.13",
        "metric": 102,
        "flags": [],
    },
]
F11 = {"ip -j route": json.dumps(F11_ROUTES), "ip -j rule": json.dumps(DEFAULT)}
ETH2, ETH3 = "rail0 (eth2, 12.12.12.43)", "rail1 (eth3, 13.13.2.13)"
NO_TABLE = (2, "[", "Error: ipv4: FIB table does not exist.\nDump terminated\n")


def connected(dev, network, source, **more):
    base = {"dst": network, "dev": dev, "protocol": "kernel", "scope": "link"}
    return {**base, "prefsrc": source, "flags": [], **more}


def default(dev, gateway, **more):
    return {"dst": "default", "gateway": gateway, "dev": dev, "flags": [], **more}


def link(name, ip, *, prefixlen=24, mac="", up=True, mtu=4200, family="inet", **more):
    flags = ["BROADCAST", "MULTICAST", "UP", *(["LOWER_UP"] if up else [])]
    address = {
        "family": family,
        "local": ip,
        "prefixlen": prefixlen,
        "scope": "global",
        "label": name,
        "valid_life_time": 4294967295,
        "preferred_life_time": 4294967295,
    }
    return {
        "ifindex": 4,
        "ifname": name,
        "flags": flags,
        "mtu": mtu,
        "operstate": "UP" if up else "DOWN",
        "link_type": "ether",
        "address": mac,
        "addr_info": [address] if ip else [],
        **more,
    }


def rules(*own):
    return json.dumps([DEFAULT[0], *own, *DEFAULT[1:]])


def like_f11(name, octet):
    """A peer of F11: the same shape with another last octet."""
    swap = {"12.12.12.43": f"12.12.12.{octet}", "13.13.2.13": f"13.13.2.{octet}"}
    text = F11["ip -j route"]
    for old, new in swap.items():
        text = text.replace(old, new)
    return {**F11, "ip -j route": text}


# F11: Mooncake#1026


def test_f11_r18_mooncake_1026_alone_cross_rail_leaves_the_other_nic(bench):
    seen = bench.judge(bench.doc(cmds=F11))

    assert seen.statuses("route-peer-same-rail") == {ETH2: "PASS", ETH3: "PASS"}
    assert seen.statuses("route-cross-rail") == {ETH2: "WARN", ETH3: "WARN"}
    assert "leaves eth2, not eth3" in seen.one("route-cross-rail", ETH3).observed
    assert set(seen.statuses("route-prefix-consistent").values()) == {"WARN"}
    assert set(seen.statuses("route-source-rule").values()) == {"SKIP"}


@pytest.mark.parametrize("peers", [1, 2, 3, 15])
def test_f11_r18_among_peers_the_pair_is_named(bench, peers):
    names = [(f"node-{n:02d}", 43 + n if n else 0) for n in range(peers + 1)]
    documents = [
        bench.doc(name, cmds=like_f11(name, octet) if octet else F11)
        for name, octet in names
    ]

    seen = bench.judge(*documents)

    mine = {"node": "node-00"}
    assert set(seen.statuses("route-peer-same-rail", **mine).values()) == {"PASS"}
    assert seen.status("route-cross-rail", ETH3, **mine) == "WARN"
    told = seen.one("route-cross-rail", ETH3, **mine).observed
    assert "13.13.2.13 → 12.12.12.44 leaves eth2, not eth3" in told
    assert set(seen.statuses("route-prefix-consistent", **mine).values()) == {"WARN"}


def test_f11_r18_a_profile_with_cross_rail_traffic_fails_it(bench):
    seen = bench.judge(bench.doc(cmds=F11), profile={"routes": {"cross_rail": True}})

    assert seen.statuses("route-source-rule") == {ETH2: "FAIL", ETH3: "FAIL"}
    assert seen.statuses("route-cross-rail") == {ETH2: "FAIL", ETH3: "FAIL"}
    finding = seen.one("route-cross-rail", ETH3)
    assert (finding.severity, finding.blocked_by) == ("error", ("route-source-rule",))


def test_f11_a_profile_without_cross_rail_traffic_does_not_ask(bench):
    seen = bench.judge(bench.doc(cmds=F11), profile={"routes": {"cross_rail": False}})

    assert set(seen.statuses("route-cross-rail").values()) == {"SKIP"}


def test_r18_the_outlier_among_many_rails_is_the_16(bench):
    rows = [F11_ROUTES[0], F11_ROUTES[1]] + [
        connected(f"eth{n}", f"13.13.{n}.0/24", f"13.13.{n}.13") for n in range(3, 10)
    ]
    cmds = {**F11, "ip -j route": json.dumps(rows)}

    seen = bench.judge(bench.doc(cmds=cmds))

    by_subject = seen.statuses("route-prefix-consistent")
    assert by_subject.pop(ETH2) == "WARN"
    assert set(by_subject.values()) == {"PASS"}


def test_r23_rccl_1303_no_route_between_rails_is_an_error_where_it_is_asked(bench):
    rows = F11_ROUTES[1:]
    cmds = {**F11, "ip -j route": json.dumps(rows)}

    seen = bench.judge(bench.doc(cmds=cmds), profile={"routes": {"cross_rail": True}})

    assert seen.one("route-cross-rail", ETH3).severity == "error"
    assert seen.status("route-cross-rail", ETH3) == "FAIL"


def test_r16_mooncake_35_pairs_that_keep_to_their_rail_are_not_judged(bench):
    files = bench.env(MC_ENABLE_DEST_DEVICE_AFFINITY="1")
    files["/proc/4242/cmdline"] = "mooncake_client\0"

    seen = bench.judge(bench.doc(cmds=F11, files=files))

    assert set(seen.statuses("route-cross-rail").values()) == {"SKIP"}


# F12: tables

RULE_103 = {"priority": 103, "src": "13.13.2.13", "table": "103"}


def test_f12_a_rule_to_a_table_that_does_not_exist_fails(bench):
    cmds = {
        "ip -j -4 rule": rules(RULE_103),
        "ip -j route show table 103": NO_TABLE,
    }

    seen = bench.judge(bench.doc(cmds=cmds))

    finding = seen.one("route-table-empty", "rail0 (13.13.2.13)")
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert finding.observed == (
        "rule 103 'from 13.13.2.13 lookup 103' but table 103 does not exist"
    )
    assert seen.one("route-get-consistent").blocked_by == ("route-table-empty",)
    assert seen.report.exit_code() == 1


def test_f12_a_lone_rule_row_is_enough(bench):
    cmds = {
        "ip -j rule": json.dumps([RULE_103]),
        "ip -j route show table 103": NO_TABLE,
    }

    assert bench.judge(bench.doc(cmds=cmds)).status("route-table-empty") == "FAIL"


def test_f12_among_complete_facts_it_is_the_one_root_cause(bench):
    cmds = {
        **F11,
        "ip -j rule": rules(RULE_103),
        "ip -j route show table 103": NO_TABLE,
    }

    seen = bench.judge(bench.doc(cmds=cmds))

    assert seen.status("route-table-empty", ETH3) == "FAIL"
    assert seen.one("route-cross-rail", ETH3).blocked_by == ("route-table-empty",)
    assert seen.status("route-table-default", ETH3) == "SKIP"


def test_f12b_an_emptied_table_fails_as_well(bench):
    cmds = {"ip -j -4 rule": rules(RULE_103), "ip -j route show table 103": "[]"}

    finding = bench.judge(bench.doc(cmds=cmds)).one("route-table-empty")

    assert finding.status == "FAIL"
    assert finding.observed.endswith("table 103 is empty")


@pytest.mark.parametrize("spelling", ["103", "rail3"])
def test_f12c_a_table_is_the_same_by_name_and_number(bench, spelling):
    rows = [
        default("eth3", "13.13.2.1"),
        connected("eth3", "13.13.2.0/24", "13.13.2.13"),
    ]
    cmds = {
        "ip -j -4 rule": rules({**RULE_103, "table": "rail3"}),
        f"ip -j route show table {spelling}": json.dumps(rows),
    }
    files = {"/etc/iproute2/rt_tables": "#\n255\tlocal\n254\tmain\n103 rail3\n"}

    seen = bench.judge(bench.doc(cmds=cmds, files=files))

    assert seen.status("route-table-empty") == "PASS"


def test_f12c_an_empty_table_is_found_by_its_name(bench):
    cmds = {
        "ip -j -4 rule": rules({**RULE_103, "table": "rail3"}),
        "ip -j route show table 103": NO_TABLE,
    }
    files = {"/etc/iproute2/rt_tables": "103 rail3\n"}

    seen = bench.judge(bench.doc(cmds=cmds, files=files))

    assert seen.status("route-table-empty") == "FAIL"


@pytest.mark.parametrize(
    "entry",
    [
        (2, "[", ""),
        (0, "[", ""),
        (0, "", ""),
        (127, "", "not found"),
        (1, "", "Operation not permitted"),
    ],
)
def test_a_table_that_cannot_be_read_is_unknown(bench, entry):
    cmds = {"ip -j -4 rule": rules(RULE_103), "ip -j route show table 103": entry}

    assert bench.judge(bench.doc(cmds=cmds)).status("route-table-empty") == "UNKNOWN"


def test_a_table_that_nobody_dumped_is_unknown(bench):
    cmds = {**F11, "ip -j rule": rules(RULE_103)}

    seen = bench.judge(bench.doc(cmds=cmds))

    assert seen.status("route-table-empty", ETH3) == "UNKNOWN"
    assert seen.status("route-peer-same-rail", ETH3) == "UNKNOWN"


ABOUT_ALL_ROUTES = (
    "route-linkdown-flag",
    "route-mtu-locked",
    "route-ecmp",
    "route-prefix-consistent",
)


@pytest.mark.parametrize("table", [None, (0, "[{", ""), (0, "", "")])
def test_a_table_that_was_not_seen_is_never_free_of_faults(bench, table):
    rows = [link("eth2", "12.12.12.43"), link("eth3", "13.13.2.13")]
    cmds = {**F11, "ip -j rule": rules(RULE_103), "ip -j -d addr": json.dumps(rows)}
    if table is not None:
        cmds["ip -j route show table 103"] = table

    seen = bench.judge(bench.doc(cmds=cmds))

    for check in ABOUT_ALL_ROUTES:
        assert "PASS" not in seen.statuses(check).values(), check


# F13: one subnet

F13 = json.dumps(
    [
        link("ens1f0", "192.168.1.1", mac="02:00:5e:10:00:01"),
        link("ens1f1", "192.168.1.2", mac="02:00:5e:10:00:02"),
    ]
)
BOTH = "rail0 (ens1f0, 192.168.1.1), rail1 (ens1f1, 192.168.1.2)"
F13_RULES = rules(
    {"priority": 101, "src": "192.168.1.1", "table": "101"},
    {"priority": 102, "src": "192.168.1.2", "table": "102"},
)
F13_TABLES = {
    f"ip -j route show table {table}": json.dumps(
        [connected(dev, "192.168.1.0/24", ip), default(dev, "192.168.1.254")]
    )
    for table, dev, ip in (
        ("101", "ens1f0", "192.168.1.1"),
        ("102", "ens1f1", "192.168.1.2"),
    )
}


def arp(ignore, announce, *names):
    return {
        f"{CONF}/{name}/{leaf}": f"{value}\n"
        for name in ("all", *names)
        for leaf, value in (("arp_ignore", ignore), ("arp_announce", announce))
    }


def test_f13_r19_mooncake_166_two_nics_in_one_subnet_fail(bench):
    cmds = {"ip -j -d addr": F13, "ip -j -4 rule": json.dumps(DEFAULT)}

    seen = bench.judge(bench.doc(cmds=cmds, files=arp(0, 0, "ens1f0", "ens1f1")))

    finding = seen.one("route-same-subnet-multi-nic")
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert finding.subject == BOTH
    assert set(seen.statuses("route-arp-ignore").values()) == {"FAIL"}
    blocked = {f.blocked_by for f in seen.all("route-arp-ignore")}
    assert blocked == {("route-same-subnet-multi-nic",)}


@pytest.mark.parametrize("what", ["rules", "sysctls"])
def test_f13_one_half_of_the_evidence_is_enough_to_fail(bench, what):
    cmds = {"ip -j -d addr": F13}
    if what == "rules":
        cmds["ip -j rule"] = json.dumps(DEFAULT)
    files = arp(0, 0, "ens1f0", "ens1f1") if what == "sysctls" else {}

    seen = bench.judge(bench.doc(cmds=cmds, files=files))

    assert seen.status("route-same-subnet-multi-nic") == "FAIL"


def test_f13_without_rules_and_settings_it_is_unknown(bench):
    seen = bench.judge(bench.doc(cmds={"ip -j addr": F13}))

    assert seen.status("route-same-subnet-multi-nic") == "UNKNOWN"


@pytest.mark.parametrize("names", [(), ("ens1f0", "ens1f1")])
def test_f13b_rules_tables_and_arp_settings_keep_them_apart(bench, names):
    cmds = {"ip -j -d addr": F13, "ip -j -4 rule": F13_RULES, **F13_TABLES}

    seen = bench.judge(bench.doc(cmds=cmds, files=arp(1, 2, *names)))

    assert seen.status("route-same-subnet-multi-nic") == "PASS"
    assert "FAIL" not in seen.statuses("route-arp-ignore").values()


def test_f13b_with_tables_that_lead_to_the_other_nic_it_fails(bench):
    swapped = {
        "ip -j route show table 101": F13_TABLES["ip -j route show table 102"],
        "ip -j route show table 102": F13_TABLES["ip -j route show table 101"],
    }
    cmds = {"ip -j -d addr": F13, "ip -j -4 rule": F13_RULES, **swapped}

    seen = bench.judge(bench.doc(cmds=cmds, files=arp(1, 2)))

    assert seen.status("route-same-subnet-multi-nic") == "FAIL"


def test_f13c_a_second_nic_without_carrier_is_no_active_rail(bench):
    rows = json.dumps(
        [link("ens1f0", "192.168.1.1"), link("ens1f1", "192.168.1.2", up=False)]
    )
    cmds = {"ip -j -d addr": rows, "ip -j -4 rule": json.dumps(DEFAULT)}

    seen = bench.judge(bench.doc(cmds=cmds, files=arp(0, 0, "ens1f0", "ens1f1")))

    finding = seen.one("route-same-subnet-multi-nic")
    assert finding.status == "SKIP"
    assert "ens1f1 is not an active rail" in finding.observed
    assert seen.status("route-arp-ignore", "rail1 (ens1f1, 192.168.1.2)") == "SKIP"


def test_r20_nccl_1269_eight_nics_in_one_subnet_are_one_finding(bench):
    rows = [link(f"eth{n}", f"192.168.1.{n + 1}") for n in range(8)]
    cmds = {"ip -j -d addr": json.dumps(rows), "ip -j -4 rule": json.dumps(DEFAULT)}

    seen = bench.judge(bench.doc(cmds=cmds))

    assert seen.status("route-same-subnet-multi-nic") == "FAIL"
    assert "eth7" in seen.one("route-same-subnet-multi-nic").subject


def test_r21_nccl_1109_one_mac_answers_for_eight_nics(bench):
    names = [f"eth{n}" for n in range(8)]
    rows = [link(name, f"10.0.0.{n + 1}") for n, name in enumerate(names)]
    cmds = {"ip -j -d addr": json.dumps(rows)}

    seen = bench.judge(bench.doc(cmds=cmds, files=arp(0, 2, *names)))

    finding = seen.one("route-arp-ignore", "rail3 (eth3, 10.0.0.4)")
    assert (finding.status, finding.severity) == ("FAIL", "error")


def test_arp_settings_that_drift_from_the_peers_warn(bench):
    def node(name, octet, value):
        rows = json.dumps([link("eth2", f"10.0.2.{octet}")])
        return bench.doc(name, cmds={"ip -j addr": rows}, files=arp(value, 2, "eth2"))

    nodes = [node(f"node-{n}", n + 1, 1) for n in range(3)]

    seen = bench.judge(*nodes, node("node-9", 9, 0))

    assert seen.status("route-arp-ignore", node="node-9") == "WARN"
    assert seen.status("route-arp-ignore", node="node-1") == "PASS"


# F15: rp_filter


def rp(everybody, own):
    return {
        f"{CONF}/all/rp_filter": f"{everybody}\n",
        f"{CONF}/eth3/rp_filter": f"{own}\n",
        f"{CONF}/eth2/rp_filter": f"{own}\n",
    }


@pytest.mark.parametrize(
    ("everybody", "own", "status"),
    [(1, 0, "FAIL"), (0, 2, "PASS"), (2, 1, "PASS"), (0, 0, "PASS"), (0, 1, "FAIL")],
)
def test_f15_r27_the_greater_value_is_in_effect(bench, everybody, own, status):
    seen = bench.judge(bench.doc(cmds=F11, files=rp(everybody, own)))

    assert seen.status("route-rp-filter", ETH3) == status


@pytest.mark.parametrize(
    ("everybody", "own", "status"),
    [(1, 0, "UNKNOWN"), (0, 2, "PASS"), (2, 1, "PASS")],
)
def test_f15_r27_with_nothing_but_the_settings(bench, everybody, own, status):
    seen = bench.judge(bench.doc(files=rp(everybody, own)))

    assert seen.status("route-rp-filter", "eth3") == status


def test_f15_strict_filtering_is_right_with_symmetric_tables(bench):
    rows = json.dumps([link("eth2", "12.12.12.43"), link("eth3", "13.13.2.13")])
    cmds = {
        "ip -j -d addr": rows,
        "ip -j -4 rule": rules(
            {"priority": 102, "src": "12.12.12.43", "table": "102"}, RULE_103
        ),
        "ip -j route show table 102": json.dumps([default("eth2", "12.12.12.1")]),
        "ip -j route show table 103": json.dumps([default("eth3", "13.13.2.1")]),
    }

    seen = bench.judge(bench.doc(cmds=cmds, files=rp(1, 0)))

    assert seen.statuses("route-rp-filter") == {ETH2: "PASS", ETH3: "PASS"}
    assert seen.one("route-rp-filter", ETH3).severity == "info"


def test_f15_one_unread_value_is_unknown(bench):
    files = {f"{CONF}/eth3/rp_filter": "0\n", f"{CONF}/eth2/rp_filter": "0\n"}

    seen = bench.judge(bench.doc(cmds=F11, files=files))

    assert seen.status("route-rp-filter", ETH3) == "UNKNOWN"


# F18: neighbours

F18 = json.dumps(
    [
        {"dst": "192.0.2.1", "dev": "eth2", "state": ["FAILED"]},
        {
            "dst": "192.0.2.44",
            "dev": "eth2",
            "lladdr": "02:00:5e:10:00:01",
            "state": ["REACHABLE"],
        },
    ]
)
F18_LINKS = json.dumps(
    [
        link("eth2", "192.0.2.43", mac="02:00:5e:10:00:02"),
        link("eth3", "198.51.100.43", mac="02:00:5e:10:00:01"),
    ]
)
F18_PEER = json.dumps([link("eth2", "192.0.2.44", mac="02:00:5e:20:00:09")])
F18_ETH2 = "rail0 (eth2, 192.0.2.43)"


@pytest.mark.parametrize("routes", [True, False])
def test_f18_r24_nccl_1405_a_stranger_answers_for_a_peer(bench, routes):
    cmds = {"ip -j -d addr": F18_LINKS, "ip -j neigh": F18}
    if routes:
        rows = [default("eth2", "192.0.2.1", table="101")]
        cmds["ip -j -4 route show table all"] = json.dumps(rows)
    ours = bench.doc("node-a", cmds=cmds)
    peer = bench.doc("node-b", cmds={"ip -j -d addr": F18_PEER, "ip -j neigh": "[]"})

    seen = bench.judge(ours, peer)

    assert seen.status("route-gateway-neigh", F18_ETH2, "node-a") == "FAIL"
    finding = seen.one("route-dup-ip", F18_ETH2, "node-a")
    assert finding.status == "FAIL"
    assert "our own eth3" in finding.observed
    assert seen.status("route-dup-ip", node="node-b") == "PASS"


def test_f18_the_gateway_of_the_default_route_counts_though_it_is_no_rail(bench):
    cmds = {
        "ip -j -d addr": F18_LINKS,
        "ip -j neigh": F18,
        "ip -j route": json.dumps([default("eth2", "192.0.2.1")]),
    }
    peer = bench.doc("node-b", cmds={"ip -j -d addr": F18_PEER, "ip -j neigh": "[]"})

    seen = bench.judge(bench.doc("node-a", cmds=cmds), peer)

    assert seen.status("route-gateway-neigh", "eth2", "node-a") == "FAIL"
    assert seen.status("route-dup-ip", "eth2", "node-a") == "FAIL"


def test_f18_our_own_mac_behind_a_peers_address_is_seen_without_the_peer(bench):
    cmds = {"ip -j -d addr": F18_LINKS, "ip -j neigh": F18}

    assert bench.judge(bench.doc(cmds=cmds)).status("route-dup-ip", F18_ETH2) == "FAIL"


def test_r24_one_address_on_two_nodes_fails_on_both(bench):
    cmds = {"ip -j -d addr": F18_PEER, "ip -j neigh": "[]"}
    nodes = [bench.doc(name, cmds=cmds) for name in ("node-a", "node-b")]

    seen = bench.judge(*nodes)

    assert seen.by_node("route-dup-ip") == {"node-a": "FAIL", "node-b": "FAIL"}


def two_rails(octet, *, way_out=""):
    """`ip addr` and routes of a node with two rails; a default route over one NIC."""
    ips = {"eth2": f"192.0.2.{octet}", "eth3": f"198.51.100.{octet}"}
    networks = {"eth2": "192.0.2.0/24", "eth3": "198.51.100.0/24"}
    rows = [connected(dev, networks[dev], ip) for dev, ip in ips.items()]
    if way_out:
        rows.append(default(way_out, networks[way_out].replace("0/24", "1")))
    return {
        "ip -j -d addr": json.dumps([link(dev, ip) for dev, ip in ips.items()]),
        "ip -j -4 route show table all": json.dumps(rows),
        "ip -j -4 rule": json.dumps(DEFAULT),
    }


@pytest.mark.parametrize("peers", [1, 3])
def test_f18_a_rail_that_is_the_way_out_leaves_the_other_rails_paired(bench, peers):
    ours = bench.doc("node-a", cmds=two_rails(43, way_out="eth2"))
    others = [bench.doc(f"node-{n}", cmds=two_rails(50 + n)) for n in range(peers)]

    seen = bench.judge(ours, *others)

    name = "rail0 (eth3, 198.51.100.43)"
    assert seen.statuses("route-peer-same-rail", "node-a") == {name: "PASS"}
    assert f"{peers} peers" in seen.one("route-peer-same-rail", name).observed
    of_peer = seen.statuses("route-peer-same-rail", "node-0")
    assert set(of_peer.values()) == {"PASS"}


def test_f18_two_nodes_whose_ways_out_are_different_rails_are_never_failed(bench):
    one = bench.doc("node-a", cmds=two_rails(43, way_out="eth2"))
    two = bench.doc("node-b", cmds=two_rails(44, way_out="eth3"))

    seen = bench.judge(one, two)

    assert set(seen.by_node("route-peer-same-rail").values()) == {"UNKNOWN"}
    assert "FAIL" not in seen.by_node("route-table-default").values()


def test_f18_rails_of_a_node_with_fewer_of_them_in_other_networks_are_unknown(bench):
    lone = {
        "ip -j -d addr": json.dumps([link("eth3", "203.0.113.43")]),
        "ip -j -4 route show table all": json.dumps(
            [connected("eth3", "203.0.113.0/24", "203.0.113.43")]
        ),
        "ip -j -4 rule": json.dumps(DEFAULT),
    }
    others = [bench.doc(f"node-{n}", cmds=two_rails(50 + n)) for n in range(3)]

    seen = bench.judge(bench.doc("node-a", cmds=lone), *others)

    assert seen.status("route-peer-same-rail", node="node-a") == "UNKNOWN"
    told = seen.statuses("route-peer-same-rail", "node-0")
    assert set(told.values()) == {"UNKNOWN"}


def test_f18_a_rail_that_a_name_of_the_profile_pairs_is_failed_all_the_same(bench):
    named = [{"name": "a", "netdev": "eth2"}, {"name": "b", "netdev": "eth3"}]
    ours = {**two_rails(43, way_out="eth2")}
    rows = json.loads(ours["ip -j -4 route show table all"])
    ours["ip -j -4 route show table all"] = json.dumps([rows[0], rows[2]])
    others = [bench.doc(f"node-{n}", cmds=two_rails(50 + n)) for n in range(3)]

    seen = bench.judge(
        bench.doc("node-a", cmds=ours), *others, profile={"rails": named}
    )

    told = seen.one("route-peer-same-rail", "b (eth3, 198.51.100.43)")
    assert (told.status, told.severity) == ("FAIL", "critical")


def test_a_gateway_that_was_not_spoken_to_is_unknown(bench):
    cmds = {
        "ip -j -d addr": F18_LINKS,
        "ip -j neigh": "[]",
        "ip -j -4 route show table all": json.dumps([default("eth2", "192.0.2.1")]),
    }

    seen = bench.judge(bench.doc(cmds=cmds), nics=("eth2", "eth3"))

    assert seen.status("route-gateway-neigh", F18_ETH2) == "UNKNOWN"


# F19: rule order

F19_RULES = [
    DEFAULT[0],
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
    *DEFAULT[1:],
]


def test_f19_a_mark_does_not_shadow_and_a_suppressed_default_is_a_note(bench):
    seen = bench.judge(bench.doc(cmds={"ip -j -4 rule": json.dumps(F19_RULES)}))

    finding = seen.one("route-rule-order", "rail0 (12.12.12.43)")
    assert (finding.status, finding.severity) == ("PASS", "info")
    assert "rule 101" in finding.observed
    assert "rule 100" not in finding.observed


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ({"priority": 50, "src": "all", "table": "main"}, "FAIL"),
        ({"priority": 50, "src": "12.12.0.0", "srclen": 16, "table": "main"}, "FAIL"),
        ({"priority": 50, "src": "12.12.12.43", "action": "unreachable"}, "FAIL"),
        ({"priority": 50, "src": "all", "goto": 32766}, "FAIL"),
        ({"priority": 50, "src": "all", "l3mdev": None}, "PASS"),
        ({"priority": 9, "src": "all", "fwmark": "0x200", "table": "2004"}, "PASS"),
        ({"priority": 50, "src": "10.9.9.9", "table": "main"}, "PASS"),
        ({"priority": 50, "src": "all", "iif": "cilium_host", "table": "main"}, "PASS"),
        ({"priority": 50, "src": "all", "dst": "10.96.0.1", "table": "main"}, "FAIL"),
        ({"priority": 32765, "src": "all", "table": "main"}, "PASS"),
        ({"priority": 50, "src": "all", "table": "77"}, "UNKNOWN"),
    ],
)
def test_f19_what_shadows_a_rails_rule(bench, rule, status):
    own = {"priority": 102, "src": "12.12.12.43", "table": "102"}
    every = sorted([rule, own], key=lambda each: each["priority"])
    rows = [connected("eth2", "12.12.0.0/16", "12.12.12.43")]
    cmds = {
        "ip -j -4 rule": rules(*every),
        "ip -j route": json.dumps(F11_ROUTES),
        "ip -j route show table 102": json.dumps(rows),
    }

    seen = bench.judge(bench.doc(cmds=cmds))

    assert seen.status("route-rule-order", ETH2) == status


# R09, R25, R50, R80


def nmcli(bench, kept, lost):
    cmds = {
        "ip -j addr": json.dumps([link("enp1s0f0np0", "10.0.0.1")]),
        "nmcli -t -f DEVICE,STATE,CONNECTION d": (
            "enp1s0f0np0:connected:rail0\nlo:unmanaged:\n"
        ),
    }
    files = {
        "/etc/NetworkManager/system-connections": kept,
        "/run/NetworkManager/system-connections": lost,
    }
    return bench.judge(bench.doc(cmds=cmds, files=files)).status("route-nm-managed")


def test_r09_dgx_spark_pr_40_a_profile_in_run_is_lost_at_reboot(bench):
    assert nmcli(bench, (), ("rail0.nmconnection",)) == "WARN"
    assert nmcli(bench, ("rail0.nmconnection",), ()) == "PASS"


def test_r09_a_profile_that_nobody_saw_is_unknown(bench):
    assert nmcli(bench, (), ()) == "UNKNOWN"
    assert nmcli(bench, {"errno": "EACCES"}, ()) == "UNKNOWN"


def live(bench, src, dst, answer, **more):
    cmds = {
        "ip -j -d addr": json.dumps(
            [link("eth2", "12.12.12.43"), link("eth3", "13.13.2.13")]
        ),
        f"ip -j route get {dst} from {src}": answer,
        **more,
    }
    return bench.judge(bench.doc(cmds=cmds))


def answer(dst, src, dev):
    row = {"dst": dst, "from": src, "dev": dev, "flags": [], "uid": 0, "cache": []}
    return json.dumps([row])


def test_r25_k8s_launch_kit_pr_254_an_unforced_route_by_another_nic_fails(bench):
    seen = live(
        bench, "13.13.2.13", "13.13.2.14", answer("13.13.2.14", "13.13.2.13", "eth10")
    )

    finding = seen.one("route-get-consistent", ETH3)
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert "leaves eth10, not eth3" in finding.observed


def test_r25_a_kernel_that_finds_no_route_fails(bench):
    told = (2, "", "RTNETLINK answers: Network is unreachable\n")

    seen = live(bench, "13.13.2.13", "10.9.9.9", told)

    assert seen.status("route-get-consistent", ETH3) == "FAIL"


def test_r25_the_right_nic_passes_and_silence_is_unknown(bench):
    good = answer("13.13.2.14", "13.13.2.13", "eth3")

    seen = live(bench, "13.13.2.13", "13.13.2.14", good)

    assert seen.status("route-get-consistent", ETH3) == "PASS"
    assert seen.status("route-get-consistent", ETH2) == "UNKNOWN"


@pytest.mark.parametrize("told", [(0, "", ""), (0, '[{"dst"', ""), (1, "", "Killed")])
def test_an_answer_that_cannot_be_read_is_unknown(bench, told):
    seen = live(bench, "13.13.2.13", "13.13.2.14", told)

    assert seen.status("route-get-consistent", ETH3) == "UNKNOWN"


def test_destination_based_sites_send_cross_rail_by_the_other_nic(bench):
    told = answer("12.12.12.44", "13.13.2.13", "eth2")

    seen = live(bench, "13.13.2.13", "12.12.12.44", told)

    assert seen.status("route-get-consistent", ETH3) == "PASS"


def test_our_prediction_against_the_kernels_answer_is_our_own_fault(bench):
    from checks.judge import judge

    told = answer("13.13.2.14", "13.13.2.13", "eth3")
    rows = [connected("eth10", "13.13.2.14", "192.0.2.1"), *F11_ROUTES]
    document = bench.doc(
        cmds={
            "ip -j -d addr": json.dumps([link("eth3", "13.13.2.13", prefixlen=32)]),
            "ip -j rule": json.dumps(DEFAULT),
            "ip -j route": json.dumps(rows),
            "ip -j route get 13.13.2.14 from 13.13.2.13": told,
        }
    )

    report = judge([document])

    assert [f for f in report.own_faults if "we predict that it leaves eth10" in f]


def ping(bench, size, stdout, rc=0, stderr=""):
    cmds = {
        "ip -j -d addr": json.dumps([link("eth3", "13.13.2.13", mtu=9000)]),
        f"ping -c 1 -W 1 -M do -s {size} -I 13.13.2.13 13.13.2.14": (
            rc,
            stdout,
            stderr,
        ),
    }
    return bench.judge(bench.doc(cmds=cmds, collector={"active": True}))


SUMMARY = "\n1 packets transmitted, {} received, {}% packet loss, time 0ms\n"


def test_r50_nccl_709_a_switch_with_a_smaller_mtu_fails_the_path(bench):
    seen = ping(bench, 8972, SUMMARY.format(0, 100), rc=1)

    finding = seen.one("route-path-mtu")
    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert finding.is_root


def test_r50_a_local_refusal_names_the_mtu(bench):
    told = "ping: local error: message too long, mtu=1500\n"

    seen = ping(bench, 8972, SUMMARY.format(0, 100), rc=1, stderr=told)

    assert "mtu=1500" in seen.one("route-path-mtu").observed


def test_r50_a_whole_packet_that_passes_is_proof_and_a_small_one_is_not(bench):
    assert ping(bench, 8972, SUMMARY.format(1, 0)).status("route-path-mtu") == "PASS"
    assert ping(bench, 1472, SUMMARY.format(1, 0)).status("route-path-mtu") == "UNKNOWN"


def test_path_mtu_and_hairpin_are_skipped_without_active(bench):
    seen = bench.judge(bench.doc(cmds=F11))

    assert seen.status("route-path-mtu") == "SKIP"
    assert seen.status("act-hairpin") == "SKIP"


def test_r16_mooncake_35_a_rail_that_cannot_reach_its_sibling_fails(bench):
    document = bench.doc(
        cmds={
            "rdma -j link": json.dumps(
                [
                    {
                        "ifname": f"mlx5_{n}",
                        "port": 1,
                        "state": "ACTIVE",
                        "physical_state": "LINK_UP",
                        "netdev": f"eth{n}",
                    }
                    for n in range(2)
                ]
            )
        },
        collector={"active": True},
    )
    probe = {"kind": "rc-pingpong", "to": "mlx5_0", "error": "timed out"}
    document["verbs"] = {
        "probes": [
            {**probe, "from": "mlx5_1", "errno": 110},
            {**probe, "from": "mlx5_0", "to": "mlx5_1", "errno": 0},
        ]
    }

    seen = bench.judge(document)

    assert seen.status("act-hairpin", "mlx5_1") == "FAIL"
    assert seen.status("act-hairpin", "mlx5_0") == "PASS"
    assert seen.status("act-rc-pingpong", "mlx5_0") == "UNKNOWN"


def test_r80_two_macvlan_rails_in_a_pod_need_a_rule_each(bench):
    inside = "kubectl exec -n ai worker-0 --"
    rows = [
        link("eth0", "10.0.3.7", linkinfo={"info_kind": "veth"}),
        link("net1", "192.168.10.5", linkinfo={"info_kind": "macvlan"}),
        link("net2", "192.168.20.5", linkinfo={"info_kind": "macvlan"}),
    ]
    main = [default("eth0", "10.0.3.1")]
    cmds = {
        f"{inside} ip -j -d addr": json.dumps(rows),
        f"{inside} ip -j -4 rule": json.dumps(DEFAULT),
        f"{inside} ip -j -4 route show table all": json.dumps(main),
    }

    seen = bench.judge(bench.doc(cmds=cmds), profile={"routes": {"cross_rail": True}})

    assert seen.statuses("route-source-rule") == {
        "pod:ai/worker-0 net1 (192.168.10.5)": "FAIL",
        "pod:ai/worker-0 net2 (192.168.20.5)": "FAIL",
    }


# Addresses, MTU, likeness


def test_a_rail_without_an_address_fails_and_blocks_what_needs_it(bench):
    rows = json.dumps([link("eth2", ""), link("eth3", "13.13.2.13")])
    cmds = {"ip -j -d addr": rows, "ip -j -4 rule": json.dumps(DEFAULT)}

    seen = bench.judge(bench.doc(cmds=cmds), nics=("eth2", "eth3"))

    assert seen.status("route-nic-has-ip", "rail0 (eth2)") == "FAIL"
    assert seen.one("route-dup-ip", "rail0 (eth2)").blocked_by == ("route-nic-has-ip",)


def test_addresses_of_ipv6_alone_are_a_sites_choice(bench):
    rows = [link("net1", "2001:db8::5", prefixlen=120, family="inet6")]
    node = bench.doc(cmds={"ip -j addr": json.dumps(rows)})

    assert bench.judge(node).status("route-nic-has-ip") == "PASS"
    seen = bench.judge(node, profile={"routes": {"ipv6": False}})
    assert seen.status("route-nic-has-ip") == "FAIL"


def mtu_node(bench, name, octet, mtu):
    rows = json.dumps([link("eth2", f"10.0.2.{octet}", mtu=mtu)])
    return bench.doc(name, cmds={"ip -j -d addr": rows})


@pytest.mark.parametrize(
    "peers", [(4200, 9000), (4200, 4200), (9000, 9000, 4200), (4200, 9000, 9000, 4200)]
)
def test_f47_r48_a_netdev_of_1500_among_larger_ones_fails(bench, peers):
    nodes = [mtu_node(bench, "node-a", 1, 1500)]
    nodes += [mtu_node(bench, f"node-{n}", n + 2, mtu) for n, mtu in enumerate(peers)]

    seen = bench.judge(*nodes)

    assert seen.status("route-mtu-iface", node="node-a") == "FAIL"
    assert seen.by_node("route-mtu-iface")["node-0"] in {"PASS", "FAIL"}


def test_f47_the_mtu_in_sysfs_alone_is_compared(bench):
    nodes = [
        bench.doc(f"node-{name}", files={"/sys/class/net/ens1/mtu": f"{mtu}\n"})
        for name, mtu in (("a", 1500), ("b", 4200), ("c", 9000))
    ]

    seen = bench.judge(*nodes)

    assert seen.by_node("route-mtu-iface") == {
        "node-a": "FAIL",
        "node-b": "PASS",
        "node-c": "PASS",
    }


def test_two_nodes_that_differ_in_mtu_both_warn(bench):
    nodes = [mtu_node(bench, "node-a", 1, 1500), mtu_node(bench, "node-b", 2, 4200)]

    assert set(bench.judge(*nodes).by_node("route-mtu-iface").values()) == {"WARN"}


def test_an_mtu_below_the_profiles_fails(bench):
    profile = {"routes": {"rail_mtu": 4200}}

    seen = bench.judge(mtu_node(bench, "node-a", 1, 1500), profile=profile)

    assert seen.status("route-mtu-iface") == "FAIL"


def test_a_macvlan_with_a_greater_mtu_than_its_parent_fails(bench):
    rows = [
        link("ens1", "", mtu=1500),
        link(
            "rail", "10.0.2.1", mtu=9000, link="ens1", linkinfo={"info_kind": "macvlan"}
        ),
    ]

    seen = bench.judge(bench.doc(cmds={"ip -j -d addr": json.dumps(rows)}))

    assert seen.status("route-mtu-iface") == "FAIL"


def test_an_own_table_with_its_default_over_another_nic_fails(bench):
    rows = [
        default("eth10", "192.0.2.254"),
        connected("eth3", "13.13.2.0/24", "13.13.2.13"),
    ]
    cmds = {
        **F11,
        "ip -j rule": rules(RULE_103),
        "ip -j route show table 103": json.dumps(rows),
    }

    assert (
        bench.judge(bench.doc(cmds=cmds)).status("route-table-default", ETH3) == "FAIL"
    )


def test_a_rule_that_like_nodes_have_is_missed_without_a_profile(bench):
    def node(name, octet, *own):
        cmds = {**like_f11(name, octet), "ip -j rule": rules(*own)}
        rows = [connected("eth3", "13.13.2.0/24", f"13.13.2.{octet}")]
        cmds["ip -j route show table 103"] = json.dumps(rows)
        return bench.doc(name, cmds=cmds)

    nodes = [
        node(f"node-{n}", n, {**RULE_103, "src": f"13.13.2.{n}"}) for n in (1, 2, 3)
    ]

    seen = bench.judge(*nodes, node("node-4", 4))

    of_eth3 = [f for f in seen.all("route-source-rule") if "eth3" in f.subject]
    assert {f.node: f.status for f in of_eth3} == {
        "node-1": "PASS",
        "node-2": "PASS",
        "node-3": "PASS",
        "node-4": "FAIL",
    }


def test_a_cloned_mac_and_a_guid_of_zero_fail(bench):
    rows = json.dumps([link("eth2", "10.0.2.1", mac="02:00:5e:00:00:01")])
    twin = rows.replace("10.0.2.1", "10.0.2.2")
    one = bench.doc("node-a", cmds={"ip -j addr": rows})
    other = bench.doc("node-b", cmds={"ip -j addr": twin})

    seen = bench.judge(one, other)

    assert seen.by_node("route-dup-mac") == {"node-a": "FAIL", "node-b": "FAIL"}


def test_nothing_at_all_is_never_a_pass(bench):
    seen = bench.judge(bench.doc())

    passed = [f.id for f in seen.report.findings if f.status == "PASS"]
    assert [name for name in passed if name.startswith(("route", "act"))] == []
