"""Agents are started and reached in a namespace or over a session, once."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.errors import HarnessError, HostUnreachable, UsageError
from chaos.hosts.connectors import NamespaceConnector, SshConnector
from chaos.hosts.link import Agent
from inventory.errors import SshError, SshProblem
from inventory.ssh import Completed

# --- namespaces -----------------------------------------------------------------------


def test_an_agent_of_a_namespace_acts_there_and_is_reached_from_here(
    fleet, kit, namespace
):
    link = fleet.agent(enter=namespace)
    inside = link.run(["readlink", "/proc/self/ns/net"]).stdout

    assert inside == kit.inside(namespace, "readlink", "/proc/self/ns/net")
    assert inside.strip() != str(Path("/proc/self/ns/net").readlink())


def test_an_agent_with_a_file_system_of_its_own_is_reached(fleet, kit):
    """Two hosts may both call their directory the same."""
    if os.geteuid() != 0:
        pytest.skip("needs a mount namespace: run as root")
    private = fleet.directory()
    mount = ("unshare", "--mount", "sh", "-c")
    script = f'mount -t tmpfs none {private} && exec "$@"'
    links = [
        fleet.agent(private / "s", run=name, enter=(*mount, script, "sh"))
        for name in ("run-a", "run-b")
    ]

    assert [link.hello().run for link in links] == ["run-a", "run-b"]
    assert list(private.iterdir()) == []


def test_a_host_without_an_interpreter_is_told(fleet):
    connector = fleet.connector(python="/no/such/python")
    with pytest.raises(HarnessError, match="cannot run the agent on host-0"):
        connector.start(run="r", ttl_s=5, controller="")


def test_an_agent_that_was_never_started_is_gone(fleet):
    with pytest.raises(HostUnreachable, match="no agent was started"):
        Agent(fleet.connector()).hello()


def test_a_wrong_run_is_told_in_the_agents_words(fleet):
    connector = fleet.connector()
    with pytest.raises(HarnessError, match="--run: needs letters"):
        connector.start(run="../up", ttl_s=5, controller="")


@pytest.mark.parametrize("controller", ["-x", "$(touch x) 'y'", "a\nb"])
def test_hostile_names_of_controllers_are_inert(fleet, controller):
    connector = fleet.connector()
    connector.start(run="run-1", ttl_s=5, controller=controller)
    [row] = connector.status()
    link = Agent(connector)
    fleet.agents.append(link)

    assert row["controller"] == controller


# --- SSH ------------------------------------------------------------------------------


class Stream:
    """A local process with the manners of `inventory.channel.Channel`."""

    def __init__(self, argv, lost):
        self.popen = subprocess.Popen(argv, stdin=-1, stdout=-1, stderr=-1, bufsize=0)
        self.lost = lost

    @property
    def stderr(self):
        return self.popen.stderr.read()

    def send(self, data, *, timeout_s):
        if self.lost():
            raise lost_error()
        self.popen.stdin.write(data)

    def recv(self, size, *, timeout_s):
        ready, _, _ = select.select([self.popen.stdout], [], [], timeout_s)
        if not ready:
            raise TimeoutError("nothing came")
        if self.lost():
            raise lost_error()
        return os.read(self.popen.stdout.fileno(), size)

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.close()
        self.popen.kill()
        self.popen.wait()
        self.popen.stdout.close()
        self.popen.stderr.close()


def lost_error(maybe_ran=True):
    return SshError(SshProblem.LOST, host="h", detail="was lost", maybe_ran=maybe_ran)


class Session:
    """Runs here what a real session runs there; loses what it is told to lose."""

    def __init__(self, python=sys.executable):
        self.entry = SimpleNamespace(
            name="ssh-0", python=python, sudo=False, elevated=list
        )
        self.lose_run = self.lose_stream = 0
        self.runs = []
        self.streams = []
        self.closed = False

    def run(self, argv, *, stdin=b"", timeout_s):
        self.runs.append(list(argv))
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout_s)
        if self.lose_run:
            self.lose_run -= 1
            raise lost_error()
        return Completed(
            argv=tuple(argv), rc=done.returncode, stdout=done.stdout, stderr=done.stderr
        )

    def open(self, argv, *, timeout_s):
        self.streams.append(Stream(argv, self._lost))
        return self.streams[-1]

    def _lost(self):
        self.lose_stream = max(0, self.lose_stream - 1)
        return self.lose_stream > 0

    def close(self):
        self.closed = True


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def ssh(fleet, session):
    def make(run="run-1", state_dir=None):
        connector = SshConnector(
            session, state_dir=str(state_dir or fleet.directory() / "s")
        )
        link = Agent(connector)
        fleet.agents.append(link)
        return link.start(run=run, ttl_s=60, controller="test")

    return make


def test_an_agent_is_sent_and_reached_through_its_relay(ssh, session, kit):
    link = ssh()
    process = kit.spawn(link, "role-0")

    assert link.hello().run == "run-1"
    assert link.wait_line("role-0", "ready", timeout_s=5) == "role ready role-0"
    assert link.run(["echo", "$(id) 'a'\n"]).stdout == "$(id) 'a'\n\n"
    assert link.shutdown() == ""
    assert not kit.is_alive(process.pid, process.start_ticks)
    link.close()
    assert session.closed


def test_nothing_is_sent_to_a_shell(ssh, session):
    ssh()

    assert session.runs[0][:4] == ["env", "LC_ALL=C", sys.executable, "-I"]


def test_a_start_whose_answer_is_lost_is_not_made_again(ssh, session):
    session.lose_run = 1
    link = ssh()

    assert link.hello().run == "run-1"
    assert [argv[6] for argv in session.runs] == ["serve", "status"]


def test_a_start_that_was_lost_and_did_not_happen_is_told(fleet, session, monkeypatch):
    connector = SshConnector(session, state_dir=str(fleet.directory() / "s"))
    monkeypatch.setattr(
        session, "run", lambda *a, **k: (_ for _ in ()).throw(lost_error(False))
    )
    with pytest.raises(HostUnreachable, match="ssh-0 does not answer to start: h: was"):
        connector.start(run="r", ttl_s=5, controller="")


def test_a_lost_stream_is_replaced_and_the_command_runs_once(ssh, session, tmp_path):
    link = ssh()
    link.hello()
    session.lose_stream = 2
    log = tmp_path / "log"
    link.run(["tee", "-a", str(log)], stdin="x")

    assert log.read_text() == "x"
    assert len(session.streams) == 2


def test_an_agent_that_ended_is_gone_and_not_waited_for(ssh, kit):
    link = ssh()
    pid = link.hello().pid
    link.shutdown()
    assert kit.within(15, lambda: kit.ended(pid))
    began = kit.now()
    with pytest.raises(HostUnreachable) as caught:
        link.hello()

    assert caught.value.gone
    assert kit.now() - began < 5


def test_the_second_run_over_ssh_is_told_of_the_first(ssh, fleet):
    directory = fleet.directory() / "s"
    ssh("run-1", directory)
    with pytest.raises(UsageError, match="host ssh-0 is in use by run run-1 of test"):
        ssh("run-2", directory)


def test_a_host_without_python_is_told_with_the_remedy(fleet):
    connector = SshConnector(
        Session(python="/no/python"), state_dir=str(fleet.directory() / "s")
    )
    with pytest.raises(HostUnreachable, match="ansible_python_interpreter"):
        connector.start(run="r", ttl_s=5, controller="")


def test_what_dead_agents_left_is_healed_over_ssh(ssh, kit, tmp_path):
    link = ssh()
    hello = link.hello()
    made = tmp_path / "made"
    link.arm("f", kind="k", target="t", steps=[kit.touch(made)])
    kit.kill(hello.warden, 19)
    kit.kill(hello.pid)
    kit.kill(hello.warden)
    [row] = link.connector.status()
    rows = link.connector.recover()

    assert (row["run"], row["alive"]) == ("run-1", False)
    assert [one["state"] for one in rows] == ["reverted", "healed"]
    assert not made.exists()


def test_namespaces_need_no_ssh_library():
    code = (
        "import sys, chaos.hosts.connectors, chaos.hosts.link, chaos.hosts.lease\n"
        "sys.exit('paramiko' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0
    assert NamespaceConnector.__init__.__kwdefaults__["python"] == sys.executable
