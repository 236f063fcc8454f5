"""Every fault has a form on hosts, and is still a function when that was imported."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

import chaos.faults as build
from chaos.errors import UsageError
from chaos.faults import on_hosts
from chaos.hosts.host import Host
from chaos.systems.base import Link

KINDS = sorted(set(build.__all__) - {"links_of", "failpoint", "clock_step"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_of_a_fault_never_takes_the_place_of_its_builder(kind) -> None:
    """Importing `chaos.faults.x` sets `x` on the package, whatever stood there."""
    assert inspect.isfunction(getattr(build, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_form_on_hosts_takes_what_the_builder_hands_on(kind) -> None:
    wanted = list(inspect.signature(getattr(build, kind)).parameters)
    found = list(inspect.signature(getattr(on_hosts, kind)).parameters)

    assert [name for name in wanted if name != "control"] == found


LINK = Link(
    name="store-0.rail0",
    owner="store-0",
    user="",
    plane="data",
    rail="rail0",
    proxy="",
    listen="10.0.2.1:7100",
    upstream="10.0.2.1:7100",
)
GIVEN = {
    "bandwidth": ([LINK], 500),
    "blackhole": ([LINK],),
    "corrupt": ([LINK], 1.0),
    "cpu": ("store-0", 2),
    "disk_full": ("store-0",),
    "flap": ("store-0",),
    "latency": ([LINK], 40),
    "loss": ([LINK], 5.0),
    "memory": ("store-0", 1 << 20),
    "memory_limit": ("store-0", 1 << 20),
    "nic_down": ("store-0",),
    "partition": ("store-0",),
    "port_taken": ("store-0",),
    "reorder": ([LINK], 25.0),
    "reset": ([LINK],),
    "restart": ("store-0",),
    "slow_disk": ("store-0", 100),
    "tap": ([LINK],),
}


@pytest.fixture
def planned():
    """A cluster whose hosts have no agents, and where nothing runs."""
    planes = {"management": 0, "control": 1, "rail0": 2}
    hosts = tuple(
        Host(
            name=name,
            roles=(role,),
            agent=None,
            devices={"management": "mgmt0", "control": "ctl0", "rail0": "rail0"},
            addresses={plane: f"10.0.{n}.{number}" for plane, n in planes.items()},
        )
        for number, (name, role) in enumerate(
            (("h0", "store-0"), ("h1", "engine-0")), start=1
        )
    )
    found = {role: host for host in hosts for role in host.roles}
    return SimpleNamespace(
        hosts=SimpleNamespace(all=hosts, of=found.__getitem__),
        links=(LINK,),
        process=lambda role: None,
    )


@pytest.mark.parametrize("kind", GIVEN)
def test_a_plan_without_agents_has_exact_steps_for_named_hosts(planned, kind) -> None:
    fault = getattr(on_hosts, kind)(planned, *GIVEN[kind])
    plan = fault.plan()

    assert plan
    assert "h0" in fault.domain
    assert all(line.startswith(("h0", "h1")) for line in plan)


@pytest.mark.parametrize(
    ("kind", "undo"), [("pause", "SIGCONT to it"), ("kill", "start store-0")]
)
def test_without_agents_a_process_is_planned_by_its_role(planned, kind, undo) -> None:
    plan = getattr(on_hosts, kind)(planned, "store-0").plan()

    assert plan[0].endswith("to store-0")
    assert plan[1] == f"h0: to undo: {undo}"


def test_a_process_that_does_not_run_cannot_be_hit(planned) -> None:
    with pytest.raises(UsageError, match="store-0 is not running"):
        on_hosts.pause(planned, "store-0").inject()
