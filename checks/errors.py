"""What can go wrong in `preflight` itself, as one tree.

    PreflightError
    ├── UsageError       the operator asked wrongly, or a file cannot be used   exit 2
    └── OwnFault         our own code contradicts itself                        exit 4

A node that is ill is no exception: that is a finding. A fact that could not be read is
`checks.facts.Unread`: the engine turns it into UNKNOWN, it never leaves a judgement.
"""

from __future__ import annotations

from typing import ClassVar


class PreflightError(Exception):
    """Anything `preflight` raises on purpose; caught at the edge of the command."""

    exit_code: ClassVar[int] = 4


class UsageError(PreflightError):
    """The operator asked for something that cannot be done; the message has the fix."""

    exit_code = 2

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(f"{problem}; {fix}" if fix else problem)
        self.problem = problem
        self.fix = fix


class OwnFault(PreflightError):
    """Two parts of `preflight` disagree: a bug of ours, please report it."""
