"""Connections without a source, and the rails over which they are answered."""

from __future__ import annotations

import json

import pytest

CHECK = "route-asymmetric"
NETS = ("198.18.0.0/24", "198.18.1.0/24")
RULE, ROUTE = "ip -j -4 rule", "ip -j -4 route show table all"


def ip(at, octet):
    return f"198.18.{at}.{octet}"


def row(dev, network, source, **more):
    return {"dst": network, "dev": dev, "prefsrc": source, "flags": [], **more}


def doc(bench, name, octet, *more, rules=True, cmds=None):
    """Two rails, each with its rule, its table and its connected route; `more` main."""
    links, rows, own = [], [], []
    for at, network in enumerate(NETS):
        dev, here = f"eth{at}", ip(at, octet)
        address = {"family": "inet", "local": here, "prefixlen": 24, "scope": "global"}
        links.append(
            {
                "ifname": dev,
                "flags": ["UP", "LOWER_UP"],
                "mtu": 4200,
                "operstate": "UP",
                "link_type": "ether",
                "addr_info": [address],
            }
        )
        gateway = {"dst": "default", "gateway": ip(at, 254), "dev": dev, "flags": []}
        table = str(101 + at)
        rows += [{**gateway, "table": table}, row(dev, network, here, table=table)]
        rows.append(row(dev, network, here, scope="link"))
        own.append({"priority": 1000 + at, "src": here, "table": table})
    base = [{"priority": 0, "src": "all", "table": "local"}]
    last = [{"priority": 32766, "src": "all", "table": "main"}]
    found = {
        "ip -j -d addr": json.dumps(links),
        RULE: json.dumps([*base, *(own if rules else []), *last]),
        ROUTE: json.dumps([*rows, *more]),
    }
    return bench.doc(name, cmds=found | (cmds or {}))


def judged(bench, *nodes):
    return bench.judge(*nodes, only=CHECK, nics=("eth0", "eth1"))


def detour(octet, dev="eth1", **more):
    """A peer's address of the first rail by way of the second."""
    return row(dev, f"{ip(0, octet)}/32", ip(1, 1), **more)


def test_r27_felix_2082_a_connection_that_is_answered_over_another_rail_warns(bench):
    nodes = [doc(bench, "a", 1, detour(2)), doc(bench, "b", 2), doc(bench, "c", 3)]

    seen = judged(bench, *nodes)

    found = seen.one(CHECK, "rail0 (eth0, 198.18.0.1)", "a")
    assert found.status == "WARN"
    assert found.observed == (
        "198.18.0.2 is reached over rail1 (eth1), b answers over rail0 (eth0)"
    )
    others = [f for f in seen.all(CHECK) if f is not found]
    assert {f.status.value for f in others} == {"PASS"}


def test_both_ways_over_the_other_rail_is_no_detour(bench):
    back = row("eth1", f"{ip(1, 1)}/32", ip(1, 2), table="101")

    nodes = [doc(bench, "a", 1, detour(2)), doc(bench, "b", 2, back)]

    assert (
        judged(bench, *nodes).status(CHECK, "rail0 (eth0, 198.18.0.1)", "a") == "PASS"
    )


def test_a_source_that_has_its_own_table_is_looked_up_again(bench):
    """The kernel takes the source of the first lookup, and its rule sends it home."""
    here = row("eth1", f"{ip(0, 2)}/32", ip(0, 1))

    nodes = [doc(bench, "a", 1, here), doc(bench, "b", 2)]

    assert (
        judged(bench, *nodes).status(CHECK, "rail0 (eth0, 198.18.0.1)", "a") == "PASS"
    )


def test_a_route_without_a_source_takes_the_address_of_its_device(bench):
    bare = {"dst": f"{ip(0, 2)}/32", "dev": "eth1", "flags": []}

    nodes = [doc(bench, "a", 1, bare), doc(bench, "b", 2)]

    assert (
        judged(bench, *nodes).status(CHECK, "rail0 (eth0, 198.18.0.1)", "a") == "WARN"
    )


def ecmp(octet, **more):
    hops = [{"gateway": ip(at, 254), "dev": f"eth{at}", "flags": []} for at in (0, 1)]
    return {"dst": f"{ip(0, octet)}/32", "flags": [], "nexthops": hops, **more}


def test_a_choice_among_two_rails_is_unknown(bench):
    nodes = [doc(bench, "a", 1, ecmp(2)), doc(bench, "b", 2)]

    seen = judged(bench, *nodes)

    found = seen.one(CHECK, "rail0 (eth0, 198.18.0.1)", "a")
    assert found.status == "UNKNOWN"
    assert "leaves eth0 or eth1" in found.observed


def test_a_choice_of_the_second_look_is_unknown(bench):
    chosen = ecmp(2, table="102")

    nodes = [doc(bench, "a", 1, detour(2), chosen), doc(bench, "b", 2)]

    seen = judged(bench, *nodes)

    assert seen.status(CHECK, "rail0 (eth0, 198.18.0.1)", "a") == "UNKNOWN"


def test_a_peer_that_is_wrong_counts_for_more_than_one_in_doubt(bench):
    nodes = [
        doc(bench, "a", 1, ecmp(2), detour(3)),
        doc(bench, "b", 2),
        doc(bench, "c", 3),
    ]

    seen = judged(bench, *nodes)

    assert seen.status(CHECK, "rail0 (eth0, 198.18.0.1)", "a") == "WARN"


def test_a_route_of_the_rail_with_the_source_of_another_is_looked_up_again(bench):
    """By the rule of that source it leaves over the other rail."""
    foreign = row("eth0", f"{ip(0, 2)}/32", ip(1, 1))

    nodes = [doc(bench, "a", 1, foreign), doc(bench, "b", 2)]

    seen = judged(bench, *nodes)

    found = seen.one(CHECK, "rail0 (eth0, 198.18.0.1)", "a")
    assert found.status == "WARN"
    assert found.observed == (
        "198.18.0.2 is reached over rail1 (eth1), b answers over rail0 (eth0)"
    )


def test_connections_over_management_take_no_other_rail(bench):
    nodes = [doc(bench, "a", 1, detour(2, dev="eno1")), doc(bench, "b", 2)]

    assert (
        judged(bench, *nodes).status(CHECK, "rail0 (eth0, 198.18.0.1)", "a") == "PASS"
    )


def test_alone_there_is_nobody_to_answer(bench):
    seen = judged(bench, doc(bench, "a", 1, detour(2)))

    assert set(seen.statuses(CHECK).values()) == {"SKIP"}


@pytest.mark.parametrize("line", [RULE, ROUTE])
def test_a_peer_whose_routes_were_cut_off_is_not_taken_for_symmetric(bench, line):
    nodes = [doc(bench, "a", 1, detour(2)), doc(bench, "b", 2, cmds={line: "[{"})]

    seen = judged(bench, *nodes)

    assert seen.status(CHECK, "rail0 (eth0, 198.18.0.1)", "a") == "UNKNOWN"


def test_more_detours_than_are_tried_are_unknown(bench, monkeypatch):
    monkeypatch.setattr("checks.rules.route_asymmetric._MOST_ANSWERS", 0)

    nodes = [doc(bench, "a", 1, detour(2)), doc(bench, "b", 2)]

    seen = judged(bench, *nodes)

    assert seen.status(CHECK, "rail0 (eth0, 198.18.0.1)", "a") == "UNKNOWN"
