"""Other runs, in processes of their own, that end in their own way when we are ended.

`subprocess.run` kills what it waits for a quarter of a second after Ctrl-C: a run that
is undoing its faults then leaves them behind. Here it is asked, as by Ctrl-C and once,
and waited for; so it is when its time is up. Each has a process group of its own, so
that a terminal's Ctrl-C comes by us alone.
"""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Any, Final

from chaos.scenario.interrupt import Interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence

GRACE_S: Final = 60.0
"""How long a run that was asked to end may take to undo its faults."""


def run_child(
    command: Sequence[str],
    *,
    timeout_s: float | None = None,
    grace_s: float = GRACE_S,
    **popen: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; `popen` are further arguments of `subprocess.Popen`.

    Raises:
        Interrupted: A signal ended us, and the child before us.
        subprocess.TimeoutExpired: It took longer than that, and was ended.
    """
    with subprocess.Popen(command, text=True, process_group=0, **popen) as child:
        try:
            with Interrupts():
                output, errors = child.communicate(timeout=timeout_s)
        except BaseException:
            _end(child, grace_s=grace_s)
            raise
    return subprocess.CompletedProcess(command, child.returncode, output, errors)


def run_side_by_side(commands: Sequence[Sequence[str]], **popen: Any) -> list[int]:
    """Runs commands at once, to the end of each; their exit codes.

    Raises:
        Interrupted: A signal ended us, and all of them before us.
    """
    children = [
        subprocess.Popen(command, text=True, process_group=0, **popen)
        for command in commands
    ]
    try:
        with Interrupts():
            return [child.wait() for child in children]
    except BaseException:
        _end(*children, grace_s=GRACE_S)
        raise


def _end(*children: subprocess.Popen[str], grace_s: float) -> None:
    for child in children:
        child.send_signal(signal.SIGINT)
    for child in children:
        try:
            child.communicate(timeout=grace_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
