"""Rings and channels: what is set, never what could be."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.ethtool_queues import channels, parse_current, rings
from checks.parse.garbled import Garbled

RINGS = """Ring parameters for ens1f0np0:
Pre-set maximums:
RX:\t\t\t8192
RX Mini:\t\tn/a
RX Jumbo:\t\tn/a
TX:\t\t\t8192
TX push buff len:\tn/a
Current hardware settings:
RX:\t\t\t1024
RX Mini:\t\tn/a
RX Jumbo:\t\tn/a
TX:\t\t\t2048
RX Buf Len:\t\tn/a
TX Push:\t\toff
"""
CHANNELS = """Channel parameters for ens1f0np0:
Pre-set maximums:
RX:\t\tn/a
TX:\t\tn/a
Other:\t\tn/a
Combined:\t63
Current hardware settings:
RX:\t\tn/a
TX:\t\tn/a
Other:\t\tn/a
Combined:\t16
"""


def facts(line, text):
    return Facts({"cmds": {line: {"rc": 0, "stdout": text, "stderr": ""}}})


def test_what_is_set_is_told_and_not_the_maximum():
    assert rings(facts("ethtool -g eth0", RINGS), "eth0") == {"RX": 1024, "TX": 2048}
    assert channels(facts("ethtool -l eth0", CHANNELS), "eth0") == {"Combined": 16}


def test_a_nic_of_separate_queues_has_no_combined_ones():
    text = CHANNELS.replace("RX:\t\tn/a", "RX:\t\t4").replace("\t16", "\t0")

    assert channels(facts("ethtool -l eth0", text), "eth0") == {"RX": 4}


@pytest.mark.parametrize("at", range(0, RINGS.rindex("TX:\t\t\t2048") + 10, 7))
def test_no_cut_of_rings_gives_other_ones(at):
    with pytest.raises(Unread):
        rings(facts("ethtool -g eth0", RINGS[:at]), "eth0")


@pytest.mark.parametrize("at", [*range(0, len(CHANNELS) - 1, 9), len(CHANNELS) - 1])
def test_no_cut_of_channels_gives_other_ones(at):
    with pytest.raises(Unread):
        channels(facts("ethtool -l eth0", CHANNELS[:at]), "eth0")


def test_text_of_another_kind_is_garbled():
    with pytest.raises(Garbled):
        parse_current("netlink error: Operation not supported\n", "ethtool -g eth0")
