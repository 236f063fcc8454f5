from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from chaos.errors import HarnessError, UsageError
from chaos.safety.identity import state_of, wait_until
from chaos.targets.fabric import (
    Fabric,
    Member,
    lease_block,
    routes_of_machine,
)
from chaos.targets.namespaces import run_batch, why_no_namespaces

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    bool(why_no_namespaces()), reason=why_no_namespaces() or "-"
)


def members(count: int) -> list[Member]:
    return [Member(name=f"h{n}", numbers=(10 + n,)) for n in range(count)]


@pytest.fixture(scope="module")
def leases(tmp_path_factory):
    return tmp_path_factory.mktemp("leases")


@pytest.fixture(scope="module")
def fabric(leases):
    """Three hosts and two rails; a test leaves it as it found it."""
    fabric = Fabric.build(members(3), rails=2, directory=leases)
    yield fabric
    fabric.close()


def reaches(address: str, *, inside=()) -> bool:
    command = [*inside, "ping", "-n", "-c", "1", "-W", "1", address]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def devices() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


@pytest.mark.parametrize("plane", ["management", "control", "rail0", "rail1"])
def test_hosts_reach_each_other_on_every_plane(fabric, plane) -> None:
    assert reaches(fabric.address("h1", plane), inside=fabric.enter("h0"))


def test_the_harness_reaches_every_host_on_the_management_plane(fabric) -> None:
    assert all(reaches(fabric.address(host)) for host in fabric.hosts)
    assert reaches(fabric.harness_address, inside=fabric.enter("h2"))


_SEEN = """
import json, socket, sys
from pathlib import Path
from chaos.targets.fabric import Fabric, Member, routes_of_machine
def seen():
    devices = {name for _, name in socket.if_nameindex()}
    return devices, set(map(str, routes_of_machine()))
before = seen()
fabric = Fabric.build(
    [Member(name="h0", numbers=(10,))], rails=1, directory=Path(sys.argv[1])
)
during = seen()
fabric.close()
assert seen() == before
print(json.dumps([sorted(new - old) for new, old in zip(during, before)]))
"""


def test_the_harness_gets_one_device_with_one_route_and_nothing_else(tmp_path) -> None:
    alone = ["unshare", "--net", sys.executable, "-c", _SEEN, str(tmp_path)]
    shown = subprocess.check_output(alone, text=True, cwd=ROOT)

    new_devices, new_routes = json.loads(shown)
    assert new_devices == ["mq-fabric0"]
    # The network, and what the kernel has in its local table for any address.
    assert new_routes == ["198.19.0.0/24", "198.19.0.1/32", "198.19.0.255/32"]


def test_a_rail_that_is_down_leaves_the_other_planes_alone(fabric) -> None:
    inside = fabric.enter("h0")
    run_batch(["link set rail0 down"], inside=inside)
    try:
        reached = {
            plane: reaches(fabric.address("h0", plane), inside=fabric.enter("h1"))
            for plane in fabric.planes
        }
    finally:
        run_batch(["link set rail0 up"], inside=inside)

    assert reached == {
        "management": True,
        "control": True,
        "rail0": False,
        "rail1": True,
    }


def test_a_host_sees_its_own_devices_under_sys_and_its_own_name(fabric) -> None:
    inside = fabric.enter("h1")
    seen = subprocess.check_output([*inside, "ls", "/sys/class/net"], text=True)
    name = subprocess.check_output([*inside, "hostname"], text=True)

    assert set(seen.split()) == {"lo", *fabric.devices().values()}
    assert name.strip() == "h1"
    assert os.uname().nodename != "h1"


def test_mounts_of_a_host_stay_on_it(fabric, tmp_path) -> None:
    inside = fabric.enter("h1")
    subprocess.run(
        [*inside, "mount", "-t", "tmpfs", "scratch", str(tmp_path)], check=True
    )

    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert subprocess.run(
        [*fabric.enter("h0"), "mountpoint", "-q", str(tmp_path)], check=False
    ).returncode


def test_several_stores_of_a_host_have_addresses_of_their_own(leases) -> None:
    shared = Member(name="h0", numbers=(10, 11))
    other = Member(name="h1", numbers=(12,))
    fabric = Fabric.build([shared, other], rails=1, directory=leases)
    try:
        addresses = [fabric.address("h0", "rail0", which) for which in (0, 1)]
        reached = [reaches(one, inside=fabric.enter("h1")) for one in addresses]
    finally:
        fabric.close()

    assert len(set(addresses)) == 2
    assert reached == [True, True]


