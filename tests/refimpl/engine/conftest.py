"""A cache that does as it is told, and engines over it that are closed after a test."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from refimpl.core.hashing import Fingerprint
from refimpl.engine.engine import Engine, ModelSettings, Order
from refimpl.engine.model import page_bytes

PAGE_BYTES = 1024
PRINT = Fingerprint(
    model="m", revision="r", dtype="bf16", page_size=64, layout="page_first", tp=1
)


@dataclass
class FakeReuse:
    """As HiCache's `Reuse`."""

    l1_pages: int = 0
    l2_pages: int = 0
    l3_pages: int = 0
    outcome: str = "complete"
    wait_s: float = 0.0
    deadline_s: float = 2.0
    stores: tuple[str, ...] = ()
    touched_fault: bool = False
    pages: list = field(default_factory=list)


class FakeCache:
    """Remembers pages by key; becomes ready when told; raises what it is told."""

    def __init__(self):
        self.on_ready = lambda: None
        self.pages = {}
        self.raises = {}
        self.held = set()
        self.ended = []
        self.began = []
        self.pending = set()
        self.lock = threading.Lock()

    def _maybe_raise(self, call):
        if call in self.raises:
            raise self.raises[call]

    def begin(self, request_id, page_keys, policy=""):
        self._maybe_raise("begin")
        with self.lock:
            self.began.append((request_id, policy))
            self.held.add(request_id)
        return request_id, page_keys

    def ready(self, prefetch, now):
        self._maybe_raise("ready")
        return prefetch[0] not in self.pending

    def let_ready(self, request_id):
        self.pending.discard(request_id)
        self.on_ready()

    def finish(self, prefetch):
        self._maybe_raise("finish")
        keys = prefetch[1]
        found = []
        for start in range(0, len(keys), 32):
            page = self.pages.get(keys[start : start + 32])
            if page is None:
                break
            found.append(memoryview(page))
        return FakeReuse(l3_pages=len(found), pages=found, stores=("store-0",))

    def commit(self, prefetch, fill):
        self._end(prefetch, "commit")
        self._maybe_raise("commit")
        keys = prefetch[1]
        rows = np.empty((len(keys) // 32, PAGE_BYTES), np.uint8)
        fill(keys, rows)
        for i, row in enumerate(rows):
            self.pages.setdefault(keys[i * 32 : i * 32 + 32], row)

    def abort(self, prefetch):
        self._end(prefetch, "abort")
        self._maybe_raise("abort")

    def _end(self, prefetch, how):
        with self.lock:
            assert prefetch[0] in self.held, "ended twice, or never begun"
            self.held.remove(prefetch[0])
            self.ended.append((prefetch[0], how))


@pytest.fixture
def cache():
    return FakeCache()


@pytest.fixture
def make_engine(cache):
    engines = []

    def make(**changes):
        settings = {
            "fingerprint": PRINT,
            "page_bytes": PAGE_BYTES,
            "prefill_tokens_per_s": 1e6,
            **changes,
        }
        engines.append(Engine(ModelSettings(**settings), cache))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def order():
    def make(request_id="r", *blocks, length=0, policy=""):
        blocks = blocks or (1, 2)
        return Order(
            request_id=request_id,
            input_length=length or 512 * len(blocks),
            hash_ids=np.array(blocks, np.int64),
            policy=policy,
        )

    return make


@pytest.fixture
def wrong_page():
    """A page whose bytes belong to another key."""

    def make(key):
        return page_bytes(key[::-1], PAGE_BYTES)[0].copy()

    return make
