"""How a host's Python is started, and how to tell that it was not.

The exit code alone does not say it: sudo, env and the login shell have their own, and
the program may end with the same. What they print last is fixed by `LC_ALL=C`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from inventory.errors import SshError, SshProblem, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inventory.schema import HostEntry

_NO_SUDO = re.compile(
    r"(?:env: .?sudo.?: |sudo: (?!.*command not found)"
    r"|sorry, user .* (?:not allowed|may not)|.* is not in the sudoers file)",
    re.IGNORECASE,
)
_NO_PROGRAM = re.compile(
    r"(?:env|sudo): .*(?:No such file or directory|command not found"
    r"|Permission denied|Not a directory)"
)
_CODES = (1, 126, 127)
"""What env and sudo end with when they started nothing."""


def python_argv(entry: HostEntry, args: Sequence[str]) -> list[str]:
    """The inventory's interpreter with these arguments, as root where it has sudo."""
    return ["env", "LC_ALL=C", *entry.elevated([entry.python, *args])]


def not_started(entry: HostEntry, rc: int, stderr: str) -> SshError | None:
    """Why a command of `python_argv` never ran; None when it seems to have run."""
    lines = stderr.strip().splitlines()
    last = lines[-1] if lines and rc in _CODES else ""
    if entry.sudo and _NO_SUDO.match(last):
        return _error(
            SshProblem.NO_SUDO,
            entry,
            f"sudo does not start anything for it ({shown(last)})",
            "allow the user passwordless sudo, or set ansible_become: false",
        )
    if _NO_PROGRAM.match(last) and entry.python in last:
        return _error(
            SshProblem.NO_PYTHON,
            entry,
            f"has no {entry.python} ({shown(last)})",
            "install Python 3, or set ansible_python_interpreter to where it is",
        )
    return None


def _error(kind: SshProblem, entry: HostEntry, detail: str, fix: str) -> SshError:
    return SshError(kind, host=entry.name, detail=detail, fix=fix, phase="the command")
