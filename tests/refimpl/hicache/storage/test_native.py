from __future__ import annotations

import importlib
import os
import socket
from types import SimpleNamespace

import pytest

from refimpl.core.codes import Code
from refimpl.errors import UsageError
from refimpl.hicache.storage.native import (
    MooncakeClient,
    NativeOptions,
    NotConnected,
    code_of_exist,
    knock,
    opener_of,
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


@pytest.fixture
def master():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def replica(endpoint, status=3, memory=True):
    described = SimpleNamespace(transport_endpoint=endpoint)
    return SimpleNamespace(
        status=status,
        is_memory_replica=lambda: memory,
        get_memory_descriptor=lambda: SimpleNamespace(buffer_descriptor=described),
    )


def test_the_client_contributes_no_memory(module, store, master):
    MooncakeClient(module, NativeOptions(master=master, host="127.9.9.9"))

    assert store.args[:3] == ("127.9.9.9", "P2PHANDSHAKE", 0)
    assert store.args[-1] == master


def test_a_setup_that_fails_closes_what_it_opened(module, store, master):
    store.setup_code = -900
    with pytest.raises(NotConnected) as raised:
        MooncakeClient(module, NativeOptions(master=master))

    assert raised.value.code == Code.RPC_FAIL
    assert store.closed


def test_setup_is_not_called_before_anybody_listens(module, store):
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(NotConnected, match="-900"):
        MooncakeClient(module, NativeOptions(master=master))

    assert not hasattr(store, "args")


def test_an_etcd_is_knocked_at_as_a_master_is(master):
    knock(f"etcd://{master}")
    knock(f"etcd://{master},10.0.0.1:2379")


def test_an_open_port_is_no_master_where_its_admin_does_not_answer(module, master):
    """A proxy before a dead master, or a master that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NotConnected, match="-900"):
            MooncakeClient(module, NativeOptions(master=master, admin=admin))


def test_a_read_goes_to_the_first_complete_replica_in_memory(module, store, master):
    client = MooncakeClient(module, NativeOptions(master=master))
    store.described = {
        "one": [replica("x:1", status=1), replica("y:1", memory=False), replica("z:1")],
        "none": [],
    }

    assert client.places(["one", "none", "unknown"]) == ["z:1", "", ""]


def test_a_put_names_its_segment_only_where_one_was_chosen(module, store, master):
    client = MooncakeClient(module, NativeOptions(master=master))
    client.write(["a"], [1], [2], replicas=2, segment="seg")
    client.write(["a"], [1], [2], replicas=1, segment="")

    assert vars(store.configs[0]) == {"replica_num": 2, "preferred_segment": "seg"}
    assert vars(store.configs[1]) == {"replica_num": 1}


@pytest.mark.parametrize(
    ("found", "code"), [(1, 0), (0, Code.OBJECT_NOT_FOUND), (-900, -900)]
)
def test_exist_is_a_code(found, code):
    assert code_of_exist(found) == code


def test_a_missing_wheel_is_told_with_the_remedy(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError, match="pip install") as raised:
        opener_of(NativeOptions(master="127.0.0.1:1"))

    assert "libibverbs1" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("host", "bound"), [("127.0.0.9", True), ("10.1.1.1", False)])
def test_on_loopback_no_address_of_the_machine_is_advertised(
    monkeypatch, module, host, bound
):
    monkeypatch.delenv("MC_TCP_BIND_ADDRESS", raising=False)
    monkeypatch.setattr(importlib, "import_module", lambda _name: module)
    opener_of(NativeOptions(master="127.0.0.1:1", host=host))

    assert (os.environ.get("MC_TCP_BIND_ADDRESS") == host) is bound
    monkeypatch.delenv("MC_TCP_BIND_ADDRESS", raising=False)
