"""A stand-in for Mooncake's own client that hangs, writes late and answers per key."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.hicache.storage.batches import guard_of
from refimpl.hicache.storage.mooncake import (
    MooncakeSettings,
    MooncakeStorage,
    object_name,
)
from refimpl.native.client import Gone


class FakeNative:
    """Objects on named endpoints. Gates hold calls back, as a stopped store does.

    A held read writes `late` over its memory when it is let go, as bytes on their way
    do. `codes` are answers by name; a batch is one call, and ends with its slowest key.
    """

    def __init__(self, *endpoints: str) -> None:
        self.endpoints = list(endpoints)
        self.objects: dict[str, tuple[str, bytes]] = {}
        self.codes: dict[str, int] = {}
        self.gates: dict[str, threading.Event] = {}
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.late = b""
        self.short = False
        self.delay_s = 0.0
        self.raises: Exception | None = None
        self.closed = False
        self.gone = threading.Event()
        self.made_way: list[int] = []
        self.registered = (0, 0)
        self.lock = threading.Lock()

    def hold(self, endpoint: str) -> None:
        self.gates[endpoint] = threading.Event()

    def let_go(self) -> None:
        for gate in self.gates.values():
            gate.set()
        self.gates = {}

    def count(self, kind: str) -> int:
        return sum(1 for call, _ in self.calls if call == kind)

    def register(self, memory):
        self.registered = (memory.address, memory.size_bytes)
        return 0

    def make_way(self, thread):
        self.made_way.append(thread)

    def wait(self):
        self.gone.wait()

    def exist(self, names):
        self._called("exist", names, "master")
        return [self.codes.get(n, int(n in self.objects)) for n in names]

    def places(self, names):
        self._called("places", names, "master")
        return [self.objects.get(n, ("", b""))[0] for n in names]

    def read(self, names, addresses, sizes):
        where = {self.objects[n][0] for n in names if n in self.objects}
        held = sum(self._wait(endpoint) for endpoint in where) > 0
        self._called("read", names)
        return [
            self._read_one(*row, held)
            for row in zip(names, addresses, sizes, strict=True)
        ]

    def write(self, names, addresses, sizes, *, replicas, segment):
        endpoint = segment.removeprefix("seg-") or self.endpoints[0]
        self._wait(endpoint)
        self._called("write", names)
        found = []
        for name, address, size in zip(names, addresses, sizes, strict=True):
            code = self.codes.get(name, self.codes.get(endpoint, 0))
            if code == 0:
                self.objects.setdefault(
                    name, (endpoint, ctypes.string_at(address, size))
                )
            found.append(code)
        return found

    def remove(self, name):
        self._called("remove", [name])
        self.objects.pop(name, None)
        return 0

    def close(self):
        """Ends the calls that hang, as the end of a process does."""
        self.closed = True
        self.gone.set()
        self.let_go()

    def _read_one(self, name, address, size, held):
        base, length = self.registered
        assert base <= address
        assert address + size <= base + length
        if held and self.late:
            ctypes.memset(address, self.late[0], size)
            return size
        if name in self.codes:
            return self.codes[name]
        if name not in self.objects:
            return int(Code.OBJECT_NOT_FOUND)
        value = self.objects[name][1][: size - self.short]
        ctypes.memmove(address, value, len(value))
        return len(value)

    def _called(self, kind, names, endpoint=""):
        with self.lock:
            self.calls.append((kind, tuple(names)))
        if endpoint:
            self._wait(endpoint)
        if self.raises is not None:
            raise self.raises
        if self.delay_s:
            time.sleep(self.delay_s)

    def _wait(self, endpoint):
        gate = self.gates.get(endpoint)
        if gate is None:
            return False
        assert gate.wait(20), "nobody let the fake go"
        if self.closed:
            raise Gone("the worker ended")
        return True


class FakeSegments:
    """Every endpoint `e` has the segment `seg-e`."""

    def __init__(self, native: FakeNative) -> None:
        self.native = native
        self.silent = False
        self.closed = False

    def known(self):
        if self.silent:
            return None
        return {endpoint: f"seg-{endpoint}" for endpoint in self.native.endpoints}

    def close(self, timeout_s=0.0):
        self.closed = True


class Rig:
    """A storage over the fake, and short words for what tests do with it."""

    def __init__(self, **changes) -> None:
        self.native = FakeNative("a:1", "b:1", "c:1", "d:1")
        self.segments = FakeSegments(self.native)
        settings = MooncakeSettings(**{"lane_bytes": 1 << 16, **changes})
        self.ranks = settings.ranks
        self.storage = MooncakeStorage(
            lambda: self.native, settings, segments=self.segments
        )
        assert self.until(lambda: self.storage.stats()["connected"])

    def until(self, condition, timeout_s=20.0):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and not condition():
            time.sleep(0.001)
        return bool(condition())

    def place(self, endpoint: str, number: int, size: int = 64) -> bytes:
        """One object on one endpoint; answers its key."""
        key = bytes([number]) * 32
        part = size // self.ranks
        for rank in range(self.ranks):
            value = bytes([number]) * part
            name = object_name(key, rank, self.ranks)
            guarded = value + guard_of(name, memoryview(value))
            self.native.objects[name] = (endpoint, guarded)
        return key

    def get(self, *keys: bytes, size: int = 64, timeout_s: float = 2.0, **how):
        """(result, buffers, seconds)."""
        buffers = [bytearray(size) for _ in keys]
        began = time.monotonic()
        result = self.storage.get(
            b"".join(keys), [memoryview(b) for b in buffers], timeout_s=timeout_s, **how
        )
        return result, buffers, time.monotonic() - began

    def put(self, *keys: bytes, size: int = 64, timeout_s: float = 2.0, **how):
        values = [np.full(size, key[0], np.uint8).data for key in keys]
        return self.storage.put(b"".join(keys), values, timeout_s=timeout_s, **how)

    def hung(self) -> dict[str, int]:
        return self.storage.stats()["lanes"]["hung"]

    def close(self) -> None:
        self.native.let_go()
        self.until(lambda: not self.hung())
        self.storage.close()


@pytest.fixture
def mooncake():
    """Builds rigs over the fake; all hung calls are let go at the end."""
    made: list[Rig] = []

    def build(**changes) -> Rig:
        made.append(Rig(**changes))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


@pytest.fixture
def rig(mooncake):
    return mooncake()
