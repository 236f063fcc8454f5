"""What is printed of a run of suites that may not touch other machines."""

from __future__ import annotations

import pytest

from chaos.errors import UsageError
from chaos.suite_plan import kinds_ordered, plan_suites
from chaos.targets.place import Place

HOST = """
    {name}:
      ansible_host: 10.1.0.{number}
      ansible_user: chaos
      ansible_become: true
      ansible_python_interpreter: /usr/bin/python3.11
      chaos: allowed
      manage: true
      roles: [{role}]
      management: {{device: eth0, address: 10.1.0.{number}}}
      control: {{device: eth1, address: 10.2.0.{number}}}
      rails:
        - {{name: rail0, device: eth2, address: 10.3.0.{number}}}
        - {{name: rail1, device: eth3, address: 10.4.0.{number}}}
"""
SUITE = """
def test_it(cluster, inject):
    with inject.kill("store-0"), inject.nic_down("store-1", "rail0"):
        inject.receipts
    lambda inject: inject.memory("store-0", 1)
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "test_suite.py"
    path.write_text(SUITE)
    return path


def inventory(tmp_path, roles):
    hosts = [
        HOST.format(name=f"node{number}", number=number, role=role)
        for number, role in enumerate(roles, start=1)
    ]
    path = tmp_path / "hosts.yaml"
    path.write_text(f"all:\n  vars: {{environment: test}}\n  hosts:{''.join(hosts)}")
    return str(path)


ROLES = ["master", *(f"store-{n}" for n in range(8)), "engine-0", "engine-1"]


def test_the_faults_of_a_suite_are_those_that_it_orders(source) -> None:
    assert kinds_ordered([source, source]) == ["kill", "memory", "nic_down"]


def test_every_host_and_every_command_is_told(tmp_path, source) -> None:
    place = Place(kind="ssh", inventory=inventory(tmp_path, ROLES), fault_ttl_s=20)

    plan = plan_suites(place, system="refimpl", time_scale=0.1, sources=[source])

    heads = [line for line in plan.hosts if not line.startswith(" ")]
    assert len(heads) == len(ROLES)
    assert heads[0].startswith(
        "node1 (chaos@10.1.0.1:22): sudo -n -- /usr/bin/python3.11 -I - serve --ttl=20"
    )
    store = next(line for line in plan.hosts if line.startswith("  store-0:"))
    assert "/usr/bin/python3.11 -m refimpl store" in store
    assert "--rail rail1=10.4.0.2:7100" in store
    assert "--master 10.2.0.1:7000" in store
    assert "  node2: SIGKILL to store-0" in plan.faults
    assert "  node2: ip link set dev eth2 down" in plan.faults


def test_what_a_host_is_missing_is_a_usage_error(tmp_path, source) -> None:
    place = Place(kind="ssh", inventory=inventory(tmp_path, ROLES[:-1]))

    with pytest.raises(UsageError, match="no host has the role engine-1"):
        plan_suites(place, system="refimpl", time_scale=0.1, sources=[source])
