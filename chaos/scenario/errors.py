"""What is wrong with a scenario file: where, which field, which value, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_VALUE = 80
Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong; `location` is the path of the field in the file."""

    location: Location
    what: str
    fix: str = ""
    value: object = None

    @property
    def field(self) -> str:
        """The path as people write it: `timeline[2].target`."""
        text = ""
        for part in self.location:
            text += f"[{part}]" if isinstance(part, int) else f".{part}"
        return text.removeprefix(".") or "the file"

    def told(self, file: str, line: int) -> str:
        """One line with everything that is needed to mend it."""
        shown = "" if self.value is None else f" {_shown(self.value)}"
        fix = f"; {self.fix}" if self.fix else ""
        return f"{file}:{line}: {self.field}:{shown} {self.what}{fix}"


class ScenarioError(UsageError):
    """A scenario file cannot be played; every line names a place and its remedy."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        super().__init__(f"{self.lines[0]}{more}")


def _shown(value: object) -> str:
    """A value in one short line; long and nested ones are cut."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."
