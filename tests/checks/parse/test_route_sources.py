"""Neighbours, live answers, pings, NetworkManager: what is read, what is refused."""

from __future__ import annotations

import json

import pytest

from checks.facts import Facts, Unread
from checks.parse.ip_neigh import neighbours
from checks.parse.ip_rule import rules
from checks.parse.nmcli import managed
from checks.parse.ping import pings
from checks.parse.route_get import samples_of


def facts(bench, **cmds):
    return Facts(bench.doc(cmds=cmds))


def test_a_neighbour_that_failed_has_no_mac(bench):
    rows = [
        {"dst": "192.0.2.1", "dev": "eth2", "state": ["FAILED"]},
        {},
        {"dst": "192.0.2.9", "dev": "eth2", "lladdr": "02:AB::01", "state": ["STALE"]},
    ]

    dead, live = neighbours(facts(bench, **{"ip -j neigh show": json.dumps(rows)}))

    assert (dead.is_dead, dead.mac) == (True, "")
    assert (live.is_dead, live.mac) == (False, "02:ab::01")


@pytest.mark.parametrize("entry", ["", "[", (1, "[]", "denied"), '[{"dev":"eth2"}]'])
def test_neighbours_that_cannot_be_read_are_refused(bench, entry):
    with pytest.raises(Unread):
        neighbours(facts(bench, **{"ip -j neigh": entry}))


def test_live_answers_are_errors_or_devices_and_nothing_else(bench):
    good = [{"dst": "10.0.0.2", "from": "10.0.0.1", "dev": "eth3", "flags": []}]
    told = {
        "ip -j route get 10.0.0.2 from 10.0.0.1": json.dumps(good),
        "ip -4 -j route get 10.0.0.3 from 10.0.0.1 mark 0x10": json.dumps(good),
        "ip -j route get 10.0.0.4 from 10.0.0.1": (
            2,
            "",
            "RTNETLINK answers: Network is unreachable\n",
        ),
        "ip -j route get 10.0.0.5 from 10.0.0.1": (0, "", ""),
        "ip -j route get 10.0.0.6": json.dumps(good),
    }

    read, unread = samples_of(facts(bench, **told))

    by_dst = {each.dst: each for each in read}
    assert set(by_dst) == {"10.0.0.2", "10.0.0.3", "10.0.0.4"}
    assert by_dst["10.0.0.2"].dev == "eth3"
    assert by_dst["10.0.0.3"].is_bound
    assert by_dst["10.0.0.4"].error == "Network is unreachable"
    assert [error.kind for error in unread] == ["empty"]


def test_a_ping_bound_to_a_device_proves_nothing_and_is_left_out(bench):
    text = "1 packets transmitted, 1 received, 0% packet loss, time 0ms\n"
    told = {
        "ping -c 1 -M do -s 8972 -I 10.0.0.1 10.0.0.2": text,
        "ping -c 1 -M do -s 8972 -I eth3 10.0.0.2": text,
        "ping -c 1 -I 10.0.0.1 10.0.0.3": text,
        "ping -c 1 -I 10.0.0.1 10.0.0.4": (2, "", "ping: bind: Cannot assign"),
    }

    read, unread = pings(facts(bench, **told))

    assert {each.target: each.size for each in read} == {
        "10.0.0.2": 9000,
        "10.0.0.3": None,
    }
    assert len(unread) == 1


def test_names_with_colons_are_unescaped_and_a_cut_line_is_refused(bench):
    line = "nmcli -t -f DEVICE,STATE,CONNECTION d"
    whole = "eth3:connected:rail\\:3\nlo:unmanaged:--\n"

    found = managed(facts(bench, **{line: whole}))

    assert found["eth3"].connection == "rail:3"
    assert not found["lo"].is_managed
    with pytest.raises(Unread):
        managed(facts(bench, **{line: whole[:-1]}))


def test_rules_that_refuse_and_rules_by_the_name_of_a_tos(bench):
    rows = [
        {"priority": 5, "src": "all", "action": "blackhole"},
        {"priority": 6, "src": "all", "to_tbl": "prohibit"},
        {"priority": 7, "src": "all", "nop": None},
        {"priority": 8, "src": "all", "tos": "CS4", "table": "7"},
    ]

    found = rules(facts(bench, **{"ip -j rule": json.dumps(rows)}), 4)

    assert [each.action for each in found] == ["blackhole", "prohibit", "nop", ""]
    assert found[3].tos == 0x80
