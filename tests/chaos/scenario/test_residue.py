from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from chaos.safety.identity import start_ticks_of
from chaos.safety.ledger import FaultState, Ledger
from chaos.scenario.residue import residue


class Cluster:
    masters, stores, engines, links = ("master",), ("store-0",), (), ()
    hosts = None

    def __init__(self, pid) -> None:
        self.pid = pid
        self.dead: set[str] = set()
        self.points: dict = {}

    def process(self, role):
        if role in self.dead:
            return None
        return SimpleNamespace(pid=self.pid, start_ticks=start_ticks_of(self.pid))

    def role_state(self, role):
        return {"failpoints": self.points.get(role, {})}


@pytest.fixture
def bench(tmp_path):
    import os

    ledger = Ledger.create(tmp_path)
    control = SimpleNamespace(toxics=lambda proxy: [])
    yield SimpleNamespace(
        cluster=Cluster(os.getpid()),
        ledger=ledger,
        clusters=SimpleNamespace(control=control),
    )
    ledger.close()


def test_nothing_is_nothing(bench) -> None:
    assert residue(bench) == []


def test_a_fault_that_the_ledger_does_not_know_as_undone(bench) -> None:
    bench.ledger.fault("kill-1", FaultState.ACTIVE, kind="kill", target="store-0")
    assert residue(bench) == ["the ledger has kill(store-0) active"]

    bench.ledger.fault("kill-1", FaultState.REVERTED, kind="kill", target="store-0")
    assert residue(bench) == []


def test_a_role_that_does_not_run(bench) -> None:
    bench.cluster.dead.add("store-0")

    assert residue(bench) == ["store-0 is not running"]


def test_a_toxic_and_a_failpoint(bench) -> None:
    bench.cluster.links = (SimpleNamespace(name="store-0.rail0", proxy="p"),)
    bench.clusters.control = SimpleNamespace(toxics=lambda proxy: ["mq-latency-1"])
    bench.cluster.points = {
        "store-0": {
            "store.read": {"spec": "return(-800)"},
            "store.write": {"spec": "off"},
            "defect.deadline_ignored": {"spec": "on"},
        }
    }

    assert residue(bench) == [
        "mq-latency-1 is on store-0.rail0",
        "failpoint store.read of store-0 is return(-800)",
    ]


def test_a_thread_of_a_load_that_did_not_end(bench) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="load-0")
    thread.start()
    found = residue(bench)
    ended.set()
    thread.join()

    assert found == ["thread load-0 still runs"]
