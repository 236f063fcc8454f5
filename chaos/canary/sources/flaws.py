"""What is wrong with a measurement, gathered: the first of each kind, and how many."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_KINDS = 32


@dataclass(slots=True)
class Flaws:
    """One line a kind of flaw, whatever the number of rows that have it."""

    _first: dict[str, str] = field(default_factory=dict)
    _count: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, told: str) -> None:
        """A flaw; `kind` groups those that need one line together."""
        if kind not in self._first and len(self._first) >= MOST_KINDS:
            kind, told = "more", "there are flaws of further kinds"
        self._first.setdefault(kind, told)
        self._count[kind] = self._count.get(kind, 0) + 1

    def told(self) -> tuple[str, ...]:
        """The lines, in order of appearance."""
        return tuple(
            first
            + (f" (and {self._count[kind] - 1} more)" if self._count[kind] > 1 else "")
            for kind, first in self._first.items()
        )

    def __bool__(self) -> bool:
        return bool(self._first)
