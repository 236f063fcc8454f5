from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from refimpl.store import heartbeat
from refimpl.store.heartbeat import REPLY, REQUEST, Heart, is_runnable, process_state
from refimpl.store.pulse import Pulse
from refimpl.store.settings import StoreSettings


class Door:
    """A heartbeat door that answers what it is told and counts beats."""

    def __init__(self):
        self.status = 0
        self.beats = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self.listener.getsockname())
        self.threads = [threading.Thread(target=self._accept)]
        self.socks = []
        self.threads[0].start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.socks.append(sock)
            self.threads.append(threading.Thread(target=self._serve, args=(sock,)))
            self.threads[-1].start()

    def _serve(self, sock):
        try:
            while data := sock.recv(REQUEST.size):
                magic, client, sequence = REQUEST.unpack(data)
                self.beats.append((time.monotonic(), client, sequence))
                sock.sendall(REPLY.pack(magic, client, self.status, 1))
        except OSError:
            return

    def close(self):
        if self.listener.fileno() < 0:
            return
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def door():
    found = Door()
    yield found
    found.close()


@pytest.fixture
def pulse(door):
    heard = []
    settings = StoreSettings(heartbeat=door.address, ping_interval_s=0.03)
    found = Pulse(settings, 77, lambda: heard.append("remount"))
    found.heard = heard
    found.start()
    yield found
    found.stop()


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_beats_carry_the_client_and_count_up(door, pulse):
    until(lambda: len(door.beats) >= 3)

    assert {client for _at, client, _n in door.beats} == {77}
    assert [n for _at, _c, n in door.beats[:3]] == [1, 2, 3]
    until(lambda: pulse.last_said == "known")


def test_need_remount_is_told_with_every_beat(door, pulse):
    door.status = 1

    until(lambda: len(pulse.heard) >= 2)
    assert pulse.last_said == "remount"


def test_no_answer_is_told_and_does_not_end_it(door, pulse):
    until(lambda: door.beats)
    door.close()
    until(lambda: pulse.last_said == "lost")

    assert pulse._child.poll() is None


def test_a_child_that_is_gone_is_started_again(door, pulse):
    until(lambda: door.beats)
    first = pulse.pid
    os.kill(first, signal.SIGKILL)
    pulse._child.wait()

    pulse.check()

    assert pulse.pid != first
    assert pulse.starts == 2


PARENT = """
import subprocess, sys, time, os
child = subprocess.Popen([sys.executable, "-S", "-E", {script!r},
    "--parent", str(os.getpid()), "--address", {address!r}, "--client", "5",
    "--interval-s", "0.03", "--timeout-s", "0.03"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def parent(door):
    code = PARENT.format(script=heartbeat.__file__, address=door.address)
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True
    )
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_stopped_parent_has_no_pulse_and_a_continued_one_has(door, parent):
    process, _child = parent
    until(lambda: door.beats)
    process.send_signal(signal.SIGSTOP)
    until(lambda: process_state(process.pid)[0] == "T")
    time.sleep(0.1)
    count = len(door.beats)
    time.sleep(0.2)

    assert len(door.beats) == count
    process.send_signal(signal.SIGCONT)
    until(lambda: len(door.beats) > count)


def test_the_heartbeat_dies_with_its_parent(door, parent):
    process, child = parent
    until(lambda: door.beats)

    process.kill()
    process.wait()

    until(lambda: (process_state(child) or ("Z", 0))[0] in "ZX")


def test_another_process_with_the_same_number_is_not_the_parent():
    state, start = process_state(os.getpid())

    assert state in "RS"
    assert is_runnable(os.getpid(), start)
    assert not is_runnable(os.getpid(), start + 1)
    assert not is_runnable(2**22 + 1, start)


def test_an_answer_of_somebody_else_is_no_answer(door):
    class Wrong(Heart):
        pass

    heart = Wrong(tuple(door.listener.getsockname()), 3, 1.0)
    assert heart.beat() == "known"
    door_status = REPLY.pack(b"MQHEART1", 4, 0, 1)
    heart._receive = lambda _sock: door_status

    assert heart.beat() == "lost"
    heart.close()


def test_the_heartbeat_needs_nothing_but_the_standard_library():
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-E",
            "-c",
            "import runpy, sys; runpy.run_path(sys.argv[1]); "
            "print(sorted(m for m in sys.modules if m.startswith(('refimpl', 'numpy', "
            "'grpc'))))",
            heartbeat.__file__,
        ],
        capture_output=True,
        text=True,
        timeout=20,
        cwd="/",
    )

    assert done.stdout.strip() == "[]", done.stderr
