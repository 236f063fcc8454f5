from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from types import SimpleNamespace

from chaos.safety.identity import start_ticks_of
from chaos.steps.footprint import counts, footprint_of, footprint_on
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


class Agent:
    """Runs what it is told, here."""

    def run(self, argv):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return SimpleNamespace(rc=done.returncode, stdout=done.stdout)


def test_an_agent_sees_the_same():
    with tempfile.TemporaryFile():
        near, far = footprint_of(_myself()), footprint_on(Agent(), _myself())

    assert near is not None
    assert far is not None
    assert far.threads == near.threads
    assert abs(far.files - near.files) <= 4  # the pipes to the command
    assert abs(far.rss_bytes - near.rss_bytes) < 16 << 20


def test_an_agent_sees_no_process_that_is_gone_or_another():
    me = _myself()
    other = Process(role="me", pid=me.pid, start_ticks=me.start_ticks + 1)
    gone = Process(role="me", pid=4_194_000, start_ticks=1)

    assert footprint_on(Agent(), other) is None
    assert footprint_on(Agent(), gone) is None
