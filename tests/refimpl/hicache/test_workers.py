from __future__ import annotations

import threading

from refimpl.hicache.counters import Counters
from refimpl.hicache.workers import Workers


def test_a_job_that_raises_is_counted_and_the_thread_goes_on(kit):
    done, counters = [], Counters()

    def work(job: int) -> None:
        if job == 0:
            raise KeyError(job)
        done.append(job)

    workers = Workers("test", 1, 10, work, counters)
    assert all(workers.submit(i) for i in range(3))

    assert kit.until(lambda: done == [1, 2])
    assert workers.alive == 1
    assert counters.get("exceptions", "KeyError") == 1
    assert workers.close(2.0) == 0


def test_the_queue_is_bounded_and_refuses_after_close(kit):
    gate, counters = threading.Event(), Counters()
    workers: Workers[int] = Workers("test", 1, 2, lambda _: gate.wait(5), counters)
    workers.submit(0)
    assert kit.until(lambda: workers.waiting == 0)

    assert [workers.submit(i) for i in range(4)] == [True, True, False, False]
    assert workers.drain() == [0, 1]
    gate.set()
    assert workers.close(2.0) == 0
    assert not workers.submit(1)


def test_close_leaves_a_stuck_thread_behind():
    gate, counters = threading.Event(), Counters()
    started = threading.Event()

    def stuck(job: int) -> None:
        started.set()
        gate.wait(5)

    workers = Workers("test", 1, 2, stuck, counters)
    workers.submit(1)
    assert started.wait(20)

    assert workers.close(0.05) == 1
    gate.set()
    assert workers.close(2.0) == 0


def test_labels_stay_bounded():
    counters = Counters()
    for i in range(1000):
        counters.label("exceptions", f"type{i}")
    labels = counters.snapshot()["exceptions"]

    assert len(labels) <= 257
    assert sum(labels.values()) == 1000
