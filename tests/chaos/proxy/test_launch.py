"""The supervisor of programs that cannot watch their parent themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def launch(*command: str, parent: int | None = None) -> subprocess.Popen[str]:
    pid = os.getpid() if parent is None else parent
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "chaos.proxy.launch"),
            *("--parent", str(pid), "--", *command),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_its_exit_code_is_that_of_the_command():
    with launch("sh", "-c", "exit 7") as process:
        assert process.wait(5) == 7


@pytest.mark.parametrize(
    ("command", "parent", "message"),
    [
        (("true",), 1, "the parent 1 is gone"),
        ((), None, "no command"),
        (("/nowhere/program",), None, "No such file"),
    ],
)
def test_what_cannot_be_launched_is_usage(command, parent, message):
    with launch(*command, parent=parent) as process:
        _, error = process.communicate(timeout=5)

        assert process.returncode == 2
        assert message in error


def test_sigterm_ends_the_command_too():
    with launch("sh", "-c", "echo $$; exec sleep 60") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)

        assert process.wait(5) != 0
        assert not Path(f"/proc/{child}").exists()


def test_sighup_ends_a_command_that_ignores_sigterm_at_once():
    script = "trap '' TERM; echo $$; while :; do sleep 0.05; done"
    with launch("sh", "-c", script) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        start = time.monotonic()
        process.send_signal(signal.SIGHUP)

        assert process.wait(5) == -signal.SIGKILL % 256
        assert time.monotonic() - start < 2
        assert not Path(f"/proc/{child}").exists()
