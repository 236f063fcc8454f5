from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.errors import ProcessFailed, UsageError
from chaos.safety.identity import state_of, wait_until
from chaos.systems.base import ClusterSpec
from chaos.targets.namespaces import why_no_namespaces
from chaos.targets.netns import STATE, NetnsTarget, members_of, placed, remove_ruins

ROOT = Path(__file__).parents[3]
PYTHON = [sys.executable, "-S", "-u", "-c"]
ROLE = [*PYTHON, "import time; print('hello up'); time.sleep(60)"]
SPEC = ClusterSpec(stores=3, engines=1, rails=2, stores_per_host=2)

needs_root = pytest.mark.skipif(
    bool(why_no_namespaces()), reason=why_no_namespaces() or "-"
)


def made(tmp_path: Path, name: str = "t", **fields) -> NetnsTarget:
    return NetnsTarget(
        run_dir=tmp_path / "roles",
        run=f"{name}-{os.getpid()}",
        directory=tmp_path,
        **fields,
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    target = made(tmp_path_factory.mktemp("netns"), "shared")
    target.prepare(SPEC)
    yield target
    target.close()


@pytest.fixture
def target(shared):
    """The shared target, without the roles of the test before."""
    yield shared
    for host in shared.hosts.all:
        for role in host.roles:
            if shared.process(role) is not None:
                shared.stop(role, timeout_s=5)


def devices() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


@needs_root
def test_every_failure_domain_is_a_host_with_an_agent_in_it(target) -> None:
    names = {host.name: host.roles for host in target.hosts.all}

    assert names == {
        "master": ("master",),
        "h0": ("store-0", "store-1"),
        "h1": ("store-2",),
        "engine-0": ("engine-0",),
        "probe": ("probe",),
    }
    assert target.hosts.of("store-1").agent.hello().hostname == "h0"
    assert target.hosts.of("store-1") is target.hosts.of("store-0")


@needs_root
def test_addresses_are_by_plane_and_stores_of_a_host_have_their_own(target) -> None:
    block = target.fabric.block.index

    assert target.address("store-1") == f"198.18.{8 * block}.11"
    assert target.address("store-1", "data", 1) == f"198.18.{8 * block + 2}.11"
    assert target.address("master", "management") == f"198.19.{block}.2"
    assert target.hosts.of("engine-0").addresses["rail1"] == target.address(
        "engine-0", "data", 1
    )


@needs_root
def test_roles_meet_on_the_rails_and_the_harness_on_the_management_plane(
    target,
) -> None:
    serve = (
        "import socket, sys; s = socket.create_server((sys.argv[1], 7100));"
        " print('listening up');\nwhile True: s.accept()[0].sendall(b'hello')"
    )
    ask = (
        "import socket, sys;"
        " print('got', socket.create_connection((sys.argv[1], 7100), 5).recv(5), 'up')"
    )
    address = target.address("store-2", "data", 1)
    target.spawn("store-2", [*PYTHON, serve, address])
    target.wait_ready("store-2", "up", timeout_s=10)
    target.spawn("engine-0", [*PYTHON, ask, address])
    answer = target.wait_ready("engine-0", "up", timeout_s=10)
    door = target.address("master", "management")
    target.spawn("master", [*PYTHON, serve, door])
    target.wait_ready("master", "up", timeout_s=10)

    assert answer == "got b'hello' up"
    with socket.create_connection((door, 7100), timeout=5) as channel:
        assert channel.recv(5) == b"hello"


@needs_root
def test_a_role_is_started_watched_and_ended_by_its_host(target) -> None:
    process = target.spawn("store-0", ROLE)
    ready = target.wait_ready("store-0", "up", timeout_s=10)
    seen = target.process("store-0")
    code = target.stop("store-0", timeout_s=5)

    assert (ready, seen, code) == ("hello up", process, -signal.SIGTERM)
    assert target.process("store-0") is None


@needs_root
def test_a_role_that_runs_is_not_started_twice(target) -> None:
    target.spawn("store-0", ROLE)

    with pytest.raises(ProcessFailed, match="already running"):
        target.spawn("store-0", ROLE)


@needs_root
def test_a_role_that_ends_before_it_is_ready_tells_its_last_words(target) -> None:
    target.spawn("store-0", [*PYTHON, "import sys; sys.exit('port taken')"])

    with pytest.raises(ProcessFailed, match="port taken"):
        target.wait_ready("store-0", "up", timeout_s=10)


@needs_root
def test_waiting_for_a_silent_role_has_a_deadline(target) -> None:
    target.spawn("store-0", [*PYTHON, "import time; time.sleep(60)"])

    with pytest.raises(ProcessFailed, match="store-0"):
        target.wait_ready("store-0", "up", timeout_s=0.05)


@needs_root
def test_what_a_role_is_told_by_environment_is_in_no_command_line(target) -> None:
    show = "import os, time; print('up', os.environ['REFIMPL_TOKEN']); time.sleep(60)"
    process = target.spawn("store-0", [*PYTHON, show], {"REFIMPL_TOKEN": "s3cret"})
    line = target.wait_ready("store-0", "up", timeout_s=10)

    assert line == "up s3cret"
    agent = target.hosts.of("store-0").agent
    assert "s3cret" not in str(agent.faults())
    assert b"s3cret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()


@needs_root
def test_what_hosts_can_do_is_told_with_reasons(target) -> None:
    assert {"netns", "hosts", "kill", "link"} <= target.capabilities
    assert target.why_not("link") == ""
    assert "netns target" in target.why_not("toxiproxy")
    assert "local" not in target.capabilities
    missing = {"netem", "tbf", "nft"} - target.capabilities
    assert all(target.why_not(one).startswith("master: ") for one in missing)


@needs_root
def test_capabilities_are_known_before_anything_is_prepared(tmp_path) -> None:
    target = made(tmp_path)

    assert "link" in target.capabilities
    assert target.hosts.all == ()
    assert not (STATE / f"probe-{os.getpid()}").exists()


@needs_root
def test_a_fault_is_armed_and_healed_on_its_host_alone(target) -> None:
    agent = target.hosts.of("store-2").agent
    step = {
        "do": {"run": ["ip", "link", "set", "rail0", "down"]},
        "undo": {"run": ["ip", "link", "set", "rail0", "up"]},
        "verify": {"run": ["ip", "link", "show", "rail0"], "stdout_has": "state UP"},
    }
    before = pings(target, "engine-0", "store-2", 0)
    agent.arm(fault_id="f1", kind="nic_down", target="store-2.rail0", steps=[step])
    during = [pings(target, "engine-0", "store-2", rail) for rail in (0, 1)]
    residual = agent.disarm("f1")
    after = wait_until(lambda: pings(target, "engine-0", "store-2", 0), timeout_s=5)

    assert (before, during, residual, after) == (True, [False, True], "", True)


def pings(target: NetnsTarget, role: str, other: str, rail: int) -> bool:
    address = target.address(other, "data", rail)
    agent = target.hosts.of(role).agent
    return agent.run(["ping", "-n", "-c1", "-W1", address]).rc == 0


@needs_root
def test_each_host_has_a_scratch_mount_that_it_may_fill(target) -> None:
    sizes = []
    for role in ("store-0", "store-2"):
        host = target.hosts.of(role)
        filled = host.agent.run(
            ["dd", "if=/dev/zero", f"of={host.scratch}/x", "bs=1M", "count=80"]
        )
        assert filled.rc == 1
        assert "No space left" in filled.stderr
        sizes.append(host.agent.run(["stat", "-c%s", f"{host.scratch}/x"]).stdout)
        host.agent.run(["rm", f"{host.scratch}/x"])

    assert [int(size) for size in sizes] == [64 << 20] * 2
    assert list(Path(target.hosts.of("store-0").scratch).iterdir()) == []


@needs_root
def test_closing_leaves_nothing_and_keeps_the_logs(tmp_path) -> None:
    target = made(tmp_path, "closing")
    target.prepare(ClusterSpec(stores=1, engines=0, rails=1))
    process = target.spawn("store-0", ROLE)
    target.wait_ready("store-0", "up", timeout_s=10)
    agents = [host.agent.hello().pid for host in target.hosts.all]
    keeper, device = target.fabric.keeper_pid, target.fabric.block.device

    target.close()
    target.close()

    pids = (*agents, process.pid, keeper)
    assert all(state_of(pid) in ("", "Z") for pid in pids)
    assert device not in devices()
    assert not (STATE / target.run).exists()
    assert (tmp_path / "roles" / "store-0.out").read_text() == "hello up\n"


@needs_root
def test_an_agent_that_is_killed_is_told_and_ends_with_its_namespaces(
    tmp_path,
) -> None:
    target = made(tmp_path, "killed", ttl_s=3.0)
    target.prepare(ClusterSpec(stores=1, engines=0, rails=1))
    host = target.hosts.of("store-0")
    file = tmp_path / "setting"
    file.write_text("before")
    steps = [
        {
            "do": {"run": ["ip", "link", "set", "rail0", "down"]},
            "undo": {"run": ["ip", "link", "set", "rail0", "up"]},
        },
        {
            "do": {"op": "write", "path": str(file), "text": "broken"},
            "undo": {"op": "restore", "path": str(file)},
        },
    ]
    host.agent.arm(fault_id="f1", kind="x", target="store-0", steps=steps)
    broken = file.read_text()
    pids = (host.agent.connector.warden, host.agent.hello().pid)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    lost = wait_until(lambda: "h0" in target.lost, timeout_s=10)
    device = target.fabric.block.device
    target.close()

    assert (broken, lost) == ("broken", True)
    assert device not in devices()
    assert file.read_text() == "before"
    assert not (STATE / target.run).exists()


_HARNESS = """
import os, signal, sys
from pathlib import Path
from chaos.systems.base import ClusterSpec
from chaos.targets.netns import NetnsTarget
where = Path(sys.argv[1])
target = NetnsTarget(
    run_dir=where, run=f"die-{os.getpid()}", ttl_s=3.0, directory=where
)
target.prepare(ClusterSpec(stores=1, engines=0, rails=1))
role = [sys.executable, "-S", "-u", "-c", "import time; print('up'); time.sleep(60)"]
process = target.spawn("store-0", role)
target.wait_ready("store-0", "up", timeout_s=10)
agent = target.hosts.of("store-0").agent
ticks = {"pid": process.pid, "start_ticks": process.start_ticks}
pause = {"do": {"op": "signal", **ticks, "signal": "STOP"},
         "undo": {"op": "signal", **ticks, "signal": "CONT"}}
down = {"do": {"run": ["ip", "link", "set", "rail0", "down"]},
        "undo": {"run": ["ip", "link", "set", "rail0", "up"]}}
for name, step in (("f1", pause), ("f2", down)):
    agent.arm(fault_id=name, kind="x", target="store-0", steps=[step])
agents = [host.agent.hello().pid for host in target.hosts.all]
agents += [host.agent.connector.warden for host in target.hosts.all]
pids = [process.pid, target.fabric.keeper_pid, *agents]
print(target.run, target.fabric.block.device, *pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_root
def test_within_the_lease_nothing_is_left_of_a_killed_harness(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HARNESS, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
    )
    killed_at = time.monotonic()
    run, device, *pids = done.stdout.split()

    def nothing_left() -> bool:
        alive = [pid for pid in pids if state_of(int(pid)) not in ("", "Z")]
        return not alive and device not in devices()

    assert len(pids) == 2 + 2 * 3
    assert wait_until(nothing_left, timeout_s=3.0 + 5.0)
    assert time.monotonic() - killed_at < 8
    assert not list((STATE / run).rglob("ledger.jsonl"))
    remove_ruins()
    assert not (STATE / run).exists()


@needs_root
def test_two_targets_at_once_have_networks_of_their_own(tmp_path, target) -> None:
    other = made(tmp_path, "other")
    other.prepare(ClusterSpec(stores=1, engines=0, rails=1))
    try:
        address = other.address("store-0", "data")
        agent = target.hosts.of("store-0").agent

        assert other.fabric.block.index != target.fabric.block.index
        assert other.hosts.of("master").agent.run(["ping", "-c1", address]).rc == 0
        assert agent.run(["ping", "-c1", "-W1", address]).rc != 0
    finally:
        other.close()


@needs_root
def test_a_target_is_prepared_once(target) -> None:
    with pytest.raises(UsageError, match="close it first"):
        target.prepare(SPEC)


def test_addresses_are_not_there_before_the_networks_are(tmp_path) -> None:
    with pytest.raises(UsageError, match="prepare the target"):
        made(tmp_path).address("master")


def test_roles_are_placed_as_their_failure_domains_say() -> None:
    spec = ClusterSpec(stores=4, engines=2, stores_per_host=3)

    assert placed(spec) == {
        "master": ["master"],
        "h0": ["store-0", "store-1", "store-2"],
        "h1": ["store-3"],
        "engine-0": ["engine-0"],
        "engine-1": ["engine-1"],
        "probe": ["probe"],
    }
    numbers = [member.numbers for member in members_of(spec)]
    assert numbers == [(2,), (10, 11, 12), (13,), (200,), (201,), (3,)]


@pytest.mark.parametrize("shape", [{"stores": 191}, {"engines": 56}])
def test_a_shape_that_does_not_fit_is_refused(shape, tmp_path) -> None:
    with pytest.raises(UsageError, match="do not fit"):
        made(tmp_path).prepare(ClusterSpec(**shape))


def test_a_name_that_makes_socket_paths_too_long_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="characters"):
        NetnsTarget(run_dir=tmp_path, run="r" * 25)


def test_only_directories_that_nobody_needs_are_ruins(tmp_path) -> None:
    import fcntl

    for name in ("dead", "locked", "with-ledger"):
        (tmp_path / name / "h0").mkdir(parents=True)
        (tmp_path / name / "h0" / "domain.lock").touch()
    (tmp_path / "with-ledger" / "h0" / "r").mkdir()
    (tmp_path / "with-ledger" / "h0" / "r" / "ledger.jsonl").touch()
    held = os.open(tmp_path / "locked", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        removed = remove_ruins(tmp_path)
    finally:
        os.close(held)

    assert removed == [tmp_path / "dead"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["locked", "with-ledger"]


@needs_root
def test_without_the_privilege_the_reason_is_one_line(tmp_path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from chaos.targets.netns import NetnsTarget\n"
        "target = NetnsTarget(run_dir=Path(sys.argv[1]), run='x')\n"
        "print(sorted(target.capabilities), target.why_not('nft'))"
    )
    shown = subprocess.check_output(
        ["setpriv", "--bounding-set=-all", sys.executable, "-c", code, str(tmp_path)],
        text=True,
        cwd=ROOT,
    )

    assert shown == (
        "[] network namespaces need CAP_NET_ADMIN and CAP_SYS_ADMIN: run as root\n"
    )
