"""Heartbeats that no data work delays (B14), and a stall that expires nobody (B1)."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from refimpl.proto import pool_pb2

pytestmark = pytest.mark.slow

KEYS = b"".join(i.to_bytes(32, "little") for i in range(1, 65))
SCALE = 0.05  # a client's ttl is half a second, its beats are 50 ms apart
TTL_S = 10 * SCALE


class Beating:
    """Clients that beat in their own thread until told to be silent."""

    def __init__(self, master, clients) -> None:
        self._master = master
        self.clients = set(clients)
        self.gaps: list[float] = []
        self.statuses: list[tuple[int, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._master.beats() as door:
            while not self._stop.wait(SCALE):
                for client in sorted(self.clients):
                    sent = time.monotonic()
                    self.statuses.append((client, door.beat(client)))
                    self.gaps.append(time.monotonic() - sent)


def with_stores(start_master, count=3):
    master = start_master("--time-scale", str(SCALE))
    assert [master.mount(n) for n in range(1, count + 1)] == [0] * count
    assert set(master.put(KEYS)) == {0}
    return master


def test_beats_are_answered_while_every_worker_sleeps_in_a_lookup(start_master):
    master = with_stores(start_master)
    master.failpoint("master.lookup", "sleep(500)")
    request = pool_pb2.LookupRequest(keys=KEYS)
    with Beating(master, [1, 2, 3]) as beating:
        calls = [master.stub.Lookup.future(request, timeout=20) for _ in range(24)]
        answers = [call.result() for call in calls]
    state = master.state()

    assert len(beating.gaps) > 20
    assert max(beating.gaps) < 0.1
    assert {status for _, status in beating.statuses} == {0}
    assert state["gauges"]["master_active_clients"] == 3
    assert all(set(master.codes(a)) == {0} for a in answers)


def test_master_that_was_stopped_expires_nobody_when_it_goes_on(
    start_master, eventually, freeze
) -> None:
    master = with_stores(start_master)
    with Beating(master, [1, 2, 3]) as beating:
        time.sleep(4 * SCALE)
        freeze(master.process.pid)
        time.sleep(1.2 * TTL_S)
        os.kill(master.process.pid, signal.SIGCONT)
        time.sleep(2 * TTL_S)
        state = master.state()
        found = master.lookup(KEYS)

    assert {status for _, status in beating.statuses} == {0}
    assert set(master.codes(found)) == {0}
    assert state["gauges"]["master_active_clients"] == 3
    assert state["counters"]["master_client_expiry_deferred_total"] == 1


def test_one_silent_client_expires_alone_and_its_keys_are_gone(
    start_master, eventually
) -> None:
    master = with_stores(start_master)
    found = master.lookup(KEYS)
    homes = np.frombuffer(found.segment, "<u8").reshape(64, -1)[:, 0].tolist()
    with Beating(master, [1, 2, 3]) as beating:
        beating.clients.discard(2)
        eventually(lambda: master.state()["gauges"]["master_active_clients"] == 2)
        state = master.state()
        after = master.codes(master.lookup(KEYS))
        with master.beats() as door:
            returning = door.beat(2)

    assert returning == 1
    assert {status for _, status in beating.statuses} == {0}
    assert state["counters"]["master_client_expiry_deferred_total"] == 0
    assert [s["id"] for s in state["segments"]] == [1, 3]
    assert [code == 0 for code in after] == [home != 2 for home in homes]


def test_expired_store_may_mount_again_and_is_known(start_master, eventually) -> None:
    master = with_stores(start_master, count=3)
    with Beating(master, [1, 3]), master.beats() as door:
        eventually(lambda: master.state()["gauges"]["master_active_clients"] == 2)
        expired = door.beat(2)
        code = master.mount(20, client=2)
        status = door.beat(2)

    assert expired == 1
    assert code == 0
    assert status == 0
