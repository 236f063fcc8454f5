"""`python -m chaos.proxy.launch --parent PID -- COMMAND...`: COMMAND dies with PID.

For programs that cannot watch their parent themselves, like a real toxiproxy-server.
The launcher stays as a supervisor. PR_SET_PDEATHSIG alone, set on the program, fires
when the *thread* that started it ends, and a test runner starts processes from threads;
so it binds the program to the launcher's only thread, and the launcher watches the real
parent through a pidfd, which knows nothing of threads. SIGTERM and SIGINT give the
program a grace, SIGHUP gives it none; the launcher ends when the program has ended.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = 2
#: How long a program may take to end after SIGTERM, seconds.
GRACE_S = 3.0
_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.proxy.launch")
    parser.add_argument("--parent", type=int, required=True, metavar="PID")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = [word for word in options.command if word != "--"]
    if not command:
        sys.stderr.write("launch: no command given after --\n")
        return USAGE
    if os.getppid() != options.parent:
        sys.stderr.write(f"launch: the parent {options.parent} is gone\n")
        return USAGE
    return _supervise(command, os.pidfd_open(options.parent))


def _supervise(command: list[str], parent_fd: int) -> int:
    """Runs the command until it ends, or until the parent or a signal ends it."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the byte in the pipe says it
    libc = ctypes.CDLL(None, use_errno=True)

    def bind_to_launcher() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    try:
        # One thread only, and libc is loaded already: safe between fork and exec.
        child = subprocess.Popen(command, preexec_fn=bind_to_launcher)
    except OSError as error:
        sys.stderr.write(f"launch: {command[0]}: {error.strerror}\n")
        return USAGE
    child_fd = os.pidfd_open(child.pid)
    poll = select.poll()
    for fd in (parent_fd, child_fd, read_fd):
        poll.register(fd, select.POLLIN)
    ready = {fd for fd, _ in poll.poll()}
    if child_fd not in ready:
        told = os.read(read_fd, 64) if read_fd in ready else b""
        _end(child, grace_s=0.0 if signal.SIGHUP in told else GRACE_S)
    return child.wait()


def _end(child: subprocess.Popen[bytes], *, grace_s: float) -> None:
    child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    raise SystemExit(main())
