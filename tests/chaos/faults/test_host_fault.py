"""The path of a fault through agents: judged, armed, confirmed, disarmed, checked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from chaos.errors import (
    AgentError,
    FaultNotInjected,
    HostUnreachable,
    ResidualFault,
    UsageError,
)
from chaos.faults.host_fault import CONFIRM_S, HostFault
from chaos.faults.injector import Injector
from chaos.faults.steps import Step, command, run, signal
from chaos.hosts.host import Host
from chaos.hosts.link import CommandResult
from chaos.safety.management import Refused

CHECK = "ip -o link show dev rail0"
LINKS = json.dumps([{"ifname": "lo"}, {"ifname": "mgmt0"}, {"ifname": "rail0"}])


@dataclass
class FakeAgent:
    """Executes nothing and remembers; `answers` are what commands print."""

    name: str
    log: list
    answers: dict = field(default_factory=dict)
    broken: set = field(default_factory=set)
    residual: str = ""
    run_id: str = "r"
    connector = SimpleNamespace(warden=50)

    def hello(self):
        return SimpleNamespace(pid=51, ttl_s=20.0)

    def run(self, argv, *, stdin="", timeout_s=5.0):
        self.fail("run")
        text = self.answers.get(" ".join(argv))
        if text is None:
            text = LINKS if "link" in argv else ""
        return CommandResult(rc=0, stdout=text, stderr="", timed_out=False)

    def arm(self, **fields):
        self.log.append((self.name, "arm", fields))
        self.fail("arm")
        return [{} for _ in fields["steps"]]

    def confirm(self, fault_id):
        self.log.append((self.name, "confirm", fault_id))
        self.fail("confirm")

    def disarm(self, fault_id):
        self.log.append((self.name, "disarm", fault_id))
        self.fail("disarm")
        return self.residual

    def fail(self, op):
        if op not in self.broken:
            return
        if op == "arm":
            raise AgentError(host=self.name, op=op, reason="step 0: no such device")
        raise HostUnreachable(host=self.name, op=op, reason="no answer within 10 s")


class Down(HostFault):
    kind = "down"
    device = "rail0"

    def hosts(self):
        return self._hosts.all

    def steps(self, host, facts):
        link = ("ip", "link", "set", "dev", self.device)
        verify = command("ip", "-o", "link", "show", "dev", "rail0", has="UP")
        return [Step(do=run(*link, "down"), undo=run(*link, "up"), verify=verify)]

    def effect(self, part):
        return 1.0, "down"


class Killed(Down):
    def steps(self, host, facts):
        return [Step(do=signal(900, 5, "KILL"))]


@pytest.fixture
def log():
    return []


@pytest.fixture
def hosts(log):
    return tuple(
        Host(
            name=name,
            roles=(f"store-{number}",),
            agent=FakeAgent(name, log, {CHECK: "UP"}),
            devices={"management": "mgmt0", "rail0": "rail0"},
        )
        for number, name in enumerate(("a", "b"))
    )


@pytest.fixture
def cluster(hosts):
    return SimpleNamespace(hosts=SimpleNamespace(all=hosts))


def done(log):
    return [(name, op) for name, op, _ in log]


def test_all_hosts_are_armed_before_the_first_is_confirmed(cluster, log) -> None:
    Down(cluster, "x").inject()

    assert sorted(done(log)[:2]) == [("a", "arm"), ("b", "arm")]
    assert done(log)[2:] == [("a", "confirm"), ("b", "confirm")]
    assert log[0][2]["confirm_s"] == CONFIRM_S


def test_what_leaves_the_network_alone_needs_no_confirmation(cluster, log) -> None:
    Killed(cluster, "x").inject()

    assert sorted(done(log)) == [("a", "arm"), ("b", "arm")]
    assert log[0][2]["confirm_s"] == 0.0


def test_the_plan_is_what_is_armed(cluster, log) -> None:
    fault = Down(cluster, "store-0")
    plan = fault.plan()
    fault.inject()

    assert "a: ip link set dev rail0 down" in plan
    assert "a: to undo: ip link set dev rail0 up" in plan
    assert log[0][2]["steps"][0]["do"]["run"][-1] == "down"


def test_the_plan_names_who_else_suffers(cluster) -> None:
    assert "b also runs store-1" in Down(cluster, "store-0").plan()


def test_a_plan_without_agents_is_a_plan_all_the_same(cluster, hosts) -> None:
    cluster.hosts.all = tuple(
        Host(name=one.name, roles=one.roles, agent=None) for one in hosts
    )

    assert "a: ip link set dev rail0 down" in Down(cluster, "x").plan()


def test_a_fault_that_the_guard_refuses_is_never_armed(cluster, log) -> None:
    fault = Down(cluster, "x")
    fault.device = "mgmt0"

    with pytest.raises(Refused, match="mgmt0"):
        fault.inject()
    assert log == []


def test_a_host_where_it_fails_is_no_injection_and_all_are_disarmed(
    cluster, hosts, log, ledger
) -> None:
    hosts[1].agent.broken.add("arm")
    injector = Injector(lambda: cluster, lambda: None, ledger)

    with (
        pytest.raises(FaultNotInjected, match="no such device"),
        injector(Down(cluster, "x")),
    ):
        pass
    assert done(log)[-2:] == [("b", "disarm"), ("a", "disarm")]
    assert injector.residual == []


def test_a_fault_that_is_not_confirmed_is_disarmed(cluster, hosts, log, ledger) -> None:
    hosts[0].agent.broken.add("confirm")
    injector = Injector(lambda: cluster, lambda: None, ledger)

    with pytest.raises(HostUnreachable), injector(Down(cluster, "x")):
        pass
    assert {op for _, op in done(log)[-2:]} == {"disarm"}


def test_a_host_that_does_not_answer_is_never_taken_for_healed(
    cluster, hosts, log
) -> None:
    fault = Down(cluster, "x")
    fault.inject()
    hosts[1].agent.broken.add("disarm")

    with pytest.raises(Exception, match="host b does not answer to disarm"):
        fault.revert()
    assert ("a", "disarm") in done(log)


def test_where_no_agent_is_left_nobody_is_asked_again(
    cluster, hosts, monkeypatch
) -> None:
    """Its lease ran out, or the host was rebooted: waiting brings it not back."""
    fault = Down(cluster, "x")
    fault.inject()
    gone = HostUnreachable(host="b", op="disarm", reason="none serves", gone=True)

    def disarm(_):
        raise gone

    monkeypatch.setattr(hosts[1].agent, "disarm", disarm)

    with pytest.raises(ResidualFault, match="none serves"):
        fault.revert()


def test_what_an_agent_could_not_undo_is_residual(cluster, hosts) -> None:
    fault = Down(cluster, "x")
    fault.inject()
    hosts[1].agent.residual = "step 0: link is down"
    fault.revert()

    assert fault.verify_reverted() == "b: step 0: link is down"


def test_an_agent_that_is_mistaken_is_found_out(cluster, hosts) -> None:
    fault = Down(cluster, "x")
    fault.inject()
    fault.revert()
    hosts[0].agent.answers[CHECK] = "DOWN"

    assert fault.verify_reverted() == "a: not undone: ip link set dev rail0 down"


def test_a_fault_that_was_never_injected_has_no_effect_and_nothing_to_undo(
    cluster, log
) -> None:
    fault = Down(cluster, "x")

    assert fault.probe().effect == 0
    fault.revert()
    assert fault.verify_reverted() == ""
    assert log == []


def test_every_fault_has_a_name_of_its_own(cluster) -> None:
    assert len({Down(cluster, "x").fault_id for _ in range(100)}) == 100


def test_its_domain_are_its_hosts(cluster) -> None:
    assert Down(cluster, "x").domain == ("a", "b")


def test_a_target_without_hosts_is_refused() -> None:
    with pytest.raises(UsageError, match="acts on hosts"):
        Down(SimpleNamespace(hosts=None), "x")
