"""Collecting through connections of testinfra: this machine, a real sshd, ill hosts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import testinfra
import yaml

from checks.fleet import CollectOptions
from checks.judge import judge
from checks.through_testinfra import (
    MAX_COMMAND,
    collect_through,
    collector_command,
)

ROOT = Path(__file__).parents[2]
OPTIONS = CollectOptions()
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="namespaces need root: run the tests with sudo"
)
needs_sshd = pytest.mark.skipif(
    shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") is None,
    reason="no sshd here; install openssh-server",
)


@dataclass
class Ran:
    rc: int = 0
    stdout_bytes: bytes = b""
    stderr: str = ""


@dataclass
class Host:
    """A host that answers what the test says; remembers what it was asked."""

    answer: object = field(default_factory=Ran)
    name: str = "ssh://node-1"
    asked: list = field(default_factory=list)

    @property
    def backend(self):
        return self

    def get_pytest_id(self):
        return self.name

    def run(self, command):
        self.asked.append(command)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def problem(answer):
    (document,) = collect_through([Host(answer)], OPTIONS)
    error = document["collector"]["error"]
    return error["kind"], error["reason"]


def test_the_collector_fits_into_one_argument_and_is_asked_for_once():
    host = Host()

    collect_through([host], OPTIONS)

    (command,) = host.asked
    assert len(command) < MAX_COMMAND / 4
    assert command.startswith("timeout -k 5 45 python3 -c ")


def test_options_reach_the_collector():
    command = collector_command(CollectOptions(nics=("mlx5_0", "mlx5_1")))

    assert command.endswith(" --nics mlx5_0,mlx5_1")


def test_this_machine_is_collected_whole():
    (document,) = collect_through([testinfra.get_host("local://")], OPTIONS)

    assert document["node"]["hostname"] == "local"
    assert document["collector"]["euid"] == os.geteuid()
    assert document["collector"]["late"] is False
    assert "/proc/modules" in document["files"]
    report = judge([document])
    (reachable,) = [f for f in report.findings if f.id == "meta-reachable"]
    assert reachable.status == "PASS"
    assert report.own_faults == ()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Ran(rc=124), "timeout"),
        (Ran(rc=137), "timeout"),
        (Ran(rc=127, stderr="sh: 1: python3: not found\n"), "no_python"),
        (Ran(rc=1, stderr="sudo: a password is required\n"), "empty"),
        (Ran(stdout_bytes=b'{"schema": "preflight.fa'), "truncated"),
        (Ran(stdout_bytes=b"Welcome!\n"), "garbage"),
        (RuntimeError(Ran(rc=255, stderr="ssh: connect: refused\n")), "unreachable"),
        (OSError("no route to host"), "unreachable"),
    ],
)
def test_a_host_that_cannot_be_read_says_how(answer, kind):
    assert problem(answer)[0] == kind


def test_what_ssh_complained_of_is_the_reason():
    failed = RuntimeError(
        Ran(rc=255, stderr="warning\nHost key verification failed.\n")
    )

    assert problem(failed) == ("unreachable", "Host key verification failed.")


def test_one_ill_host_does_not_lose_the_others_and_names_stay_apart():
    ill, local = Host(RuntimeError("gone")), testinfra.get_host("local://")
    same = Host(RuntimeError("gone"))

    documents = collect_through([ill, local, same], OPTIONS)

    names = [document["node"]["hostname"] for document in documents]
    assert names == ["ssh://node-1", "local", "ssh://node-1#2"]
    assert "error" not in documents[1]["collector"]


def suite(*words, timeout_s=110, programs=None):
    """Runs the suite in a process of its own: its outcomes by item."""
    path = [str(programs)] if programs else []
    command = [sys.executable, "-m", "pytest", "suites/preflight", "-rA", "-q", *words]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=ROOT,
        env=os.environ | {"PATH": os.pathsep.join([*path, os.environ["PATH"]])},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    found = re.findall(r"^(PASSED|FAILED) \S+\[(.+)\]", done.stdout, re.MULTILINE)
    return {name: outcome for outcome, name in found}, done.stdout


def test_every_check_is_an_item_on_this_machine():
    """One run: outcomes, what is said with them, and the unread ones that decide."""
    only = "meta-reachable,meta-privilege,nic-flap"

    outcomes, told = suite("--hosts", "local://", "--preflight-only", only)

    assert outcomes["meta-reachable-local"] == "PASSED"
    assert set(outcomes) <= {f"{name}-local" for name in only.split(",")}
    if not Path("/sys/class/infiniband").exists():
        assert outcomes["nic-flap-local"] == "FAILED"
        assert "UNKNOWN nic-flap" in told


@pytest.mark.slow
def test_without_hosts_it_is_this_machine():
    outcomes, _ = suite("--preflight-only", "meta-reachable")

    assert outcomes == {"meta-reachable-local": "PASSED"}


@pytest.mark.slow
def test_a_check_that_does_not_exist_is_a_question_asked_wrongly():
    _, told = suite("--preflight-only", "nic-nonsense")

    assert "no check is called nic-nonsense" in told


INVENTORY = {
    "_meta": {"hostvars": {"node-1": {"ansible_connection": "local"}}},
    "all": {"children": ["stores"]},
    "stores": {"hosts": ["node-1"]},
}


@pytest.mark.slow
def test_hosts_come_from_the_inventory_of_ansible_as_testinfra_reads_it(tmp_path):
    """The program that lists an inventory is ours here: Ansible is no dependency."""
    program = tmp_path / "ansible-inventory"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(INVENTORY)}'\n")
    program.chmod(0o755)
    hosts = tmp_path / "hosts.yaml"
    hosts.touch()

    outcomes, _ = suite(
        *("--hosts", "ansible://stores", "--ansible-inventory", str(hosts)),
        *("--preflight-only", "meta-reachable"),
        programs=tmp_path,
    )

    assert outcomes == {"meta-reachable-ansible://node-1": "PASSED"}


def _ssh_config(path, inventory):
    """OpenSSH's configuration for the hosts of a lab."""
    every = yaml.safe_load(inventory.read_text())["all"]
    common, hosts = every["vars"], every["hosts"]
    lines = [
        f"Host {name}\n  HostName {h['ansible_host']}\n" for name, h in hosts.items()
    ]
    path.write_text(
        "".join(lines) + "Host *\n"
        f"  User {common['ansible_user']}\n"
        f"  IdentityFile {common['ansible_ssh_private_key_file']}\n"
        "  IdentitiesOnly yes\n  BatchMode yes\n"
        f"  UserKnownHostsFile {common['known_hosts']}\n"
    )
    return path


