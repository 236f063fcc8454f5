from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.errors import HarnessError, UsageError
from chaos.hosts.link import Agent
from chaos.safety.identity import state_of, wait_until
from chaos.targets.namespaces import Keeper, why_no_namespaces
from chaos.targets.starting import StartedConnector, start_agents

pytestmark = pytest.mark.skipif(
    bool(why_no_namespaces()), reason=why_no_namespaces() or "-"
)


@pytest.fixture
def keeper():
    keeper = Keeper()
    yield keeper
    keeper.close()


def inside(namespaces, *argv: str) -> str:
    return subprocess.check_output([*namespaces.enter(), *argv], text=True).strip()


def test_settings_are_those_of_the_new_namespaces_alone(keeper) -> None:
    ours = Path("/proc/sys/net/ipv4/conf/all/arp_ignore")
    before = ours.read_text()
    sysctl = {"net/ipv4/conf/all/arp_ignore": "2", "net/of/no/kernel": "1"}
    host = keeper.make(["a"], sysctl=sysctl)["a"]

    assert inside(host, "cat", str(ours)) == "2"
    assert ours.read_text() == before


def test_a_host_that_cannot_be_made_is_an_error_and_the_keeper_goes_on(keeper) -> None:
    with pytest.raises(HarnessError, match=r"cannot make.*/no/such/place"):
        keeper.make(["a"], sysctl={}, private=["/no/such/place"])

    assert keeper.make(["a"], sysctl={})["a"].init == 0
    with pytest.raises(HarnessError, match="host a is there"):
        keeper.make(["a"], sysctl={})


def test_a_dropped_host_keeps_no_namespace_of_it_alive(keeper) -> None:
    first, second = keeper.make(["a", "b"], sysctl={}, init=True).values()
    held = Path(first.path("net")).stat().st_ino
    keeper.drop(["a"])

    descriptors = [
        descriptor.stat().st_ino
        for pid in (keeper.pid, second.init)
        for descriptor in Path(f"/proc/{pid}/fd").iterdir()
        if "net:" in str(descriptor.readlink())
    ]
    assert held not in descriptors
    assert state_of(first.init) == ""
    assert state_of(second.init) not in ("", "Z")


def test_a_host_ends_with_the_service_of_its_init(keeper, tmp_path) -> None:
    host = keeper.make(["a"], sysctl={}, init=True)["a"]
    assert keeper.alive("a")
    code = "import os, time; print(os.getpid()); time.sleep(0.2)"
    log = tmp_path / "log"
    keeper.boot("a", [sys.executable, "-S", "-u", "-c", code], log)

    assert wait_until(lambda: not keeper.alive("a"), timeout_s=5)
    assert log.read_text() == "2\n"  # process 1 is the init
    assert host.processes() == []


def test_an_init_that_is_killed_takes_all_of_its_host_with_it(keeper, tmp_path) -> None:
    host = keeper.make(["a"], sysctl={}, init=True)["a"]
    code = "import subprocess; subprocess.run(['sleep', '60'])"
    keeper.boot("a", [sys.executable, "-S", "-c", code], tmp_path / "log")
    assert wait_until(lambda: len(host.processes()) == 3, timeout_s=5)

    os.kill(host.init, signal.SIGKILL)

    assert wait_until(lambda: host.processes() == [], timeout_s=5)
    assert not keeper.alive("a")


def test_a_keeper_that_is_gone_is_told(keeper) -> None:
    os.kill(keeper.pid, signal.SIGKILL)

    with pytest.raises(HarnessError, match="keeper of the namespaces"):
        keeper.make(["a"], sysctl={})


def agents_of(keeper: Keeper, directory, *names: str) -> list[StartedConnector]:
    made = keeper.make(names, sysctl={})
    return [
        StartedConnector(namespaces, state_dir=str(directory / name))
        for name, namespaces in made.items()
    ]


def test_agents_start_together_each_in_its_namespaces(keeper, tmp_path) -> None:
    connectors = agents_of(keeper, tmp_path, "a", "b")
    start_agents(connectors, run="r", ttl_s=20, controller="me")
    agents = [Agent(connector) for connector in connectors]
    for agent in agents:
        agent.start(run="r", ttl_s=20, controller="me")
    try:
        assert [agent.hello().hostname for agent in agents] == ["a", "b"]
    finally:
        for agent in agents:
            assert agent.shutdown() == ""
            agent.close()


def test_a_host_that_another_run_holds_is_refused_with_its_name(
    keeper, tmp_path
) -> None:
    (first,) = agents_of(keeper, tmp_path, "a")
    start_agents([first], run="r1", ttl_s=20, controller="alice")
    agent = Agent(first).start(run="r1", ttl_s=20, controller="alice")
    second = StartedConnector(first.namespaces, state_dir=first.state_dir)
    try:
        start_agents([second], run="r2", ttl_s=20, controller="bob")
        with pytest.raises(UsageError, match="in use by run r1 of alice"):
            Agent(second).start(run="r2", ttl_s=20, controller="bob")
    finally:
        agent.shutdown()
        agent.close()


def test_an_agent_that_cannot_enter_its_namespaces_says_so(keeper, tmp_path) -> None:
    (connector,) = agents_of(keeper, tmp_path, "a")
    wrong = dataclasses.replace(
        connector.namespaces, net=connector.namespaces.uts, uts=connector.namespaces.uts
    )
    broken = StartedConnector(wrong, state_dir=connector.state_dir)
    start_agents([broken], run="r", ttl_s=20, controller="")

    with pytest.raises(HarnessError, match="cannot enter the net namespace"):
        Agent(broken).start(run="r", ttl_s=20)
