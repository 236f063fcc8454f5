from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.conformance.faults import FAULTS, HERE, fault_of
from chaos.conformance.side_by_side import SPANS, reference, shape
from chaos.conformance.stage import identity_of
from chaos.errors import NotHere
from chaos.safety.ledger import FaultState, Ledger
from chaos.systems.base import Link
from chaos.targets.place import Place


class Recorder:
    """An injector that only says what it was asked for."""

    def __getattr__(self, kind):
        return lambda *asked: (kind, *asked)


def link(name, owner, rail):
    return Link(
        name=name,
        owner=owner,
        user="",
        plane="data" if rail else "rpc",
        rail=rail,
        proxy="",
        listen="127.0.0.1:0",
        upstream="127.0.0.1:0",
    )


@pytest.fixture
def cluster():
    links = (
        link("store-1.rail0", "store-1", "rail0"),
        link("store-2.rail0", "store-2", "rail0"),
        link("master.rpc@store-1", "master", ""),
    )
    return SimpleNamespace(links=links, hosts=None)


WANTED = {
    "store-killed": ("kill", "store-1"),
    "store-paused": ("pause", "store-1"),
    "store-silent": ("partition", "store-1"),
    "store-resets": ("reset", ["store-1.rail0"]),
    "store-link-down": ("nic_down", "store-1"),
    "store-slow": ("bandwidth", ["store-1.rail0"], 64),
    "store-lossy": ("loss", ["store-1.rail0"], 20.0),
    "store-killed-of-two": ("kill", "store-1"),
    "store-restarted": ("restart", "store-1"),
    "master-killed": ("kill", "master"),
    "master-paused": ("pause", "master"),
}


@pytest.mark.parametrize("name", WANTED)
def test_each_fault_acts_on_its_victim_and_on_nobody_else(cluster, name):
    asked = fault_of(name).make(cluster, Recorder(), "store-1")

    assert asked == WANTED[name]


def test_every_fault_is_tried_here_and_six_need_no_network():
    assert {fault.name for fault in FAULTS} == {*WANTED, "store-deaf"}
    assert len(HERE) == 6
    assert all(fault_of(name).on_hosts is False for name in HERE)


def test_what_needs_hosts_says_so_where_there_are_none(cluster):
    with pytest.raises(NotHere, match="netns"):
        fault_of("store-deaf").make(cluster, Recorder(), "store-1")


def test_a_fault_that_nobody_knows_is_an_error():
    with pytest.raises(KeyError):
        fault_of("store-melted")


def test_two_copies_leave_as_many_stores_without_a_page_as_one_does():
    one, two = fault_of("store-killed"), fault_of("store-killed-of-two")

    assert (shape(one, engines=1)["stores"], shape(two, engines=1)["stores"]) == (3, 4)
    assert shape(two, engines=1)["overrides"]["engine"]["replicas"] == 2


def test_mooncakes_own_waits_fit_into_the_patience():
    assert SPANS["default"].patience_s > 60.0
    assert SPANS["default"].window_s > 30.0
    assert SPANS["tuned"].window_s < SPANS["tuned"].patience_s


def test_the_clusters_beside_a_run_leave_its_ledger_to_it(tmp_path):
    ledger = Ledger(tmp_path / "run-1-1.jsonl")
    place = Place()
    with reference(
        tmp_path, ledger=ledger, place=place, command="x", seed=1
    ) as clusters:
        assert clusters.ledger is ledger
    ledger.fault("f", FaultState.PLANNED, kind="kill", target="store-1")

    assert ledger.path.exists()
    ledger.close()
    assert not ledger.path.exists()


def test_a_cluster_says_which_system_in_which_settings_it_is():
    mooncake = SimpleNamespace(
        package=SimpleNamespace(version="0.3"),
        shape=SimpleNamespace(profile=SimpleNamespace(name="tuned")),
    )

    found = identity_of(mooncake)
    assert (found.system, found.version, found.settings) == ("mooncake", "0.3", "tuned")
    assert identity_of(SimpleNamespace()).system == "refimpl"
