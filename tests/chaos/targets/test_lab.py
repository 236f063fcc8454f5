from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chaos.errors import UsageError
from chaos.safety.facts import cgroup_root
from chaos.safety.identity import state_of, wait_until
from chaos.targets.lab import Lab, LabShape, why_no_lab

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Three hosts, up; a test leaves them up."""
    directory = tmp_path_factory.mktemp("lab")
    shape = LabShape.of(3)
    inventory = directory / "lab.yaml"
    with Lab.up(
        shape, directory=directory / "lab", inventory=inventory, leases=directory
    ) as lab:
        yield lab


def ssh(lab: Lab, name: str, *argv: str) -> subprocess.CompletedProcess[str]:
    command = ["ssh", "-n", "-F", "none", "-i", str(lab.directory / "client_key")]
    options = {
        "UserKnownHostsFile": str(lab.directory / "known_hosts"),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "2",
    }
    for option, value in options.items():
        command += ["-o", f"{option}={value}"]
    command += [f"root@{lab.address(name)}", shlex.join(argv)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def of(lab: Lab, name: str, *argv: str) -> str:
    done = ssh(lab, name, *argv)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_each_host_is_reached_strictly_and_has_its_own_name(lab) -> None:
    assert [of(lab, name, "hostname") for name in lab.names] == list(lab.names)


def test_another_hosts_key_is_refused(lab) -> None:
    known = lab.directory / "known_hosts"
    text = known.read_text()
    first, second, *rest = text.splitlines()
    swapped = [f"{first.split()[0]} {second.partition(' ')[2]}", second, *rest]
    known.write_text("\n".join(swapped) + "\n")
    try:
        done = ssh(lab, "lab0", "true")
    finally:
        known.write_text(text)

    assert done.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_a_host_sees_only_its_own_processes_devices_and_state(lab) -> None:
    processes = of(lab, "lab1", "ps", "-e", "-o", "args")
    devices = of(lab, "lab1", "ls", "/sys/class/net").split()
    of(lab, "lab1", "touch", "/run/mine")

    assert str(lab.directory / "hosts" / "lab1") in processes
    assert str(lab.directory / "hosts" / "lab0") not in processes
    assert set(devices) == {"lo", "mgmt0", "ctl0", "rail0", "rail1"}
    assert "mine" not in of(lab, "lab2", "ls", "/run")
    assert not Path("/run/mine").exists()


def test_hosts_reach_each_other_on_their_rails(lab) -> None:
    for plane in ("control", "rail0", "rail1"):
        address = lab.fabric.address("lab2", plane)
        assert ssh(lab, "lab0", "ping", "-c1", "-W1", address).returncode == 0


@pytest.mark.slow
def test_a_reboot_ends_every_process_and_changes_the_boot_id_alone(lab) -> None:
    before = of(lab, "lab2", "cat", "/proc/sys/kernel/random/boot_id")
    quiet = "exec setsid sleep 98.7 <&- >&- 2>&- &"
    of(lab, "lab2", "sh", "-c", quiet)
    of(lab, "lab2", "ip", "link", "set", "rail0", "mtu", "1400")
    of(lab, "lab2", "touch", "/run/before")
    other = of(lab, "lab1", "cat", "/proc/sys/kernel/random/boot_id")
    assert wait_until(lambda: sleepers() != [], timeout_s=5)

    lab.reboot("lab2")

    assert sleepers() == []
    after = of(lab, "lab2", "cat", "/proc/sys/kernel/random/boot_id")
    assert after not in (before, other)
    assert of(lab, "lab1", "cat", "/proc/sys/kernel/random/boot_id") == other
    shown = of(lab, "lab2", "ip", "-j", "link", "show", "rail0")
    assert json.loads(shown)[0]["mtu"] == 1500
    assert "before" not in of(lab, "lab2", "ls", "/run")


def sleepers() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if words[:2] == [b"sleep", b"98.7"]:
                found.append(entry.name)
    return found


@pytest.mark.slow
def test_a_reboot_forgets_the_cgroups_of_the_host_alone(lab) -> None:
    mounts = Path("/proc/mounts").read_text()
    hierarchy = Path(cgroup_root(mounts, "pids") or cgroup_root(mounts, ""))
    groups = [hierarchy / f"moonquake_test_{name}_{os.getpid()}" for name in "ab"]
    for name, group in zip(("lab1", "lab2"), groups, strict=True):
        group.mkdir()
        moved = f"echo $$ >{group}/cgroup.procs; exec setsid sleep 98.7 <&- >&- 2>&- &"
        of(lab, name, "sh", "-c", moved)
    assert wait_until(lambda: len(sleepers()) >= 2, timeout_s=5)

    lab.reboot("lab2")

    assert [group.is_dir() for group in groups] == [True, False]
    lab.reboot("lab1")
    assert [group.is_dir() for group in groups] == [False, False]


def test_a_host_without_power_is_down_until_it_is_started(lab) -> None:
    lab.kill("lab2")
    assert not lab.alive("lab2")
    assert ssh(lab, "lab2", "true").returncode == 255
    assert lab.alive("lab1")

    lab.start("lab2")

    assert lab.alive("lab2")
    assert of(lab, "lab2", "hostname") == "lab2"


def test_the_inventory_is_of_the_shape_that_operators_write(lab) -> None:
    document = yaml.safe_load((lab.directory.parent / "lab.yaml").read_text())
    hosts = document["all"]["hosts"]
    host = hosts["lab1"]

    assert [one["roles"] for one in hosts.values()] == [
        ["master"],
        ["store-0"],
        ["engine-0"],
    ]
    assert host["ansible_host"] == lab.address("lab1")
    assert [rail["device"] for rail in host["rails"]] == ["rail0", "rail1"]
    assert document["all"]["vars"]["chaos"] == "allowed"
    key = Path(document["all"]["vars"]["ansible_ssh_private_key_file"])
    assert key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("count", "stores", "engines"), [(3, 1, 1), (5, 3, 1), (11, 8, 2), (16, 12, 3)]
)
def test_roles_are_spread_one_a_host(count, stores, engines) -> None:
    roles = [role for roles in LabShape.of(count).roles for role in roles]
    kinds = [role.partition("-")[0] for role in roles]

    assert all(len(roles) == 1 for roles in LabShape.of(count).roles)
    assert (kinds.count("store"), kinds.count("engine")) == (stores, engines)


@pytest.mark.parametrize("count", [1, 2])
def test_a_small_lab_has_every_kind_of_role_too(count) -> None:
    roles = {role for roles in LabShape.of(count).roles for role in roles}

    assert roles == {"master", "store-0", "engine-0"}


@pytest.mark.parametrize("count", [0, 65])
def test_a_lab_of_impossible_size_is_refused(count) -> None:
    with pytest.raises(UsageError, match="1 to 64 hosts"):
        LabShape.of(count)


def test_a_directory_that_hosts_cannot_see_is_refused() -> None:
    assert "own /run" in why_no_lab(Path("/run/lab"))


_SCRIPT = ROOT / "scripts" / "lab"


def script(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(_SCRIPT), *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "lab.yaml"
    yield path
    if path.exists():
        script("down", "--inventory", str(path))


@pytest.mark.slow
def test_the_script_keeps_a_lab_up_until_it_is_told_down(inventory) -> None:
    where = ["--inventory", str(inventory)]
    up = script("up", "2", "--json", *where)
    assert up.returncode == 0, up.stderr
    status = json.loads(up.stdout)
    address = status["hosts"]["lab1"]["address"]

    again = script("up", "2", *where)
    reboot = script("reboot", "lab1", "--json", *where)
    unknown = script("reboot", "lab7", *where)
    with socket.create_connection((address, 22), timeout=5) as channel:
        banner = channel.recv(4)
    down = script("down", *where)
    twice = script("down", *where)

    assert (again.returncode, "up already" in again.stderr) == (2, True)
    assert json.loads(reboot.stdout)["hosts"]["lab1"]["up"]
    assert (unknown.returncode, "has no host lab7" in unknown.stderr) == (2, True)
    assert banner == b"SSH-"
    assert (down.returncode, twice.returncode) == (0, 2)
    assert wait_until(lambda: state_of(status["pid"]) in ("", "Z"), timeout_s=10)
    assert list(inventory.parent.iterdir()) == []


@pytest.mark.slow
def test_a_lab_vanishes_with_the_process_that_holds_it(inventory) -> None:
    where = ["--inventory", str(inventory)]
    up = script("up", "2", "--json", *where)
    status = json.loads(up.stdout)
    device = f"mq-fabric{status['fabric']}"

    os.kill(status["pid"], signal.SIGKILL)

    assert wait_until(lambda: device not in devices(), timeout_s=5)
    assert wait_until(lambda: not sshds(inventory), timeout_s=5)
    assert script("down", *where).returncode == 0
    assert list(inventory.parent.iterdir()) == []


def devices() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def sshds(inventory: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"sshd" in line and str(inventory).encode() in line:
                found.append(entry.name)
    return found


def test_asking_for_too_many_hosts_is_one_line(inventory) -> None:
    done = script("up", "100", "--inventory", str(inventory))

    assert done.returncode == 2
    assert done.stderr == "scripts/lab: a lab has 1 to 64 hosts, not 100\n"


def test_a_lab_has_as_many_engines_as_were_asked_for() -> None:
    roles = [role for roles in LabShape.of(17, engines=8).roles for role in roles]

    assert sum(role.startswith("engine-") for role in roles) == 8
    assert sum(role.startswith("store-") for role in roles) == 8


def test_engines_leave_room_for_a_store() -> None:
    with pytest.raises(UsageError, match="no room for 8 engines and a store"):
        LabShape.of(9, engines=8)
