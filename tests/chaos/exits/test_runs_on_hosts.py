"""Whole runs on hosts of namespaces: what a fault that does nothing is called, and how
a second run on the same networks is sent away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.safety.identity import wait_until
from chaos.targets.namespaces import why_no_namespaces

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(why_no_namespaces()), reason=why_no_namespaces() or "there are some"
    ),
]
ROOT = Path(__file__).parents[3]
IDLE = """
def test_it(cluster_of, inject, judge):
    cluster_of(stores=1, engines=0)
    with inject.{fault}:
        pass
"""
WAITING = """
import pathlib, time
def test_it(cluster_of):
    cluster_of(stores=1, engines=0)
    pathlib.Path({file!r}).touch()
    time.sleep(60)
"""


@pytest.fixture
def start(tmp_path):
    """`start(text)` begins a run of a suite with this text on the netns target."""
    started = []

    def begin(text: str, *more: str) -> subprocess.Popen[str]:
        suite = tmp_path / f"test_suite_{len(started)}.py"
        suite.write_text(text, encoding="utf-8")
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        argv += [f"--rootdir={tmp_path}", "-c", os.devnull, str(suite)]
        argv += ["--target", "netns", "--results", str(tmp_path / "results")]
        process = subprocess.Popen(
            [*argv, "--timeout-method", "signal", *more],
            cwd=ROOT,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    "fault",
    [
        "blackhole('store-0.rail1')",
        "loss('store-0.rail1', 50)",
        "reset('store-0.rail1')",
        "failpoint('store-0', 'store.read', 'return(-900)')",
    ],
)
def test_a_fault_that_did_nothing_is_inconclusive(start, fault) -> None:
    process = start(IDLE.format(fault=fault))
    said, _ = process.communicate(timeout=90)

    assert process.returncode == 1
    assert re.search(r"INCONCLUSIVE", said), said
    assert re.search(r"1 failed", said), said


def test_a_second_run_on_the_same_networks_is_refused_and_told_who_the_first_is(
    start, tmp_path
) -> None:
    there = tmp_path / "there"
    first = start(WAITING.format(file=str(there)), "--block", "29")
    assert wait_until(there.exists, timeout_s=60)
    second = start(IDLE.format(fault="tap('store-0.rail0')"), "--block", "29")
    said, _ = second.communicate(timeout=60)

    assert second.returncode == 1
    assert re.search(rf"fabric-29 is in use by .*{first.pid}", said), said
    assert first.poll() is None
