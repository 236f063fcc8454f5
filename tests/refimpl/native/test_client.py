from __future__ import annotations

import importlib
import os
import socket
from types import SimpleNamespace

import pytest

from refimpl.core.codes import Code
from refimpl.native.client import (
    MooncakeClient,
    NativeOptions,
    NotConnected,
    code_of_exist,
    knock,
    knock_at_admin,
    load,
)


class Store:
    """The wheel's class, as far as we call it."""

    def __init__(self):
        self.closed = False
        self.described = {}
        self.configs = []
        self.setup_code = 0

    def setup(self, *args):
        self.args = args
        return self.setup_code

    def close(self):
        self.closed = True

    def batch_get_replica_desc(self, names):
        return self.described

    def batch_put_from(self, names, addresses, sizes, config):
        self.configs.append(config)
        return [0] * len(names)


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def module(store):
    return SimpleNamespace(
        MooncakeDistributedStore=lambda: store,
        ReplicateConfig=SimpleNamespace,
        ReplicaStatus=SimpleNamespace(COMPLETE=3),
    )


MASTER = "127.0.0.1:50051"


def replica(endpoint, status=3, memory=True):
    described = SimpleNamespace(transport_endpoint=endpoint)
    return SimpleNamespace(
        status=status,
        is_memory_replica=lambda: memory,
        get_memory_descriptor=lambda: SimpleNamespace(buffer_descriptor=described),
    )


def test_the_client_contributes_no_memory(module, store):
    MooncakeClient(module, NativeOptions(master=MASTER, host="127.9.9.9"))

    assert store.args[:3] == ("127.9.9.9", "P2PHANDSHAKE", 0)
    assert store.args[-1] == MASTER


def test_a_setup_that_fails_closes_what_it_opened(module, store):
    store.setup_code = -900
    with pytest.raises(NotConnected) as raised:
        MooncakeClient(module, NativeOptions(master=MASTER))

    assert raised.value.code == Code.RPC_FAIL
    assert store.closed


def test_where_nobody_listens_is_no_master():
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(NotConnected, match="-900"):
        knock(master)


def test_an_etcd_is_knocked_at_as_a_master_is():
    with socket.create_server(("127.0.0.1", 0)) as server:
        etcd = f"127.0.0.1:{server.getsockname()[1]}"
        knock(f"etcd://{etcd}")
        knock(f"etcd://{etcd},10.0.0.1:2379")


def test_an_admin_that_does_not_answer_is_no_master_at_work():
    """A proxy before a dead master, or a master that is stopped."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(NotConnected, match="-900"),
    ):
        knock_at_admin(f"127.0.0.1:{silent.getsockname()[1]}")


def test_a_read_goes_to_the_first_complete_replica_in_memory(module, store):
    client = MooncakeClient(module, NativeOptions(master=MASTER))
    store.described = {
        "one": [replica("x:1", status=1), replica("y:1", memory=False), replica("z:1")],
        "none": [],
    }

    assert client.places(["one", "none", "unknown"]) == ["z:1", "", ""]


def test_a_put_names_its_segment_only_where_one_was_chosen(module, store):
    client = MooncakeClient(module, NativeOptions(master=MASTER))
    client.write(["a"], [1], [2], replicas=2, segment="seg")
    client.write(["a"], [1], [2], replicas=1, segment="")

    assert vars(store.configs[0]) == {"replica_num": 2, "preferred_segment": "seg"}
    assert vars(store.configs[1]) == {"replica_num": 1}


@pytest.mark.parametrize(
    ("found", "code"), [(1, 0), (0, Code.OBJECT_NOT_FOUND), (-900, -900)]
)
def test_exist_is_a_code(found, code):
    assert code_of_exist(found) == code


@pytest.mark.parametrize(("host", "bound"), [("127.0.0.9", True), ("10.1.1.1", False)])
def test_on_loopback_no_address_of_the_machine_is_advertised(
    monkeypatch, module, host, bound
):
    monkeypatch.delenv("MC_TCP_BIND_ADDRESS", raising=False)
    monkeypatch.setattr(importlib, "import_module", lambda _name: module)
    load(NativeOptions(master="127.0.0.1:1", host=host))

    assert (os.environ.get("MC_TCP_BIND_ADDRESS") == host) is bound
    monkeypatch.delenv("MC_TCP_BIND_ADDRESS", raising=False)
