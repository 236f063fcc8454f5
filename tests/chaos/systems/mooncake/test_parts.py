"""The pure parts: frames, values, plans, profiles, shapes, ports, addresses."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from chaos.errors import HarnessError, UsageError
from chaos.systems.base import ClusterSpec
from chaos.systems.mooncake import frames, layout, ports
from chaos.systems.mooncake.admin import numbers_of, used_of
from chaos.systems.mooncake.package import Package
from chaos.systems.mooncake.plan import ClientPlan
from chaos.systems.mooncake.profile import PROFILES, profile_of
from chaos.systems.mooncake.shape import shape_of
from chaos.systems.mooncake.values import value_of


def address(role: str, plane: str = "control", rail: int = 0) -> str:
    kind, _, number = role.partition("-")
    first = {"master": 2, "store": 10, "engine": 200, "etcd": 6}.get(kind, 1)
    return f"127.9.9.{first + int(number or 0)}"


def addresses(local: bool = True, **shape):
    own = shape_of(ClusterSpec(stores=2, engines=0, **shape))
    wanted = layout.wanted(own)
    return layout.Addresses(
        shape=own, address=address, ports=ports.fixed(wanted), local=local
    )


def test_a_frame_comes_back_as_it_was_sent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frames.encode({"id": 1, "names": ["ä"]}))

        assert frames.receive(theirs) == {"id": 1, "names": ["ä"]}


def test_a_frame_that_is_cut_off_is_told() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(frames.encode({"id": 1})[:-1])
        ours.close()
        with pytest.raises(frames.Cut):
            frames.receive(theirs)


def test_a_frame_beyond_the_bound_is_refused_at_both_ends(monkeypatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frame = frames.encode({"id": 1})
        monkeypatch.setattr(frames, "MOST_BYTES", 4)
        ours.sendall(frame)
        with pytest.raises(frames.Cut):
            frames.receive(theirs)
        with pytest.raises(ValueError, match="larger"):
            frames.encode({"id": 1})


def test_a_value_is_a_function_of_its_name() -> None:
    assert np.array_equal(value_of("a", 1000), value_of("a", 1000))
    assert np.array_equal(value_of("a", 1000)[:100], value_of("a", 100))


def test_names_and_places_have_bytes_of_their_own() -> None:
    one, other = value_of("a", 4096), value_of("b", 4096)

    assert (one == other).mean() < 0.02
    assert (one[:2048] == one[2048:]).mean() < 0.02


def test_a_variant_differs_in_every_byte() -> None:
    assert not (value_of("a", 512) == value_of("a", 512, 7)).any()


def test_a_plan_crosses_processes_unchanged() -> None:
    plan = addresses().client()

    assert ClientPlan.from_json(plan.to_json()) == plan


def test_a_replica_s_address_is_that_of_a_store_whatever_its_port() -> None:
    plan = addresses().client()

    assert plan.store_at("127.9.9.11:15555") == "store-1"
    assert plan.store_at("10.0.0.1:1") == "10.0.0.1:1"


def test_a_writer_prefers_the_stores_of_its_host() -> None:
    plan = addresses(stores_per_host=2).client()

    assert plan.stores_on("h0") == ["store-0", "store-1"]
    assert plan.stores_on("") == []


def test_the_default_profile_says_nothing_that_is_not_mooncake_s_own() -> None:
    profile = profile_of("default")

    assert (dict(profile.master), dict(profile.env)) == ({}, {})
    assert (profile.client_ttl_s, profile.lease_ttl_s) == (10, 10)
    assert (profile.rpc_timeout_s, profile.transfer_timeout_s) == (30, 30)


def test_the_tuned_profile_outlives_its_own_timeouts() -> None:
    """A lease that ends within a transfer's timeout poisons whole batches."""
    profile = PROFILES["tuned"]

    assert profile.lease_ttl_s > 2 * profile.transfer_timeout_s
    assert profile.client_ttl_s < 10


def test_an_unknown_profile_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="default and tuned"):
        profile_of("fast")


def test_times_of_the_reference_s_master_become_flags_scaled_as_there() -> None:
    asked = {
        "client_ttl_s": 50.0,
        "default_kv_lease_ttl_s": 4.0,
        "put_start_discard_timeout_s": 10.0,
        "put_start_release_timeout_s": 1.0,
        "eviction_ratio": 0.1,
    }
    spec = ClusterSpec(time_scale=0.1, overrides={"master": asked})
    flags = shape_of(spec).master_flags

    assert flags == [
        "--allocation_strategy=local_first",
        "--client_ttl=5",
        "--default_kv_lease_ttl=400",
        "--put_start_discard_timeout_sec=1",
        "--put_start_release_timeout_sec=1",
        "--eviction_ratio=0.1",
    ]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"mooncake": {"speed": 1}}, "no setting of Mooncake"),
        ({"stores": {}}, "no override of Mooncake"),
        ({"mooncake": {"masters": 9}}, "9 masters"),
        ({"mooncake": {"metadata": "etcd"}}, "no metadata"),
        ({"env": {"PATH": "x"}}, "no variable of Mooncake"),
        ({"master": {"client_ttl": [1]}}, "cannot be"),
        ({"master": {"client_ttl_s": "10"}}, "say seconds"),
    ],
)
def test_what_mooncake_does_not_have_is_refused(overrides, words) -> None:
    with pytest.raises(UsageError, match=words):
        shape_of(ClusterSpec(overrides=overrides))


