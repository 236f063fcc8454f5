"""The GID engine chooses what Mooncake chooses, version by version."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest

from checks.facts import Unread
from checks.gids import Era, Rank, asked_index, atoi, choose, era, rank
from checks.parse.gid_table import V1, V2, Gid, GidTable

LOCAL, GLOBAL = "fe80::1", "2001:db8::5"
PUBLIC, PRIVATE, HOME = "::ffff:198.51.100.6", "::ffff:10.1.2.3", "::ffff:192.168.1.1"


def gid(index, address, kind=V2, netdev="ens1"):
    return Gid(index=index, address=IPv6Address(address), kind=kind, netdev=netdev)


def table(*gids, empty=()):
    return GidTable(source="test", gids=gids, empty=frozenset(empty))


def chosen(*gids, of=Era.RANKED, asked=None, empty=()):
    return choose(table(*gids, empty=empty), of, asked).index


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((0, 3, 0), Era.FIRST_MAPPED),
        ((0, 3, 6, 1), Era.FIRST_MAPPED),
        ((0, 3, 7), Era.NETDEV_FIRST),
        ((0, 3, 7, 2), Era.NETDEV_FIRST),
        ((0, 3, 8), Era.STRICT),
        ((0, 3, 8, 1), Era.STRICT),
        ((0, 3, 9), Era.STRICT),
        ((0, 3, 10), Era.IPV6_FALLBACK),
        ((0, 3, 11, 1), Era.IPV6_FALLBACK),
        ((0, 3, 12), Era.RANKED),
        ((0, 4, 0), Era.RANKED),
        (None, Era.RANKED),
    ],
)
def test_versions_that_choose_alike_are_one_era(version, expected):
    assert era(version) is expected


def test_the_order_of_classes_is_that_of_the_header():
    entries = [
        gid(8, PUBLIC),
        gid(7, PUBLIC, netdev=""),
        gid(6, PRIVATE),
        gid(5, LOCAL),
        gid(4, PRIVATE, netdev=""),
        gid(3, LOCAL, netdev=""),
        gid(2, PUBLIC, kind=V1),
    ]

    assert [rank(each) for each in entries] == list(Rank)
    for at in range(len(entries)):
        assert chosen(*entries[at:]) == entries[at].index


def test_ties_go_to_the_lowest_index():
    assert chosen(gid(3, PUBLIC), gid(1, PUBLIC)) == 1


@pytest.mark.parametrize("netdev", ["docker0", "cni0", "flannel.1", "calico9", "tunl0"])
def test_overlays_are_degraded_whatever_their_address(netdev):
    assert rank(gid(1, PUBLIC, netdev=netdev)) is Rank.DEGRADED


@pytest.mark.parametrize("netdev", ["xdocker0", "tunl1", "veth1", "br-docker"])
def test_only_the_names_that_mooncake_knows_are_overlays(netdev):
    assert rank(gid(1, PUBLIC, netdev=netdev)) is Rank.ROUTABLE


@pytest.mark.parametrize(
    ("ip", "private"),
    [
        ("10.0.0.1", True),
        ("172.16.0.1", True),
        ("172.31.255.1", True),
        ("172.32.0.1", False),
        ("100.64.0.1", True),
        ("100.128.0.1", False),
        ("192.168.1.1", False),
    ],
)
def test_private_is_what_mooncake_holds_for_private(ip, private):
    found = rank(gid(1, f"::ffff:{ip}"))

    assert found is (Rank.PRIVATE_IPV4 if private else Rank.ROUTABLE)


def test_global_ipv6_outranks_10_8_but_not_192_168():
    assert chosen(gid(2, PRIVATE), gid(5, GLOBAL)) == 5
    assert chosen(gid(2, HOME), gid(5, GLOBAL)) == 2


def test_private_ipv4_outranks_link_local_since_pr_2741():
    assert chosen(gid(1, LOCAL), gid(3, PRIVATE)) == 3


@pytest.mark.parametrize("of", [Era.FIRST_MAPPED, Era.NETDEV_FIRST])
def test_old_versions_fall_back_to_index_0(of):
    found = choose(table(gid(1, GLOBAL), empty=(0,)), of)

    assert (found.index, found.is_usable) == (0, False)


def test_0_3_7_prefers_a_netdev_and_0_3_6_does_not():
    entries = (gid(1, PUBLIC, netdev=""), gid(3, PUBLIC))

    assert chosen(*entries, of=Era.FIRST_MAPPED) == 1
    assert chosen(*entries, of=Era.NETDEV_FIRST) == 3
    assert chosen(*entries[:1], of=Era.NETDEV_FIRST) == 1


def test_0_3_8_without_ipv4_disables_the_device():
    assert not choose(table(gid(1, GLOBAL)), Era.STRICT).is_usable


def test_0_3_8_disables_a_device_whose_asked_gid_has_no_netdev():
    entry = table(gid(0, PUBLIC, netdev=""))

    assert not choose(entry, Era.STRICT, 0).is_usable
    assert choose(entry, Era.IPV6_FALLBACK, 0).is_usable


def test_0_3_10_takes_ipv6_where_there_is_no_ipv4():
    assert chosen(gid(0, GLOBAL, netdev=""), gid(1, GLOBAL), of=Era.IPV6_FALLBACK) == 1
    assert chosen(gid(0, GLOBAL), gid(1, PUBLIC), of=Era.IPV6_FALLBACK) == 1


def test_0_3_10_stops_at_the_first_empty_slot():
    entries = (gid(0, GLOBAL), gid(3, PUBLIC))

    assert chosen(*entries, of=Era.IPV6_FALLBACK, empty=(1, 2)) == 0
    assert chosen(*entries, of=Era.RANKED, empty=(1, 2)) == 0
    assert chosen(*entries, of=Era.IPV6_FALLBACK) == 3


def test_no_gid_is_no_device():
    assert not choose(table(), Era.RANKED).is_usable


def test_an_untyped_gid_leaves_the_choice_open():
    with pytest.raises(Unread):
        choose(table(gid(1, PUBLIC, kind="")), Era.RANKED)


@pytest.mark.parametrize(
    ("env", "of", "index"),
    [
        ({}, Era.RANKED, None),
        ({"MC_GID_INDEX": "3"}, Era.RANKED, 3),
        ({"MC_GID_INDEX": ""}, Era.RANKED, 0),
        ({"MC_GID_INDEX": "x"}, Era.RANKED, 0),
        ({"MC_GID_INDEX": "0"}, Era.NETDEV_FIRST, None),
        ({"MC_GID_INDEX": "-1"}, Era.RANKED, None),
        ({"MC_GID_INDEX": "256"}, Era.RANKED, None),
        ({"NCCL_IB_GID_INDEX": "5"}, Era.RANKED, 5),
        ({"NCCL_IB_GID_INDEX": "5", "MC_GID_INDEX": "3"}, Era.RANKED, 3),
        ({"UCX_IB_GID_INDEX": "5"}, Era.RANKED, None),
    ],
)
def test_the_asked_index_is_read_as_mooncake_reads_it(env, of, index):
    assert asked_index(env, of) == index


@pytest.mark.parametrize(("text", "value"), [("3x", 3), (" 7", 7), ("-1", -1), ("", 0)])
def test_numbers_are_read_as_c_reads_them(text, value):
    assert atoi(text) == value
