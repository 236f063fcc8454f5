"""What a checker may find, by kind: each is a promise that was broken."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique


@unique
class Kind(Enum):
    """The kinds of findings; the names stand in files and reports."""

    ZEROS = "zeros"
    """A good read gave zeros that nobody had written."""
    OTHER_KEY = "other-key"
    """A good read gave the value of another key."""
    TORN = "torn"
    """A good read gave a value that is not whole."""
    FOREIGN = "foreign"
    """A good read gave bytes that are no value at all."""
    UNWRITTEN = "unwritten"
    """A good read gave a value, or a key was said to exist, that nobody had written."""
    RESURRECTED = "resurrected"
    """A value that was removed came back."""
    STALE = "stale"
    """A value came back after another one had taken its place."""
    FLAP = "flap"
    """A key was not there and then there again, though nobody wrote it."""
    ACK_LOSS = "ack-loss"
    """A write was acknowledged and is gone, though nothing that held it failed."""
    UNREADABLE = "unreadable"
    """An acknowledged write is there, all is healthy, and it cannot be read."""
    UNFINISHED = "unfinished"
    """A write was acknowledged beside another one of its key that nobody was told the
    end of; no value of the key was ever seen, and it is gone, or cannot be read."""
    REMOVED_LATE = "removed-late"
    """A write was acknowledged right after a removal of its key, and no value of it was
    ever seen: the removal took the key after all."""
    LATE_READ = "late-read"
    """A read was good though its lease was over long before its end."""
    STALE_END = "stale-end"
    """A write that another one had replaced was declared complete, with success."""


WRONG_BYTES = frozenset(
    {Kind.ZEROS, Kind.OTHER_KEY, Kind.TORN, Kind.FOREIGN, Kind.UNWRITTEN}
)
"""The kinds that a reader notices, if ever, by garbage in its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken promise: the key, the steps that show it, and why, in words."""

    kind: Kind
    key: str
    why: str
    steps: tuple[int, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(str(step) for step in self.steps)
        return f"{self.kind.value}: {self.key}: {self.why} (steps {shown})"
