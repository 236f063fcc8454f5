"""The heap keeps the memory of a call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from refimpl.heap import keep_call_memory

if sys.argv[1] == "kept" and not keep_call_memory():
    print("no glibc")
    raise SystemExit
for _ in range(3):
    np.ones(1 << 18)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    np.ones(1 << 18)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        env={
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "MALLOC_MMAP_THRESHOLD_": "131072",
        },
    )
    if "glibc" in done.stdout:
        pytest.skip("no glibc here")
    return int(done.stdout)


def test_arrays_of_a_call_cost_no_page_faults_any_more() -> None:
    assert faults("plain") > 1000
    assert faults("kept") < 100


ARENAS = """
import ctypes, sys, threading
from refimpl.heap import share_one_heap

if not hasattr(ctypes.CDLL(None), "malloc_stats"):
    print("no glibc")
    raise SystemExit
if sys.argv[1] == "shared":
    assert share_one_heap()
libc, together = ctypes.CDLL(None), threading.Barrier(4)

def allocate():
    together.wait()
    libc.malloc(1 << 10)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_stats()
"""


def arenas(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", ARENAS, how],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    if "glibc" in done.stdout:
        pytest.skip("no glibc here")
    return done.stderr.count("Arena ")


def test_threads_of_an_engine_share_one_heap() -> None:
    assert arenas("own") > 1
    assert arenas("shared") == 1
