from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import yaml

from chaos.errors import HarnessError, ProcessFailed, UsageError
from chaos.hosts.facts import gather
from chaos.hosts.link import CommandResult
from chaos.safety.identity import wait_until
from chaos.safety.management import Refused
from chaos.systems.base import ClusterSpec
from chaos.targets.lab import Lab, LabShape, why_no_lab
from chaos.targets.observed import ObservedRole
from chaos.targets.ssh import SshTarget, addresses_of, devices_of, placed
from inventory import HostEntry, Inventory, Plane, ProcessRule, Rail

PYTHON = [sys.executable, "-S", "-u", "-c"]
ROLE = [*PYTHON, "import time; print('hello up'); time.sleep(60)"]
SPEC = ClusterSpec(stores=1, engines=1, rails=2)

needs_lab = pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")


def entry(name: str, *roles: str, **fields) -> HostEntry:
    number = sum(name.encode())
    rails = tuple(
        Rail(name=f"rail{n}", device=f"ens{n}", address=f"10.{n + 1}.0.{number % 250}")
        for n in range(2)
    )
    standard = {
        "address": f"10.0.0.{number % 250}",
        "roles": roles,
        "rails": rails,
        "chaos": "allowed",
        "environment": "staging",
        "manage": True,
    }
    return HostEntry(name=name, **{**standard, **fields})


def inventory(*entries: HostEntry, **fields) -> Inventory:
    return Inventory(file="staging.yaml", hosts=entries, **fields)


SMALL = inventory(entry("m", "master"), entry("s", "store-0"), entry("e", "engine-0"))


class Refusing:
    """Stands for the agent of a host that must not be touched."""

    def __init__(self, entry: HostEntry) -> None:
        raise AssertionError(f"{entry.name} was touched")


def prepared(tmp_path, given: Inventory, spec: ClusterSpec = SPEC, **fields) -> None:
    SshTarget(
        run_dir=tmp_path, run="r", inventory=given, agent_of=Refusing, **fields
    ).prepare(spec)


# -- where roles go -------------------------------------------------------------------


def names_of(given: Inventory, spec: ClusterSpec) -> dict[str, str]:
    return {role: entry.name for role, entry in placed(given, spec).items()}


def test_roles_go_to_the_hosts_that_name_them_and_the_probe_beside_an_engine() -> None:
    assert names_of(SMALL, SPEC) == {
        "master": "m",
        "store-0": "s",
        "engine-0": "e",
        "probe": "e",
    }


def test_the_probe_goes_where_an_inventory_puts_it() -> None:
    given = inventory(*SMALL.hosts, entry("p", "probe"))

    assert names_of(given, SPEC)["probe"] == "p"
    assert names_of(SMALL, ClusterSpec(stores=1, engines=0))["probe"] == "s"


def test_stores_that_share_a_host_are_put_together_where_we_start_them() -> None:
    stores = [entry(f"s{n}", f"store-{n}") for n in range(4)]
    given = inventory(entry("m", "master"), *stores)
    spec = ClusterSpec(stores=4, engines=0, stores_per_host=2)

    found = names_of(given, spec)

    assert [found[f"store-{n}"] for n in range(4)] == ["s0", "s0", "s1", "s1"]


def test_a_role_without_a_host_is_named_with_file_and_remedy() -> None:
    with pytest.raises(
        UsageError, match=r"staging\.yaml: no host has the role store-1; add it"
    ):
        placed(SMALL, ClusterSpec(stores=2, engines=1))


def test_a_role_on_two_hosts_is_refused() -> None:
    given = inventory(*SMALL.hosts, entry("s2", "store-0"))

    with pytest.raises(UsageError, match="store-0 is on s, s2"):
        placed(given, SPEC)


def test_addresses_and_devices_are_by_plane_with_ssh_as_the_last_word() -> None:
    bare = entry("m", "master")
    full = entry(
        "m",
        management=Plane(device="eno1", address="10.9.0.1"),
        control=Plane(device="eno2", address="10.8.0.1"),
    )

    assert addresses_of(bare)["control"] == bare.address
    assert addresses_of(full)["management"] == "10.9.0.1"
    assert addresses_of(full)["rail1"] == full.rails[1].address
    assert devices_of(bare) == {"rail0": "ens0", "rail1": "ens1"}
    assert devices_of(full)["control"] == "eno2"


# -- what is refused before any host is touched ---------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"chaos": "refused"}, "s is not opted in"),
        ({"environment": "production"}, "s is in production, which is protected"),
        ({"environment": ""}, "s names no environment"),
        ({"rails": ()}, r"host s has no address on rail0; write rails"),
        ({"manage": False}, r"host s has no rule for store-0; add processes"),
    ],
)
def test_a_host_that_may_not_be_broken_is_not_touched(fields, reason, tmp_path) -> None:
    given = inventory(
        entry("m", "master"), entry("s", "store-0", **fields), entry("e", "engine-0")
    )

    with pytest.raises(UsageError, match=reason):
        prepared(tmp_path, given)


