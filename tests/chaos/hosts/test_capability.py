"""What a host can do is read from what it said, never assumed."""

from __future__ import annotations

import pytest

import chaos.faults as build
from chaos.hosts.capability import (
    COMMANDS,
    NEEDS,
    device_of,
    extras,
    mount_of,
    table,
    throttle_root,
    why_not,
)
from chaos.safety.facts import Told

NO_NETEM = "exit 2: Error: Specified qdisc kind is unknown."
PROBE = {
    "nft": True,
    "nft_numgen": True,
    "nft_limit": True,
    "nft_reject": True,
    "link": True,
    "tbf": True,
    "netem": False,
    "cgroup": "v1",
    "root": True,
    "pidfd": True,
    "why_not": {"netem": NO_NETEM},
}
MOUNTINFO = """\
22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:25 / /tmp rw - tmpfs tmpfs rw
31 22 254:16 / /scratch rw - ext4 /dev/vdb rw
32 22 254:16 /x /scr rw - ext4 /dev/vdb rw
"""
V1 = "cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"


def told(mounts=V1, controllers=""):
    texts = {"mountinfo": MOUNTINFO, "mounts": mounts, "controllers": controllers}
    return {name: Told(rc=0, stdout=text) for name, text in texts.items()}


def test_every_fault_that_can_be_built_has_its_needs_written_down() -> None:
    kinds = set(build.__all__) - {"links_of", "failpoint"}

    assert kinds <= set(NEEDS)


def test_what_lacks_netem_says_so_in_the_words_of_the_probe() -> None:
    found = table(PROBE, extras(told(), "/scratch"))

    assert {kind for kind, reason in found.items() if reason} == {
        "latency",
        "reorder",
        "corrupt",
    }
    assert found["latency"] == f"netem: {NO_NETEM}"


def test_a_host_that_said_nothing_can_do_nothing_that_needs_something() -> None:
    found = table({})

    free = {"memory", "cpu", "clock_step", "port_taken"}
    assert {kind for kind, reason in found.items() if not reason} == free


def test_a_fault_that_nobody_knows_is_not_possible() -> None:
    assert "no fault" in why_not("earthquake", PROBE)


@pytest.mark.parametrize(
    ("scratch", "reason"),
    [
        ("", "no scratch mount is named"),
        ("/scratch/inner", "no mount point of its own"),
        ("/scratch", ""),
    ],
)
def test_only_a_named_mount_of_its_own_is_filled(scratch, reason) -> None:
    found = why_not("disk_full", PROBE, extras(told(), scratch))

    assert reason in found
    assert bool(reason) == bool(found)


def test_a_disk_in_memory_cannot_be_slowed_down() -> None:
    assert "no block device" in why_not("slow_disk", PROBE, extras(told(), "/tmp"))
    assert why_not("slow_disk", PROBE, extras(told(), "/scratch")) == ""


@pytest.mark.parametrize(
    ("mounts", "controllers", "expected"),
    [
        (V1, "", ("v1", "/sys/fs/cgroup/blkio")),
        (V2, "cpu io memory", ("v2", "/sys/fs/cgroup")),
        (V2, "cpu memory", None),
        (V1 + V2, "io", ("v1", "/sys/fs/cgroup/blkio")),
        ("", "", None),
    ],
)
def test_the_hierarchy_that_limits_disks_is_found(
    mounts, controllers, expected
) -> None:
    assert throttle_root(told(mounts, controllers)) == expected


def test_the_longest_mount_point_holds_a_path() -> None:
    assert (mount_of(MOUNTINFO, "/scratch/a"), device_of(MOUNTINFO, "/scratch/a")) == (
        "/scratch",
        "254:16",
    )
    assert mount_of(MOUNTINFO, "/scratchy") == "/"


def test_the_commands_only_read() -> None:
    assert {argv[0] for argv in COMMANDS.values()} == {"cat"}
