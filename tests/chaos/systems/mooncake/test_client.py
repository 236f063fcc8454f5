"""The harness's end of a worker: bounded whatever the worker does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from chaos.errors import HarnessError
from chaos.safety.identity import is_alive, wait_until
from chaos.systems.mooncake.client import HUNG, LOST, NOT_JOINED, Client
from chaos.systems.mooncake.plan import ClientPlan
from chaos.systems.mooncake.probe import MooncakeProbe

FAKE = Path(__file__).with_name("fake_worker.py")


class FakeClient(Client):
    """Runs the fake worker instead of Mooncake's client."""

    def __init__(self, address="127.0.0.1", **more):
        plan = ClientPlan(
            address=address,
            master="127.0.0.1:1",
            stores={"store-0": "127.0.0.9", "store-1": "127.0.0.10"},
            hosts={"store-0": "h0", "store-1": "h1"},
        )
        super().__init__(plan, **more)
        self._argv = [sys.executable, str(FAKE), "--plan", plan.to_json()]


@pytest.fixture
def client():
    client = FakeClient()
    yield client
    client.close()


def test_a_call_is_answered_with_the_time_it_took_in_the_worker(client) -> None:
    reply = client.call("exists", deadline_s=5, names=["a", "b"])

    assert (reply.result, reply.code) == ([1, 1], 0)
    assert 0 <= reply.took_s < 1


def test_a_call_that_hangs_is_given_up_recorded_and_its_worker_replaced(client) -> None:
    first = client.call("health", deadline_s=5).result
    process = client.process

    reply = client.call("exists", deadline_s=0.2, names=["hang"])
    second = client.call("health", deadline_s=5).result

    assert reply.code == HUNG
    assert [(h.op, h.names, h.pid) for h in client.hangs] == [
        ("exists", ("hang",), first)
    ]
    assert 0.2 <= client.hangs[0].waited_s < 2
    assert second != first
    assert not is_alive(process.pid, process.start_ticks)


def test_what_was_in_flight_on_a_hung_worker_is_said_to_be_lost(client) -> None:
    client.join()
    replies = []
    other = threading.Thread(
        target=lambda: replies.append(
            client.call("exists", deadline_s=30, names=["hang"])
        )
    )
    other.start()
    assert client.call("exists", deadline_s=0.3, names=["hang"]).code == HUNG
    other.join(5)

    assert [reply.code for reply in replies] == [LOST]
    assert len(client.hangs) == 1


def test_a_worker_that_stands_still_is_hung_like_a_call(client, freeze) -> None:
    pid = client.call("health", deadline_s=5).result
    freeze(pid)

    assert client.call("health", deadline_s=0.2).code == HUNG
    assert client.call("health", deadline_s=5).result != pid


def test_a_worker_that_dies_loses_the_call_and_is_replaced(client) -> None:
    assert client.call("exists", deadline_s=5, names=["die"]).code == LOST
    assert client.call("exists", deadline_s=5, names=["a"]).result == [1]


def test_a_client_that_cannot_join_says_why() -> None:
    client = FakeClient("refused")
    reply = client.call("health", deadline_s=5)
    client.close()

    assert reply.code == NOT_JOINED
    assert "-600" in reply.error


def test_a_setup_that_hangs_is_given_up() -> None:
    client = FakeClient("silent", setup_timeout_s=0.3)
    begin_s = time.monotonic()
    reply = client.call("health", deadline_s=5)
    client.close()

    assert reply.code == NOT_JOINED
    assert time.monotonic() - begin_s < 3


def test_a_broken_call_is_the_harness_s_own_error(client) -> None:
    with pytest.raises(HarnessError, match="broken"):
        client.call("exists", deadline_s=5, names=["break"])


def test_a_closed_client_leaves_no_process_and_takes_no_call(client) -> None:
    client.join()
    process = client.process
    client.close()

    assert not is_alive(process.pid, process.start_ticks)
    with pytest.raises(HarnessError, match="closed"):
        client.call("health", deadline_s=1)


def test_a_worker_ends_when_the_thread_that_keeps_it_is_gone(tmp_path) -> None:
    """As after SIGKILL of the harness: the kernel ends it, nobody else could."""
    pid_file = tmp_path / "pid"
    harness = os.fork()
    if harness == 0:
        client = FakeClient()
        pid_file.write_text(str(client.call("health", deadline_s=10).result))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(harness, 0)
    pid = int(pid_file.read_text())

    gone = wait_until(lambda: not Path(f"/proc/{pid}/exe").exists(), timeout_s=20)
    assert gone


def test_the_probe_names_the_stores_behind_the_addresses_of_replicas(client) -> None:
    probe = MooncakeProbe(client.plan)
    probe.client = client

    assert probe.owners(["a"], timeout_s=5) == [("store-0", "store-1")]


def test_the_probe_says_of_existence_what_every_probe_says(client) -> None:
    probe = MooncakeProbe(client.plan)
    probe.client = client

    assert probe.exists(["a", "absent", "bad"], timeout_s=5) == [0, -704, -800]


def test_the_probe_has_one_code_for_each_key_of_a_call_that_hangs(client) -> None:
    probe = MooncakeProbe(client.plan)
    probe.client = client

    assert probe.exists(["hang", "b"], timeout_s=0.2) == [HUNG, HUNG]
    assert probe.last.took_s >= 0.2
    assert len(probe.hangs) == 1
