"""Sources that a rule can do without, as long as nobody looked or there is none.

A source that was cut off, denied or broken is another matter: what it would have said
may contradict the rest, so its refusal stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from checks.facts import Unread

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
NOWHERE = frozenset({"missing", "absent", "no tool"})
UNREADABLE = NOWHERE | {"denied", "failed", "errno"}


def optional(read: Callable[[], T], without: frozenset[str] = NOWHERE) -> T | None:
    """What was read; None for refusals of these kinds."""
    try:
        return read()
    except Unread as error:
        if error.kind in without:
            return None
        raise
