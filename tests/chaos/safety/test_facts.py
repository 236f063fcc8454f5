"""The facts of a host, as its own tools tell them."""

from __future__ import annotations

import json

import pytest

from chaos.errors import HarnessError
from chaos.safety.facts import (
    COMMANDS,
    Told,
    cgroup_root,
    destinations,
    peers_of,
    read_facts,
    ssh_ports_of,
)

LINKS = [
    {"ifname": "lo"},
    {"ifname": "eth0", "altnames": ["enp1s0", "oob"], "master": "bond0"},
    {"ifname": "bond0"},
    {"ifname": "vlan7", "link": "eth1", "linkinfo": {"info_kind": "vlan"}},
    {"ifname": "rail0", "link": "peer", "linkinfo": {"info_kind": "veth"}},
]
QDISCS = [
    {"kind": "noqueue", "handle": "0:", "dev": "lo", "root": True},
    {"kind": "htb", "handle": "1:", "dev": "rail0", "root": True},
    {"kind": "fq", "handle": "7:", "dev": "vlan7", "parent": "1:1"},
]
TEXTS = {
    "links": json.dumps(LINKS),
    "qdiscs": json.dumps(QDISCS),
    "resolvers": "# by hand\nnameserver 10.0.0.53\nsearch example\nnameserver ::1\n",
    "clocks": "^,*,10.0.0.123,2,6,377,21,-1,1,1\n^,?,ntp.example,0,6,0,0,0,0,0\n",
    "session": "10.9.9.9 50000 10.0.0.7 2222\n",
    "logins": "0 0 10.0.0.7:2222 10.9.9.9:50000\n"
    "0 0 [::ffff:10.0.0.7]:22 [::ffff:10.8.8.8]:4000\n"
    "0 0 10.0.0.7:7000 10.7.7.7:33000\n",
    "daemons": "77\n78\n",
    "mounts": "/dev/vda1 / ext4 rw 0 0\ntmpfs /a\\040b tmpfs rw 0 0\n"
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
    "memory": "MemTotal: 10 kB\nMemAvailable:       2048 kB\n",
    "cgroup": "4:memory:/system.slice/sshd\n0::/user\n",
}


def told(**changed):
    texts = {**TEXTS, **changed}
    return {name: Told(rc=0, stdout=texts[name]) for name in COMMANDS}


def facts(**changed):
    given = told(**changed)
    routes = {"10.9.9.9": Told(rc=0, stdout='[{"dst":"10.9.9.9","dev":"bond0"}]')}
    routes["10.0.0.53"] = Told(rc=2, stdout="")
    return read_facts(
        "h", given, routes, controllers=peers_of(given), pids=frozenset({5})
    )


def test_the_commands_only_read() -> None:
    assert not {"set", "add", "del", "replace"} & {
        word for argv in COMMANDS.values() for word in argv
    }


def test_devices_have_their_names_masters_and_parents() -> None:
    devices = {device.name: device for device in facts().devices}

    assert devices["eth0"].other_names == ("enp1s0", "oob")
    assert devices["eth0"].master == "bond0"
    assert devices["vlan7"].parent == "eth1"
    assert devices["rail0"].parent == ""


def test_only_a_root_qdisc_that_somebody_put_there_counts() -> None:
    found = {device.name: device.root_qdisc for device in facts().devices}

    assert found["rail0"] == "htb"
    assert (found["lo"], found["vlan7"]) == ("", "")


def test_what_carries_the_controller_is_untouchable_with_its_members() -> None:
    assert facts().carriers == {"bond0"}
    assert facts().untouchable == {"bond0", "eth0"}


def test_everybody_who_is_logged_in_is_a_controller() -> None:
    assert peers_of(told()) == ("10.9.9.9", "::ffff:10.8.8.8")
    assert peers_of(told(session=""), "10.1.1.1") == (
        "10.1.1.1",
        "::ffff:10.8.8.8",
    )


def test_the_port_of_the_session_is_a_port_of_ssh() -> None:
    assert ssh_ports_of(told()) == (22, 2222)
    assert ssh_ports_of(told(session="")) == (22,)


def test_resolvers_and_time_servers_are_asked_the_way_to() -> None:
    found = destinations(told(), ("10.9.9.9",))

    assert found == ("10.9.9.9", "10.0.0.53", "::1", "10.0.0.123")


def test_processes_cgroups_memory_and_mounts_are_protected() -> None:
    found = facts()

    assert found.protected_pids == {1, 5, 77, 78}
    assert found.protected_cgroups == {
        "/sys/fs/cgroup/memory/system.slice/sshd",
        "/sys/fs/cgroup/unified/user",
    }
    assert found.available_bytes == 2048 * 1024
    assert found.mounts["/a b"] == "tmpfs"


@pytest.mark.parametrize("text", ["", "[]", "no json"])
def test_a_host_that_does_not_tell_its_devices_is_an_error(text) -> None:
    with pytest.raises(HarnessError, match="does not tell its network devices"):
        facts(links=text)


@pytest.mark.parametrize(
    ("controllers", "expected"),
    [("memory", "/sys/fs/cgroup/memory"), ("", "/sys/fs/cgroup/unified"), ("io", "")],
)
def test_the_mount_of_a_hierarchy_is_found(controllers, expected) -> None:
    assert cgroup_root(TEXTS["mounts"], controllers) == expected
