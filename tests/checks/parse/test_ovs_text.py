"""What ovs-appctl, ovs-ofctl and the log print, whole and cut off."""

from __future__ import annotations

import pytest

from checks.facts import Unread
from checks.parse.ovs_appctl import (
    parse_bonds,
    parse_flow_limits,
    parse_lookups,
    parse_version,
)
from checks.parse.ovs_flows import parse_flows
from checks.parse.ovs_log import last_day, parse_log

BOND = """---- b ----
bond_mode: active-backup

member p0: enabled
  active member
  may_enable: true

member p1: disabled
  may_enable: false

"""
TWO_PATHS = """netdev@ovs-netdev:
  lookups: hit:1 missed:2 lost:3
  flows: 0
system@ovs-system:
  lookups: hit:10 missed:20 lost:30
  flows: 7
"""


def test_members_tell_whether_they_may_be_used():
    first, second = parse_bonds(BOND)

    assert (first.name, first.state, first.may_enable) == ("p0", "enabled", True)
    assert (second.name, second.state, second.may_enable) == ("p1", "disabled", False)


def test_lookups_of_all_datapaths_are_added_up():
    found = parse_lookups(TWO_PATHS)

    assert (found.hit, found.missed, found.lost) == (11, 22, 33)
    assert found.datapaths == ("netdev@ovs-netdev", "system@ovs-system")


@pytest.mark.parametrize("at", range(1, TWO_PATHS.rindex("lost:30") + len("lost:30")))
def test_lookups_that_are_cut_off_never_lose_a_datapath_in_silence(at):
    try:
        found = parse_lookups(TWO_PATHS[:at])
    except Unread:
        return
    assert found.datapaths == ("netdev@ovs-netdev",)


def test_a_version_is_that_of_vswitchd_and_of_nobody_else():
    assert parse_version("ovs-vswitchd (Open vSwitch) 2.17.7-e054917\n") == (
        "2.17.7-e054917"
    )
    with pytest.raises(Unread):
        parse_version("ovsdb-server (Open vSwitch) 3.1.0\n")


def test_limits_are_told_by_datapath():
    text = "s:\n  flows         : (current 4) (avg 1) (max 9) (limit 10000)\n"

    assert parse_flow_limits(text) == ((4, 10_000),)
    with pytest.raises(Unread):
        parse_flow_limits("s:\n")


def test_flows_are_told_with_and_without_statistics():
    text = (
        "OFPST_FLOW reply (OF1.3) (xid=0x2):\n"
        " cookie=0x1, duration=2s, table=3, n_packets=4, n_bytes=5, send_flow_rem"
        " priority=7,udp,in_port=1 actions=output:2\n"
        " priority=0 actions=NORMAL\n"
    )

    first, second = parse_flows(text)

    assert (first.table, first.priority, first.packets) == ("3", 7, 4)
    assert dict(first.match) == {"udp": "", "in_port": "1"}
    assert (second.priority, second.actions, second.drops) == (0, "NORMAL", False)


def test_times_of_the_log_come_with_and_without_milliseconds():
    text = (
        "2026-02-08T16:24:36Z|271237|netdev_linux|WARN|tap: one\n"
        "2026-02-10T16:24:36.500Z|00002|dpif(handler2)|ERR|two|three\nnoise\n"
    )

    found = parse_log(text)

    assert [(e.module, e.level, e.text) for e in found] == [
        ("netdev_linux", "WARN", "tap: one"),
        ("dpif", "ERR", "two|three"),
    ]
    assert [e.text for e in last_day(found)] == ["two|three"]
