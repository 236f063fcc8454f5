"""Which backend an engine has, and that it never waits for it."""

from __future__ import annotations

import importlib.util
import os
import time
from contextlib import ExitStack

import grpc
import numpy as np
import pytest

from refimpl.engine.settings import EngineSettings, hicache_settings
from refimpl.engine.storage import open_storage
from refimpl.errors import UsageError
from refimpl.failpoints import Failpoints
from refimpl.hicache.storage.pool import PoolStorage
from refimpl.processes import RoleProcess
from refimpl.proto import pool_pb2, pool_pb2_grpc

HOST = f"127.92.{os.getpid() % 250 + 1}"
WHEEL = pytest.mark.skipif(
    importlib.util.find_spec("mooncake") is None,
    reason="the Mooncake wheel is not installed: pip install 'moonquake[mooncake]'",
)


def opened(**settings):
    chosen = EngineSettings(**settings)
    stack = ExitStack()
    return open_storage(chosen, hicache_settings(chosen), Failpoints(), stack), stack


def test_the_pool_of_the_house_is_the_default():
    (storage, client), stack = opened()
    with stack:
        assert isinstance(storage, PoolStorage)
        assert "counts" in client.stats()


@WHEEL
def test_mooncake_answers_faults_until_its_master_is_there():
    master = f"{HOST}.1:50051"
    (storage, client), stack = opened(
        storage="mooncake", mooncake_master=master, mooncake_host=f"{HOST}.9"
    )
    with stack:
        began = time.monotonic()
        codes = storage.exists(b"k" * 32, timeout_s=5.0)

        assert codes.tolist() == [-900]
        assert time.monotonic() - began < 1.0
        assert client.stats()["connected"] is False


@pytest.mark.parametrize(
    ("field", "value"),
    [("mooncake_master", "nowhere"), ("mooncake_admin", "here:there")],
)
def test_an_address_that_is_none_is_refused_by_name(field, value):
    with pytest.raises(UsageError, match=field.replace("_", "-")):
        EngineSettings(**{field: value})


@pytest.mark.slow
@WHEEL
def test_an_engine_over_mooncake_serves_before_its_master_and_ends_orderly():
    flags = ("--storage", "mooncake", "--mooncake-master", f"{HOST}.1:50051")
    engine = RoleProcess(
        "engine", "e", (*flags, "--mooncake-host", f"{HOST}.9", "--time-scale", "0.1")
    )
    try:
        ready = engine.wait_ready(20)
        with grpc.insecure_channel(ready["listen"]) as channel:
            stub = pool_pb2_grpc.EngineStub(channel)
            request = pool_pb2.PrefillRequest(
                request_id="r",
                input_length=1024,
                hash_ids=np.array([1, 2], "<i8").tobytes(),
            )
            answer = stub.Prefill(request, timeout=10)
    finally:
        code = engine.stop(time.monotonic() + 15)

    assert answer.ok
    assert answer.recomputed_tokens == 1024
    assert answer.cache_wait_s < 0.3
    assert code == 0
