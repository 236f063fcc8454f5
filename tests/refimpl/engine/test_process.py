"""Real engine processes: alone, before the master, beside stores, and at their end."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import urllib.request

import grpc
import numpy as np
import pytest

from refimpl.engine.model import expected_output
from refimpl.engine.settings import EngineSettings
from refimpl.processes import RoleFailed, RoleProcess
from refimpl.proto import pool_pb2, pool_pb2_grpc

pytestmark = pytest.mark.slow

FREE = "127.0.0.1:0"
SCALE = "0.1"
PAGE_BYTES = 4096
HOST = f"127.91.{os.getpid() % 250 + 1}.7"
"""An address of this test process alone: ports on it can be chosen beforehand."""


class _Engine:
    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)
        self.stub = pool_pb2_grpc.EngineStub(self.channel)

    def prefill(self, request_id, *blocks, length=0):
        request = pool_pb2.PrefillRequest(
            request_id=request_id,
            input_length=length or 512 * len(blocks),
            hash_ids=np.array(blocks, "<i8").tobytes(),
        )
        return self.stub.Prefill(request, timeout=30)

    def control(self, **asked):
        answer = self.stub.Control(pool_pb2.Json(text=json.dumps(asked)), timeout=5)
        return json.loads(answer.text)


@pytest.fixture
def start():
    started = []

    def start(role, name, *flags):
        process = RoleProcess(role, name, (*flags, "--time-scale", SCALE))
        started.append(process)
        return process, process.wait_ready(20)

    yield start
    for process in reversed(started):
        process.ask_to_stop()
    for process in reversed(started):
        process.stop(time.monotonic() + 5)


@pytest.fixture
def connect():
    engines = []

    def connect(addresses):
        engines.append(_Engine(addresses["listen"]))
        return engines[-1]

    yield connect
    for engine in engines:
        engine.channel.close()


def _engine_flags(master):
    return (
        *("--master", master, "--page-bytes", str(PAGE_BYTES)),
        *("--prefill-tokens-per-s", "20000"),
    )


def _start_master(start, host="127.0.0.1", port=0):
    listen = f"{host}:{port}"
    return start(
        "master",
        "master",
        *("--listen", listen, "--heartbeat-listen", FREE, "--admin-listen", FREE),
    )[1]


def _start_store(start, master, name="store-0"):
    return start(
        "store",
        name,
        *("--master", master["listen"], "--heartbeat", master["heartbeat"]),
        *("--rail", f"a={FREE}", "--admin-listen", FREE, "--size", "16MiB"),
    )


def _oracle(*blocks, length=0):
    length = length or 512 * len(blocks)
    return expected_output(blocks, length, EngineSettings().fingerprint, PAGE_BYTES)


def _until(condition, timeout_s):
    waiter = threading.Event()
    ends = time.monotonic() + timeout_s
    while time.monotonic() < ends:
        if condition():
            return True
        waiter.wait(0.02)
    return False


def test_an_engine_without_a_master_serves_at_once_and_right(start, connect):
    process, addresses = start("engine", "e", *_engine_flags(f"{HOST}:1"))
    engine = connect(addresses)
    cold = engine.prefill("cold", 1, 2, length=1000)
    warm = engine.prefill("warm", 1, 2, length=1000)

    assert cold.ok
    assert warm.ok
    assert warm.l1_tokens + warm.l2_tokens == 960
    assert cold.output_hash == warm.output_hash == _oracle(1, 2, length=1000)
    assert process.stop(time.monotonic() + 5) == 0


def test_an_engine_attaches_when_the_master_comes_later(start, connect):
    _, addresses = start("engine", "e", *_engine_flags(f"{HOST}:50051"))
    engine = connect(addresses)
    assert engine.prefill("before", 1, 2).ok
    master = _start_master(start, HOST, 50051)
    _start_store(start, master)
    numbers = iter(range(10_000))

    def is_attached():
        number = next(numbers)
        engine.prefill(f"write-{number}", 7, 8, 9)
        engine.control(op="flush")
        got = engine.prefill(f"read-{number}", 7, 8, 9)
        assert got.ok
        assert got.output_hash == _oracle(7, 8, 9)
        return got.l3_tokens > 0

    assert _until(is_attached, 10)


def test_a_second_engine_reuses_what_the_first_wrote(start, connect):
    master = _start_master(start)
    _start_store(start, master)
    first = connect(start("engine", "e0", *_engine_flags(master["listen"]))[1])
    second = connect(start("engine", "e1", *_engine_flags(master["listen"]))[1])
    first.prefill("w", 1, 2, 3)

    def is_reused():
        second.control(op="flush")
        got = second.prefill("r", 1, 2, 3)
        assert got.output_hash == _oracle(1, 2, 3)
        return got.l3_tokens == 1536 and list(got.stores) == ["store-0"]

    assert _until(is_reused, 10)


def test_the_local_only_lever_keeps_the_pool_out(start, connect):
    master = _start_master(start)
    _start_store(start, master)
    engine = connect(start("engine", "e0", *_engine_flags(master["listen"]))[1])
    engine.control(op="breaker", force="open")
    engine.prefill("w", 1, 2)
    engine.control(op="flush")
    got = engine.prefill("r", 1, 2)

    assert (got.ok, got.l3_tokens) == (True, 0)
    assert got.prefetch_outcome == "breaker_open"
    assert engine.control(op="state")["breaker"] == "open"

    engine.control(op="breaker", force="none")
    assert engine.control(op="state")["breaker"] == "closed"


def test_state_settings_and_metrics_are_there(start, connect):
    _, addresses = start("engine", "e", *_engine_flags(f"{HOST}:1"))
    engine = connect(addresses)
    engine.prefill("a", 1)
    settings = engine.control(op="settings")
    with urllib.request.urlopen(
        f"http://{addresses['admin']}/metrics", timeout=5
    ) as answer:
        metrics = answer.read().decode()

    assert settings["deadline_base_s"] == pytest.approx(0.2)
    assert settings["poll_s"] == 0.02
    assert settings["prefill_tokens_per_s"] == pytest.approx(200_000)
    assert 'refimpl_engine_requests_total{kind="ok"} 1.0' in metrics
    assert 'hicache_breaker_state{group="default"}' in metrics
    assert engine.control(op="state")["hicache"]["broken_laws"] == []

    engine.control(op="reset")
    assert engine.control(op="state")["engine"]["counters"] == {}


def test_a_taken_port_ends_the_engine_fast_with_its_address(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        started = time.monotonic()

        with pytest.raises(RoleFailed, match=rf"exit 2: .*{address}"):
            start("engine", "e", *_engine_flags(f"{HOST}:1"), "--listen", address)

    assert time.monotonic() - started < 5


def test_sigterm_answers_who_is_inside_and_exits_0_quickly(start, connect):
    flags = (*_engine_flags(f"{HOST}:1"), "--prefill-tokens-per-s", "1")
    process, addresses = start("engine", "e", *flags)
    engine = connect(addresses)
    request = pool_pb2.PrefillRequest(
        request_id="long", input_length=512, hash_ids=np.array([1], "<i8").tobytes()
    )
    call = engine.stub.Prefill.future(request, timeout=30)
    assert _until(lambda: engine.control(op="state")["engine"]["running"] == 1, 5)
    started = time.monotonic()

    assert process.stop(time.monotonic() + 5) == 0
    assert time.monotonic() - started < 2
    assert not call.result().ok
