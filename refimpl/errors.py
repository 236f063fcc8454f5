"""What can go wrong for the operator of a role, as one tree.

```
RefimplError
  UsageError            the operator asked for something that cannot be: exit 2
    SettingError        one value of one setting is bad; names source and remedy
    PortTaken           the address to listen on belongs to somebody else
```
Failures of the system under test are codes (`refimpl.core.codes`), never exceptions.
"""

from __future__ import annotations

from typing import Final

_SHOWN: Final = 120
"""Characters of a value that a message repeats."""


def shown(value: object) -> str:
    """A value as a message repeats it: quoted, in one line, cut when it is long."""
    text = repr(value)
    return (
        text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
    )


class RefimplError(Exception):
    """Root of everything that a role raises on purpose."""

    exit_code = 1


class UsageError(RefimplError):
    """The operator asked wrongly; the message is one line that says what to do."""

    exit_code = 2


class SettingError(UsageError):
    """A setting has a value that it cannot have.

    Args:
        source: where it was read, "flag --x", "environment X" or "file F, [s] x".
        value: what stood there.
        problem: what is wrong with it.
        remedy: what to write instead.
    """

    def __init__(
        self, *, source: str, value: object, problem: str, remedy: str
    ) -> None:
        super().__init__(f"{source}: {shown(value)} {problem}; {remedy}")
        self.source = source
        self.value = value
        self.problem = problem
        self.remedy = remedy


class PortTaken(UsageError):
    """Another process listens there (or the address is not ours): choose another."""

    def __init__(self, *, what: str, address: str, reason: str = "") -> None:
        because = f" ({reason})" if reason else ""
        super().__init__(
            f"cannot listen on {address} for {what}{because}; free the port or "
            "choose another address (port 0 takes any free one)"
        )
        self.what = what
        self.address = address
        self.reason = reason
