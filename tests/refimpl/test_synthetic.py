"""The small load of `refimpl up`, against engines that answer at once."""

from __future__ import annotations

import threading
import time

import pytest

from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.role import grpc_listen, grpc_server
from refimpl.synthetic import SyntheticLoad


class _Engine(pool_pb2_grpc.EngineServicer):
    def __init__(self):
        self.got = []
        self.ok = True
        self.slow_s = 0.0

    def Prefill(self, request, context):
        self.got.append(request)
        time.sleep(self.slow_s)
        return pool_pb2.PrefillResponse(
            ok=self.ok, ttft_modelled_s=0.5, input_tokens=100, recomputed_tokens=25
        )


@pytest.fixture
def engines():
    made = []
    for _ in range(2):
        engine, server = _Engine(), grpc_server(threads=2)
        pool_pb2_grpc.add_EngineServicer_to_server(engine, server)
        address = grpc_listen(server, "127.0.0.1:0", "rpc")
        server.start()
        made.append((engine, server, address))
    yield [(engine, address) for engine, _, address in made]
    for _, server, _ in made:
        server.stop(0).wait()


def _run(engines, answers, seed=1):
    load = SyntheticLoad([a for _, a in engines], rate=500, seed=seed)
    load.start()
    waiter = threading.Event()
    for _ in range(500):
        view = load.view()
        if view.sent >= answers and view.hit_rate + view.failed:
            break
        waiter.wait(0.01)
    load.close()
    return load.view()


def test_it_reports_what_the_engines_say(engines):
    view = _run(engines, 20)

    assert view.sent >= 20
    assert (view.failed, view.ttft_p50_s, view.hit_rate) == (0, 0.5, 0.75)


def test_a_refused_answer_counts_as_failed(engines):
    for engine, _ in engines:
        engine.ok = False

    assert _run(engines, 5).failed > 0


def test_what_the_end_of_the_load_drops_is_no_failure(engines):
    for engine, _ in engines:
        engine.slow_s = 0.3

    view = _run(engines, 1)

    assert view.sent > 4  # two threads an engine: the others were under way
    assert view.failed == 0


def test_sessions_stay_with_their_engine_and_share_a_system_prompt(engines):
    _run(engines, 60)
    sessions = [{r.session for r in engine.got} for engine, _ in engines]
    prompts = {r.hash_ids[: 4 * 8] for engine, _ in engines for r in engine.got}

    assert sessions[0]
    assert sessions[1]
    assert not sessions[0] & sessions[1]
    assert len(prompts) == 1


def test_a_seed_makes_the_same_requests(engines):
    _run(engines, 30)
    first = {r.request_id: r.hash_ids for e, _ in engines for r in e.got}
    for engine, _ in engines:
        engine.got.clear()
    _run(engines, 30)
    second = {r.request_id: r.hash_ids for e, _ in engines for r in e.got}

    shared = first.keys() & second.keys()
    assert len(shared) >= 20
    assert all(first[r] == second[r] for r in shared)