def test_a_lease_longer_than_the_inventory_allows_is_refused(tmp_path) -> None:
    given = inventory(*SMALL.hosts, fault_ttl_max_s=60)

    with pytest.raises(UsageError, match=r"90 s is longer than fault_ttl_max_s, 60 s"):
        prepared(tmp_path, given, ttl_s=90.0)


def test_a_file_that_is_no_inventory_is_one_line(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"absent\.yaml.*cannot be read"):
        SshTarget(run_dir=tmp_path, run="r", inventory=tmp_path / "absent.yaml")


# -- observed roles -------------------------------------------------------------------


class Answering:
    """An agent whose commands are answered from a table; others are not found."""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def run(self, argv, *, timeout_s):
        self.asked.append(list(argv))
        rc, stdout = self.answers.get(argv[0], (127, ""))
        return CommandResult(rc=rc, stdout=stdout, stderr="", timed_out=False)


STAT = "42 (a b) c) S 1 " + " ".join(["0"] * 17) + " 777 0 0\n"


def observed(agent: Answering, **rule: str) -> ObservedRole:
    return ObservedRole(role="store-0", rule=ProcessRule(**rule), agent=agent)


def test_a_unit_is_asked_of_systemd_and_its_process_by_pid_and_start() -> None:
    agent = Answering(systemctl=(0, "42\n"), cat=(0, STAT))
    process = observed(agent, systemd="mooncake.service").process()

    assert (process.pid, process.start_ticks) == (42, 777)
    assert agent.asked[0][:2] == ["systemctl", "show"]


@pytest.mark.parametrize("said", [(0, "0\n"), (0, ""), (1, ""), (0, "no such")])
def test_an_owner_without_a_process_has_none(said) -> None:
    assert observed(Answering(systemctl=said), systemd="x.service").process() is None


def test_a_zombie_has_ended() -> None:
    agent = Answering(cat=(0, STAT.replace(" S ", " Z ")), systemctl=(0, "42\n"))

    assert observed(agent, systemd="x.service").process() is None


def test_a_container_is_asked_of_docker_or_else_of_podman() -> None:
    agent = Answering(podman=(0, "42\n"), cat=(0, STAT))

    assert observed(agent, container="sglang").process().pid == 42
    assert observed(agent, container="sglang").stop_steps()[0]["undo"]["run"] == [
        "podman",
        "start",
        "sglang",
    ]


def test_a_host_without_the_owner_is_told() -> None:
    with pytest.raises(ProcessFailed, match="no docker and no podman"):
        observed(Answering(), container="sglang").process()
    with pytest.raises(ProcessFailed, match="no systemctl"):
        observed(Answering(), systemd="x.service").process()


def test_a_unit_is_stopped_with_its_start_as_the_undo() -> None:
    (step,) = observed(Answering(), systemd="x.service").stop_steps()

    assert step["do"]["run"] == ["systemctl", "stop", "x.service"]
    assert step["undo"]["run"] == ["systemctl", "start", "x.service"]
    assert step["verify"]["run"][1] == "is-active"


def test_a_process_of_a_pid_file_is_ended_by_pid_and_start() -> None:
    agent = Answering(cat=(0, STAT.replace("42", "42\n42", 1)))
    (step,) = observed(agent, pid_file="/run/x.pid").stop_steps()

    assert (step["do"]["pid"], step["do"]["signal"]) == (42, "TERM")


# -- against sshd ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lab")
    with Lab.up(
        LabShape.of(3),
        directory=directory / "lab",
        inventory=directory / "lab.yaml",
        leases=directory,
    ) as lab:
        yield lab


def file_of(lab: Lab) -> Path:
    return lab.directory.parent / "lab.yaml"


@pytest.fixture
def target(lab, tmp_path):
    target = SshTarget(run_dir=tmp_path, run="r1", inventory=file_of(lab), ttl_s=6.0)
    target.prepare(SPEC)
    yield target
    target.close()


@needs_lab
def test_roles_run_with_the_inventorys_python_and_path(lab, target) -> None:
    show = "import os, time; print('up', os.environ['PYTHONPATH']); time.sleep(60)"
    argv = [target.python("store-0"), "-u", "-c", show]
    process = target.spawn("store-0", argv, {"PYTHONPATH": "/nowhere"})
    line = target.wait_ready("store-0", "up", timeout_s=10)
    agent = target.hosts.of("store-0").agent

    assert line == f"up {Path(__file__).parents[3]}"
    assert target.process("store-0") == process
    assert agent.hello().hostname == "lab1"
    assert target.stop("store-0", timeout_s=5) == -signal.SIGTERM
    assert target.process("store-0") is None


