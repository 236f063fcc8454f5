from __future__ import annotations

import threading

import pytest

from chaos.driver import LoadDriver
from chaos.history.history import History, read_history, samples_of
from chaos.load.replay import failed
from chaos.load.sample import Ending
from chaos.systems.base import Answer, Request


class FakeCluster:
    """Answers everything at once; counts how often the oracle is asked."""

    engines = ("engine-0", "engine-1")

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.oracle = 0
        self.gate = threading.Event()
        self.gate.set()

    def prefill(self, engine: str, request: Request, *, timeout_s: float) -> Answer:
        self.sent.append((engine, request.request_id))
        self.gate.wait(5)
        return failed(request, "")

    def abort(self, engine: str, request_id: str) -> None:
        self.gate.set()

    def expected_output(self, request: Request) -> str:
        self.oracle += 1
        return f"hash of {request.hash_ids}"


def request_of(number: int, at_s: float = 0.0) -> Request:
    return Request(
        request_id=f"r{number}",
        session=f"s{number}",
        at_s=at_s,
        input_length=512,
        output_length=1,
        hash_ids=(number % 2,),
    )


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def history(tmp_path):
    with History(tmp_path / "history.jsonl") as history:
        yield history


@pytest.fixture
def seen():
    return []


@pytest.fixture
def load(cluster, history, seen):
    return LoadDriver(
        lambda: cluster,
        history=history,
        on_sample=lambda arm, sample: seen.append((arm, sample.request.request_id)),
    )


def test_every_sample_is_in_the_history_with_what_it_should_have_been(
    load, history, seen
) -> None:
    run = load([request_of(number) for number in range(4)], arm="healthy")
    history.sync()

    samples, expected = samples_of(read_history(history.path), arm="healthy")
    assert len(samples) == run.sent == 4
    assert expected["r3"] == "hash of (1,)"
    assert sorted(seen) == [("healthy", f"r{number}") for number in range(4)]


def test_equal_prompts_ask_the_oracle_once(load, cluster) -> None:
    load([request_of(number) for number in range(6)])

    assert cluster.oracle == 2


def test_sessions_stay_on_their_engine_unless_a_route_says_otherwise(
    load, cluster
) -> None:
    requests = [request_of(number) for number in range(8)]
    load(requests)
    first = {name: engine for engine, name in cluster.sent}
    cluster.sent.clear()
    load(requests)
    assert {name: engine for engine, name in cluster.sent} == first

    cluster.sent.clear()
    load(requests, route=lambda _: "engine-1")
    assert {engine for engine, _ in cluster.sent} == {"engine-1"}


def test_a_background_load_is_over_after_its_block(load) -> None:
    with load.running([request_of(1), request_of(2, at_s=0.05)]) as running:
        assert not running.done

    assert running.done
    assert running.run.sent == 2


def test_an_error_inside_the_block_stops_the_load(load, cluster) -> None:
    cluster.gate.clear()
    with pytest.raises(ZeroDivisionError), load.running([request_of(1)]) as running:
        1 / 0  # noqa: B018
    cluster.gate.set()

    assert running.done
    assert running.run.count(Ending.DONE) == 0


def test_watchers_of_a_call_hear_its_samples_and_sends(load) -> None:
    sent: list[str] = []
    ended: list[str] = []
    load(
        [request_of(1)],
        on_send=lambda request, engine, at_s: sent.append(request.request_id),
        on_sample=lambda sample: ended.append(sample.request.request_id),
    )

    assert sent == ended == ["r1"]
