"""The run that `scripts/soak matrix` ends: one test, one fault, pauses to end it in.

It is told what to do by `MOONQUAKE_EXIT` (JSON, see `chaos.exits.cells.Order`), tells
where it is by files in the directory named there, and waits for the driver's word where
it is told to. Not collected by itself: its name is no test's.
"""

from __future__ import annotations

import itertools
import json
import os
import time

import pytest

from chaos.errors import ChaosError, NotHere
from chaos.exits.cells import Order
from chaos.exits.marks import Marks
from chaos.faults import on_hosts

ORDER = Order.from_json(json.loads(os.environ["MOONQUAKE_EXIT"]))
MARKS = Marks(ORDER.marks)
STORE = "store-0"
MASTER = "master"
ROLE = MASTER if ORDER.kind == "clock_step" else STORE
RAIL = f"{STORE}.rail0"
WAIT_S = 60.0
EFFECT_S = 6.0
SIZE_BYTES = 128 << 10

FAULTS = {
    "kill": lambda inject, cluster: inject.kill(STORE),
    "pause": lambda inject, cluster: inject.pause(STORE),
    "restart": lambda inject, cluster: inject.restart(STORE),
    "nic_down": lambda inject, cluster: inject.nic_down(STORE),
    "flap": lambda inject, cluster: inject.flap(STORE, down_s=0.2, up_s=0.2),
    "partition": lambda inject, cluster: inject.partition(STORE),
    "blackhole": lambda inject, cluster: inject.blackhole(RAIL),
    "reset": lambda inject, cluster: inject.reset(RAIL),
    "loss": lambda inject, cluster: inject.loss(RAIL, 50),
    "bandwidth": lambda inject, cluster: inject.bandwidth(RAIL, 50),
    "tap": lambda inject, cluster: inject.tap(RAIL),
    "latency": lambda inject, cluster: inject.latency(RAIL, 20),
    "reorder": lambda inject, cluster: inject(
        on_hosts.reorder(cluster, [_link(cluster)], 50)
    ),
    "corrupt": lambda inject, cluster: inject.corrupt(RAIL, 50),
    "memory": lambda inject, cluster: inject.memory(STORE, 16 << 20),
    "memory_limit": lambda inject, cluster: inject(
        on_hosts.memory_limit(cluster, STORE, 256 << 10)
    ),
    "cpu": lambda inject, cluster: inject.cpu(STORE),
    "disk_full": lambda inject, cluster: inject.disk_full(STORE, 1 << 20),
    "slow_disk": lambda inject, cluster: inject.slow_disk(STORE, 100),
    "clock_step": lambda inject, cluster: inject.clock_step(MASTER, 0.2),
    "port_taken": lambda inject, cluster: inject.port_taken(STORE),
    "failpoint": lambda inject, cluster: inject.failpoint(
        STORE, "store.read", "return(-900)"
    ),
}


@pytest.fixture
def fault(cluster_of, inject):
    """The fault, built but not armed; the driver may cut the host off before it is."""
    cluster = cluster_of(stores=2, engines=1)
    try:
        injection = FAULTS[ORDER.kind](inject, cluster)
    except NotHere as error:
        MARKS.tell("not-here", reason=str(error))
        raise
    agent = cluster.hosts.of(ROLE).agent
    if ORDER.slow:
        agent.arm = slowly(agent.arm, ORDER.slow)
    tell("before", host=cluster.hosts.of(ROLE).name)
    return injection


@pytest.fixture
def broken(request, fault, cluster_of):
    """A fixture that breaks while the fault is in."""
    if ORDER.ending == "fixture":
        arm(fault, cluster_of)
        message = "a fixture is broken"
        raise RuntimeError(message)


def test_a_run_that_is_ended(fault, broken, cluster_of):
    arm(fault, cluster_of)
    if ORDER.ending == "failing":
        pytest.fail("a test fails while the fault is in")
    tell("disarming")
    fault.stop()
    tell("over")


def arm(fault, cluster_of):
    """Breaks the host, and has traffic show that it is broken."""
    tell("arming")
    fault.start()
    kv = cluster_of.__self__.running.kv()
    try:
        effect = seen(fault, kv)
    finally:
        kv.close()
    tell("active", effect=effect)


def seen(fault, kv):
    """How much of an effect there is, after as much traffic as that takes."""
    until = time.monotonic() + EFFECT_S
    numbers = itertools.count()
    while (effect := fault.sample().effect) <= 0 and time.monotonic() < until:
        talk(kv, next(numbers))
    return effect


def talk(kv, number):
    names = [f"exit-{number}-{n}" for n in range(8)]
    try:
        kv.write(names, size_bytes=SIZE_BYTES, timeout_s=0.3)
        kv.read(names, size_bytes=SIZE_BYTES, timeout_s=0.3)
    except ChaosError:
        return  # what a fault does to traffic is not judged here


def tell(phase, **what):
    MARKS.tell(phase, pid=os.getpid(), **what)
    if phase in ORDER.holds:
        MARKS.wait_for_go(phase, timeout_s=WAIT_S)


def slowly(arm_it, phase):
    """Arming or disarming takes a while, so that something can happen meanwhile."""

    def arm_slowly(fault_id, *, steps, **named):
        nothing, pause = {"run": ["true"]}, {"run": ["sleep", "0.6"]}
        do, undo = (pause, nothing) if phase == "arming" else (nothing, pause)
        step = {"do": do, "undo": undo}
        return arm_it(fault_id, steps=[step, *steps, step], **named)[1:-1]

    return arm_slowly


def _link(cluster):
    return next(link for link in cluster.links if link.name == RAIL)
