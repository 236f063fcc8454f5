"""A secret out of a file or the environment that shows in no text by accident."""

from __future__ import annotations

import hmac
import os
import stat
from typing import TYPE_CHECKING, Final, NoReturn

from refimpl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_BYTES: Final = 16
MOST_BYTES: Final = 4096
_MAKE: Final = "write e.g. the output of `openssl rand -hex 32` there"


class Secret:
    """Bytes that `repr`, `str` and format strings do not tell."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The bytes themselves, for the one place that needs them."""
        return self._value

    def __repr__(self) -> str:
        return "<secret>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(
            self._value, other._value
        )

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


def read_secret(
    *, file: str, flag: str, environ: Mapping[str, str], variable: str
) -> Secret | None:
    """The secret of the file when one is named, else of the variable, else None.

    Args:
        file: path, "" for none; wins over the variable.
        flag: by which the file is named, for messages.
        environ: usually `os.environ`.
        variable: name of the variable that holds the secret itself.

    Raises:
        UsageError: the file cannot be used, or the secret is too short or too long.
    """
    if file:
        where, value = f"{flag} {file!r}", read_guarded_file(file, flag).rstrip(b"\r\n")
    elif variable in environ:
        where = f"environment {variable}"
        value = environ[variable].encode("utf-8", "surrogateescape")
    else:
        return None
    if not LEAST_BYTES <= len(value) <= MOST_BYTES:
        raise UsageError(
            f"{where}: a secret has {LEAST_BYTES} to {MOST_BYTES} characters, "
            f"not {len(value)}; {_MAKE}"
        )
    return Secret(value)


def read_guarded_file(path: str, flag: str, *, most: int = MOST_BYTES + 2) -> bytes:
    """The bytes of a plain file that is closed to other users of the host.

    Raises:
        UsageError: one line with the file, what is wrong, and the remedy.
    """

    def refuse(problem: str, remedy: str) -> UsageError:
        return UsageError(f"{flag} {path!r}: {problem}; {remedy}")

    try:
        # Path.open takes no opener.
        with open(path, "rb", opener=_without_waiting) as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise refuse("is not a plain file", "name a plain file")
            if mode & stat.S_IRWXO:
                open_to = f"is open to every user (mode {stat.S_IMODE(mode):04o})"
                raise refuse(open_to, "chmod 600 it")
            data = opened.read(most + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise refuse(f"cannot be read ({why})", "check path and owner") from error
    if len(data) > most:
        raise refuse(f"has more than {most} bytes", "is it the right file?")
    return data


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe would wait for its writer else."""
    return os.open(path, flags | os.O_NONBLOCK)
