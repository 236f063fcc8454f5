"""Command lines are found by what they read, whatever their spelling."""

from __future__ import annotations

import pytest

from checks.commands import pci_address, reading


@pytest.mark.parametrize(
    ("line", "program", "words", "family"),
    [
        ("ip -j rule", "ip", ("rule",), None),
        ("ip -j -4 rule", "ip", ("rule",), 4),
        ("/sbin/ip -json -4 rule show", "ip", ("rule",), 4),
        ("sudo -n timeout 5 ip -j -6 ru list", "ip", ("rule",), 6),
        ("env LC_ALL=C ip -f inet -j rule", "ip", ("rule",), 4),
        ("ip -j -d addr", "ip", ("addr",), None),
        ("ip -d -j address show", "ip", ("addr",), None),
        ("ip -j a", "ip", ("addr",), None),
        ("ip -j -4 route show table all", "ip", ("route", "table", "all"), 4),
        (
            "ip -j route get 10.0.0.1 from 10.0.0.2",
            "ip",
            ("route", "get", "10.0.0.1", "from", "10.0.0.2"),
            None,
        ),
        ("ip -j neighbour", "ip", ("neigh",), None),
    ],
)
def test_spellings_of_ip_read_the_same(line, program, words, family):
    found = reading(line)

    assert (found.program, found.words, found.family) == (program, words, family)


@pytest.mark.parametrize(
    ("line", "program", "words"),
    [
        (
            "ovs-vsctl --timeout=5 --format=json --columns=name,error list Interface",
            "ovs-vsctl",
            ("list", "Interface"),
        ),
        ("ovs-vsctl -t 5 -f json list Interface", "ovs-vsctl", ("list", "Interface")),
        ("ovs-appctl -t /run/x.ctl -T 3 version", "ovs-appctl", ("version",)),
        ("ovs-appctl bond/show", "ovs-appctl", ("bond/show",)),
        ("ethtool -i eth0", "ethtool", ("driver", "eth0")),
        ("ethtool --driver eth0", "ethtool", ("driver", "eth0")),
        ("ethtool --json -k eth0", "ethtool", ("features", "eth0")),
        ("ethtool eth0", "ethtool", ("link", "eth0")),
        ("lspci -Dvvv -s 17:00.0", "lspci", ("0000:17:00.0",)),
        ("lspci -vvv -s 0000:17:00.0", "lspci", ("0000:17:00.0",)),
        ("mstconfig -d 1b:00.0 -e q", "mstconfig", ("0000:1b:00.0",)),
        ("mlxconfig -d 1b:00.0 q", "mstconfig", ("0000:1b:00.0",)),
        ("dcb -j pfc show dev ens1", "dcb", ("pfc", "ens1")),
        ("mlnx_qos -i ens1", "mlnx_qos", ("ens1",)),
        ("devlink -j dev info", "devlink", ("dev", "info")),
        (
            "devlink -j dev eswitch show pci/0000:3b:00.0",
            "devlink",
            ("dev", "eswitch", "pci/0000:3b:00.0"),
        ),
        ("rdma -j -d link", "rdma", ("link",)),
        ("rdma link show", "rdma", ("link",)),
        ("rdma system", "rdma", ("system",)),
        ("kubectl get pods web -n ml -o json", "kubectl", ("get", "pod", "web")),
        ("kubectl get pod/web -o json", "kubectl", ("get", "pod", "web")),
        ("journalctl -k -b -o json", "journalctl", ()),
        ("chronyc -c tracking", "chronyc", ("tracking",)),
        ("", "", ()),
    ],
)
def test_words_are_canonical(line, program, words):
    found = reading(line)

    assert (found.program, found.words) == (program, words)


@pytest.mark.parametrize(
    ("line", "where", "words"),
    [
        ("ip -n rail0 -j addr", "netns:rail0", ("addr",)),
        ("ip netns exec rail0 ip -j addr", "netns:rail0", ("addr",)),
        ("nsenter -t 71 -n ip -j addr", "pid:71", ("addr",)),
        ("sudo nsenter --net=/run/x -- ip -j addr", "netns:/run/x", ("addr",)),
        ("kubectl exec -n ml web -c main -- ip -j addr", "pod:ml/web", ("addr",)),
        ("kubectl exec web -- ip -j addr", "pod:web", ("addr",)),
        ("ip -j addr", "", ("addr",)),
    ],
)
def test_a_command_inside_another_namespace_is_not_the_hosts(line, where, words):
    found = reading(line)

    assert (found.where, found.words) == (where, words)


def test_a_pci_address_has_its_domain():
    assert pci_address("1B:00.0") == "0000:1b:00.0"
    assert pci_address("pci/0000:1b:00.0") == "0000:1b:00.0"


def test_a_table_of_ovs_is_the_same_in_any_case_and_with_any_columns():
    spellings = (
        "ovs-vsctl --timeout=5 --format=json list Interface",
        "sudo -n ovs-vsctl -f json --columns=name,error list interface",
        "/usr/bin/ovs-vsctl --columns name list Interface",
    )

    assert {reading(line).words for line in spellings} == {("list", "Interface")}
    line = "ovs-vsctl --format=json list open-vswitch"
    assert reading(line).words == ("list", "Open_vSwitch")
