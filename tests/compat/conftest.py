"""A master in this process, and clients of Mooncake's API with small segments."""

from __future__ import annotations

import ctypes
import http.client
import itertools
import os
import time
from contextlib import contextmanager

import pytest

from refimpl.compat.mooncake import MooncakeDistributedStore
from refimpl.master import MasterSettings
from refimpl.master.process import Master

MIB = 1 << 20
LEASE_S = 0.3


class PoolOfTests:
    """One master, and ways to join it."""

    def __init__(self, addresses):
        self.master = str(addresses["listen"])
        self.admin = str(addresses["admin"])
        self._numbers = itertools.count()

    def options(self, **changes):
        return {
            "local_hostname": "localhost",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": 0,
            "local_buffer_size": 16 * MIB,
            "protocol": "tcp",
            "rdma_devices": "",
            "master_server_addr": self.master,
            **changes,
        }

    @contextmanager
    def client(self, **changes):
        store = MooncakeDistributedStore()
        assert store.setup(**self.options(**changes)) == 0
        try:
            yield store
        finally:
            assert store.close() == 0

    def page(self, path):
        host, port = self.admin.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def key(self, word="key"):
        """A key that no other test has."""
        return f"{word}-{next(self._numbers)}-{os.getpid()}"

    def keys(self, count):
        return [self.key() for _ in range(count)]

    @staticmethod
    def outwait_lease():
        time.sleep(LEASE_S * 1.2)


@pytest.fixture(scope="package")
def pool():
    settings = MasterSettings(
        listen="127.0.0.1:0",
        heartbeat_listen="127.0.0.1:0",
        admin_listen="127.0.0.1:0",
        max_objects=1 << 14,
        default_kv_lease_ttl_s=LEASE_S,
        slow_start_s=0.0,
        seed=3,
    )
    with Master(settings) as master:
        yield PoolOfTests(master.addresses)


@pytest.fixture(scope="package")
def store(pool):
    """A client with the one segment that most tests write to."""
    with pool.client(global_segment_size=64 * MIB) as store:
        yield store


class Region:
    """Memory with an address."""

    def __init__(self, size):
        self.array = (ctypes.c_ubyte * size)()
        self.size = size
        self.at = ctypes.addressof(self.array)

    def write(self, data, offset=0):
        ctypes.memmove(self.at + offset, data, len(data))

    def read(self, size, offset=0):
        return bytes(self.array[offset : offset + size])

    def fill(self, byte):
        ctypes.memset(self.at, byte, self.size)


@pytest.fixture
def region(store):
    """Makes registered memory; it is unregistered after the test."""
    made = []

    def make(size):
        found = Region(size)
        assert store.register_buffer(found.at, size) == 0
        made.append(found)
        return found

    yield make
    for one in made:
        store.unregister_buffer(one.at)


@pytest.fixture
def bare_region():
    """Memory that nobody registered."""
    return Region
