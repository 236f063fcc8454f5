"""Engine and real HiCache over a backend that misbehaves in every way (F-cases).

Whatever a method of the backend does, a request ends with the output of a run without
any cache, and waits no longer than its deadline and one poll.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from refimpl.core.breaker import BreakerSettings
from refimpl.core.hashing import Fingerprint
from refimpl.core.prefetch import PrefetchSettings
from refimpl.engine.engine import Engine, ModelSettings, Order
from refimpl.engine.model import expected_output
from refimpl.hicache import HiCache
from refimpl.hicache.settings import HiCacheSettings
from refimpl.hicache.storage.base import StorageResult
from refimpl.hicache.storage.memory import MemoryStorage

PAGE_BYTES = 1024
PRINT = Fingerprint(
    model="m", revision="r", dtype="bf16", page_size=64, layout="page_first", tp=1
)
T_S = 0.1
POLL_S = 0.02
SLACK_S = 1.0
"""What a busy machine may add."""
PROMPT = (1, 2, 3)
PAGES = 24


class _Misbehaving(MemoryStorage):
    """Good until `spoil` names a method and what it shall do."""

    def __init__(self):
        super().__init__()
        self.spoil = ("", "")
        self.let_go = threading.Event()

    def exists(self, keys, **more):
        return self._do("exists", super().exists, keys, **more)

    def get(self, keys, buffers, **more):
        return self._do("get", super().get, keys, buffers, **more)

    def put(self, keys, buffers, **more):
        return self._do("put", super().put, keys, buffers, **more)

    def _do(self, method, good, keys, *args, **more):
        if self.spoil[0] != method:
            return good(keys, *args, **more)
        count = len(keys) // 32
        match self.spoil[1]:
            case "raise":
                raise ConnectionError("on purpose")
            case "hang":
                self.let_go.wait(30)
                return good(keys, *args, **more)
            case "none":
                return None
            case "short":
                return self._answer(method, np.zeros(max(0, count - 1), np.int16))
            case "long":
                return self._answer(method, np.zeros(count + 5, np.int16))
            case "negative":
                return self._answer(method, np.full(count, -800, np.int16))
            case "unknown":
                return self._answer(method, np.full(count, -4242, np.int16))
            case "object":
                return object()

    def _answer(self, method, codes):
        return codes if method == "exists" else StorageResult(codes=codes)


@pytest.fixture
def storage():
    return _Misbehaving()


@pytest.fixture
def engine(storage, request):
    settings = HiCacheSettings(
        page_tokens=64,
        page_bytes=PAGE_BYTES,
        l1_pages=128,
        l2_pages=256,
        prefetch=PrefetchSettings(
            base_s=T_S, per_ki_token_s=0.0, poll_s=POLL_S, threshold_tokens=64
        ),
        breaker=BreakerSettings(min_samples=1000, consecutive_deadlines=1000),
        put_timeout_s=0.2,
        put_backoff_s=0.01,
        poison_free_pages=True,
    )
    cache = HiCache(storage, settings, time.monotonic)
    engine = Engine(
        ModelSettings(
            fingerprint=PRINT,
            page_bytes=PAGE_BYTES,
            prefill_tokens_per_s=1e6,
            poll_s=getattr(request, "param", POLL_S),
        ),
        cache,
    )
    engine.cache = cache
    yield engine
    storage.let_go.set()
    engine.close()
    cache.close()


def _serve(engine, request_id, blocks=PROMPT):
    order = Order(
        request_id=request_id,
        input_length=512 * len(blocks),
        hash_ids=np.array(blocks, np.int64),
    )
    return engine.serve(order, engine.ticket(request_id))


def _fill_pool(engine):
    _serve(engine, "fill")
    assert engine.cache.drain(5)
    engine.cache.flush()


def _oracle(blocks=PROMPT):
    return expected_output(blocks, 512 * len(blocks), PRINT, PAGE_BYTES)


KINDS = ["raise", "hang", "none", "short", "long", "negative", "unknown", "object"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["exists", "get", "put"])
def test_a_misbehaving_backend_fails_no_request(engine, storage, method, kind):
    _fill_pool(engine)
    storage.spoil = (method, kind)
    got = _serve(engine, "r")
    more = _serve(engine, "more", (1, 2, 3, 4))

    assert got.ok
    assert more.ok
    assert got.output_hash == _oracle()
    assert more.output_hash == _oracle((1, 2, 3, 4))
    assert got.reused.wait_s <= T_S + POLL_S + SLACK_S
    assert engine.cache_errors.snapshot() == {}

    storage.spoil = ("", "")
    storage.let_go.set()
    assert engine.cache.drain(5)
    assert engine.cache.broken_laws() == []


def test_a_good_backend_gives_the_whole_prefix_back(engine):
    _fill_pool(engine)
    got = _serve(engine, "r")

    assert (got.reused.l3_pages, got.recomputed_tokens) == (PAGES, 0)
    assert got.output_hash == _oracle()


def test_a_lost_middle_page_costs_what_comes_after_it_only(engine, storage):
    _fill_pool(engine)
    keys = list(storage.objects)
    storage.drop(keys[10])
    got = _serve(engine, "r")

    assert got.reused.l3_pages == 10
    assert got.recomputed_tokens == (PAGES - 10) * 64
    assert got.output_hash == _oracle()


def test_a_hung_read_costs_its_deadline_and_one_poll(engine, storage):
    _fill_pool(engine)
    storage.spoil = ("get", "hang")
    started = time.monotonic()
    got = _serve(engine, "r")

    assert T_S <= got.reused.wait_s <= T_S + POLL_S + SLACK_S
    assert time.monotonic() - started <= T_S + POLL_S + SLACK_S
    assert got.reused.outcome == "timeout"


@pytest.mark.parametrize("engine", [30.0], indirect=True, ids=["poll 30 s"])
def test_the_end_of_a_prefetch_is_noticed_without_waiting_for_the_poll(engine):
    _fill_pool(engine)
    got = _serve(engine, "r")

    assert got.reused.l3_pages == PAGES
    assert got.queue_s < 10


def test_aborts_at_random_points_leave_no_page_behind(engine, storage):
    _fill_pool(engine)
    slow = threading.Event()
    storage.fault = lambda *_: slow.wait(0.0005) and None
    threads = []
    for i in range(30):
        thread = threading.Thread(target=_serve, args=(engine, f"r{i}", (1, 2, i)))
        thread.start()
        threads.append(thread)
        slow.wait(0.001 * (i % 4))
        engine.abort(f"r{i - i % 3}")
    for thread in threads:
        thread.join(10)

    assert engine.cache.drain(5)
    assert engine.cache.broken_laws() == []
    assert engine.cache.state()["occupancy"]["tokens"] == 0
    assert engine.slots.counts()["free_slots"] == 4
