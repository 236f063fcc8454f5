"""Real agents for tests: each in a state directory of its own, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from chaos.errors import ChaosError
from chaos.hosts.connectors import NamespaceConnector
from chaos.hosts.link import Agent
from chaos.safety.identity import (
    is_alive,
    send_signal,
    start_ticks_of,
    state_of,
    wait_until,
)

LONG_S = 120.0
PYTHON = os.environ.get("MOONQUAKE_AGENT_PYTHON", sys.executable)
"""Runs the agents of the tests, e.g. a Python 3.8: hosts are older than controllers."""
TALKER = "import time; print('role ready {}', flush=True); time.sleep(600)"


class Fleet:
    """Starts agents and ends them, however a test left them."""

    def __init__(self):
        self.connectors = []
        self.agents = []
        self.directories = []

    def directory(self) -> Path:
        """A short one: the path of a socket has at most 107 bytes."""
        directory = Path(tempfile.mkdtemp(prefix="mqh"))
        self.directories.append(directory)
        return directory

    def connector(self, state_dir=None, **options):
        options.setdefault("python", PYTHON)
        made = NamespaceConnector(
            options.pop("name", "host-0"),
            state_dir=str(state_dir or self.directory() / "s"),
            **options,
        )
        self.connectors.append(made)
        return made

    def agent(self, state_dir=None, *, run="run-1", ttl_s=LONG_S, **options):
        link = Agent(self.connector(state_dir, **options))
        self.agents.append(link)
        return link.start(run=run, ttl_s=ttl_s, controller="test")

    def close(self):
        for link in self.agents:
            with contextlib.suppress(ChaosError):
                if link.hello():
                    link.shutdown()
            link.close()
        for connector in self.connectors:
            for pid in (connector.warden, connector.pid):
                if pid and "agent.py" in _command_of(pid):
                    os.kill(pid, signal.SIGKILL)
        for directory in self.directories:
            shutil.rmtree(directory)


def _command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture
def fleet():
    fleet = Fleet()
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def shared():
    """One agent for the tests of a file that leave nothing behind."""
    fleet = Fleet()
    yield fleet.agent()
    fleet.close()


@pytest.fixture
def scratch(tmp_path):
    return tmp_path / "a dir with 'quotes' $(and) more"


@pytest.fixture
def namespace():
    """A network namespace that outlives its agents; the command that enters it."""
    if os.geteuid() != 0:
        pytest.skip("needs a network namespace: run as root")
    holder = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    before = _network_of("self")
    wait_until(lambda: _network_of(holder.pid) not in ("", before), timeout_s=5)
    yield ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "--")
    holder.kill()
    holder.wait()


def _network_of(pid):
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def inside(enter, *argv):
    """What a command says in a namespace, without any agent."""
    done = subprocess.run([*enter, *argv], capture_output=True, text=True, timeout=10)
    return done.stdout


def within(seconds, condition):
    return wait_until(condition, timeout_s=seconds)


class Victim:
    """A process that is not ours to end: the system under test, observed only."""

    def __init__(self):
        self.popen = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
        self.pid = self.popen.pid
        self.ticks = start_ticks_of(self.pid)

    @property
    def state(self):
        text = Path(f"/proc/{self.pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0]

    def pause_step(self, *, pid=None, ticks=None):
        who = {"op": "signal", "pid": pid or self.pid}
        who["start_ticks"] = self.ticks if ticks is None else ticks
        return {"do": {**who, "signal": "STOP"}, "undo": {**who, "signal": "CONT"}}

    def close(self):
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def victim():
    victim = Victim()
    yield victim
    victim.close()


@pytest.fixture
def kit():
    """Helpers, so that test files import nothing from each other."""
    return Kit


class Kit:
    within = staticmethod(within)
    inside = staticmethod(inside)
    is_alive = staticmethod(is_alive)
    now = staticmethod(time.monotonic)

    @staticmethod
    def ended(pid):
        """Gone, or a zombie that nobody has collected yet."""
        return state_of(pid) in ("", "Z")

    @staticmethod
    def spawn(link, role="role-0", code=TALKER, **options):
        argv = [sys.executable, "-c", code.replace("{}", role)]
        return link.spawn(role, argv, **options)

    @staticmethod
    def kill(pid, number=signal.SIGKILL):
        """Sends a signal; then who is killed is gone, and who is stopped stands."""
        ticks = start_ticks_of(pid) or 0
        assert send_signal(pid, ticks, number)
        if number == signal.SIGKILL:
            assert wait_until(lambda: not is_alive(pid, ticks), timeout_s=10)
        if number == signal.SIGSTOP:
            assert wait_until(lambda: state_of(pid) == "T", timeout_s=10)

    @staticmethod
    def touch(path):
        """A step that makes a file and removes it."""
        return {"do": {"run": ["touch", str(path)]}, "undo": {"run": ["rm", str(path)]}}

    @staticmethod
    def note(path, word):
        """A step whose undo appends a word to a file."""
        undo = {"run": ["tee", "-a", str(path)], "stdin": f"{word}\n"}
        return {"do": {"run": ["true"]}, "undo": undo}
