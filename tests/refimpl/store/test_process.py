"""The store as a real process, with a real master where the master matters."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from refimpl.client import PoolClient
from refimpl.core.codes import Code
from refimpl.core.hashing import object_key
from refimpl.store.heartbeat import process_state
from refimpl.transfer.engine import TransferEngine
from refimpl.transfer.operation import Op

pytestmark = pytest.mark.slow

SCALE = 0.1


class Role:
    """A role process and its ready line."""

    def __init__(self, role, *flags, scale=SCALE):
        words = [sys.executable, "-m", "refimpl", role, "--admin-listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*words, "--time-scale", str(scale), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert " ready " in line, self.process.communicate()
        self.facts = json.loads(line[line.index("{") :])

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        with contextlib.suppress(ValueError):  # already read
            self.output = self.process.communicate(timeout=20)
        return self.process.returncode

    def state(self):
        url = f"http://{self.facts['admin']}/state"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)


@pytest.fixture
def roles():
    made = []

    def start(*words, **more):
        made.append(Role(*words, **more))
        return made[-1]

    yield start
    for role in reversed(made):
        role.end(signal.SIGKILL)


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return "{}:{}".format(*listener.getsockname())


@pytest.fixture
def pool(roles):
    """A master on addresses that it can have again, a store of two rails, a client."""
    listen, heartbeat = free_address(), free_address()
    flags = ("--listen", listen, "--heartbeat-listen", heartbeat)

    class Pool:
        master_flags = flags
        master = roles("master", *flags)

        @staticmethod
        def store(*more, name="store-0", **options):
            return roles(
                "store",
                *("--name", name, "--size", "16MiB"),
                *("--master", listen, "--heartbeat", heartbeat),
                *("--rail", "a=127.0.0.1:0", "--rail", "b=127.0.0.1:0"),
                *more,
                **options,
            )

    Pool.client = PoolClient(listen)
    yield Pool
    Pool.client.close()


KEYS = b"".join(object_key(f"page-{i}") for i in range(8))
PAGES = np.random.default_rng(1).integers(0, 256, (8, 65536), np.uint8)


def read(client, timeout_s=5.0):
    out = np.zeros_like(PAGES)
    codes = client.get(KEYS, out, timeout_s=timeout_s).codes.tolist()
    return codes, np.array_equal(out, PAGES)


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(
    not Path("/sys/devices/system/node/node0/cpulist").exists(),
    reason="the host shows no NUMA nodes",
)
def test_a_store_is_pinned_to_the_node_that_it_is_bound_to(pool):
    node = Path("/sys/devices/system/node/node0/cpulist").read_text().strip()

    assert pool.store("--numa-node", "0").facts["cpus"] == node
    assert pool.store(name="store-1").facts["cpus"] == "unpinned"


def test_a_store_serves_what_it_was_given_and_says_what_it_does(pool):
    store = pool.store()

    put = pool.client.put(KEYS, PAGES, timeout_s=5)

    assert put.codes.tolist() == [0] * 8
    assert read(pool.client) == ([0] * 8, True)
    state = store.state()
    assert state["mounted"]
    assert state["rails"]["a"]["bytes_in"] > 4 * 65536
    assert state["rails"]["b"]["bytes_out"] > 4 * 65536
    assert state["connections"] == 2
    assert state["threads"] < 20
    until(lambda: store.state()["heartbeat"]["said"] == "known")
    assert set(store.facts["rails"]) == {"a", "b"}


def test_sigterm_drains_no_allocation_reads_for_the_grace_then_exit_0(pool):
    store = pool.store("--grace-s", "8")
    pool.client.put(KEYS, PAGES, timeout_s=5)
    store.process.terminate()
    time.sleep(0.05)

    new = pool.client.put(object_key("new"), PAGES[:1], timeout_s=2).codes.tolist()
    began, reads = time.monotonic(), []
    while store.process.poll() is None and time.monotonic() - began < 0.5:
        reads.append(read(pool.client)[0])
    code = store.end()

    assert new == [Code.NO_AVAILABLE_HANDLE]
    assert reads
    assert all(codes == [0] * 8 for codes in reads)
    assert code == 0
    assert pool.client.segments(5) == []


def test_a_second_sigterm_ends_the_grace_but_no_read_in_flight(pool):
    store = pool.store("--grace-s", "100")
    pool.client.put(KEYS, PAGES, timeout_s=5)
    request = urllib.request.Request(
        f"http://{store.facts['admin']}/failpoints/store.read",
        data=b"sleep(700)",
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=5).close()
    out = np.zeros_like(PAGES)
    results = []
    thread = threading.Thread(
        target=lambda: results.append(pool.client.get(KEYS, out, timeout_s=5))
    )
    thread.start()
    until(lambda: store.state()["in_flight"] > 0)
    began = time.monotonic()
    store.process.terminate()
    time.sleep(0.05)
    store.process.terminate()
    code = store.end(signal.SIGCONT)
    thread.join()

    assert time.monotonic() - began < 5
    assert code == 0
    assert results[0].codes.tolist() == [0] * 8
    assert np.array_equal(out, PAGES)


def test_signals_while_a_store_ends_do_not_spoil_its_exit_code(pool):
    store = pool.store("--grace-s", "1")
    deadline = time.monotonic() + 10
    while store.process.poll() is None and time.monotonic() < deadline:
        store.process.terminate()
        time.sleep(0.002)

    assert store.end() == 0


def test_after_the_master_forgot_old_locations_are_refused(pool, roles):
    """Mooncake#1336: a restarted master knows nothing and may place anew."""
    store = pool.store()
    pool.client.put(KEYS, PAGES, timeout_s=5)
    old = pool.client.lookup(KEYS, timeout_s=5)
    before = store.facts["segment"]
    pool.master.end(signal.SIGKILL)
    roles("master", *pool.master_flags)
    until(lambda: store.state()["mounts"] == 2)
    other = b"".join(object_key(f"other-{i}") for i in range(8))
    until(
        lambda: not pool.client.put(other, PAGES[::-1].copy(), timeout_s=5).codes.any()
    )

    engine = TransferEngine()
    (info,) = old.segments.values()
    op = Op(
        segment=info,
        rows=np.arange(8),
        offsets=old.offset[:, 0],
        buffers=[memoryview(bytearray(65536)) for _ in range(8)],
    )
    codes = engine.read([op], time.monotonic() + 5)
    engine.close()

    assert codes == [Code.SEGMENT_NOT_FOUND] * 8
    assert all(view == bytes(65536) for view in op.buffers)
    assert store.state()["segment"] != before
    assert read(pool.client)[0] == [Code.OBJECT_NOT_FOUND] * 8


