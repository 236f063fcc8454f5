from __future__ import annotations

import random

import numpy as np
import pytest

from refimpl.core.breaker import BreakerState
from refimpl.core.codes import Code, Outcome
from refimpl.failpoints import Failpoints
from refimpl.hicache import HiCacheSettings
from refimpl.hicache.counters import Counters
from refimpl.hicache.gate import Gate, failed, worst
from refimpl.hicache.storage.base import StorageResult

KEY = b"k" * 32


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def gate():
    clock = Clock()
    built = Gate(
        HiCacheSettings(prefill_tokens_per_s=1000.0),
        clock,
        Failpoints(),
        random.Random(0),
        Counters(),
    )
    built.clock = clock
    return built


def result(*codes: int, **endpoints: int) -> StorageResult:
    return StorageResult(
        codes=np.array(codes, np.int16), endpoints=endpoints, asked=tuple(endpoints)
    )


def settle(gate, answer: StorageResult, took_s: float = 0.0, name="get", **how):
    call = gate.start(name, 2.0)
    gate.clock.now += took_s
    return gate.settle(call, answer, **how)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], Outcome.SUCCESS),
        ([0, 0], Outcome.SUCCESS),
        ([0, Code.OBJECT_NOT_FOUND], Outcome.SUCCESS),
        ([Code.OBJECT_NOT_FOUND], Outcome.MISS),
        ([0, Code.TRANSFER_FAIL], Outcome.FAULT),
        ([Code.NO_AVAILABLE_HANDLE], Outcome.ADMISSION),
        ([Code.OBJECT_ALREADY_EXISTS], Outcome.CALLER),
        ([-9999], Outcome.FAULT),
    ],
)
def test_the_worst_fault_decides_else_the_best_news(codes, expected):
    assert worst(np.array(codes, np.int16)) is expected


def test_keys_of_avoided_stores_are_misses():
    codes = np.array([Code.REPLICA_NOT_FOUND], np.int16)

    assert worst(codes) is Outcome.FAULT
    assert worst(codes, avoided=True) is Outcome.SUCCESS


def test_a_timely_fault_is_no_deadline_and_a_late_one_is(gate):
    early = settle(gate, result(Code.RPC_TIMEOUT), 0.5)
    late = settle(gate, result(Code.RPC_TIMEOUT), 1.9)

    assert (early.deadline, late.deadline) == (False, True)
    assert early.fault
    assert late.fault


def test_clearly_slower_than_recomputing_is_a_fault_but_not_below_the_floor(gate):
    assert not settle(gate, result(0), 0.14, tokens=10).slow
    assert settle(gate, result(0), 0.16, tokens=10).slow
    assert not settle(gate, result(0), 1.4, tokens=1000).slow
    assert settle(gate, result(0), 1.6, tokens=1000).slow


def slow_read(gate, heard_s):
    names = [f"s{i}" for i in range(8)]
    answer = StorageResult(
        codes=np.zeros(1, np.int16),
        endpoints=dict.fromkeys(names, 0),
        asked=tuple(names),
        heard_s=heard_s,
    )
    return settle(gate, answer, 0.3, tokens=10)


def test_of_a_slow_read_the_store_that_was_slow_is_quarantined(gate):
    heard_s = {f"s{i}": 0.29 if i == 5 else 0.01 for i in range(8)}

    isolated = [slow_read(gate, heard_s).isolated for _ in range(3)]

    assert isolated == [frozenset(), frozenset(), frozenset({"s5"})]
    assert gate.passes()


@pytest.mark.parametrize("heard_s", [{}, {f"s{i}": 0.29 for i in range(8)}])
def test_a_read_that_is_slow_by_all_or_nobody_knows_by_whom_is_the_pools(gate, heard_s):
    for _ in range(5):
        assert not slow_read(gate, heard_s).isolated

    assert not gate.passes()


def test_writes_are_never_slow(gate):
    assert not settle(gate, result(0), 1.9, name="put", tokens=10).fault


def test_a_cancelled_call_counts_for_nobody(gate):
    for _ in range(100):
        verdict = settle(gate, result(Code.RPC_TIMEOUT, s1=-901), cancelled=True)
        assert not verdict.fault

    assert gate.breaker.state is BreakerState.CLOSED
    assert gate.state()["quarantine"]["events"] == []


def test_a_call_that_never_returns_is_counted_once(gate):
    calls = [gate.start("get", 2.0) for _ in range(5)]
    gate.clock.now += 2.2

    assert gate.settle_overdue() == 5
    assert gate.settle_overdue() == 0
    assert gate.breaker.state is BreakerState.OPEN
    generation = gate.breaker.generation
    for call in calls:
        gate.settle(call, result(0))
    assert gate.breaker.generation == generation


def test_nothing_starts_unless_closed(gate):
    gate.breaker.force("open")

    assert gate.start("get", 1.0) is None
    assert not gate.may_probe("witness")
    assert gate.state()["breaker"]["storage_calls_while_open"] == 0
    gate.breaker.force(None)
    assert gate.start("get", 1.0) is not None


def test_closing_forgets_failed_keys(gate):
    gate.remember_failed(KEY)
    gate.trip("test")
    gate.clock.now += 7
    for _ in range(3):
        gate.end_probe(gate.start_probe(), result(0))

    assert gate.breaker.state is BreakerState.CLOSED
    assert not gate.failed_before(KEY).any()


def test_witnesses_are_asked_once_an_interval(gate):
    assert not gate.doubted()
    settle(gate, result(Code.RPC_TIMEOUT), 1.9)

    assert gate.doubted()
    assert not gate.doubted()
    settle(gate, result(Code.RPC_TIMEOUT), 0.0, deadline=True)
    assert not gate.doubted()
    gate.clock.now += 1.0
    assert gate.doubted()


def test_any_answer_becomes_codes(gate):
    good = gate.guarded(2, lambda: result(0, 0))
    odd = gate.guarded(2, lambda: result(0))

    assert good.codes.tolist() == [0, 0]
    assert odd.codes.tolist() == failed(2).codes.tolist()
