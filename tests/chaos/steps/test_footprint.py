from __future__ import annotations

import os
import tempfile
import threading

from chaos.safety.identity import start_ticks_of
from chaos.steps.footprint import counts, footprint_of
from chaos.systems.base import Process


def _myself() -> Process:
    ticks = start_ticks_of(os.getpid())
    assert ticks is not None
    return Process(role="me", pid=os.getpid(), start_ticks=ticks)


def test_a_thread_and_a_file_more_are_seen():
    before = footprint_of(_myself())
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with tempfile.TemporaryFile():
            after = footprint_of(_myself())
    finally:
        stop.set()
        thread.join()

    assert before is not None
    assert after is not None
    assert after.threads == before.threads + 1
    assert after.files == before.files + 1
    assert after.rss_bytes > 1 << 20


def test_a_process_that_is_gone_or_another_has_none():
    me = _myself()
    other = Process(role="me", pid=me.pid, start_ticks=me.start_ticks + 1)

    assert footprint_of(other) is None


def test_counts_are_named_by_role():
    found = footprint_of(_myself())
    assert found is not None

    assert set(counts({"me": found})) == {"me threads", "me files"}
