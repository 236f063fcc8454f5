"""Whatever a backend does, the request goes on with a valid prefix (LMCache#1814)."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.failpoints import FailpointPanic
from refimpl.hicache.storage.base import StorageResult

PAGES = 16
METHODS = ["exists", "get", "put"]


class Broken(Exception):
    """Nobody expects this type."""


def raises(error):
    def act(real, n, stop):
        raise error("on purpose")

    return act


def hangs(real, n, stop):
    stop.wait(3)
    return real()


def answers(change):
    def act(real, n, stop):
        return change(n)

    return act


MISDEEDS = {
    "OSError": raises(OSError),
    "TimeoutError": raises(TimeoutError),
    "ValueError": raises(ValueError),
    "MemoryError": raises(MemoryError),
    "unknown": raises(Broken),
    "hang": hangs,
    "none": answers(lambda n: None),
    "short": answers(lambda n: codes([0] * (n - 1))),
    "long": answers(lambda n: codes([0] * (n + 1))),
    "words": answers(lambda n: "all good"),
    "scalar": answers(lambda n: 0),
    "objects": answers(lambda n: [object()] * n),
    "huge": answers(lambda n: [1 << 40] * n),
    "negative": answers(lambda n: codes([Code.INTERNAL_ERROR] * n)),
    "unheard_of": answers(lambda n: codes([-12345] * n)),
    "miss": answers(lambda n: codes([Code.OBJECT_NOT_FOUND] * n)),
}


class codes(StorageResult):
    """Both a result and, for `exists`, an array."""

    def __init__(self, values: list[int]) -> None:
        super().__init__(codes=np.array(values, np.int16))

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.codes, dtype)


@pytest.fixture
def broken(rig, kit):
    stop = threading.Event()

    def build(method: str, misdeed: str):
        r = rig(breaker=kit.base.breaker)
        keys = kit.chain(PAGES)
        if method != "put":
            r.store(keys)
        real = getattr(r.storage, method)
        act = MISDEEDS[misdeed]

        def call(packed, *args, **kwargs):
            return act(lambda: real(packed, *args, **kwargs), len(packed) // 32, stop)

        setattr(r.storage, method, call)
        return r, keys, stop, real

    yield build
    stop.set()


@pytest.mark.parametrize("misdeed", MISDEEDS)
@pytest.mark.parametrize("method", METHODS)
def test_the_request_goes_on_with_a_valid_prefix(broken, method, misdeed):
    r, keys, stop, real = broken(method, misdeed)
    reuse = r.run(keys)
    limit = reuse.deadline_s + 0.1

    assert reuse.wait_s <= limit
    if method != "put":
        assert reuse.l3_pages == 0
    stop.set()
    setattr(r.storage, method, real)
    r.clean()
    threads = r.cache.state()["threads"]
    assert threads["prefetch"] == r.settings.prefetch_threads
    assert (threads["writeback"], threads["keeper"]) == (1, 1)


@pytest.mark.parametrize("method", METHODS)
def test_exceptions_are_counted_by_type_and_the_threads_live_on(broken, method):
    r, keys, _, real = broken(method, "OSError")
    r.run(keys)
    r.cache.drain(3)
    assert r.counter("exceptions", "OSError") >= 1

    setattr(r.storage, method, real)
    r.cache.reset()
    r.run(keys)
    r.cache.drain(3)
    r.cache.flush()
    assert r.run(keys).l3_pages == PAGES


def test_a_failpoint_that_panics_is_one_more_exception(rig, kit):
    r, keys = rig(), kit.chain(PAGES)
    r.store(keys)
    r.failpoints.set("hicache.before_get", "panic")

    assert r.run(keys).outcome == "error"
    assert r.counter("exceptions", FailpointPanic.__name__) == 1
    r.clean()


def test_a_listener_that_raises_does_not_stop_the_keeper(rig, kit):
    r, keys = rig(), kit.chain(PAGES)

    def broken():
        raise RuntimeError("deaf")

    r.cache.on_ready = broken
    r.run(keys)
    r.run(kit.chain(PAGES, "again"))

    assert r.cache.state()["threads"]["keeper"] == 1
    assert kit.until(lambda: r.counter("exceptions", "RuntimeError") >= 1)
