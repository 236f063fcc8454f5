from __future__ import annotations

import threading

import pytest

from refimpl.hicache.storage.lanes import Lanes


@pytest.fixture
def lanes():
    made = Lanes(4, 64)
    yield made
    made.close(2.0)


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


def started(lanes, endpoint, work):
    bell = threading.Event()
    lanes.listen(bell)
    job = lanes.start(lanes.take(endpoint), endpoint, work)
    return job, bell


def test_each_lane_has_memory_of_its_own(lanes):
    spans = [
        (lane.address, lane.address + 64) for e in "abcd" if (lane := lanes.take(e))
    ]

    assert len({start for start, _ in spans}) == 4
    assert max(end for _, end in spans) - min(start for start, _ in spans) == 4 * 64
    assert lanes.take("e") is None


def test_one_endpoint_never_has_more_than_half_of_the_lanes(lanes):
    assert lanes.take("a") is not None
    assert lanes.take("a") is not None
    assert lanes.take("a") is None
    assert lanes.take("b") is not None


def test_a_lane_comes_back_when_its_result_was_taken(lanes):
    job, bell = started(lanes, "a", lambda lane: lane.number)
    assert bell.wait(20)
    while not job.done:
        bell.wait(0.01)
    before = lanes.state()["free"]
    lanes.give_back(job.lane, "a")

    assert job.result == job.lane.number
    assert (before, lanes.state()["free"]) == (3, 4)


def test_an_abandoned_lane_comes_back_only_with_its_call(lanes, gate):
    job, bell = started(lanes, "a", lambda _lane: gate.wait(60))
    assert lanes.abandon(job)
    hung = lanes.state()
    bell.clear()
    gate.set()
    assert bell.wait(20)

    assert (hung["free"], hung["hung"]) == (3, {"a": 1})
    assert lanes.state() == {**hung, "free": 4, "hung": {}, "late_returns": 1}
    assert not job.lane.abandoned


def test_who_gives_up_too_late_gets_the_result(lanes):
    job, bell = started(lanes, "a", lambda _lane: 7)
    assert bell.wait(20)
    while not job.done:
        bell.wait(0.01)

    assert not lanes.abandon(job)
    assert job.result == 7
    lanes.give_back(job.lane, "a")
    assert lanes.state()["hung"] == {}


def test_the_thread_of_an_abandoned_call_makes_way_and_is_not_used_again(gate):
    made_way, seen = [], []
    lanes = Lanes(4, 64, make_way=made_way.append)

    def work(_lane):
        seen.append(threading.get_native_id())
        gate.wait(60)

    job, bell = started(lanes, "a", work)
    while not seen:
        bell.wait(0.01)
    lanes.abandon(job)
    old = job.lane.thread
    bell.clear()
    gate.set()
    assert bell.wait(20)
    old.join(20)
    lanes.close(2.0)

    assert made_way == seen
    assert not old.is_alive()
    assert job.lane.thread is None


def test_an_endpoint_with_hung_calls_is_refused_until_they_return(lanes, gate):
    job, bell = started(lanes, "a", lambda _lane: gate.wait(60))
    assert not lanes.refuses("a")
    lanes.abandon(job)
    refused = lanes.refuses("a"), lanes.refuses("b")
    bell.clear()
    gate.set()
    assert bell.wait(20)

    assert refused == (True, False)
    assert not lanes.refuses("a")


def test_what_a_call_raises_is_kept_for_its_caller(lanes):
    def work(_lane):
        raise ValueError("native")

    job, bell = started(lanes, "a", work)
    assert bell.wait(20)
    while not job.done:
        bell.wait(0.01)
    lanes.give_back(job.lane, "a")

    assert isinstance(job.error, ValueError)


def test_close_counts_what_hangs_and_takes_no_more(lanes, gate):
    job, _ = started(lanes, "a", lambda _lane: gate.wait(60))
    lanes.abandon(job)

    assert lanes.close(0.5) == 1
    assert lanes.take("b") is None