def test_a_store_waits_for_a_master_that_comes_later(pool, roles):
    pool.master.end(signal.SIGKILL)
    store = pool.store()

    assert not store.facts["mounted"]
    roles("master", *pool.master_flags)

    until(lambda: store.state()["mounted"])


def test_a_killed_store_leaves_no_heartbeat_and_comes_back_as_another(pool):
    first = pool.store()
    child = first.state()["heartbeat"]["pid"]
    first.end(signal.SIGKILL)
    until(lambda: process_state(child) is None or process_state(child)[0] in "ZX")

    second = pool.store()

    until(lambda: second.state()["mounted"])
    assert second.facts["segment"] != first.facts["segment"]


def test_a_taken_port_ends_it_within_5_s_with_one_line(pool):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = "{}:{}".format(*listener.getsockname())
        began = time.monotonic()
        done = _run("--rail", f"a={taken}")

    assert time.monotonic() - began < 5
    assert done.returncode == 2
    assert taken in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_more_memory_than_there_is_ends_it_with_one_line_before_any_mount():
    began = time.monotonic()
    done = _run("--size", "900TiB")

    assert time.monotonic() - began < 5
    assert done.returncode == 2
    assert "--size" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def _run(*flags):
    return subprocess.run(
        [sys.executable, "-m", "refimpl", "store", *flags],
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ},
    )
