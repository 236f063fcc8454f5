from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from chaos.safety.identity import (
    is_alive,
    send_signal,
    start_ticks_of,
    state_of,
    wait_until,
)


@pytest.fixture
def sleeper():
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    )
    yield process
    process.kill()
    process.wait()


def test_this_process_is_alive_under_its_own_start_time() -> None:
    ticks = start_ticks_of(os.getpid())

    assert ticks is not None
    assert is_alive(os.getpid(), ticks)


def test_the_same_pid_with_another_start_time_is_a_stranger(sleeper) -> None:
    ticks = start_ticks_of(sleeper.pid)
    assert ticks is not None

    assert not send_signal(sleeper.pid, ticks + 1, signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_killed_process_is_gone_even_while_it_is_a_zombie(sleeper) -> None:
    ticks = start_ticks_of(sleeper.pid)
    assert ticks is not None

    assert send_signal(sleeper.pid, ticks, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(sleeper.pid, ticks), timeout_s=5.0)
    assert state_of(sleeper.pid) == "Z"


def test_a_signal_to_a_process_that_is_gone_is_no_error(sleeper) -> None:
    ticks = start_ticks_of(sleeper.pid)
    assert ticks is not None
    sleeper.kill()
    sleeper.wait()

    assert not send_signal(sleeper.pid, ticks, signal.SIGTERM)
    assert state_of(sleeper.pid) == ""


def test_a_name_with_parentheses_and_blanks_does_not_shift_the_fields(tmp_path) -> None:
    odd = tmp_path / "odd ) S (1"
    odd.symlink_to(sys.executable)
    process = subprocess.Popen([odd, "-S", "-c", "import time; time.sleep(60)"])
    try:
        plain = start_ticks_of(os.getpid())
        ticks = start_ticks_of(process.pid)

        assert plain is not None
        assert ticks is not None
        assert 0 <= ticks - plain < 100 * 3600 * 24
    finally:
        process.kill()
        process.wait()


def test_waiting_ends_at_its_deadline() -> None:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    held = wait_until(
        lambda: False, timeout_s=1.0, poll_s=0.25, clock=lambda: now[0], wait=wait
    )

    assert not held
    assert now[0] == pytest.approx(1.0)
