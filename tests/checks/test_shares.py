"""Jobs that are shared out give what one process gives, whatever helpers do."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

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


ALONE = """
import os, threading
from checks.shares import shared_out

def run(jobs, do, meanwhile=lambda: None):
    return shared_out(
        jobs, do, helpers=1, encode=lambda made: [made],
        decode=lambda job, packed: packed[0], meanwhile=meanwhile,
    )

mine = os.getpid()
"""


def _alone(text):
    """Runs this where there are no other threads and no other children."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE + textwrap.dedent(text)],
        capture_output=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_helper_takes_a_share():
    _alone(
        """
        meanwhile = lambda: threading.Event().wait(0.3)
        made = run(40, lambda job: os.getpid(), meanwhile)
        assert set(made) - {mine}
        """
    )


def test_what_a_dead_helper_took_is_done_here():
    _alone(
        """
        def do(job):
            if os.getpid() != mine:
                os._exit(9)
            return job

        assert run(20, do) == list(range(20))
        """
    )


def test_what_a_helper_cannot_send_is_done_here():
    _alone(
        """
        do = lambda job: job if os.getpid() == mine else object()
        assert run(20, do) == list(range(20))
        """
    )


def test_an_error_here_is_raised_and_the_helper_is_ended():
    _alone(
        """
        def do(job):
            raise ValueError(job)

        try:
            run(4, do)
        except ValueError as error:
            assert error.args[0] in range(4)
        else:
            raise AssertionError("no error")
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass
        else:
            raise AssertionError("a helper is left")
        """
    )


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
