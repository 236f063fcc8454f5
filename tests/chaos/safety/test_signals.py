from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from chaos.safety.signals import SignalGuard


@pytest.fixture
def guard():
    exits: list[int] = []
    guard = SignalGuard(hard_exit=exits.append)
    guard.install()
    yield guard, exits
    guard.uninstall()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_the_run_through_every_fixture(guard, number) -> None:
    armed, exits = guard

    with pytest.raises(pytest.exit.Exception) as ended:
        os.kill(os.getpid(), number)

    assert ended.value.returncode == 128 + number
    assert armed.aborted.is_set()
    assert exits == []


def test_the_second_signal_does_not_wait(guard) -> None:
    armed, exits = guard
    with pytest.raises(pytest.exit.Exception):
        os.kill(os.getpid(), signal.SIGTERM)

    os.kill(os.getpid(), signal.SIGTERM)

    assert exits == [143]
    assert armed.exit_code == 143


def test_workers_are_told_too() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    )
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    guard = SignalGuard(workers=lambda: [gone.pid, worker.pid])
    guard.install()
    try:
        with pytest.raises(pytest.exit.Exception):
            os.kill(os.getpid(), signal.SIGTERM)

        assert worker.wait(5) == -signal.SIGTERM
    finally:
        guard.uninstall()
        worker.kill()


def test_the_handlers_that_were_there_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    guard = SignalGuard()
    guard.install()
    assert signal.getsignal(signal.SIGTERM) != before
    assert guard.installed

    guard.uninstall()

    assert signal.getsignal(signal.SIGTERM) == before


def test_an_end_that_somebody_swallowed_is_insisted_upon(guard) -> None:
    armed, _ = guard
    armed.insist()  # nothing came yet
    with pytest.raises(pytest.exit.Exception):
        os.kill(os.getpid(), signal.SIGHUP)

    with pytest.raises(pytest.exit.Exception) as ended:
        armed.insist()

    assert ended.value.returncode == 129
