"""Runs one command of a ladder: a list of arguments, in a time, with an end.

What a command prints goes to our standard error as it comes, so that whoever watches
sees it and nothing of it is kept. When time is up, or the ladder is interrupted, its
whole process group is told to end, and is ended when it does not listen.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from chaos.safety.identity import start_ticks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from chaos.canary.ladder.interrupts import Interrupts

GRACE_S = 10.0
_STDERR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended; without a `code` it did not end by itself: see `problem`."""

    code: int | None
    problem: str = ""
    interrupted: bool = False


class Runner(Protocol):
    """The seam: what runs a command."""

    def __call__(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        cwd: Path,
        environ: Mapping[str, str],
        started: Callable[[int, int], None],
        interrupts: Interrupts,
    ) -> Ended: ...


def run_command(
    command: Sequence[str],
    *,
    timeout_s: float,
    cwd: Path,
    environ: Mapping[str, str],
    started: Callable[[int, int], None],
    interrupts: Interrupts,
    grace_s: float = GRACE_S,
) -> Ended:
    """Runs to the end, to the deadline or to a signal.

    `started` is told pid and start ticks. What a command that ended by itself left
    running is its own; of one that we end nothing stays.
    """
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=_STDERR,
            stderr=_STDERR,
            cwd=cwd,
            env={**os.environ, **environ},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Ended(code=None, problem=f"{command[0]} cannot be started: {reason}")
    with process:
        descriptor = os.pidfd_open(process.pid)
        try:
            started(process.pid, start_ticks_of(process.pid) or 0)
            if not interrupts.wait(descriptor, timeout_s):
                return _ended_by_us(process, descriptor, interrupts, timeout_s, grace_s)
        except BaseException:
            _end_group(process.pid, descriptor, grace_s)
            raise
        finally:
            os.close(descriptor)
        return _ended_by_itself(process.wait())


def _ended_by_us(
    process: subprocess.Popen[bytes],
    descriptor: int,
    interrupts: Interrupts,
    timeout_s: float,
    grace_s: float,
) -> Ended:
    interrupted = interrupts.pending
    _end_group(process.pid, descriptor, grace_s)
    process.wait()
    if interrupted:
        return Ended(code=None, problem="was interrupted", interrupted=True)
    return Ended(code=None, problem=f"did not end within {timeout_s:g} s")


def _ended_by_itself(code: int) -> Ended:
    if code < 0:
        return Ended(code=None, problem=f"was ended by signal {-code}")
    return Ended(code=code)


def _end_group(pid: int, descriptor: int, grace_s: float) -> None:
    """Its session is its own, so the group is what it started and nothing else.

    Nobody has reaped the leader yet, so its number cannot be somebody else's.
    """
    _signal_group(pid, signal.SIGTERM)
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    poller.poll(grace_s * 1000)
    _signal_group(pid, signal.SIGKILL)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # nobody is left in it
