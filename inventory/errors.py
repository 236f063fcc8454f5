"""What can go wrong between an inventory file and a command on a host, as one tree.

    InventoryError      the file, or what was asked of it, is wrong     exit 2
    SshError            a host could not be reached, or was lost; `kind` says how

The messages are one line each and end with the remedy. Values pass `redact` before
they are shown: a file that is wrong may hold a password.
"""

from __future__ import annotations

import enum
from typing import ClassVar

from inventory.redact import redact

SHOWN = 120
"""Characters of a value or of a peer's words that a message repeats at most."""


class InventoryError(Exception):
    """The operator's inventory cannot be used as it is; the message has the fix.

    Fields that mean nothing here are empty (`line` is 0, `value` None).
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self,
        problem: str,
        *,
        fix: str,
        file: str = "",
        line: int = 0,
        host: str = "",
        field: str = "",
        value: object = None,
    ) -> None:
        self.problem = problem
        self.fix = fix
        self.file = file
        self.line = line
        self.host = host
        self.field = field
        self.value = None if value is None else shown(value)
        super().__init__(self._message())

    def _message(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        host = f"host {self.host}" if self.host else ""
        value = f" = {self.value}" if self.value is not None else ""
        field = f"{self.field}{value}" if self.field else ""
        head = ": ".join(part for part in (place, host, field, self.problem) if part)
        return f"{head}; {self.fix}" if self.fix else head


def shown(value: object) -> str:
    """A value as a message may show it: one line, short, without secrets."""
    text = " ".join(redact(repr(value)).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


class SshProblem(enum.StrEnum):
    """How a host failed us; the report names exactly this."""

    UNREACHABLE = "unreachable"
    """No name, no route: nothing was ever sent to the host."""
    REFUSED = "refused"
    """The machine answers, and nobody listens on the port."""
    HOST_KEY = "host_key"
    """The key is unknown, revoked or not the one we know; see `SshError.detail`."""
    AUTH = "auth"
    """The host is the right one and does not let us in."""
    TIMEOUT = "timeout"
    """The deadline passed; see `SshError.phase` for what was waited for."""
    LOST = "lost"
    """The connection ended before the answer was whole."""
    NO_PYTHON = "no_python"
    """The interpreter that the inventory names is not there."""
    NO_SUDO = "no_sudo"
    """sudo is missing, wants a password or forbids the command."""
    GARBAGE = "garbage"
    """What came is not SSH, or not what a host may send (too much, malformed)."""


class SshError(Exception):
    """A host could not be reached, or was lost while it worked.

    `maybe_ran` is what matters for a command that changes something: False means it
    was certainly not started, True that it may have been (and may still run), so that
    the caller must read the host's state before doing anything again. Nothing here
    ever sends a command twice.
    """

    def __init__(
        self,
        kind: SshProblem,
        *,
        host: str,
        detail: str,
        fix: str = "",
        phase: str = "",
        maybe_ran: bool = False,
    ) -> None:
        self.kind = kind
        self.host = host
        self.detail = detail
        self.fix = fix
        self.phase = phase
        self.maybe_ran = maybe_ran
        super().__init__(f"{host}: {detail}" + (f"; {fix}" if fix else ""))
