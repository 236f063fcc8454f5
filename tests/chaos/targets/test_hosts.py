from __future__ import annotations

import pytest

from chaos.errors import AgentError, HostUnreachable, ProcessFailed, ResidualFault
from chaos.hosts.host import Host
from chaos.hosts.link import Renewed, RoleProcess, RoleState
from chaos.systems.base import ClusterSpec
from chaos.targets.hosts import HostTarget, roles_of


class FakeAgent:
    """An agent as far as a target asks it; `broken` names what fails."""

    def __init__(self, name: str, *, probe=None, residual="", broken=()) -> None:
        self.name = name
        self.run_id = ""
        self.calls: list[str] = []
        self.connector = self
        self.recovered: list[dict[str, str]] = [{"run": "r1", "state": "residual"}]
        self._probe = probe or {}
        self._residual = residual
        self._broken = broken

    def start(self, *, run: str, ttl_s: float, controller: str = "") -> FakeAgent:
        self._do("start")
        self.run_id = run
        return self

    def renew(self, ttl_s: float, *, timeout_s: float) -> Renewed:
        return Renewed(expires_in_s=ttl_s, failed={})

    def probe(self):
        self._do("probe")
        return self._probe

    def spawn(self, role, argv, *, env=None, cwd=""):
        self._do("spawn")
        return RoleProcess(pid=7, start_ticks=8)

    def wait_line(self, role, marker, *, timeout_s):
        detail = {"reason": "ended with 1", "tail": "port taken"}
        raise AgentError(host=self.name, op="wait_line", reason="x", detail=detail)

    def role(self, role):
        return RoleState(alive=False, pid=7, start_ticks=8, rc=1)

    def tail(self, role, *, size_bytes):
        self._do("tail")
        return "out of " + role, "err of " + role

    def shutdown(self) -> str:
        self._do("shutdown")
        return self._residual

    def recover(self, run: str):
        self._do("recover")
        return self.recovered

    def close(self) -> None:
        self.calls.append("close")

    def _do(self, call: str) -> None:
        self.calls.append(call)
        if call in self._broken:
            raise HostUnreachable(host=self.name, op=call, reason="gone")


class Target(HostTarget):
    name = "fake"

    def open(self, *agents: FakeAgent) -> None:
        self._open(
            [
                Host(name=agent.name, roles=(f"store-{n}",), agent=agent)
                for n, agent in enumerate(agents)
            ]
        )


@pytest.fixture
def target(tmp_path):
    target = Target(run_dir=tmp_path, run="r1")
    yield target
    target._hosts = type(target._hosts)()
    for lease in target._leases.values():
        lease.close()


def test_closing_ends_every_host_whatever_happens_on_another(target) -> None:
    agents = [FakeAgent("a"), FakeAgent("b", broken=("shutdown",)), FakeAgent("c")]
    target.open(*agents)

    with pytest.raises(ResidualFault, match=r"host b.*heals itself within 30 s"):
        target.close()

    assert [agent.calls[-2:] for agent in agents] == [["shutdown", "close"]] * 3
    target.close()
    assert agents[0].calls.count("shutdown") == 1


def test_what_a_host_could_not_heal_is_told(target) -> None:
    target.open(FakeAgent("a", residual="f1: rail0 is still down"))

    with pytest.raises(ResidualFault, match="rail0 is still down"):
        target.close()


def test_a_host_whose_agent_died_is_healed_from_its_ledger(target) -> None:
    agent = FakeAgent("a", residual="the ledger of r1 is still there")
    agent.recovered = [{"run": "r1", "state": "healed"}]
    target.open(agent)
    target.close()

    assert agent.calls[-3:] == ["shutdown", "recover", "close"]


def test_a_host_whose_agent_did_not_start_is_not_asked_to_end(target) -> None:
    first, second = FakeAgent("a"), FakeAgent("b", broken=("start",))

    with pytest.raises(HostUnreachable, match="host b"):
        target.open(first, second)
    target.close()

    assert first.calls == ["start", "shutdown", "close"]
    assert second.calls == ["start", "close"]


def test_the_ends_of_logs_are_kept_when_a_target_closes(target, tmp_path) -> None:
    target.open(FakeAgent("a"), FakeAgent("b"))
    target.spawn("store-1", ["x"])
    target.close()

    assert (tmp_path / "store-1.err").read_text() == "err of store-1"
    assert not (tmp_path / "store-0.err").exists()


def test_lost_logs_are_no_reason_not_to_heal(target) -> None:
    agent = FakeAgent("a", broken=("tail",))
    target.open(agent)
    target.spawn("store-0", ["x"])
    target.close()

    assert "shutdown" in agent.calls


def test_a_role_without_a_host_is_named(target) -> None:
    target.open(FakeAgent("a"))

    with pytest.raises(ProcessFailed, match="store-9 has no host"):
        target.spawn("store-9", ["x"])
    target.close()


def test_why_a_role_was_not_ready_is_told_with_its_last_words(target) -> None:
    target.open(FakeAgent("a"))

    with pytest.raises(ProcessFailed, match="store-0 ended with 1: port taken"):
        target.wait_ready("store-0", "up", timeout_s=1)
    target.close()


def test_a_capability_is_there_when_every_host_has_it(target) -> None:
    able = {"nft": True, "link": True}
    unable = {"nft": True, "link": False, "why_not": {"link": "no ip"}}
    target.open(FakeAgent("a", probe=able), FakeAgent("b", probe=unable))

    assert "nft" in target.capabilities
    assert "link" not in target.capabilities
    assert target.why_not("link") == "b: no ip"
    assert target.why_not("tbf") == "a: its agent does not know it"
    assert target.why_not("proxy") == "hosts of the fake target have no such thing"
    assert target.why_not("nft") == ""
    target.close()


def test_roles_are_those_of_the_shape_and_the_harness_itself() -> None:
    spec = ClusterSpec(stores=2, engines=1)

    assert roles_of(spec) == ("master", "store-0", "store-1", "engine-0", "probe")
