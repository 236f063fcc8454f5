from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from refimpl.client.results import MASTER, GetResult, PutResult
from refimpl.core.codes import Code
from refimpl.hicache.storage.pool import PoolStorage


class FakeClient:
    """A pool of named stores; `bad` ones fail, and `corrupt` flips what is read."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.bad: dict[str, int] = {}
        self.corrupt = False
        self.lost = False
        self.objects: dict[bytes, bytes] = {}
        self.removed: list[bytes] = []
        self.avoided: list[frozenset[str]] = []
        self.closed = False

    def segments(self, timeout_s):
        return [SimpleNamespace(name=n) for n in self.names]

    def put(self, keys, buffers, *, avoid, **how):
        self.avoided.append(avoid)
        left = [n for n in self.names if n not in avoid]
        endpoints: dict[str, int] = {}
        for name in left:
            code = self.bad.get(name, 0)
            endpoints[name] = code
            if code == 0:
                self.objects[keys] = bytes(buffers[0])
                return PutResult(codes=np.array([0], np.int16), endpoints=endpoints)
        codes = np.array([Code.NO_AVAILABLE_HANDLE], np.int16)
        return PutResult(codes=codes, endpoints=endpoints)

    def get(self, keys, buffers, *, avoid, **how):
        if self.lost:
            codes = np.array([Code.OBJECT_NOT_FOUND], np.int16)
            return GetResult(codes=codes, endpoints={MASTER: Code.RPC_FAIL})
        buffers[0][:] = self.objects[keys]
        if self.corrupt:
            buffers[0][0] ^= 1
        codes = np.array([0], np.int16)
        return GetResult(codes=codes, endpoints={"s0": Code.OK}, asked=("s0",))

    def remove(self, keys, *, timeout_s, force):
        self.removed.append(keys)

    def close(self):
        self.closed = True


@pytest.fixture
def client():
    return FakeClient("s0", "s1", "s2")


def test_a_canary_writes_reads_and_removes_an_object_of_its_own(client):
    storage = PoolStorage(client, canary_bytes=100)
    codes = [
        int(storage.canary(timeout_s=1, avoid=frozenset()).codes[0]) for _ in range(3)
    ]

    assert codes == [0, 0, 0]
    assert len(set(client.removed)) == 3
    assert {len(v) for v in client.objects.values()} == {100}


def test_a_canary_that_comes_back_changed_is_a_fault(client):
    client.corrupt = True
    result = PoolStorage(client).canary(timeout_s=1, avoid=frozenset())

    assert result.codes[0] == Code.CHECKSUM_MISMATCH


def test_a_canary_that_is_gone_at_once_is_a_fault_and_no_miss(client):
    client.lost = True
    result = PoolStorage(client).canary(timeout_s=1, avoid=frozenset())

    assert result.codes[0] == Code.TRANSFER_FAIL
    assert result.endpoints == {}


def test_a_full_pool_is_no_fault():
    result = PoolStorage(FakeClient()).canary(timeout_s=1, avoid=frozenset())

    assert result.codes[0] == Code.NO_AVAILABLE_HANDLE


def test_a_probe_must_be_served_by_its_store(client):
    storage = PoolStorage(client)

    assert storage.probe("s1", timeout_s=1) == 0
    assert client.avoided[-1] == {"s0", "s2"}


def test_a_probe_of_a_failing_store_is_a_fault_though_no_other_place_is_left(client):
    client.bad["s1"] = Code.RPC_TIMEOUT

    assert PoolStorage(client).probe("s1", timeout_s=1) == Code.RPC_TIMEOUT


def test_a_store_that_left_is_not_found(client):
    assert PoolStorage(client).probe("s9", timeout_s=1) == Code.SEGMENT_NOT_FOUND


def test_a_failing_master_is_no_store(client):
    client.lost = True
    result = PoolStorage(client).get(b"k" * 32, [memoryview(bytearray(1))], timeout_s=1)

    assert MASTER not in result.endpoints


def test_close_closes_the_client(client):
    PoolStorage(client).close()

    assert client.closed
