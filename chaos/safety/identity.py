"""Who a process is: a pid is only good together with its start time.

Pids are used again. Every signal goes through a pidfd whose process was checked to be
the one that we started, so that a recovered ledger can never hit a stranger.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_STATE_FIELD = 0
_START_FIELD = 19


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; empty when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def start_ticks_of(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process, None when it is gone."""
    fields = _stat_fields(pid)
    return int(fields[_START_FIELD]) if fields else None


def state_of(pid: int) -> str:
    """The one-letter state of a process (R, S, T, Z ...), "" when it is gone."""
    fields = _stat_fields(pid)
    return fields[_STATE_FIELD] if fields else ""


def is_alive(pid: int, start_ticks: int) -> bool:
    """True while this very process runs; a zombie has ended and does not count."""
    fields = _stat_fields(pid)
    if not fields or int(fields[_START_FIELD]) != start_ticks:
        return False
    return fields[_STATE_FIELD] not in ("Z", "X")


def send_signal(pid: int, start_ticks: int, number: int) -> bool:
    """Signals this very process; False when it is already gone.

    The pidfd is opened before the start time is read: whatever happens to the pid
    afterwards, the descriptor stays with the process that was checked.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(pid, start_ticks):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def wait_until(
    condition: Callable[[], bool],
    *,
    timeout_s: float,
    poll_s: float = 0.01,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> bool:
    """Polls until the condition holds; False when it did not within the deadline."""
    deadline = clock() + timeout_s
    while not condition():
        if clock() >= deadline:
            return False
        wait(poll_s)
    return True
