"""The gRPC face over a real connection: answers, cancellation, levers."""

from __future__ import annotations

import json
import threading

import grpc
import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.engine.service import EngineService
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.role import grpc_listen, grpc_server


class _Levers:
    def __init__(self):
        self.pulled = []

    def state(self):
        return {"breaker": "closed"}

    def settings(self):
        return {"poll_s": 0.02}

    def flush(self, tiers):
        self.pulled.append(("flush", tuple(tiers)))

    def force_breaker(self, state):
        if state not in ("open", "none"):
            raise ValueError(state)
        self.pulled.append(("breaker", state))

    def reset(self):
        self.pulled.append(("reset",))


@pytest.fixture
def levers():
    return _Levers()


@pytest.fixture
def engine(make_engine):
    return make_engine()


@pytest.fixture
def stub(engine, levers):
    server = grpc_server(threads=20)
    pool_pb2_grpc.add_EngineServicer_to_server(EngineService(engine, levers), server)
    address = grpc_listen(server, "127.0.0.1:0", "rpc")
    server.start()
    with grpc.insecure_channel(address) as channel:
        yield pool_pb2_grpc.EngineStub(channel)
    server.stop(0).wait()


def _request(request_id="r", blocks=(1, 2), length=1000, policy=""):
    return pool_pb2.PrefillRequest(
        request_id=request_id,
        input_length=length,
        hash_ids=np.array(blocks, "<i8").tobytes(),
        policy=policy,
    )


def _until(condition):
    waiter = threading.Event()
    for _ in range(500):
        if condition():
            return
        waiter.wait(0.01)
    raise AssertionError("did not come true in 5 s")


def _control(stub, **asked):
    answer = stub.Control(pool_pb2.Json(text=json.dumps(asked)), timeout=5)
    return json.loads(answer.text)


def test_a_prefill_answers_with_every_number(stub):
    stub.Prefill(_request("cold"), timeout=5)
    got = stub.Prefill(_request("warm"), timeout=5)

    assert (got.ok, got.error, got.request_id) == (True, "", "warm")
    assert (got.l3_tokens, got.recomputed_tokens, got.input_tokens) == (960, 40, 1000)
    assert got.prefetch_outcome == "complete"
    assert got.deadline_s == 2.0
    assert list(got.stores) == ["store-0"]
    assert 0 < got.prefill_modelled_s <= got.ttft_modelled_s
    assert len(got.output_hash) == 32


def test_a_bad_request_is_an_answer_not_an_rpc_error(stub):
    got = stub.Prefill(_request(length=9999), timeout=5)

    assert not got.ok
    assert "bad request" in got.error


def test_an_abort_ends_a_waiting_request(stub, engine, cache):
    cache.pending.add("r")
    call = stub.Prefill.future(_request(), timeout=10)
    _until(lambda: engine.state()["waiting_for_cache"] == 1)
    status = stub.Abort(pool_pb2.AbortRequest(request_id="r"), timeout=5)
    got = call.result()

    assert status.code == Code.OK
    assert (got.ok, got.prefetch_outcome) == (False, "aborted")


def test_an_abort_of_nobody_is_not_found(stub):
    status = stub.Abort(pool_pb2.AbortRequest(request_id="x"), timeout=5)

    assert status.code == Code.OBJECT_NOT_FOUND


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_client_that_goes_away_aborts_its_request(stub, engine, cache, how):
    cache.pending.add("r")
    timeout = 0.2 if how == "deadline" else 10
    call = stub.Prefill.future(_request(), timeout=timeout)
    _until(lambda: engine.state()["waiting_for_cache"] == 1)
    if how == "cancel":
        call.cancel()

    _until(lambda: engine.state()["inside"] == 0)
    _until(lambda: engine.ledger.snapshot().get("requests") == {"aborted": 1})
    assert cache.ended == [("r", "abort")]


def test_control_reads_state_and_settings(stub):
    assert _control(stub, op="state") == {"breaker": "closed"}
    assert _control(stub, op="settings") == {"poll_s": 0.02}


def test_control_pulls_the_levers(stub, levers):
    assert _control(stub, op="flush", tiers=["l1"]) == {"ok": True}
    _control(stub, op="flush")
    _control(stub, op="breaker", force="open")
    _control(stub, op="breaker", force="none")
    _control(stub, op="reset")

    assert levers.pulled == [
        ("flush", ("l1",)),
        ("flush", ("l1", "l2")),
        ("breaker", "open"),
        ("breaker", "none"),
        ("reset",),
    ]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"op": "dance"}', '{"op": "breaker", "force": "maybe"}']
)
def test_a_bad_control_is_told_and_does_nothing(stub, levers, text):
    answer = json.loads(stub.Control(pool_pb2.Json(text=text), timeout=5).text)

    assert "error" in answer
    assert levers.pulled == []
