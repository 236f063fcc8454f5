from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from refimpl.store import memory
from refimpl.store.memory import MemoryShort, SegmentMemory, parse_cpulist

MIB = 1 << 20


def test_a_segment_is_writable_from_end_to_end():
    found = SegmentMemory(MIB + 4096)
    found.view[0] = 1
    found.view[MIB + 4095] = 2

    assert len(found.view) == MIB + 4096
    assert found.facts.prefault in ("populate", "write")
    assert found.facts.huge_pages in ("hugetlb", "transparent", "none")
    found.close()


def test_all_pages_are_there_before_the_store_says_ready():
    before = _resident_shared()
    found = SegmentMemory(32 * MIB, huge_pages="off", chunk_bytes=4 * MIB)

    assert _resident_shared() - before >= 32 * MIB
    found.close()


def test_memory_that_is_not_faulted_in_costs_nothing_before_it_is_written_to():
    before = _resident_shared()
    found = SegmentMemory(32 * MIB, huge_pages="off", prefault=False)
    untouched = _resident_shared() - before
    found.view[:MIB] = bytes(MIB)

    assert untouched < MIB
    assert found.facts.prefault == "none"
    assert _resident_shared() - before >= MIB
    found.close()


def test_a_chunk_that_fails_gives_everything_back():
    fds, resident = len(list(Path("/proc/self/fd").iterdir())), _resident_shared()
    seen, lock = [], threading.Lock()

    def populate(address, count):
        with lock:
            seen.append(address)
            if len(seen) == 7:
                raise OSError(errno.ENOMEM, "short")
        memory._write_zeros(address, count)

    with pytest.raises(MemoryShort, match="ENOMEM"):
        SegmentMemory(16 * MIB, populate=populate, chunk_bytes=MIB)

    assert len(seen) >= 7
    assert len(list(Path("/proc/self/fd").iterdir())) == fds
    assert _resident_shared() - resident < MIB


def test_chunks_cover_the_segment_once():
    seen = []

    found = SegmentMemory(
        5 * MIB + 4096, populate=lambda a, n: seen.append((a, n)), chunk_bytes=MIB
    )
    seen.sort()

    assert sum(n for _a, n in seen) == 5 * MIB + 4096
    assert all(a + n == b for (a, n), (b, _m) in itertools.pairwise(seen))
    found.close()


def test_more_than_the_host_has_is_refused_before_a_page_is_touched(monkeypatch):
    monkeypatch.setattr(
        memory, "_meminfo", lambda: {"MemTotal": 100 * MIB, "MemAvailable": 50 * MIB}
    )

    with pytest.raises(
        MemoryShort, match=r"free memory of the host \(50331648 bytes\)"
    ):
        SegmentMemory(49 * MIB)


@pytest.mark.parametrize(
    ("limit", "words"),
    [("RLIMIT_AS", "ulimit -v"), ("RLIMIT_FSIZE", "ulimit -f")],
)
def test_a_limit_below_the_size_is_named_in_one_line(limit, words):
    code = (
        "import resource\n"
        "from refimpl.store.memory import SegmentMemory\n"
        "from refimpl.errors import UsageError\n"
        f"resource.setrlimit(resource.{limit}, (1 << 30, 1 << 30))\n"
        "try:\n"
        "    SegmentMemory(2 << 30)\n"
        "except UsageError as error:\n"
        "    print(error)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20
    )

    assert words in done.stdout, done.stderr
    assert "smaller --size" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_binding_to_a_node_is_reported_never_required():
    for node in (0, 999):
        found = SegmentMemory(MIB, numa_node=node)
        assert found.facts.numa in ("bound", "first-touch", "unbound")
        found.close()


def test_cpu_lists_are_read_as_the_kernel_writes_them():
    assert parse_cpulist("0-3,8\n") == {0, 1, 2, 3, 8}
    assert parse_cpulist("\n") == set()


def test_a_node_that_is_not_there_pins_nothing():
    before = os.sched_getaffinity(0)

    assert memory.pin_to_node(999) == "unpinned"
    assert memory.pin_to_node(-1) == "unpinned"
    assert os.sched_getaffinity(0) == before


def _resident_shared():
    with Path("/proc/self/status").open() as file:
        for line in file:
            if line.startswith("RssShmem"):
                return int(line.split()[1]) << 10
    raise AssertionError("no RssShmem")
