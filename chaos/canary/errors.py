"""What can be wrong with what the gate is asked, on top of `chaos.errors`.

    UsageError                     exit 2
    ├── PolicyError                a policy file cannot be used; each line has a place
    └── FloorError                 a noise floor file cannot be used

A measurement that cannot be judged is no error: it is INCONCLUSIVE, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


class PolicyError(UsageError):
    """A gate policy cannot be used; `lines` name file, line, field, value, remedy."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        super().__init__(f"{self.lines[0]}{more}")


class FloorError(UsageError):
    """A noise floor file is missing, no JSON, or of another schema."""
