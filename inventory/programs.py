"""How a host's Python is started, and how to tell that it was not.

The exit code alone does not say it: sudo, env and the login shell have their own, and
the program may end with the same. What they print is fixed by `LC_ALL=C`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from inventory.errors import SshError, SshProblem, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inventory.schema import HostEntry

_NO_SUDO = re.compile(
    r"^env: .?sudo.?: |^sudo: (?!.*command not found)"
    r"|^sorry, user .* (?:not allowed|may not)|is not in the sudoers file"
    r"|sudo: (?:command )?not found",
    re.IGNORECASE | re.MULTILINE,
)
_NO_PROGRAM = re.compile(
    r"^(?:env|sudo): .*(?:No such file or directory|command not found"
    r"|Permission denied|Not a directory)",
    re.MULTILINE,
)


def python_argv(entry: HostEntry, args: Sequence[str]) -> list[str]:
    """The inventory's interpreter with these arguments, as root where it has sudo."""
    return ["env", "LC_ALL=C", *entry.elevated([entry.python, *args])]


def not_started(entry: HostEntry, rc: int, stderr: str) -> SshError | None:
    """Why a command of `python_argv` never ran; None when it seems to have run."""
    if entry.sudo and rc in (1, 126, 127) and _NO_SUDO.search(stderr):
        return _error(
            SshProblem.NO_SUDO,
            entry,
            f"sudo does not start anything for it ({_last_line(stderr)})",
            "allow the user passwordless sudo, or set ansible_become: false",
        )
    if rc in (1, 126, 127) and _NO_PROGRAM.search(stderr):
        return _error(
            SshProblem.NO_PYTHON,
            entry,
            f"has no {entry.python} ({_last_line(stderr)})",
            "install Python 3, or set ansible_python_interpreter to where it is",
        )
    return None


def _error(kind: SshProblem, entry: HostEntry, detail: str, fix: str) -> SshError:
    return SshError(kind, host=entry.name, detail=detail, fix=fix, phase="the command")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return shown(lines[-1]) if lines else "no reason given"
