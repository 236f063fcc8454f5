from __future__ import annotations

import hashlib
import random
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.core.prefetch import PrefetchSettings
from refimpl.failpoints import Failpoints
from refimpl.hicache import HiCache, HiCacheSettings
from refimpl.hicache.storage.memory import MemoryStorage

PAGE_BYTES = 256


def chain(count: int, seed: str = "prompt", parent: bytes = b"") -> bytes:
    """Page keys that hash their whole prefix, as the real ones do."""
    keys, last = [], parent
    for i in range(count):
        last = hashlib.sha256(last + f"{seed}/{i}".encode()).digest()
        keys.append(last)
    return b"".join(keys)


def rows_of(keys: bytes, size: int = PAGE_BYTES) -> np.ndarray:
    """Page bytes as a pure function of the key."""
    rows = [
        np.frombuffer((keys[i : i + 32] * (size // 32 + 1))[:size], np.uint8)
        for i in range(0, len(keys), 32)
    ]
    return np.array(rows) if rows else np.zeros((0, size), np.uint8)


def fill(keys: bytes, out: np.ndarray) -> None:
    out[:] = rows_of(keys, out.shape[1])


def until(condition, timeout_s: float = 20.0) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.001)
    return bool(condition())


class Rig:
    """A HiCache over a store in memory, and one request's whole life in one call."""

    def __init__(self, storage: MemoryStorage, settings: HiCacheSettings) -> None:
        self.storage = storage
        self.failpoints = Failpoints(random.Random(0))
        self.settings = settings
        self.cache = HiCache(
            storage, settings, time.monotonic, self.failpoints, random.Random(0)
        )
        self.news = threading.Event()
        self.cache.on_ready = self.news.set

    def wait(self, op, timeout_s: float = 20.0):
        end = time.monotonic() + timeout_s
        while not self.cache.ready(op, time.monotonic()):
            assert time.monotonic() < end, "never ready"
            self.news.wait(self.settings.prefetch.poll_s)
            self.news.clear()
        return self.cache.finish(op)

    def run(self, keys: bytes, policy: str = "", commit: bool = True):
        """Begin, wait, check the reused bytes, commit; answers the reuse."""
        op = self.cache.begin("r", keys, policy)
        reuse = self.wait(op)
        self.check(keys, reuse)
        if commit:
            self.cache.commit(op, fill)
        else:
            self.cache.abort(op)
        return reuse

    def check(self, keys: bytes, reuse) -> None:
        pages = reuse.l1_pages + reuse.l2_pages + reuse.l3_pages
        assert pages == len(reuse.pages)
        expected = rows_of(keys[: pages * 32], self.settings.page_bytes)
        for row, page in zip(expected, reuse.pages, strict=True):
            assert bytes(page) == row.tobytes(), "wrong bytes"

    def store(self, keys: bytes) -> None:
        """Puts pages into the pool and forgets them locally."""
        assert self.run(keys).l3_pages == 0
        assert self.cache.drain(3.0)
        self.cache.flush()

    def counter(self, name: str, label: str = "") -> int:
        return self.cache._counters.get(name, label)

    def clean(self) -> None:
        assert self.cache.drain(3.0), self.cache.state()
        assert self.cache.state()["broken_laws"] == []
        pages = self.cache.state()["pages"]["l2"]
        assert pages["free"] + pages["used"] == pages["total"]
        assert self.cache.state()["occupancy"]["tokens"] == 0

    def close(self) -> None:
        self.failpoints.clear()
        self.storage.fault = None
        self.cache.close()


BASE = HiCacheSettings(
    page_tokens=64,
    page_bytes=PAGE_BYTES,
    l1_pages=512,
    l2_pages=1024,
    poison_free_pages=True,
    put_timeout_s=0.1,
    put_backoff_s=0.005,
    prefetch=PrefetchSettings(
        base_s=0.2, per_ki_token_s=0.01, max_s=1.0, threshold_tokens=64, poll_s=0.005
    ),
)


@pytest.fixture
def rig():
    """Builds rigs; at the end each must be clean and close."""
    made: list[Rig] = []

    def build(stores: int = 8, fault=None, prefetch=None, **changes) -> Rig:
        settings = replace(BASE, **changes)
        if prefetch:
            settings = replace(
                settings, prefetch=replace(settings.prefetch, **prefetch)
            )
        names = [f"s{i}" for i in range(stores)]
        made.append(Rig(MemoryStorage(names, fault), settings))
        return made[-1]

    yield build
    for one in made:
        one.close()


def blackhole(*stores: str):
    """A fault: these stores take the whole time of the call, or until its cancel."""

    def fault(kind, key, store, cancel, timeout_s):
        if store in stores and kind in ("get", "put"):
            end = time.monotonic() + timeout_s
            while time.monotonic() < end:
                if cancel is not None and cancel.is_set():
                    break
                time.sleep(0.001)
            return Code.RPC_TIMEOUT
        return None

    return fault


@pytest.fixture
def kit():
    """The helpers of this room's tests."""
    return SimpleNamespace(
        base=BASE,
        blackhole=blackhole,
        chain=chain,
        fill=fill,
        rig_on=Rig,
        rows_of=rows_of,
        until=until,
    )