def test_the_profile_of_the_environment_is_below_the_spec_s(monkeypatch) -> None:
    monkeypatch.setenv("MOONQUAKE_MOONCAKE_PROFILE", "tuned")
    own = {"mooncake": {"profile": "default"}}

    assert shape_of(ClusterSpec()).profile.name == "tuned"
    assert shape_of(ClusterSpec(overrides=own)).profile.name == "default"


def test_ports_are_free_and_no_two_alike_even_on_other_addresses() -> None:
    wanted = [(f"store-{n}", what) for n in range(20) for what in ("rpc", "store")]
    found = ports.found(wanted, address)

    assert len(set(found.values())) == 40
    for (role, _), port in found.items():
        with socket.socket() as sock:
            sock.bind((address(role), port))


def test_a_plain_master_is_reached_through_a_proxy_of_the_user_s_own() -> None:
    here = addresses()
    link = next(link for link in here.links() if link.name == "master.rpc@store-1")

    assert here.master_of("store-1") == link.listen == "127.9.9.11:17000"
    assert link.upstream == here.rpc("master")
    assert link.proxy


def test_nothing_stands_before_a_store() -> None:
    data = [link for link in addresses().links() if link.plane == "data"]

    assert [link.name for link in data] == ["store-0.rail0", "store-1.rail0"]
    assert {link.proxy for link in data} == {""}


def test_elected_masters_are_found_through_etcd() -> None:
    here = addresses(overrides={"mooncake": {"masters": 3, "oplog": True}})
    argv = layout.master_argv(
        Package(directory=Path("/m"), version="1", build=""),
        here,
        "master-1",
    )

    assert here.masters == ("master", "master-1", "master-2")
    assert here.roles[0] == "etcd"
    assert here.master_of("store-0") == "etcd://127.9.9.6:2379"
    assert "--enable_ha=true" in argv
    assert "--enable_oplog=true" in argv


def test_etcd_listens_where_masters_and_where_the_harness_ask() -> None:
    own = shape_of(ClusterSpec(overrides={"mooncake": {"masters": 2}}))

    def apart(role: str, plane: str = "control", rail: int = 0) -> str:
        return {"control": "198.18.0.8", "management": "198.19.0.8"}[plane]

    for where, listens, door in (
        (apart, "0.0.0.0:2379", "198.19.0.8:2379"),
        (address, "127.9.9.6:2379", "127.9.9.6:2379"),
    ):
        here = layout.Addresses(
            shape=own,
            address=where,
            ports=ports.fixed(layout.wanted(own)),
            local=where is address,
        )
        argv = layout.etcd_argv("etcd", here, "/data")

        assert f"--listen-client-urls=http://{listens}" in argv
        assert f"--advertise-client-urls=http://{here.etcd()}" in argv
        assert here.etcd_door() == door


def test_every_role_listens_on_addresses_that_were_said() -> None:
    here = addresses()
    package = Package(directory=Path("/m"), version="", build="")
    master = layout.master_argv(package, here, "master")
    store = layout.store_argv(package, here, "store-1")

    assert {"--rpc_address=127.9.9.2", "--metrics_host=127.9.9.2"} <= set(master)
    assert {"--host=127.9.9.11", "--metadata_server=P2PHANDSHAKE"} <= set(store)


def test_metrics_are_summed_over_their_labels() -> None:
    text = '# HELP a\na{x="1"} 2\na{x="2"} 3\nb 4\nno number\n'

    assert numbers_of(text) == {"a": 5.0, "b": 4.0}


@pytest.mark.parametrize("text", ['{"used": 7}', "Used(bytes): 7\nCapacity: 9"])
def test_the_used_bytes_of_a_segment_are_read(text) -> None:
    assert used_of(text) == 7


def test_an_answer_without_used_bytes_is_told() -> None:
    with pytest.raises(HarnessError, match="no used bytes"):
        used_of("segment not found")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"mooncake": 3}, "the override mooncake is 3"),
        ({"mooncake": {"masters": "two"}}, "'two' masters"),
        ({"mooncake": {"aslr": "false"}}, "aslr of Mooncake is 'false'"),
    ],
)
def test_an_override_of_a_wrong_type_is_one_line(overrides, said) -> None:
    with pytest.raises(UsageError, match=said):
        shape_of(ClusterSpec(overrides=overrides))