def test_two_fabrics_at_once_do_not_meet(leases, fabric) -> None:
    other = Fabric.build(members(2), rails=1, directory=leases)
    try:
        assert other.block.index != fabric.block.index
        for plane in other.planes:
            address = other.address("h1", plane)
            assert reaches(address, inside=other.enter("h0"))
            assert not reaches(address, inside=fabric.enter("h0"))
    finally:
        other.close()


def test_closing_leaves_no_namespace_no_device_and_no_process(leases) -> None:
    fabric = Fabric.build(members(3), rails=2, directory=leases)
    left_behind = subprocess.Popen([*fabric.enter("h1"), "sleep", "60"])
    wait_until(lambda: bool(fabric.namespaces("h1").processes()), timeout_s=5)
    keeper = fabric.keeper_pid

    fabric.close()
    fabric.close()

    assert left_behind.wait(5) == -9
    assert state_of(keeper) == ""
    assert fabric.block.device not in devices()
    assert lease_is_free(leases, fabric.block.index)


def lease_is_free(directory: Path, index: int) -> bool:
    lease_block(pinned=index, directory=directory).lock.release()
    return True


def test_a_device_of_somebody_else_is_never_removed(leases, tmp_path) -> None:
    """A lease may be held elsewhere: another user's state directory."""
    first = Fabric.build(members(1), rails=1, directory=leases)
    device = first.block.device
    try:
        with pytest.raises(UsageError, match=f"there is a device {device} already"):
            lease_block(pinned=first.block.index, directory=tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("chaos.targets.fabric._collision", lambda *_: "")
            with pytest.raises(HarnessError, match="File exists"):
                Fabric.build(
                    members(1),
                    rails=1,
                    block=first.block.index,
                    directory=tmp_path,
                )

        assert device in devices()
        assert reaches(first.address("h0"))
    finally:
        first.close()


def test_closing_again_leaves_the_next_fabric_of_that_number_alone(leases) -> None:
    first = Fabric.build(members(1), rails=1, directory=leases)
    first.close()
    second = Fabric.build(
        members(1), rails=1, block=first.block.index, directory=leases
    )
    try:
        first.close()

        assert reaches(second.address("h0"))
    finally:
        second.close()


def test_a_fabric_whose_keeper_was_killed_is_closed_without_a_word(leases) -> None:
    fabric = Fabric.build(members(2), rails=1, directory=leases)
    os.kill(fabric.keeper_pid, signal.SIGKILL)

    assert wait_until(lambda: fabric.block.device not in devices(), timeout_s=5)
    with pytest.raises(HarnessError, match="keeper"):
        fabric.alive("h0")
    fabric.close()
    assert lease_is_free(leases, fabric.block.index)


def test_a_rebooted_host_has_lost_its_processes_and_its_rules(leases) -> None:
    fabric = Fabric.build(members(2), rails=1, directory=leases)
    try:
        inside = fabric.enter("h0")
        process = subprocess.Popen([*inside, "sleep", "60"])
        wait_until(lambda: bool(fabric.namespaces("h0").processes()), timeout_s=5)
        run_batch(["link set rail0 mtu 1400"], inside=inside)

        fabric.kill("h0")
        assert process.wait(5) == -9
        assert not reaches(fabric.address("h0"), inside=fabric.enter("h1"))
        fabric.revive("h0")

        rail = ["ip", "-j", "link", "show", "rail0"]
        shown = subprocess.check_output([*fabric.enter("h0"), *rail])
        assert json.loads(shown)[0]["mtu"] == 1500
        for plane in fabric.planes:
            address, inside = fabric.address("h0", plane), fabric.enter("h1")
            # A neighbour that asked in vain asks again a second later.
            assert wait_until(partial(reaches, address, inside=inside), timeout_s=5)
        assert wait_until(lambda: reaches(fabric.address("h0")), timeout_s=5)
    finally:
        fabric.close()


_HARNESS = """
import os, signal, subprocess, sys
from pathlib import Path
from chaos.targets.fabric import Fabric, Member
members = [Member(name=f"h{n}", numbers=(10 + n,)) for n in range(3)]
fabric = Fabric.build(members, rails=2, directory=Path(sys.argv[1]))
print(fabric.keeper_pid, fabric.block.device, flush=True)
os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.parametrize("number", [2, 9, 15])
def test_a_fabric_vanishes_with_its_harness(leases, number) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HARNESS, str(leases), str(number)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    keeper, device = done.stdout.split()

    assert done.returncode in (-number, 1)
    assert wait_until(lambda: state_of(int(keeper)) in ("", "Z"), timeout_s=5)
    assert wait_until(lambda: device not in devices(), timeout_s=5)


def test_a_failed_build_leaves_nothing(leases, monkeypatch) -> None:
    failed = []

    def fails(self, host) -> None:
        failed.append(self)
        raise HarnessError("no")

    monkeypatch.setattr(Fabric, "_configure", fails)
    with pytest.raises(HarnessError):
        Fabric.build(members(2), rails=1, directory=leases)

    assert state_of(failed[0].keeper_pid) == ""
    assert failed[0].block.device not in devices()
    assert lease_is_free(leases, failed[0].block.index)


def test_a_failing_command_is_named_with_its_reason(fabric) -> None:
    with pytest.raises(HarnessError, match=r"ip link set rail7 up: Cannot find device"):
        run_batch(["link set lo up", "link set rail7 up"], inside=fabric.enter("h0"))


def test_twelve_hosts_are_up_within_two_seconds(leases) -> None:
    begin = time.monotonic()
    fabric = Fabric.build(members(12), rails=2, directory=leases)
    took_s = time.monotonic() - begin
    fabric.close()

    assert took_s < 2


def test_a_route_of_the_machine_keeps_a_number_from_being_taken(tmp_path) -> None:
    device = "mq-test-route"
    add = f"link add {device} type veth peer name {device}p"
    run_in_a_namespace = [
        "unshare",
        "--net",
        sys.executable,
        "-c",
        "import sys; from pathlib import Path;"
        "from chaos.targets.namespaces import run_batch;"
        f"run_batch(['{add}', 'link set {device} up', 'link set {device}p up',"
        f" 'route add 198.19.0.0/31 dev {device}']);"
        "from chaos.targets.fabric import lease_block;"
        "print(lease_block(directory=Path(sys.argv[1])).index)",
        str(tmp_path),
    ]
    shown = subprocess.check_output(run_in_a_namespace, text=True, cwd=ROOT)

    assert shown.strip() == "1"


def test_default_routes_and_their_halves_are_in_nobodys_way() -> None:
    text = json.dumps(
        [
            {"dst": "default", "gateway": "10.0.0.1"},
            {"dst": "0.0.0.0/1"},
            {"dst": "128.0.0.0/1"},
            {"type": "local", "dst": "127.0.0.1"},
            {"dst": "198.16.0.0/13"},
        ]
    )

    found = [str(route) for route in routes_of_machine(lambda: text)]

    assert found == ["127.0.0.1/32", "198.16.0.0/13"]


def test_a_number_that_is_taken_is_refused_and_its_holder_named(tmp_path) -> None:
    first = lease_block(pinned=5, directory=tmp_path)
    try:
        with pytest.raises(UsageError, match=rf"fabric-5 is in use by.*{os.getpid()}"):
            lease_block(pinned=5, directory=tmp_path)
    finally:
        first.lock.release()


@pytest.mark.parametrize("rails", [0, 8])
def test_rails_that_do_not_fit_are_refused(rails, tmp_path) -> None:
    with pytest.raises(UsageError, match="1 to 7 rails"):
        Fabric.build(members(1), rails=rails, directory=tmp_path)


def test_without_the_privilege_there_is_one_clear_line(tmp_path) -> None:
    code = (
        "from chaos.targets.fabric import Fabric, Member\n"
        "from chaos.errors import UsageError\n"
        "try: Fabric.build([Member(name='a', numbers=(9,))], rails=1)\n"
        "except UsageError as error: print(error)"
    )
    shown = subprocess.check_output(
        ["setpriv", "--bounding-set=-all", sys.executable, "-c", code],
        text=True,
        cwd=ROOT,
    )

    assert shown == (
        "network namespaces need CAP_NET_ADMIN and CAP_SYS_ADMIN: run as root;"
        " or take --target local, which needs nothing\n"
    )
