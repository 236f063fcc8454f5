"""The engine over a cache that fails in every way: requests do not."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest

from refimpl.engine.model import expected_output

PAGE_BYTES = 1024


def _serve(engine, order):
    return engine.serve(order, engine.ticket(order.request_id))


def _later(engine, order):
    answers = []
    ticket = engine.ticket(order.request_id)
    thread = threading.Thread(
        target=lambda: answers.append(engine.serve(order, ticket)), daemon=True
    )
    thread.start()
    return thread, answers, ticket


def _until(condition):
    waiter = threading.Event()
    for _ in range(500):
        if condition():
            return
        waiter.wait(0.01)
    raise AssertionError("did not come true in 5 s")


def _oracle(engine, order):
    return expected_output(
        order.hash_ids, order.input_length, engine.settings.fingerprint, PAGE_BYTES
    )


def test_a_cold_request_computes_everything(make_engine, order):
    engine = make_engine()
    asked = order("a", 1, 2, length=1000)
    got = _serve(engine, asked)

    assert got.ok
    assert (got.recomputed_tokens, got.input_tokens) == (1000, 1000)
    assert got.output_hash == _oracle(engine, asked)


def test_a_warm_request_reuses_whole_pages_and_answers_the_same(make_engine, order):
    engine = make_engine()
    cold = _serve(engine, order("a", 1, 2, length=1000))
    warm = _serve(engine, order("b", 1, 2, length=1000))

    assert (warm.reused.l3_pages, warm.recomputed_tokens) == (15, 40)
    assert warm.output_hash == cold.output_hash


def test_wrong_cache_bytes_show_as_a_wrong_output(
    make_engine, order, cache, wrong_page
):
    engine = make_engine()
    _serve(engine, order("a"))
    key = next(iter(cache.pages))
    cache.pages[key] = wrong_page(key)
    asked = order("b")

    assert _serve(engine, asked).output_hash != _oracle(engine, asked)


@pytest.mark.parametrize("call", ["begin", "ready", "finish", "commit", "abort"])
def test_a_cache_that_raises_costs_reuse_and_nothing_else(
    make_engine, order, cache, call
):
    engine = make_engine()
    _serve(engine, order("warm"))
    cache.raises[call] = RuntimeError("broken on purpose")
    asked = order("a")
    got = _serve(engine, asked)

    assert got.ok
    assert got.output_hash == _oracle(engine, asked)
    if call != "abort":
        assert engine.cache_errors.snapshot()[call] == 1
    if call in ("begin", "ready", "finish"):
        assert got.recomputed_tokens == got.input_tokens
        assert got.reused.outcome == "error"
    assert cache.held == set()


@pytest.mark.parametrize("lie", ["too many", "contradiction"])
def test_a_cache_that_lies_about_its_pages_is_not_believed(
    make_engine, order, cache, monkeypatch, lie
):
    engine = make_engine()
    finish = cache.finish

    def lying(prefetch):
        reuse = finish(prefetch)
        reuse.l3_pages += 100
        if lie == "too many":
            reuse.pages = [memoryview(bytes(PAGE_BYTES))] * reuse.l3_pages
        return reuse

    monkeypatch.setattr(cache, "finish", lying)
    asked = order("a")
    got = _serve(engine, asked)

    assert got.output_hash == _oracle(engine, asked)
    assert engine.cache_errors.snapshot() == {"finish": 1}


def test_every_begin_is_ended_once(make_engine, order, cache):
    engine = make_engine()
    for i in range(5):
        _serve(engine, order(f"r{i}", i))

    assert cache.ended == [(f"r{i}", "commit") for i in range(5)]


def test_a_prefetch_that_is_not_ready_blocks_nobody(make_engine, order, cache):
    engine = make_engine(prefill_slots=1)
    cache.pending.add("slow")
    thread, answers, _ = _later(engine, order("slow"))
    _until(lambda: engine.state()["waiting_for_cache"] == 1)

    assert _serve(engine, order("fast")).ok
    assert not answers
    cache.let_ready("slow")
    thread.join(5)
    assert answers[0].ok


def test_the_slot_is_held_for_the_modelled_time(make_engine, order):
    engine = make_engine(prefill_tokens_per_s=512 / 0.05, prefill_slots=1)
    started = time.monotonic()
    runs = [_later(engine, order(f"r{i}", i)) for i in range(3)]
    for thread, _, _ in runs:
        thread.join(5)
    served = [answers[0] for _, answers, _ in runs]
    ttft = sorted(s.ttft_modelled_s for s in served)

    assert all(s.prefill_modelled_s == pytest.approx(0.05) for s in served)
    assert time.monotonic() - started >= 0.15
    assert ttft[0] >= 0.05
    assert ttft[2] > 0.1
    assert max(s.queue_s for s in served) > 0.05


@pytest.mark.parametrize("where", ["cache", "slot", "prefill"])
def test_abort_works_wherever_the_request_stands(make_engine, order, cache, where):
    engine = make_engine(prefill_slots=1, prefill_tokens_per_s=1.0)
    blocker = None
    if where == "cache":
        cache.pending.add("r")
    elif where == "slot":
        blocker, _, _ = _later(engine, order("blocker"))
        _until(lambda: engine.state()["running"] == 1)
    thread, answers, _ = _later(engine, order("r"))
    signs = {
        "cache": lambda: engine.state()["waiting_for_cache"] == 1,
        "slot": lambda: engine.state()["eligible"] == 1,
        "prefill": lambda: engine.state()["running"] == 1,
    }
    _until(signs[where])
    assert engine.abort("r")
    thread.join(5)
    if blocker:
        engine.abort("blocker")
        blocker.join(5)

    assert (answers[0].ok, answers[0].result) == (False, "aborted")
    assert cache.held == set()
    assert engine.state()["inside"] == 0
    assert engine.state()["free_slots"] == 1


def test_abort_of_nobody_says_so(make_engine):
    assert not make_engine().abort("nobody")


def test_aborts_at_random_points_leave_nothing_behind(make_engine, order, cache):
    engine = make_engine(prefill_tokens_per_s=512 / 0.02, prefill_slots=2)
    rng = random.Random(3)
    called_off = rng.sample(range(60), 50)
    runs = [_later(engine, order(f"r{i}", i)) for i in range(60)]
    waiter = threading.Event()
    for i in called_off:
        waiter.wait(rng.random() * 0.002)
        engine.abort(f"r{i}")
    for thread, _, _ in runs:
        thread.join(10)
    results = [answers[0].result for _, answers, _ in runs]

    assert {results[i] for i in range(60) if i not in called_off} == {"ok"}
    assert "aborted" in results
    assert cache.held == set()
    assert engine.slots.counts() == {
        "inside": 0,
        "eligible": 0,
        "running": 0,
        "free_slots": 2,
    }


def test_best_effort_waits_for_no_prefetch(make_engine, order, cache):
    engine = make_engine()
    cache.pending.add("r")

    assert _serve(engine, order("r", policy="best_effort")).ok


def test_the_policy_of_a_request_reaches_the_cache(make_engine, order, cache):
    engine = make_engine()
    _serve(engine, order("a", policy="wait_complete"))
    _serve(engine, order("b"))

    assert cache.began == [("a", "wait_complete"), ("b", "")]


@pytest.mark.parametrize(
    "change", [{"policy": "hopeful"}, {"length": 5000}, {"request_id": "twice"}]
)
def test_a_clients_mistake_is_its_own(make_engine, order, cache, change):
    engine = make_engine()
    cache.pending.add("twice")
    thread, _, _ = _later(engine, order("twice"))
    _until(lambda: engine.state()["waiting_for_cache"] == 1)
    got = _serve(engine, order(**change))
    cache.let_ready("twice")
    thread.join(5)

    assert (got.ok, got.result) == (False, "bad")
    assert got.error.startswith("bad request")


def test_a_full_engine_refuses_at_once(make_engine, order, cache):
    engine = make_engine(capacity=1)
    cache.pending.add("first")
    thread, _, _ = _later(engine, order("first"))
    _until(lambda: engine.state()["waiting_for_cache"] == 1)
    got = _serve(engine, order("second"))
    cache.let_ready("first")
    thread.join(5)

    assert (got.result, got.error) == (
        "shed",
        "engine is full: 1 requests are in the engine",
    )


def test_an_unexpected_error_is_an_answer_and_a_counter(
    make_engine, order, monkeypatch
):
    engine = make_engine()

    def broken(*_args):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("refimpl.engine.engine.output_hash", broken)
    got = _serve(engine, order("a"))
    monkeypatch.undo()

    assert (got.result, got.error) == ("failed", "ZeroDivisionError: on purpose")
    assert engine.ledger.snapshot()["failures"] == {"ZeroDivisionError": 1}
    assert _serve(engine, order("a")).ok


def test_close_ends_who_is_inside_and_takes_nobody_new(make_engine, order, cache):
    engine = make_engine(prefill_slots=1, prefill_tokens_per_s=1.0)
    cache.pending.add("waits")
    runs = [_later(engine, order(name)) for name in ("waits", "runs", "queues")]
    _until(lambda: engine.state()["waiting_for_cache"] == 1)
    _until(lambda: engine.state()["running"] == 1)
    engine.close()
    for thread, _, _ in runs:
        thread.join(5)

    assert {answers[0].result for _, answers, _ in runs} == {"aborted"}
    assert _serve(engine, order("new")).result == "aborted"
    assert cache.held == set()


def test_calling_off_waits_until_nobody_is_inside(make_engine, order, cache):
    engine = make_engine()
    cache.pending.add("r")
    thread, answers, _ = _later(engine, order("r"))
    _until(lambda: engine.state()["waiting_for_cache"] == 1)

    assert engine.call_off("reset")
    assert engine.state()["inside"] == 0
    thread.join(5)
    assert answers[0].error == "aborted: reset"
    assert _serve(engine, order("next")).ok


def test_counters_add_up_and_reset_clears_them(make_engine, order):
    engine = make_engine()
    _serve(engine, order("a"))
    _serve(engine, order("b"))
    tokens = engine.ledger.snapshot()["tokens"]
    engine.reset()

    assert tokens["input"] == 2048
    assert tokens["l1"] + tokens["l2"] + tokens["l3"] + tokens["recomputed"] == 2048
    assert engine.state()["counters"] == {}


def test_many_requests_at_once_all_answer_right(make_engine, order):
    engine = make_engine(prefill_slots=4)
    orders = [order(f"r{i}", 1, i % 5, i % 3) for i in range(40)]
    runs = [_later(engine, asked) for asked in orders]
    for thread, _, _ in runs:
        thread.join(10)

    for asked, (_, answers, _) in zip(orders, runs, strict=True):
        assert answers[0].output_hash == _oracle(engine, asked)


def test_a_request_that_went_away_before_its_turn_is_aborted(make_engine, order):
    engine = make_engine()
    asked = order("a")
    ticket = engine.ticket("a")
    ticket.cancel("the client went away")

    assert engine.serve(asked, ticket).result == "aborted"


def test_hash_ids_may_be_read_only(make_engine, order):
    engine = make_engine()
    asked = order("a")
    asked.hash_ids.flags.writeable = False

    assert _serve(engine, asked).ok
    assert np.array_equal(asked.hash_ids, [1, 2])
