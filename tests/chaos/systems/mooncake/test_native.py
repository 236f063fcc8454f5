"""How Mooncake's client is called, over a fake of it that keeps values in memory."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from chaos.systems.mooncake.native import PATHS, NativeStore, SetupFailed
from chaos.systems.mooncake.values import value_of
from chaos.systems.seen import Found, Seen

PLAN = {
    "address": "127.0.0.1",
    "metadata": "P2PHANDSHAKE",
    "local_buffer_bytes": 1024,
    "master": "127.0.0.1:1",
}
MISSING = -704


class FakeStore:
    """The calls that we use: `held` is what is stored, `known` is registered memory."""

    setup_code = 0

    def __init__(self):
        self.held, self.configs, self.known, self.open = {}, [], {}, 0

    def setup(self, *args):
        return self.setup_code

    def register_buffer(self, at, size):
        self.known[at] = size
        return 0

    def unregister_buffer(self, at):
        del self.known[at]
        return 0

    def _allowed(self, at, size):
        assert any(b <= at and at + size <= b + n for b, n in self.known.items())

    def batch_put_from(self, names, places, sizes, config):
        self.configs.append(config)
        for name, at, size in zip(names, places, sizes, strict=True):
            self._allowed(at, size)
            self.held.setdefault(name, ctypes.string_at(at, size))
        return [0] * len(names)

    def _copy(self, name, at, begin, count):
        if name not in self.held:
            return MISSING
        self._allowed(at, count)
        part = self.held[name][begin : begin + count]
        ctypes.memmove(at, part, len(part))
        return len(part)

    def get_into(self, name, at, size):
        return self._copy(name, at, 0, size)

    def batch_get_into(self, names, places, sizes):
        return [self.get_into(*one) for one in zip(names, places, sizes, strict=True)]

    def get_into_ranges(self, places, keys, to, begins, sizes):
        return [
            [
                [
                    self._copy(name, at + t, b, n)
                    for t, b, n in zip(ts, bs, ns, strict=True)
                ]
                for name, ts, bs, ns in zip(*of, strict=True)
            ]
            for at, *of in zip(places, keys, to, begins, sizes, strict=True)
        ]

    def batch_get_session_start(self, names):
        self.open += 1
        return [0 if name in self.held else MISSING for name in names]

    def batch_get_into_multi_buffer_ranges(self, names, places, sizes, begins):
        for name, *of in zip(names, places, sizes, begins, strict=True):
            for at, count, begin in zip(*of, strict=True):
                self._copy(name, at, begin, count)
        return [0] * len(names)

    def batch_get_session_end(self, names):
        self.open -= 1
        return 0

    def batch_get_replica_desc(self, names):
        def replica(status, memory):
            where = SimpleNamespace(transport_endpoint="127.0.0.9:1")
            return SimpleNamespace(
                status=f"ReplicaStatus.{status}",
                is_memory_replica=lambda: memory,
                get_memory_descriptor=lambda: SimpleNamespace(buffer_descriptor=where),
            )

        every = [("COMPLETE", True), ("PROCESSING", True), ("COMPLETE", False)]
        return {n: [replica(*each) for each in every] for n in names if n in self.held}


@pytest.fixture
def native(monkeypatch):
    module = SimpleNamespace(
        MooncakeDistributedStore=FakeStore, ReplicateConfig=SimpleNamespace
    )
    monkeypatch.setitem(sys.modules, "mooncake.store", module)
    store = NativeStore(PLAN)
    yield store
    assert store._store.known == {}
    assert store._store.open == 0


def seen(rows):
    return [Seen.from_row(row) for row in rows]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1, 3, 4096, 40_001])
def test_every_path_gives_every_byte_beside_a_code_for_what_is_missing(
    native, path, size
) -> None:
    native.write(["a", "b"], size_bytes=size)

    found = seen(native.read_by(path, ["a", "gone", "b"], size_bytes=size))

    assert [one.code for one in found] == [0, MISSING, 0]
    assert [one.found for one in found] == [Found.WHOLE, Found.NOTHING, Found.WHOLE]


@pytest.mark.parametrize("path", PATHS)
def test_wrong_bytes_are_told_for_what_they_are(native, path) -> None:
    native._store.held = {
        "zeros": bytes(4096),
        "other": value_of("else", 4096).tobytes(),
        "torn": value_of("torn", 4096)[:2048].tobytes() + bytes(2048),
        "varied": (value_of("varied", 4096) ^ np.uint8(5)).tobytes(),
    }
    names = list(native._store.held)

    found = seen(native.read_by(path, names, size_bytes=4096, among=["else"]))

    assert [one.found for one in found] == [
        Found.ZEROS,
        Found.OTHER,
        Found.TORN,
        Found.WHOLE,
    ]
    assert found[1].name == "else"
    assert found[3].variant == 5


def test_a_short_answer_is_not_whole(native) -> None:
    native._store.held["a"] = value_of("a", 100).tobytes()
    found = seen(native.read_by("batched", ["a"], size_bytes=4096))

    assert found[0].found is not Found.WHOLE


def test_a_batch_without_names_is_empty(native) -> None:
    assert native.write([], size_bytes=16) == []
    assert native.read_by("batched", [], size_bytes=16) == []


def test_preferences_and_replicas_are_asked_for(native) -> None:
    native.write(["a"], size_bytes=8, segments=["s:1"])
    native.write(["b"], size_bytes=8, segments=["s:1", "s:2"], replicas=2)
    one, two = native._store.configs

    assert (one.replica_num, one.preferred_segment) == (1, "s:1")
    assert (two.replica_num, two.preferred_segments) == (2, ["s:1", "s:2"])


def test_only_complete_replicas_in_memory_are_somewhere(native) -> None:
    native.write(["a"], size_bytes=8)

    assert native.replicas(["a", "gone"]) == [["127.0.0.9:1"], []]


def test_a_refused_setup_is_told_with_its_code(monkeypatch) -> None:
    fake = type("Refusing", (FakeStore,), {"setup_code": -600})
    module = SimpleNamespace(
        MooncakeDistributedStore=fake, ReplicateConfig=SimpleNamespace
    )
    monkeypatch.setitem(sys.modules, "mooncake.store", module)

    with pytest.raises(SetupFailed, match="-600"):
        NativeStore(PLAN)


def test_an_unknown_path_is_refused(native) -> None:
    with pytest.raises(ValueError, match="sideways"):
        native.read_by("sideways", ["a"], size_bytes=8)
