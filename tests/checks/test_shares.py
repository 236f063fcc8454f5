"""Jobs that are shared out give what one process gives, whatever helpers do."""

from __future__ import annotations

import os
import threading

import pytest

from checks.shares import MOST_JOBS, shared_out


def _run(jobs, do, helpers=1, meanwhile=lambda: None):
    return shared_out(
        jobs,
        do,
        helpers=helpers,
        encode=lambda made: [made],
        decode=lambda job, packed: packed[0],
        meanwhile=meanwhile,
    )


@pytest.mark.parametrize("helpers", [0, 1, 3])
@pytest.mark.parametrize("jobs", [0, 1, 7, MOST_JOBS])
def test_results_come_in_the_order_of_the_jobs(jobs, helpers):
    assert _run(jobs, lambda job: job * job, helpers) == [n * n for n in range(jobs)]


def test_a_helper_takes_a_share():
    mine = os.getpid()
    blocked = threading.Event()

    def busy():
        blocked.wait(0.3)

    made = _run(40, lambda job: os.getpid(), meanwhile=busy)

    assert set(made) - {mine}


def test_what_a_dead_helper_took_is_done_here():
    mine = os.getpid()

    def do(job):
        if os.getpid() != mine:
            os._exit(9)
        return job

    assert _run(20, do) == list(range(20))


def test_what_a_helper_cannot_send_is_done_here():
    mine = os.getpid()

    def do(job):
        return job if os.getpid() == mine else object()

    assert _run(20, do) == list(range(20))


def test_an_error_here_is_raised_and_the_helper_is_ended():
    def do(job):
        raise ValueError(job)

    with pytest.raises(ValueError, match=r"^[0-3]$"):
        _run(4, do)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_process_with_threads_is_not_forked():
    mine, stop = os.getpid(), threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        made = _run(20, lambda job: os.getpid())
    finally:
        stop.set()
        other.join()

    assert set(made) == {mine}


def test_more_jobs_than_can_be_named_are_refused():
    with pytest.raises(ValueError, match="bytes must be in range"):
        _run(MOST_JOBS + 1, lambda job: job)
