from __future__ import annotations

import threading

from chaos.ticker import Ticker


def test_it_ticks_until_it_is_stopped_and_leaves_no_thread() -> None:
    ticked = threading.Semaphore(0)
    ticker = Ticker(ticked.release, every_s=0.001)
    before = threading.active_count()

    ticker.start()
    ticker.start()
    assert ticked.acquire(timeout=5)
    assert ticked.acquire(timeout=5)
    ticker.stop()
    ticker.stop()

    assert threading.active_count() == before


def test_it_can_be_started_again() -> None:
    ticked = threading.Semaphore(0)
    ticker = Ticker(ticked.release, every_s=0.001)
    for _ in range(2):
        ticker.start()
        assert ticked.acquire(timeout=5)
        ticker.stop()
