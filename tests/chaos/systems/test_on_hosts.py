"""The reference system without proxies, its planes apart, on a target with hosts.

The hosts are made up: roles are processes here, with loopback addresses as planes.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.safety.ledger import Ledger
from chaos.safety.locks import lease_block
from chaos.steady import SteadyState
from chaos.steps import keep, prompt, wait_kept
from chaos.systems import load_system
from chaos.systems.base import ClusterSpec
from chaos.targets.local import LocalTarget
from chaos.targets.numbering import host_number

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

SPEC = ClusterSpec(stores=2, engines=2, time_scale=0.1)
NAMES = [f"name-{number}" for number in range(12)]


class Agent:
    """An agent with one fault armed, as after a test that ended badly."""

    def __init__(self) -> None:
        self.armed = {"kill-1"}

    def faults(self):
        return [
            SimpleNamespace(fault_id="kill-0", state="reverted"),
            *(SimpleNamespace(fault_id=name, state="active") for name in self.armed),
        ]

    def disarm(self, fault_id):
        self.armed.remove(fault_id)


class MadeUpTarget(LocalTarget):
    """Local processes; three planes, each 60 numbers of one block."""

    def __init__(self, **given) -> None:
        super().__init__(**given)
        self.agent = Agent()
        self.shape = SPEC

    @property
    def hosts(self):
        return SimpleNamespace(all=(SimpleNamespace(agent=self.agent),))

    def prepare(self, spec):
        self.shape = spec

    def address(self, role, plane="control", rail=0):
        number = host_number(self.shape, role, "control", 0) % 59
        shift = {"control": 0, "management": 60, "data": 120 + 60 * rail}[plane]
        return self._block.address(number + shift)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    where = tmp_path_factory.mktemp("run")
    block, ledger = lease_block(directory=where), Ledger.create(where)
    target = MadeUpTarget(run_dir=where / "roles", ledger=ledger, block=block)
    yield target
    target.close()
    ledger.close()
    block.lock.release()


@pytest.fixture(scope="module")
def running(target):
    cluster = load_system("refimpl").start(SPEC, target, None)
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(running):
    running.reset()
    return running


def test_the_planes_are_apart(cluster, target) -> None:
    links = {link.name: link.listen for link in cluster.links}

    assert links["store-1.rail1"].startswith(f"{target.address('store-1', 'data', 1)}:")
    assert links["master.rpc@probe"].startswith(f"{target.address('master')}:")
    assert cluster.address_of("store-1") == target.address("store-1")


def test_the_probe_is_a_role_and_speaks_for_hosts(cluster, target) -> None:
    probe = cluster.kv("h1")

    assert target.process("probe") is not None
    assert probe.write(NAMES) == [0] * len(NAMES)
    assert probe.read(NAMES) == ([0] * len(NAMES), 0)
    assert set(probe.owners(NAMES)) == {("store-1",)}
    assert probe.write(["elsewhere"], host="h0") == [0]
    assert probe.owners(["elsewhere"]) == [("store-0",)]
    code, token = probe.start_write("late")
    assert code == 0
    assert probe.end_write("late", token) == 0


def test_a_prompt_is_kept_and_read_by_another_engine(cluster) -> None:
    asked = prompt(cluster, "asked", 2048)
    keep(cluster, "engine-0", asked)
    wait_kept(cluster, [asked])

    answer = cluster.prefill("engine-1", asked, timeout_s=10)

    assert answer.ok
    assert answer.l3_tokens == 2048
    assert cluster.drop_pages(asked, [3]) == 1
    assert SteadyState(lambda: cluster)().verdict.value == "PASS"


def test_a_reset_takes_back_what_agents_hold_and_starts_what_ended(
    cluster, target
) -> None:
    target.agent.armed.add("pause-7")
    cluster.stop_role("store-0")
    cluster.stop_role("probe")

    cluster.reset()

    assert target.agent.armed == set()
    assert cluster.process("store-0") is not None
    assert cluster.kv().write(["again"]) == [0]


def test_no_secret_is_on_a_command_line(cluster) -> None:
    token = cluster._token
    words = [word for role in (*cluster.roles, "probe") for word in cluster.argv(role)]

    assert len(token) == 32
    assert not [word for word in words if token in word]
    assert "--die-with-parent" not in words


class Told:
    """A target that only remembers what a role was told by environment."""

    name = "told"
    hosts = ()

    def __init__(self) -> None:
        self.env: dict[str, str] = {}

    def prepare(self, spec):
        pass

    def address(self, role, plane="control", rail=0):
        return "192.0.2.1"

    def python(self, role):
        return "python3"

    def spawn(self, role, argv, env):
        self.env = env
        return SimpleNamespace(pid=1)

    def wait_ready(self, role, marker, *, timeout_s):
        return marker


def test_a_token_that_an_operator_gave_is_the_one_of_all_roles(monkeypatch) -> None:
    """Roles that are only observed have theirs already, and no run can choose it."""
    target = Told()
    monkeypatch.setenv("REFIMPL_TOKEN", "token-of-an-operator")
    cluster, _ = load_system("refimpl").plan(SPEC, target)
    cluster.start_role("store-0")

    assert target.env["REFIMPL_TOKEN"] == "token-of-an-operator"


def test_without_one_every_cluster_has_a_token_of_its_own(monkeypatch) -> None:
    monkeypatch.delenv("REFIMPL_TOKEN", raising=False)
    tokens = set()
    for _ in range(2):
        target = Told()
        cluster, _ = load_system("refimpl").plan(SPEC, target)
        cluster.start_role("store-0")
        tokens.add(target.env["REFIMPL_TOKEN"])

    assert len(tokens) == 2
    assert min(map(len, tokens)) >= 16
