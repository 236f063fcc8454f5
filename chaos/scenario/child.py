"""Other runs, in processes of their own, that end in their own way when we are ended.

`subprocess.run` kills what it waits for a quarter of a second after Ctrl-C: a run that
is undoing its faults then leaves them behind. Here it is asked, once, and waited for;
so it is when its time is up. Each has a process group of its own, so that a terminal's
Ctrl-C comes by us alone. A second signal is passed on and ends us at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from chaos.scenario.interrupt import Interrupts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Child = subprocess.Popen[str]

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
    with _ended_with_us(grace_s) as children:
        child = _start(children, command, popen)
        output, errors = child.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(command, child.returncode, output, errors)


def run_side_by_side(
    commands: Sequence[Sequence[str]], *, grace_s: float = 2 * GRACE_S, **popen: Any
) -> list[int]:
    """Runs commands at once, to the end of each; their exit codes.

    They may have children of their own, so that their grace is longer.

    Raises:
        Interrupted: A signal ended us, and all of them before us.
    """
    with _ended_with_us(grace_s) as children:
        for command in commands:
            _start(children, command, popen)
        return [child.wait() for child in children]


def _start(
    children: list[Child], command: Sequence[str], popen: dict[str, Any]
) -> Child:
    child = subprocess.Popen(command, text=True, process_group=0, **popen)
    children.append(child)
    return child


@contextlib.contextmanager
def _ended_with_us(grace_s: float) -> Iterator[list[Child]]:
    """Children that are started inside; whatever ends the block ends them first."""
    children: list[Child] = []

    def exit_at_once(code: int) -> None:
        for child in children:
            _ask(child)
        os._exit(code)

    with Interrupts(hard_exit=exit_at_once):
        try:
            yield children
        except BaseException:
            _end(children, grace_s)
            raise


def _ask(child: Child) -> None:
    """By SIGTERM: pytest passes that on to its workers, Ctrl-C it does not."""
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGTERM)


def _end(children: Sequence[Child], grace_s: float) -> None:
    deadline_s = time.monotonic() + grace_s
    for child in children:
        _ask(child)
    for child in children:
        try:
            child.communicate(timeout=max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            sys.stderr.write(
                f"process {child.pid} did not end within {grace_s:g} s and was killed;"
                " run `chaos recover`\n"
            )
