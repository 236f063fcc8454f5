"""Faults of processes, memory, processors, disks and ports on real hosts."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from chaos.errors import NotHere, UsageError
from chaos.faults import on_hosts
from chaos.hosts.facts import why_not
from chaos.safety.identity import wait_until
from chaos.safety.management import Refused


def undo(pair, fault, before):
    fault.revert()

    assert fault.verify_reverted() == ""
    assert pair.settle(before) == []
    assert pair.read(timeout_s=2).end == "ok"
    assert pair.children() == []


def test_kill_ends_a_role_and_revert_brings_another(pair) -> None:
    before, old = pair.states(), pair.process("store-0")
    fault = on_hosts.kill(pair, "store-0")
    fault.inject()

    assert pair.process("store-0") is None
    assert fault.probe().effect == 1
    undo(pair, fault, before)
    assert pair.process("store-0").pid != old.pid


@pytest.mark.slow
def test_kill_of_a_role_that_does_not_run_is_refused(pair) -> None:
    fault = on_hosts.kill(pair, "store-0")
    fault.inject()

    with pytest.raises(UsageError, match="store-0 is not running"):
        on_hosts.kill(pair, "store-0").inject()
    fault.revert()


def test_pause_hangs_a_role_and_revert_wakes_it(pair) -> None:
    before, old = pair.states(), pair.process("store-0")
    fault = on_hosts.pause(pair, "store-0")
    fault.inject()

    assert pair.read().end == "silent"
    assert fault.probe().effect == 1
    undo(pair, fault, before)
    assert pair.process("store-0") == old


@pytest.mark.slow
def test_a_paused_role_that_dies_needs_no_waking(pair) -> None:
    fault = on_hosts.pause(pair, "store-0")
    fault.inject()
    kill = on_hosts.kill(pair, "store-0")
    kill.inject()
    kill.revert()
    fault.revert()

    assert fault.verify_reverted() == ""
    assert pair.read().end == "ok"


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.slow
def test_restart_replaces_a_process(pair, orderly) -> None:
    before, old = pair.states(), pair.process("store-0")
    fault = on_hosts.restart(pair, "store-0", orderly=orderly)
    fault.inject()

    assert pair.process("store-0").pid != old.pid
    assert fault.probe().effect == 1
    undo(pair, fault, before)


def test_memory_is_really_held(pair) -> None:
    before = pair.states()
    fault = on_hosts.memory(pair, "store-0", 32 << 20)
    fault.inject()

    assert fault.probe().effect >= 32 << 20
    assert pair.children() != []
    undo(pair, fault, before)
    assert fault.probe().effect == 0


@pytest.mark.slow
def test_memory_that_the_host_needs_is_refused(pair) -> None:
    with pytest.raises(Refused, match="available bytes"):
        on_hosts.memory(pair, "store-0", 1 << 50).inject()


@pytest.mark.slow
def test_processors_are_really_busy(pair) -> None:
    before = pair.states()
    fault = on_hosts.cpu(pair, "store-0", 1)
    fault.inject()

    assert wait_until(lambda: fault.probe().effect >= 5, timeout_s=10)
    undo(pair, fault, before)


def test_a_full_disk_takes_no_byte_more(pair) -> None:
    before = pair.states()
    fault = on_hosts.disk_full(pair, "store-0")
    fault.inject()

    assert fault.probe().effect > 3 << 20
    assert pair.read(say="w100000").end == "closed"
    undo(pair, fault, before)
    assert pair.read(say="w100000", timeout_s=2).end == "ok"


@pytest.mark.slow
def test_a_full_disk_may_leave_something(pair) -> None:
    fault = on_hosts.disk_full(pair, "store-0", leave_bytes=1 << 20)
    fault.inject()

    assert pair.read(say="w100000", timeout_s=2).end == "ok"
    fault.revert()
    assert fault.verify_reverted() == ""


@pytest.mark.slow
def test_without_a_scratch_mount_no_disk_is_filled(pair) -> None:
    pair.all = tuple(_with_scratch(host, "") for host in pair.all)

    with pytest.raises(NotHere, match="no scratch mount is named"):
        on_hosts.disk_full(pair, "store-0").inject()


@pytest.mark.slow
def test_a_scratch_mount_that_is_none_is_refused(pair) -> None:
    pair.all = tuple(_with_scratch(host, "/mnt/folder") for host in pair.all)

    with pytest.raises(NotHere, match="no mount point of its own"):
        on_hosts.disk_full(pair, "store-0").inject()


@pytest.mark.slow
def test_a_scratch_mount_that_the_host_needs_is_refused(pair) -> None:
    pair.all = tuple(_with_scratch(host, "/") for host in pair.all)

    with pytest.raises(Refused, match="name a scratch mount"):
        on_hosts.disk_full(pair, "store-0").inject()


def test_slow_disk_needs_a_block_device(pair) -> None:
    with pytest.raises(NotHere, match="on no block device"):
        on_hosts.slow_disk(pair, "store-0", 100).inject()


@pytest.mark.slow
def test_a_taken_port_keeps_a_role_from_starting(pair) -> None:
    before = pair.states()
    fault = on_hosts.port_taken(pair, "store-0")
    fault.inject()

    assert pair.process("store-0") is None
    assert fault.probe().effect == 1
    assert "in use" in fault.probe().detail or "ended" in fault.probe().detail
    undo(pair, fault, before)


def test_a_role_over_its_limit_of_memory_is_held_back_or_killed(pair) -> None:
    reason = why_not(pair.of("store-0"), "memory_limit")
    if reason:
        pytest.skip(reason)
    before = pair.states()
    fault = on_hosts.memory_limit(pair, "store-0", 8 << 20)
    fault.inject()

    assert pair.state("a")["cgroups"] != ""
    pair.read(say=f"m{32 << 20}", timeout_s=3)
    assert fault.probe().effect > 0
    undo(pair, fault, before)


@pytest.mark.slow
def test_a_role_goes_back_to_the_cgroup_it_came_from(pair) -> None:
    reason = why_not(pair.of("store-0"), "memory_limit")
    if reason:
        pytest.skip(reason)
    pid = pair.process("store-0").pid
    home = Path(f"/proc/{pid}/cgroup").read_text()
    fault = on_hosts.memory_limit(pair, "store-0", 64 << 20)
    fault.inject()

    assert "moonquake_" in Path(f"/proc/{pid}/cgroup").read_text()
    fault.revert()
    assert fault.verify_reverted() == ""
    assert Path(f"/proc/{pid}/cgroup").read_text() == home


@pytest.fixture
def disk(pair, tmp_path):
    """A small file system on a loop device, seen by host a alone."""
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    try:
        _run("mkfs.ext4", "-q", "-F", str(image))
        device = _run("losetup", "--find", "--show", str(image)).strip()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs loop devices, losetup and mkfs.ext4: {error}")
    enter = ["nsenter", "--mount", "--target", str(pair.holders["a"])]
    try:
        _run(*enter, "mount", device, "/mnt")
        pair.stop_role("store-0")
        pair.start_role("store-0")
        yield device
        pair.stop_role("store-0")
        _run(*enter, "umount", "/mnt")
    finally:
        _run("losetup", "--detach", device)


@pytest.mark.slow
def test_a_slow_disk_holds_synced_writes_to_the_rate(pair, disk) -> None:
    reason = why_not(pair.of("store-0"), "slow_disk")
    if reason:
        pytest.skip(reason)
    before = pair.states()
    quick = pair.read(say="w200000", timeout_s=10).took_s
    fault = on_hosts.slow_disk(pair, "store-0", 200)
    fault.inject()
    slow = pair.read(say="w400000", timeout_s=20).took_s

    assert slow > max(1.0, 2 * quick)
    assert fault.probe().effect >= 300_000
    undo(pair, fault, before)


KINDS = {
    "pause": lambda pair: on_hosts.pause(pair, "store-0"),
    "memory": lambda pair: on_hosts.memory(pair, "store-0", 8 << 20),
    "cpu": lambda pair: on_hosts.cpu(pair, "store-0", 1),
    "disk_full": lambda pair: on_hosts.disk_full(pair, "store-0"),
    "memory_limit": lambda pair: on_hosts.memory_limit(pair, "store-0", 64 << 20),
    "port_taken": lambda pair: on_hosts.port_taken(pair, "store-0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_ends_with_its_lease_and_leaves_no_process(make_pair, kind) -> None:
    pair = make_pair(ttl_s=2.0)
    before = pair.states()
    role = pair.process("store-0")
    fault = KINDS[kind](pair)
    try:
        fault.inject()
    except NotHere as error:
        pytest.skip(str(error))
    pair.lose()

    assert pair.settle(before, timeout_s=7) == []
    assert wait_until(lambda: not Path(f"/proc/{role.pid}").exists(), timeout_s=7)
    assert wait_until(lambda: pair.children() == [], timeout_s=10)
    assert list(Path(f"/proc/{pair.holders['a']}/root/mnt").iterdir()) == []


def _with_scratch(host, scratch):
    return dataclasses.replace(host, scratch=scratch)


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout
