"""A pool in one process: a master over a dict, real data servers, a real client."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from concurrent import futures

import grpc
import numpy as np
import pytest

from refimpl.client import ClientSettings, PoolClient
from refimpl.core.codes import Code
from refimpl.core.rails import RailSettings
from refimpl.failpoints import Failpoints
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.store.listeners import open_listeners
from refimpl.store.server import DataServer
from refimpl.store.settings import RailSpec
from refimpl.transfer.operation import TransferSettings

SIZE = 4 << 20


class FakeStore:
    """Memory behind a data server; `rails` is what clients are told."""

    def __init__(self, number, name, rails):
        self.id, self.name = number, name
        self.failpoints = Failpoints()
        self.memory = bytearray(SIZE)
        specs = [RailSpec(name=f"r{i}", listen="127.0.0.1:0") for i in range(rails)]
        self.server = DataServer(number, open_listeners(specs), self.failpoints)
        self.server.start(memoryview(self.memory))
        self.rails = dict(self.server.addresses)
        self.used = 0

    def message(self):
        return pool_pb2.Segment(
            id=self.id,
            name=self.name,
            host_id=self.name,
            size=SIZE,
            rails=[pool_pb2.Rail(name=n, address=a) for n, a in self.rails.items()],
        )

    @property
    def requests(self):
        assert self.server.wait_idle(2)
        rails = self.server.snapshot()["rails"].values()
        return sum(rail["requests"] for rail in rails)


class FakeMaster(pool_pb2_grpc.MasterServicer):
    """Objects by key. `lease_ms`, `delay_s` and `hang` shape its lookups."""

    def __init__(self):
        self.objects = {}
        self.stores = {}
        self.lease_ms = 10_000
        self.hang = threading.Event()
        self.hang.set()
        self.delay_s = 0.0
        self.revokes_nothing = False
        self.lookups = 0
        self.lists = 0
        self.starts = []
        self.names = []
        self.ended = []
        self.revoked = []
        self.tokens = itertools.count(1)

    def Lookup(self, request, context):
        self.lookups += 1
        self.hang.wait(10)
        if self.delay_s:
            threading.Event().wait(self.delay_s)
        found = [self.objects.get(key) for key in _keys(request.keys)]
        width = max([len(o["places"]) for o in found if o] or [1])
        status = [
            Code.OBJECT_NOT_FOUND
            if o is None
            else Code.OK
            if o["done"]
            else Code.REPLICA_IS_NOT_READY
            for o in found
        ]
        return pool_pb2.LookupResponse(
            status=np.array(status, np.int16).tobytes(),
            segment=_wide(found, width, 0),
            offset=_wide(found, width, 1),
            size=_flat(found, "size", np.uint32),
            checksum=_flat(found, "checksum", np.uint64),
            parts=_flat(found, "parts", np.uint8),
            replicas=width,
            lease_ms=0 if request.no_lease else self.lease_ms,
            segments=self._named(found),
        )

    def PutStart(self, request, context):
        self.starts.append(request)
        keys = _keys(request.keys)
        sizes = np.frombuffer(request.sizes, np.uint32).tolist()
        replicas = request.replicas or 1
        free = [s for s in self.stores.values() if s.id not in request.exclude]
        status, tokens, places = [], [], []
        for i, (key, size) in enumerate(zip(keys, sizes, strict=True)):
            one = self.objects.get(key)
            if one and not (request.parts > 1 and one["size"] == size):
                status.append(Code.OBJECT_ALREADY_EXISTS)
            elif not one and not free:
                status.append(Code.NO_AVAILABLE_HANDLE)
            else:
                one = one or self._place(key, size, replicas, request.parts, free, i)
                status.append(Code.OK)
                tokens.append(one["token"])
                places.append(one)
                continue
            tokens.append(0)
            places.append(None)
        return pool_pb2.PutStartResponse(
            status=np.array(status, np.int16).tobytes(),
            token=np.array(tokens, np.uint64).tobytes(),
            segment=_wide(places, replicas, 0),
            offset=_wide(places, replicas, 1),
            replicas=replicas,
            segments=self._named(places),
        )

    def PutEnd(self, request, context):
        sums = np.frombuffer(request.checksum, np.uint64).tolist()
        tokens = np.frombuffer(request.token, np.uint64).tolist()
        status = []
        for key, token, checksum in zip(_keys(request.keys), tokens, sums, strict=True):
            one = self.objects.get(key)
            if one is None or one["token"] != token:
                status.append(Code.INVALID_WRITE)
                continue
            one["checksum"] ^= checksum
            one["missing"].discard(request.part)
            one["done"] = not one["missing"]
            self.ended.append(key)
            status.append(Code.OK)
        return pool_pb2.StatusResponse(status=np.array(status, np.int16).tobytes())

    def PutRevoke(self, request, context):
        if self.revokes_nothing:
            context.abort(grpc.StatusCode.UNAVAILABLE, "on purpose")
        keys = _keys(request.keys)
        for key in keys:
            self.objects.pop(key, None)
            self.revoked.append(key)
        return pool_pb2.StatusResponse(status=bytes(2 * len(keys)))

    def Remove(self, request, context):
        if request.all:
            removed = len(self.objects)
            self.objects.clear()
            return pool_pb2.StatusResponse(removed=removed)
        keys = _keys(request.keys)
        found = [self.objects.pop(key, None) for key in keys]
        status = [0 if one else Code.OBJECT_NOT_FOUND for one in found]
        return pool_pb2.StatusResponse(status=np.array(status, np.int16).tobytes())

    def ListSegments(self, request, context):
        self.lists += 1
        segments = [store.message() for store in self.stores.values()]
        return pool_pb2.ListSegmentsResponse(segments=segments)

    def ListNames(self, request, context):
        at = request.cursor
        cursor = at + 2 if at + 2 < len(self.names) else 0
        return pool_pb2.ListNamesResponse(names=self.names[at : at + 2], cursor=cursor)

    def Describe(self, request, context):
        return pool_pb2.DescribeResponse(
            heartbeat="127.0.0.1:7", time_scale=0.5, lease_ms=self.lease_ms, view=3
        )

    def _place(self, key, size, replicas, parts, free, turn):
        places = []
        for k in range(min(replicas, len(free))):
            store = free[(turn + k) % len(free)]
            places.append((store.id, store.used))
            store.used += size
        self.objects[key] = {
            "token": next(self.tokens),
            "places": places,
            "size": size,
            "checksum": 0,
            "parts": parts or 1,
            "missing": set(range(parts or 1)),
            "done": False,
        }
        return self.objects[key]

    def _named(self, found):
        ids = {number for o in found if o for number, _ in o["places"]}
        return [self.stores[n].message() for n in sorted(ids) if n in self.stores]


def _keys(packed):
    return [packed[i : i + 32] for i in range(0, len(packed), 32)]


def _wide(found, width, which):
    out = np.zeros((len(found), width), np.uint64)
    for i, one in enumerate(found):
        for k, place in enumerate(one["places"] if one else ()):
            out[i, k] = place[which]
    return out.tobytes()


def _flat(found, name, dtype):
    return np.array([one[name] if one else 0 for one in found], dtype).tobytes()


class FakePool:
    """Everything together, with the questions that tests ask."""

    def __init__(self, stack):
        self._stack = stack
        self.master = FakeMaster()
        self.server = self.serve("127.0.0.1:0")
        self.failpoints = Failpoints()

    def serve(self, address):
        server = grpc.server(futures.ThreadPoolExecutor(8))
        pool_pb2_grpc.add_MasterServicer_to_server(self.master, server)
        self.port = server.add_insecure_port(address)
        server.start()
        self._stack.callback(lambda: server.stop(None).wait())
        return server

    def store(self, number, rails=1):
        store = FakeStore(number, f"store-{number}", rails)
        self.master.stores[number] = store
        self._stack.callback(store.server.close)
        self._stack.callback(store.failpoints.clear)
        return store

    def client(self, **settings):
        transfer = TransferSettings(rail_stall_s=0.1, least_frame_bytes=1)
        client = PoolClient(
            f"127.0.0.1:{self.port}",
            settings=ClientSettings(
                **{"transfer": transfer, "rails": RailSettings(), **settings}
            ),
            failpoints=self.failpoints,
        )
        self._stack.callback(client.close)
        return client


@pytest.fixture
def pool():
    with contextlib.ExitStack() as stack:
        found = FakePool(stack)
        stack.callback(found.master.hang.set)
        stack.callback(found.failpoints.clear)
        yield found


@pytest.fixture
def silent():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "{}:{}".format(*listener.getsockname())