@pytest.fixture
def lab(tmp_path):
    """Three machines with sshd in namespaces; their ssh_config and known_hosts."""
    inventory = tmp_path / "lab.yaml"
    script = [sys.executable, str(ROOT / "scripts" / "lab")]
    asked = ["--inventory", str(inventory)]
    up = subprocess.run(
        [*script, "up", "3", *asked], capture_output=True, text=True, check=False
    )
    if up.returncode != 0:
        pytest.skip(f"no lab here: {up.stderr.strip()[-200:]}")
    try:
        yield _ssh_config(tmp_path / "ssh_config", inventory)
    finally:
        subprocess.run([*script, "down", *asked], check=True, capture_output=True)


@needs_root
@needs_sshd
@pytest.mark.slow
def test_hosts_over_real_sshds_are_collected_and_judged_as_peers(lab):
    hosts = testinfra.get_hosts(
        ["ssh://lab0", "ssh://lab1", "ssh://lab2"], ssh_config=str(lab)
    )

    documents = collect_through(hosts, OPTIONS)

    assert [d["node"]["hostname"] for d in documents] == [
        "ssh://lab0",
        "ssh://lab1",
        "ssh://lab2",
    ]
    assert not [d for d in documents if "error" in d["collector"]]
    names = {
        row["ifname"]
        for d in documents
        for row in json.loads(d["cmds"]["ip -j -d addr"]["stdout"])
    }
    assert "rail0" in names
    report = judge(documents)
    assert report.own_faults == ()
    reached = {f.node for f in report.findings if f.id == "meta-reachable"}
    assert len(reached) == 3


@needs_root
@needs_sshd
@pytest.mark.slow
def test_the_suite_over_real_sshds_fails_the_unreachable_host_alone(lab):
    hosts = "lab0,ssh://lab1,ssh://lab2:1"
    only = "meta-reachable,nic-fec"

    outcomes, told = suite(
        "--hosts", hosts, "--ssh-config", str(lab), "--preflight-only", only
    )

    assert outcomes == {
        "meta-reachable-ssh://lab0": "PASSED",
        "meta-reachable-ssh://lab1": "PASSED",
        "meta-reachable-ssh://lab2": "FAILED",
    }
    assert "Connection refused" in told
    assert "blocked by meta-reachable" in told


@needs_root
@needs_sshd
@pytest.mark.slow
def test_a_host_whose_key_nobody_knows_is_not_talked_to(lab):
    text = lab.read_text()
    lab.write_text(
        re.sub(r"UserKnownHostsFile .*", "UserKnownHostsFile /dev/null", text)
    )

    outcomes, told = suite(
        "--hosts",
        "lab0",
        "--ssh-config",
        str(lab),
        "--preflight-only",
        "meta-reachable",
    )

    assert outcomes == {"meta-reachable-ssh://lab0": "FAILED"}
    assert "Host key verification failed" in told
