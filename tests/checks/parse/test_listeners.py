"""Listening sockets, names, settings, versions, sizes."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.chrony import parse_tracking
from checks.parse.garbled import Garbled
from checks.parse.hosts import parse_getent, parse_hosts
from checks.parse.listeners import is_loopback, parse_ss
from checks.parse.meminfo import parse_meminfo
from checks.parse.sysctl import covered, parse_ports, setting
from checks.parse.wheel_version import parse_version, versions
from checks.rules.segment import parse_size, shown

ROWS = (
    "LISTEN 0 4096 127.0.0.1:2379 0.0.0.0:*\n"
    'LISTEN 0 128 *:50051 *:* users:(("mooncake_master",pid=7,fd=9))\n'
    "LISTEN 0 128 [::ffff:127.0.0.1]:9003 *:*\n"
    "LISTEN 0 128 127.0.0.53%lo:53 0.0.0.0:*\n"
)


def test_every_spelling_of_a_listening_address():
    assert [(s.address, s.port, s.process) for s in parse_ss(ROWS)] == [
        ("127.0.0.1", 2379, ""),
        ("", 50051, "mooncake_master"),
        ("::ffff:127.0.0.1", 9003, ""),
        ("127.0.0.53", 53, ""),
    ]
    assert [s.only_loopback for s in parse_ss(ROWS)] == [True, False, True, True]


def test_a_row_that_is_cut_off_is_refused():
    with pytest.raises(Garbled):
        parse_ss(ROWS[:-10])


def test_loopback_is_more_than_one_address():
    assert is_loopback("127.0.1.1")
    assert is_loopback("::1")
    assert not is_loopback("node-a")


def test_names_of_a_hosts_file_are_of_any_case_and_end_at_a_comment():
    text = "127.0.1.1 Node-A node-a.lab # own\n#192.0.2.1 node-b\nnonsense node-c\n"

    assert parse_hosts(text) == {
        "node-a": ("127.0.1.1",),
        "node-a.lab": ("127.0.1.1",),
    }


def test_a_line_of_getent_without_its_end_is_refused():
    assert parse_getent("192.0.2.1 a.lab a\n", "a") == ("192.0.2.1",)
    with pytest.raises(Garbled):
        parse_getent("192.0.2.1 a.la", "node")
    with pytest.raises(Garbled):
        parse_getent("192.0.2", "node")


def test_reserved_ports_cover_a_span_together():
    ports = parse_ports("15000-16000,16001-17000,50051")

    assert covered(range(15000, 17001), ports)
    assert not covered(range(14999, 15002), ports)
    assert parse_ports("") == ()
    with pytest.raises(Garbled):
        parse_ports("50051,x")


def test_a_setting_is_read_from_its_file_or_from_the_tool(bench):
    one = Facts(bench.doc(files={"/proc/sys/vm/swappiness": "60\n"}))
    two = Facts(bench.doc(cmds={"sysctl -n vm.swappiness": "60\n"}))
    three = Facts(bench.doc(cmds={"sysctl -a": "vm.other = 1\nvm.swappiness = 60\n"}))

    assert {setting(facts, "vm.swappiness") for facts in (one, two, three)} == {"60"}
    with pytest.raises(Unread):
        setting(Facts(bench.doc()), "vm.swappiness")


@pytest.mark.parametrize(
    "text",
    ["0.3.8.post1", "v0.3.8.post1\n", "mooncake_master version 0.3.8.post1+cu12\n"],
)
def test_a_version_without_its_decoration(text):
    assert parse_version(text) == "0.3.8.post1"


def test_a_version_is_told_by_pip_too(bench):
    text = "Name: mooncake-transfer-engine\nVersion: 0.3.7.post2\n"
    line = "pip show mooncake-transfer-engine"

    assert versions(Facts(bench.doc(cmds={line: text}))) == {line: "0.3.7.post2"}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("68719476736", 64 << 30),
        ("64GB", 64 << 30),
        ("64 GiB", 64 << 30),
        ("1.5g", 3 << 29),
    ],
)
def test_sizes_count_in_powers_of_1024(text, size):
    assert parse_size(text) == size


def test_sizes_as_people_say_them():
    assert [shown(n) for n in (64 << 30, 3 << 29, 100)] == [
        "64 GiB",
        "1.5 GiB",
        "100 bytes",
    ]


def test_memory_of_a_numa_node_and_of_the_machine():
    assert parse_meminfo("Node 1 MemTotal:  1024 kB\n") == {"MemTotal": 1 << 20}
    assert parse_meminfo("HugePages_Total:   12\nbroken\n") == {"HugePages_Total": 12}


def test_tracking_has_fourteen_fields():
    with pytest.raises(Garbled):
        parse_tracking("C0000201,192.0.2.1,3,1.0,0.0,Normal\n")