@needs_lab
def test_addresses_are_those_of_the_inventory(lab, target) -> None:
    assert target.address("store-0", "data", 1) == lab.fabric.address("lab1", "rail1")
    assert target.address("master") == lab.fabric.address("lab0", "control")
    assert target.address("probe", "management") == lab.fabric.address("lab2")


@needs_lab
@pytest.mark.slow
def test_only_chosen_hosts_have_an_agent_and_none_after_the_end(lab, tmp_path) -> None:
    target = SshTarget(run_dir=tmp_path, run="r2", inventory=file_of(lab))
    target.prepare(ClusterSpec(stores=1, engines=0))
    agents = [host.name for host in target.hosts.all]
    agent = target.hosts.of("store-0").agent
    assert agent.run(["ls", "/run/moonquake"]).stdout.split()

    target.close()

    other = SshTarget(run_dir=tmp_path, run="r3", inventory=file_of(lab))
    other.prepare(ClusterSpec(stores=1, engines=0))
    shown = other.hosts.of("store-0").agent.run(["ls", "/run/moonquake"]).stdout
    other.close()
    assert agents == ["lab0", "lab1"]
    assert "r2" not in shown


@needs_lab
@pytest.mark.slow
def test_a_second_run_is_refused_and_told_who_the_first_is(
    lab, target, tmp_path
) -> None:
    second = SshTarget(
        run_dir=tmp_path, run="r9", inventory=file_of(lab), controller="bob@desk"
    )

    with pytest.raises(UsageError, match=r"host lab\d is in use by run r1"):
        second.prepare(SPEC)
    assert target.hosts.of("master").agent.hello().run == "r1"


@needs_lab
@pytest.mark.slow
def test_a_reboot_is_told_and_the_host_is_there_again_for_the_next_target(
    lab, tmp_path
) -> None:
    target = SshTarget(run_dir=tmp_path, run="r4", inventory=file_of(lab), ttl_s=3.0)
    target.prepare(SPEC)
    target.spawn("store-0", ROLE)
    target.wait_ready("store-0", "up", timeout_s=10)

    lab.reboot("lab1")
    lost = wait_until(lambda: "lab1" in target.lost, timeout_s=15)
    with pytest.raises(HarnessError, match="lab1"):
        target.process("store-0")
    target.close()
    again = SshTarget(run_dir=tmp_path, run="r5", inventory=file_of(lab))
    again.prepare(SPEC)
    again.close()

    assert lost


@needs_lab
@pytest.mark.slow
def test_an_observed_role_is_found_stopped_and_waited_for(lab, tmp_path) -> None:
    document = yaml.safe_load(file_of(lab).read_text())
    store = document["all"]["hosts"]["lab1"]
    store["manage"] = False
    store["processes"] = {"store-0": {"pid_file": "/run/store.pid"}}
    file = tmp_path / "observed.yaml"
    file.write_text(yaml.safe_dump(document))
    owner = SshTarget(run_dir=tmp_path, run="r6", inventory=file_of(lab))
    target = SshTarget(run_dir=tmp_path, run="r7", inventory=file)
    target.prepare(SPEC)
    try:
        agent = target.hosts.of("store-0").agent
        assert target.process("store-0") is None
        write = "import os, sys; open('/run/store.pid', 'w').write(str(os.getpid()));"
        started = agent.spawn("owner", [*PYTHON, write + "import time; time.sleep(60)"])
        process = target.spawn("store-0", ["never", "used"])
        ready = target.wait_ready("store-0", "marker", timeout_s=5)
        code = target.stop("store-0", timeout_s=5)
        after = target.process("store-0")
        agent.spawn("owner", [*PYTHON, write + "import time; time.sleep(60)"])
        back = target.spawn("store-0", [])

        assert (process.pid, process.start_ticks) == (
            started.pid,
            started.start_ticks,
        )
        assert (ready, code, after) == ("marker", 0, None)
        assert back.pid != process.pid
    finally:
        target.close()
        owner.close()


@needs_lab
@pytest.mark.slow
def test_an_observed_role_that_is_the_way_to_its_host_is_not_stopped(
    lab, tmp_path
) -> None:
    """A rule with a mistake in it must not cost the host."""
    document = yaml.safe_load(file_of(lab).read_text())
    store = document["all"]["hosts"]["lab1"]
    store["manage"] = False
    store["processes"] = {"store-0": {"pid_file": "/run/store.pid"}}
    file = tmp_path / "observed.yaml"
    file.write_text(yaml.safe_dump(document))
    target = SshTarget(run_dir=tmp_path, run="r8", inventory=file)
    target.prepare(SPEC)
    try:
        host = target.hosts.of("store-0")
        daemon = max(gather(host).protected_pids - {1})
        write = f"open('/run/store.pid', 'w').write('{daemon}')"
        host.agent.run([*PYTHON, write], timeout_s=5)

        with pytest.raises(Refused, match="the agent, the SSH daemon or the init"):
            target.stop("store-0", timeout_s=5)

        assert target.process("store-0").pid == daemon
    finally:
        target.close()
