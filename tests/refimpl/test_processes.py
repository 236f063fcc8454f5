"""A role as a process: ready, refused, ended, killed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from refimpl.processes import RoleFailed, RoleProcess

FREE = "127.0.0.1:0"
MASTER = ("--listen", FREE, "--heartbeat-listen", FREE, "--admin-listen", FREE)


@pytest.fixture
def start():
    started = []

    def start(*flags, role="master", name="m"):
        started.append(RoleProcess(role, name, flags))
        return started[-1]

    yield start
    for role in started:
        role.stop(time.monotonic() + 5)


def test_a_role_tells_its_addresses_and_ends_orderly(start):
    role = start(*MASTER)
    addresses = role.wait_ready(10)

    assert set(addresses) >= {"listen", "admin"}
    assert role.exit_code is None
    assert role.stop(time.monotonic() + 5) == 0
    assert role.exit_code == 0


def test_a_role_that_refuses_to_start_is_quoted(start):
    role = start(*MASTER, "--listen", "nowhere")

    with pytest.raises(RoleFailed, match=r"m: exit 2: .*nowhere"):
        role.wait_ready(10)


def test_a_silent_role_is_not_waited_for_for_ever(start):
    role = start(*MASTER)

    with pytest.raises(RoleFailed, match=r"not ready after 0\.01 s"):
        role.wait_ready(0.01)


def test_a_killed_role_shows_the_signal(start):
    role = start(*MASTER)
    role.wait_ready(10)
    os.kill(role.pid, signal.SIGKILL)

    assert role.stop(time.monotonic() + 5) == -signal.SIGKILL


def test_a_stopped_role_is_killed_at_the_deadline(start, freeze):
    role = start(*MASTER)
    role.wait_ready(10)
    freeze(role.pid)

    assert role.stop(time.monotonic() + 0.1) == -signal.SIGKILL
