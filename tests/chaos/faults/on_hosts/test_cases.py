"""What befell other chaos tools must not befall ours, in real namespaces (K3, K4, K8).

K3: connections that a fault misses (Toxiproxy#148). K4: an undo that hangs behind
blocked connections (Toxiproxy#558). K8: a target that changes, or an undo that comes,
while the fault is being armed (Chaos Mesh#1884, #2449).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from chaos.faults import on_hosts
from chaos.safety.identity import wait_until

pytestmark = pytest.mark.slow

PORT = 7100
EACH = 100
#: Opens connections in three batches, asks once on each, and tells what became of them.
CLIENTS = """\
import errno, json, os, selectors, socket, sys, time
address, port, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
place = sys.argv[4]
def opened(pause):
    found = []
    for _ in range(each):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex((address, port))
        found.append(one)
        time.sleep(pause)
    return found
def tell(word):
    open(os.path.join(place, word), "w").close()
def await_(word):
    until = time.monotonic() + 20
    while not os.path.exists(os.path.join(place, word)):
        if time.monotonic() > until:
            sys.exit("nobody said " + word)
        time.sleep(0.005)
everyone = opened(0)
time.sleep(0.3)
tell("before")
everyone += opened(0.004)
await_("armed")
everyone += opened(0)
time.sleep(0.2)
for one in everyone:
    try:
        one.send(b"1\\n")
    except OSError:
        pass
tell("asked")
await_("healing") if len(sys.argv) > 5 else None
until = time.monotonic() + 0.7
answered = 0
with selectors.DefaultSelector() as ready:
    for one in everyone:
        ready.register(one, selectors.EVENT_READ)
    while time.monotonic() < until:
        for key, _ in ready.select(0.05):
            ready.unregister(key.fileobj)
            try:
                answered += len(key.fileobj.recv(1))
            except OSError:
                pass
print(json.dumps({"connections": len(everyone), "answered": answered}))
"""


def links(pair, rail="rail0"):
    return [link for link in pair.links if link.rail == rail]


@contextmanager
def clients(pair, place, *more):
    """300 connections to the store: before, while and after something is armed."""
    address = pair.of("store-0").addresses["rail0"]
    words = [address, str(PORT), str(EACH), str(place), *more]
    argv = [sys.executable, "-I", "-S", "-c", CLIENTS, *words]
    said: list[str] = []

    def run() -> None:
        done = pair.of("engine-0").agent.run(argv, timeout_s=40)
        said.append(done.stdout or done.stderr)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert wait_until((place / "before").exists, timeout_s=20)
        yield said
    finally:
        for word in ("armed", "healing"):
            (place / word).touch()
        thread.join(40)


@pytest.mark.parametrize("kind", ["blackhole", "reset", "partition"])
def test_a_fault_strikes_300_of_300_connections(pair, kind, tmp_path) -> None:
    given = ("store-0",) if kind == "partition" else (links(pair),)
    fault = getattr(on_hosts, kind)(pair, *given)
    with clients(pair, tmp_path) as said:
        fault.inject()
    fault.revert()

    assert json.loads(said[0]) == {"connections": 3 * EACH, "answered": 0}


def test_without_a_fault_all_300_connections_are_answered(pair, tmp_path) -> None:
    with clients(pair, tmp_path) as said:
        pass

    assert json.loads(said[0]) == {"connections": 3 * EACH, "answered": 3 * EACH}


@pytest.mark.parametrize("kind", ["blackhole", "reset"])
def test_an_undo_takes_less_than_a_second_with_300_blocked_connections(
    pair, kind, tmp_path
) -> None:
    before = pair.states()
    fault = getattr(on_hosts, kind)(pair, links(pair))
    fault.plan()
    with clients(pair, tmp_path, "hold"):
        fault.inject()
        (tmp_path / "armed").touch()
        assert wait_until((tmp_path / "asked").exists, timeout_s=20)
        begin = time.monotonic()
        fault.revert()
        took_s = time.monotonic() - begin
        (tmp_path / "healing").touch()

    assert took_s < 1.0
    assert pair.settle(before) == []


def test_a_store_that_restarts_under_a_fault_is_clean_after_it(pair) -> None:
    before = pair.states()
    fault = on_hosts.bandwidth(pair, links(pair), 50)
    fault.inject()
    old = pair.process("store-0")
    pair.stop_role("store-0")
    new = pair.start_role("store-0")
    fault.revert()
    begin = time.monotonic()
    end = pair.read(200_000, timeout_s=3).end

    assert (old.pid, old.start_ticks) != (new.pid, new.start_ticks)
    assert fault.verify_reverted() == ""
    assert (end, time.monotonic() - begin < 2) == ("ok", True)
    assert pair.settle(before) == []


def test_an_undo_in_the_middle_of_arming_leaves_nothing(pair, monkeypatch) -> None:
    before = pair.states()
    fault = on_hosts.blackhole(pair, links(pair))
    fault.plan()
    agent = pair.of("store-0").agent
    monkeypatch.setattr(agent, "arm", slowly(agent.arm))
    arming = threading.Thread(target=quietly, args=(fault.inject,))
    arming.start()
    armed = wait_until(
        lambda: any(each.state == "armed" for each in agent.faults()), timeout_s=5
    )
    fault.revert()
    arming.join(20)

    assert armed
    assert pair.settle(before) == []
    assert pair.read().end == "ok"


def slowly(arm):
    def arm_slowly(*given, steps, **named):
        pause = {"do": {"run": ["sleep", "3"]}}
        return arm(*given, steps=[*steps, pause], **named)

    return arm_slowly


def quietly(act) -> None:
    """What is undone meanwhile cannot be armed: that is told, and is no surprise."""
    try:
        act()
    except Exception as error:
        assert "disarmed" in str(error), error  # noqa: PT017
